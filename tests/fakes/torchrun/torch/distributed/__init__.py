"""Holds `run`."""
