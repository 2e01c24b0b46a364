"""Where a job's words go: to the node agent over its socket, or to a local log."""
