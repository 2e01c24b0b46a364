"""Checkpoints as files: layers, their commit, finding and verifying them."""
