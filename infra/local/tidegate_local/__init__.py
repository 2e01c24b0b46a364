"""The one-machine stack: a real bus and every service as its own process, on loopback, supervised."""
