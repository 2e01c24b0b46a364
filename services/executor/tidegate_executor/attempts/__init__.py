"""One attempt of a job's member on this node, as a pure state machine: state, what changes it, what to do next."""
