"""Images as the rest of the world has them: read, checked, converted layer by layer, and mounted without copying."""
