"""The version of this package, as it stands in its pyproject.toml (a test compares them)."""

VERSION = "0.1.0"
