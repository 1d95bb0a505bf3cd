"""What was edited or made on a cluster's nodes outside of any run, brought home before they go.

It asks programs, not agents: where a lease has ended a node, its files may still be there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpuops.agentclient import Programs
from gpuops.cluster import machines_of, programs_of
from gpuops.errors import GpuopsError, NodeRefused
from gpuops.ledger import ClusterRow
from gpuops.models import Resource
from gpuops.progress import Progress
from gpuops.results import RunHome
from gpuops.results.folder import OutFolder
from gpuops.results.home import keep_from_git, local_errors
from gpuops.results.leftover import Left, left, save, sentence
from gpuops.results.memory import Held
from gpuops.world import World

TREE = "project"


def save_left(world: World, row: ClusterRow, progress: Progress) -> Iterator[str]:
    """Save it in `runs/<cluster>-left/node<i>/` of the cluster's folder; yields a sentence per node that had some.

    What the cluster's runs were told to leave (`--out '!GLOB'`) is left. Every node is tried; then the first
    error is raised: NodeError, LocalDisk.
    """
    failed: GpuopsError | None = None
    for index, machine in enumerate(machines_of(world, row)):
        try:
            said = _save_one(world, row, machine, index, progress)
        except GpuopsError as error:
            failed = failed or error
            continue
        if said:
            yield said
    if failed is not None:
        raise failed


def _save_one(world: World, row: ClusterRow, machine: Resource, index: int, progress: Progress) -> str:
    programs = programs_of(row, machine, index)
    try:
        with progress.during(f"looking for what was edited or made on node{index}"):
            found = _unsaved(world, row, index, programs)
        if not found:
            return ""
        target = row.folder / "runs" / f"{row.name}-left" / f"node{index}"
        with local_errors(target):
            keep_from_git(target.parent)
        with progress.during(f"saving what was edited or made on node{index}: {sentence(found)}"):
            renamed = "".join(f"; {name} is {path}" for path, name in save(programs, TREE, found, target).items())
        return f"edited or made on node{index}, saved in {target}: {sentence(found)}{renamed}"
    finally:
        programs.connection.close()


def _unsaved(world: World, row: ClusterRow, index: int, programs: Programs) -> list[Left]:
    runs = world.ledger.runs(cluster=row.id)
    given_up = [one for run in runs for one in run.request.get("outs") or () if one.startswith("!")]
    try:
        found = left({index: programs}, given_up, tree=TREE)
    except NodeRefused as refusal:
        if refusal.kind == "no-node":
            return []
        raise
    held = [OutFolder(RunHome(run.home)).memory().held for run in runs]
    return [one for one in found if not any(_is_home(one, memory) for memory in held)]


def _is_home(one: Left, held: Mapping[str, Mapping[int, Held]]) -> bool:
    """Whether a run of this cluster brought home just this version of the file."""
    arrived = held.get(one.path, {}).get(one.node)
    return arrived is not None and arrived.stamp == (one.size, one.mtime_ns)
