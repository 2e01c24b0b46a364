"""The telemetry feed: the port, the JetStream one, and one in memory."""
