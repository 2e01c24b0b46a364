"""The contract between Tidegate's services: events, frames, the journal port, subjects, clock and traces."""
