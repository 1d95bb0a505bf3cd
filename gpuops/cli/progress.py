"""Which progress fits where we print: a bar for a person at a terminal, lines for everything else."""

from __future__ import annotations

from gpuops.progress import Progress, progress_on
from gpuops.world import World


def progress_for(world: World) -> Progress:
    return progress_on(world.out.err, world.env, world.out.say)
