"""What the members of a gang do at one moment, also on several nodes: begin, and stop at one call."""
