"""The node's side of gpuops: watchdog and agent. Imports nothing but the standard library."""
