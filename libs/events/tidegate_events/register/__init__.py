"""Registers, the newest value of each key with compare-and-set: a port (`base`), on JetStream and in memory."""
