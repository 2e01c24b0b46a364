"""The journal: a port (`base`), and its adapters for NATS JetStream and for memory."""
