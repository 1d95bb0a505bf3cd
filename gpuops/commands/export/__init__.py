"""`export`: a launch as a script for a scheduler, or as lines to type. Nothing is contacted, nothing is created.

- `job`: the launch as one typed value, and what cannot be exported.
- `shell`: the parts of a script that all targets share: environment, preludes, network interface, torchrun line.
- `batch`: what the scripts of Slurm and PBS have in common.
- `torchrun`, `slurm`, `pbs`, `kubernetes`: one target each, from that value to text.
- `targets`: which targets there are, and which options each takes.
"""
