"""The background process that finishes what a dead command left."""
