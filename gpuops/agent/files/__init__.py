"""Trees of files in and out of this node."""
