"""gpuops: a PyTorch script to N rented GPU nodes and everything home, with one command."""

__version__ = "0.1.0"
