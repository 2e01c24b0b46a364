"""The HTTP face of the gateway; shapes are in docs/reference/http-api.md."""
