"""A machine becomes a node, and is talked to."""
