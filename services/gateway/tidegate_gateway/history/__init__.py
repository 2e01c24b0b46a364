"""Reading events back: what is asked for, and where it is read from (the journal, a job's kept timeline)."""
