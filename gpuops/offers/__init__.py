"""What to rent, for how much, and for how long."""
