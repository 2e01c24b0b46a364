"""Questions to other services: a port (`base`), and its adapters for the bus and for memory."""
