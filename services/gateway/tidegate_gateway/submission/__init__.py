"""From the bytes of a request to an accepted job specification, or to the full list of what is wrong with them."""
