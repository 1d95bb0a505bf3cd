"""What was edited or made on a cluster's nodes outside of any run, brought home before they go.

It asks programs, not agents: where a lease has ended a node, its files may still be there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, count
from pathlib import Path

from gpuops.core.context import World
from gpuops.core.errors import GpuopsError, NodeError, NodeRefused
from gpuops.core.models import Resource
from gpuops.core.progress import Progress
from gpuops.core.safe_folder import SafeFolder, local_errors
from gpuops.ledger.store import ClusterRow
from gpuops.nodes.session import has_gone, nodes_of, programs_of
from gpuops.sync import RunHome
from gpuops.sync.leftovers import Left, at_home, left, save, sentence
from gpuops.sync.memory import Held
from gpuops.sync.outputs import MEMORY, OutFolder
from gpuops.sync.run_folder import keep_from_git, read_json
from gpuops.transport.rpc import Programs

TREE = "project"


def save_left(world: World, row: ClusterRow, progress: Progress) -> Iterator[str]:
    """Save it in `runs/<cluster>-left/node<i>/` of the cluster's folder; yields a sentence per node that had some.
    Where an earlier cluster of that name left something, it is `<cluster>-left-2`, and so on.

    What the cluster's runs were told to leave (`--out '!GLOB'`) is left. Every node is tried; then the first
    error is raised: NodeError, LocalDisk. A rented machine that is no more keeps the others from nothing.
    """
    failed: GpuopsError | None = None
    gone: dict[int, GpuopsError] = {}
    nodes = nodes_of(world, row)
    for index, machine in enumerate(nodes):
        try:
            said = save_one(world, row, machine, index, progress)
        except GpuopsError as error:
            if isinstance(error, NodeError) and has_gone(world, row, machine):
                gone[index] = error
            else:
                failed = failed or error
            continue
        if said:
            yield said
    if failed is None and len(gone) == len(nodes) and gone:
        failed = gone[min(gone)]
    if failed is not None:
        raise failed
    for index in gone:
        yield f"node{index} has ended: what was edited or made there outside of runs is gone with it"


def save_one(world: World, row: ClusterRow, machine: Resource, index: int, progress: Progress) -> str:
    """The same of one node; a sentence, empty where it had nothing. Raises NodeError, LocalDisk."""
    programs = programs_of(row, machine, index)
    try:
        with progress.during(f"looking for what was edited or made on node{index}"):
            found = _unsaved(world, row, index, programs)
            home = at_home(programs, TREE, found, SafeFolder(row.folder))  # `gpuops pull --edits` may have brought it
            found = [one for one in found if one not in home]
        if not found:
            return ""
        target = _folder(row).below(f"node{index}")
        with progress.during(f"saving what was edited or made on node{index}: {sentence(found)}"):
            saved = save(programs, TREE, found, target)
        if saved.missing:
            raise NodeError(
                f"node{index} does not give {sentence(saved.missing)}; what else was edited or made is in "
                f"{target.path}",
                "make it readable for the login on the node, or remove it there",
            )
        renamed = "".join(f"; {name} is {path}" for path, name in saved.renamed.items())
        return f"edited or made on node{index}, saved in {target.path}: {sentence(found)}{renamed}"
    finally:
        programs.connection.close()


def _folder(row: ClusterRow) -> SafeFolder:
    """The folder for what is saved from a cluster: the same at each try, and no other cluster's of that name."""
    first = row.folder / "runs" / f"{row.name}-left"
    with local_errors(first):
        more = (first.with_name(f"{first.name}-{number}") for number in count(2))
        folder = keep_from_git(next(path for path in chain([first], more) if _is_its(path, row)))
        folder.write_json(MEMORY, {"schema": 1, "cluster": row.token})
    return folder


def _is_its(path: Path, row: ClusterRow) -> bool:
    return read_json(path / MEMORY).get("cluster") == row.token or not any(path.glob("[!.]*"))


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
