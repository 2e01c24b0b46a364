"""End to end: a package, so that a stack may live as long as its tests run."""
