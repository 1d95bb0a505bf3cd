"""Which Python runs things on this node, and environments made for a project."""
