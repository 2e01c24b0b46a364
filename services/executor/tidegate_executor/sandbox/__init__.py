"""Sandboxes: one port (`base`), its backends, and the shim process that outlives the agent."""
