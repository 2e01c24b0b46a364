"""Limits by control groups: one port (`base`), a driver per kernel interface, and detection by trying."""
