"""What a run is given: the reference workloads that come with gpuops, and the data that `--data` names.

The workloads lie in `train/` beside the package in a checkout, and in `gpuops/train/` in an installed wheel (a
top-level `train` would shadow users' own). The folder is pushed whole; nothing in it is imported. Data are pushed once
per machine, each path into a tree of its own, to which the other nodes of the machine have a link.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from gpuops.core.context import Context
from gpuops.core.errors import UsageError
from gpuops.core.models import DATA
from gpuops.core.names import did_you_mean
from gpuops.core.provider import has_capability
from gpuops.core.run_models import RunRequest
from gpuops.core.timings import Whose
from gpuops.nodes.python import group_by_machine
from gpuops.nodes.session import ClusterSession
from gpuops.sync import upload
from gpuops.sync.project_files import FileEntry, printable_path
from gpuops.sync.uplink import Uplink
from gpuops.transport.rpc import AgentClient


class Workload(NamedTuple):
    """What is known of a program before it is pushed."""

    line: str
    """Its description for people."""
    reads: bool = False
    """Whether it reads data that do not come with it: from `--data`, or else downloaded."""


WORKLOADS = {
    "toy": Workload("a linear layer on 2,048 random samples: one line per rank and epoch"),
    "digits": Workload("reads handwritten digits, which come along, in seconds (the default)"),
    "mnist": Workload("a small convolutional network on MNIST (12 MB to download)", reads=True),
    "cifar10": Workload("ResNet-18 on CIFAR-10 (170 MB to download)", reads=True),
    "movielens": Workload("a recommender on MovieLens small (1 MB to download)", reads=True),
}
"""By name, in the order of a course."""

DEFAULT_WORKLOAD = "digits"
"""What `train` runs when no script is named."""


def workload_names() -> list[str]:
    """The names that `--workload` accepts, in the order in which they are shown."""
    return list(WORKLOADS)


def workloads_folder(package: Path = Path(__file__).parents[1]) -> Path:
    """The folder to push, given where the package `gpuops` lies. Raises UsageError when it is missing."""
    for candidate in (package / "train", package.parent / "train"):
        if all((candidate / workload_script(name)).is_file() for name in workload_names()):
            return candidate
    raise UsageError("this installation of gpuops lacks its workloads", "install gpuops again, or name a script")


def workload_script(name: str) -> str:
    """The program's path relative to `workloads_folder()`. Raises UsageError for an unknown name."""
    if name not in WORKLOADS:
        suggestion = did_you_mean(name, workload_names())
        raise UsageError(
            f"there is no workload named '{name}'" + (suggestion and f"; {suggestion}"),
            f"choose one of: {', '.join(workload_names())}",
        )
    return f"{name}.py"


HEX_TO_LETTERS = str.maketrans("0123456789abcdef", "abcdefghijklmnop")
"""A tree's name has letters alone."""


def push_data(
    ctx: Context, session: ClusterSession, request: RunRequest, *, allow: Sequence[str], overwrite: bool, line: Uplink
) -> dict[int, str]:
    """Push what `--data` names to the nodes of a run, and print where they keep what a workload downloads.

    Returns node to path of the data, for an absolute `--data`; a relative one is a link in the project. Raises as
    `upload.push_many`.
    """
    if sentence := describe_downloads(ctx, session, request):
        ctx.out.say(sentence)
    if not request.data or has_capability(ctx.provisioner(session.row.provider), "shares_disk"):
        return {}
    with ctx.progress.during("looking through the data"):
        tree = scan_data(ctx, request.data, allow)
    first, *more = upload.summary(tree)
    for sentence in (f"data: {first}{describe_origin(ctx, request.data, allow)}", *more):
        ctx.out.say(sentence)
    with ctx.progress.during("comparing the data with what the nodes have", whose=Whose.NODE):
        places = _push_to_machines(
            ctx, session, request.nodes, absolute_path(ctx.folder, request.data), tree, overwrite, line
        )
    return places if Path(request.data).is_absolute() else {}


def absolute_path(folder: Path, data: str) -> Path:
    return (folder / data).absolute()


def scan_project(ctx: Context, folder: Path, allow: Sequence[str]) -> upload.Tree:
    """Scan what a push of the project sends; slow, since each new file is searched for keys. Raises UsageError."""
    with ctx.progress.during("looking for keys in what would be sent", aside=True):
        return upload.scan(folder, ctx.home / "cache", allow)


def scan_data(ctx: Context, data: str, allow: Sequence[str]) -> upload.Tree:
    """Scan what `--data` sends. Raises UsageError."""
    return upload.scan_data(absolute_path(ctx.folder, data), ctx.home / "cache" / "data", allow, ctx.folder)


def describe_origin(ctx: Context, data: str, allow: Sequence[str]) -> str:
    """The sentence part on where links of the data lead; empty without links."""
    full = absolute_path(ctx.folder, data)
    places = [full.resolve()] * full.is_symlink() + upload.allowed_places(allow)
    return f", from {' and '.join(printable_path(str(place)) for place in places)}" if places else ""


def tree_name(full: Path) -> str:
    """The name of the tree for the data at this path."""
    return "data" + hashlib.sha256(os.fsencode(full)).hexdigest()[:8].translate(HEX_TO_LETTERS)


def _push_to_machines(
    ctx: Context,
    session: ClusterSession,
    nodes: int,
    full: Path,
    tree: upload.Tree,
    overwrite: bool,
    line: Uplink,
) -> dict[int, str]:
    name = tree_name(full)

    def push_to(indices: Sequence[int], content: upload.Tree) -> None:
        clients: list[AgentClient] = [session.clients[index] for index in indices]
        upload.push_many(clients, name, content, overwrite=overwrite, progress=ctx.progress, uplink=line)

    groups = group_by_machine(session, range(nodes))
    push_to([first for first, *_ in groups], tree)
    for first, *others in groups:
        if others:
            link = FileEntry(full.name, 0, 0, 0o777, f"../../n{first}/{name}/{full.name}")
            push_to(others, dataclasses.replace(tree, files=[link]))
    return {index: f"{session.hello(index).folder}/{name}/{full.name}" for index in range(nodes)}


def link_data(tree: upload.Tree, folder: Path, data: Path, *, shared: bool) -> upload.Tree:
    """The project's tree with data that lie in the project replaced by a link: to the original on nodes on this
    computer (`shared`), else to the data's own tree on the node."""
    full = (folder / data).absolute()
    if not full.is_relative_to(folder):
        return tree
    relative = full.relative_to(folder).as_posix()
    others = [entry for entry in tree.files if entry.path != relative and not entry.path.startswith(relative + "/")]
    up = "../" * (relative.count("/") + 1)
    target = str(full) if shared else f"{up}{tree_name(full)}/{full.name}"
    return dataclasses.replace(tree, files=[*others, FileEntry(relative, 0, 0, 0o777, target)])


def describe_downloads(ctx: Context, session: ClusterSession, request: RunRequest) -> str:
    """The sentence on where a workload keeps what it downloads; empty where it downloads nothing."""
    here = has_capability(ctx.provisioner(session.row.provider), "shares_disk")
    is_named = request.data or DATA in request.env or "--data" in request.argv or (here and DATA in ctx.env)
    if is_named or not request.workload or not WORKLOADS[request.workload].reads:
        return ""
    root = session.hello(0).folder.rsplit("/", 2)[0]
    how_long = "for later runs" if here else "on each machine until its last node ends"
    return f"data: kept in {root}/data/{request.workload} {how_long}; what is missing there is downloaded once"
