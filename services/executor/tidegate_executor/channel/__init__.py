"""The agent's end of the socket that each sandbox has."""
