"""The SQLite record of what was intended, and of what is."""
