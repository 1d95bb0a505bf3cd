"""Read by the agent, which imports no torch to learn its version."""

__version__ = "2.13.0"
cuda = None
