"""Sampling: what the node, its sandboxes and the training processes use, once or every two seconds, for telemetry."""
