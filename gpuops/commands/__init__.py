"""One module for each command that needs clusters and runs."""
