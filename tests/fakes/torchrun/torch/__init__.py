"""Stands in for torch where a test is about who starts, stops and reports, not about learning: only torchrun is in it.

A shell whose PYTHONPATH begins with this package's parent folder launches by it; importing torch takes a second and a
half of a core for each node, and this a tenth.
"""
