"""One run on this node: started, watched, stopped, and its result written."""
