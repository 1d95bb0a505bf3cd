"""This node's addresses, and whether the other nodes reach them."""
