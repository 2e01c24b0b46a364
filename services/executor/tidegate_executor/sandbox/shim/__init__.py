"""The shim: one small process per sandbox that outlives the agent. Standard library only."""
