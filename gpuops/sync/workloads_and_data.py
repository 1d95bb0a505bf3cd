"""What a run is given: the reference workloads that come with gpuops, and the data that `--data` names.

The workloads lie in `train/` beside the package in a checkout, and in `gpuops/train/` in an installed wheel (a
top-level `train` would shadow users' own). The folder is pushed whole; nothing in it is imported. Data are pushed, or
fetched by the node, once per machine (of an address: once per cluster), each into a tree of its own, to which the other
nodes of the machine have a link.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import posixpath
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from gpuops.core.context import Context
from gpuops.core.data_address import BucketData, NodeData, WebData, is_address, parse_address
from gpuops.core.errors import ConnectionLost, UsageError
from gpuops.core.models import DATA
from gpuops.core.names import did_you_mean
from gpuops.core.parallel import BackgroundTask, on_each
from gpuops.core.provider import has_capability
from gpuops.core.run_models import RunRequest
from gpuops.core.timings import Whose
from gpuops.nodes.python import group_by_machine
from gpuops.nodes.session import ClusterSession
from gpuops.sync import fetch_data, scan, upload
from gpuops.sync.data_sources import Source, find_source
from gpuops.sync.project_files import FileEntry, printable_path
from gpuops.sync.sinks import AWS
from gpuops.sync.uplink import Uplink
from gpuops.transport.rpc import AgentClient


class Workload(NamedTuple):
    """What is known of a program before it is pushed."""

    line: str
    """Its description for people."""
    reads: bool = False
    """Whether it reads data that do not come with it: from `--data`, or else downloaded."""


WORKLOADS = {
    "first": Workload("reads handwritten digits: data-parallel training in one file of plain torch, to learn it from"),
    "toy": Workload("a linear layer on 2,048 random samples: one line per rank and epoch"),
    "digits": Workload("reads handwritten digits, which come along, in seconds (the default)"),
    "mnist": Workload("a small convolutional network on MNIST (12 MB to download)", reads=True),
    "cifar10": Workload("ResNet-18 on CIFAR-10 (170 MB to download)", reads=True),
    "movielens": Workload("a recommender on MovieLens small (1 MB to download)", reads=True),
    "gpt": Workload("a GPT that writes like Shakespeare, its weights sharded by FSDP; the text comes along"),
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


LOOK_TIMEOUT_S = 60.0
"""How long a node may take to say whether it has a path."""
HEX_TO_LETTERS = str.maketrans("0123456789abcdef", "abcdefghijklmnop")
"""A tree's name has letters alone."""


def provide_data(
    ctx: Context, session: ClusterSession, request: RunRequest, *, allow: Sequence[str], overwrite: bool, line: Uplink
) -> dict[int, str]:
    """Bring what `--data` names to the nodes of a run, and print where they keep what a workload downloads.

    Returns node to path of the data; empty where they lie in the project, to which nodes have a link. Raises as
    `upload.push_many` and `fetch_data.fetch_to`.
    """
    if sentence := describe_downloads(ctx, session, request):
        ctx.out.say(sentence)
    match parse_address(request.data or ""):
        case NodeData(path):
            return _find_on_nodes(session, request.nodes, path)
        case BucketData() | WebData() as address:
            return _fetch_data(ctx, session, request, address, overwrite=overwrite)
    data = local_data(ctx, session.row.provider, request)
    return _push_data(ctx, session, request.nodes, data, allow, overwrite=overwrite, line=line) if data else {}


def local_data(ctx: Context, provider: str, request: RunRequest) -> str | None:
    """The path in `--data` that is sent to the nodes; None where there is none, and where they read it here."""
    if not request.data or is_address(request.data) or has_capability(ctx.provisioner(provider), "shares_disk"):
        return None
    return request.data


def find_data_source(ctx: Context, request: RunRequest) -> Source | None:
    """What nodes would fetch; None where they fetch nothing. Raises UsageError, ProviderError."""
    address = parse_address(request.data or "")
    return None if address is None or isinstance(address, NodeData) else find_source(ctx, address)


def _push_data(
    ctx: Context, session: ClusterSession, nodes: int, data: str, allow: Sequence[str], *, overwrite: bool, line: Uplink
) -> dict[int, str]:
    with ctx.progress.during("looking through the data"):
        tree = scan_data(ctx, data, allow)
    first, *more = scan.summary(tree)
    for sentence in (f"data: {first}{describe_origin(ctx, data, allow)}", *more):
        ctx.out.say(sentence)
    full = absolute_path(ctx.folder, data)
    with ctx.progress.during("comparing the data with what the nodes have", whose=Whose.NODE):
        places = _push_to_machines(ctx, session, nodes, full, tree, overwrite=overwrite, line=line)
    return places if Path(data).is_absolute() else {}


def _push_to_machines(
    ctx: Context, session: ClusterSession, nodes: int, full: Path, tree: scan.Tree, *, overwrite: bool, line: Uplink
) -> dict[int, str]:
    name, groups = tree_name(full), group_by_machine(session, range(nodes))
    clients: list[AgentClient] = [session.clients[first] for first, *_ in groups]
    upload.push_many(clients, name, tree, overwrite=overwrite, progress=ctx.progress, uplink=line)
    _link_others(ctx, session, groups, name, full.name, overwrite=overwrite)
    return _places(session, nodes, name, full.name)


def _fetch_data(
    ctx: Context, session: ClusterSession, request: RunRequest, address: BucketData | WebData, *, overwrite: bool
) -> dict[int, str]:
    name, groups = (
        tree_name((request.data or "").partition("#")[0]),
        group_by_machine(session, range(request.nodes)),
    )
    with ctx.progress.during(f"fetching {printable_path(address.address)}", whose=Whose.NETWORK):
        source, ends = fetch_data.fetch_to(
            ctx,
            session,
            [first for first, *_ in groups],
            name,
            lambda: find_source(ctx, address),
            overwrite=overwrite,
            region=all_in_region(session, request.nodes),
        )
        _link_others(ctx, session, groups, name, source.name, overwrite=overwrite)
    ctx.out.say(fetch_data.describe_end(source, ends, request.nodes))
    return _places(session, request.nodes, name, source.name)


def all_in_region(session: ClusterSession, nodes: int) -> str:
    """The region of Amazon's in which all machines of a run are; empty without one."""
    regions = {machine.region.partition("@")[0] for machine in session.machines[:nodes]}
    return regions.pop() if session.row.provider == AWS and len(regions) == 1 else ""


def _find_on_nodes(session: ClusterSession, nodes: int, path: str) -> dict[int, str]:
    """A path that every node must have. Raises UsageError for one that has it not, and ConnectionLost."""

    shown = printable_path(path)

    def look(index: int) -> bool:
        channel = session.clients[index].connection.open(["test", "-e", path])
        try:
            code = channel.wait(LOOK_TIMEOUT_S)
        except TimeoutError:
            code = None
        finally:
            channel.close()
        if code not in (0, 1):  # no word of `test`: the connection was cut, for instance
            raise ConnectionLost(f"node{index} does not say whether it has {shown}", "try again")
        return code == 0

    absent = [index for index, found in enumerate(on_each(look, range(nodes))) if not found]
    if absent:
        where = f"gpuops ssh {session.row.name} --node {absent[0]} -- ls {shlex.quote(posixpath.dirname(path))}"
        raise UsageError(f"node{absent[0]} has no {shown}", f"look there: {where}")
    return dict.fromkeys(range(nodes), path)


def absolute_path(folder: Path, data: str) -> Path:
    return (folder / data).absolute()


def scan_project(ctx: Context, folder: Path, allow: Sequence[str]) -> scan.Tree:
    """Scan what a push of the project sends; slow, since each new file is searched for keys. Raises UsageError."""
    return await_scan(ctx, begin_scan(ctx, folder, allow))


def begin_scan(ctx: Context, folder: Path, allow: Sequence[str]) -> BackgroundTask[scan.Tree]:
    """As `scan_project`, beside other work."""
    return BackgroundTask(partial(scan.scan, folder, ctx.home / "cache", allow))


def await_scan(ctx: Context, scanning: BackgroundTask[scan.Tree]) -> scan.Tree:
    """Raises UsageError."""
    with ctx.progress.during("looking for keys in what would be sent", aside=True):
        return scanning.result()


def scan_data(ctx: Context, data: str, allow: Sequence[str]) -> scan.Tree:
    """Scan what `--data` sends. Raises UsageError."""
    return scan.scan_data(absolute_path(ctx.folder, data), ctx.home / "cache" / "data", allow, ctx.folder)


def describe_origin(ctx: Context, data: str, allow: Sequence[str]) -> str:
    """The sentence part on where links of the data lead; empty without links."""
    full = absolute_path(ctx.folder, data)
    places = [full.resolve()] * full.is_symlink() + scan.allowed_places(allow)
    return f", from {' and '.join(printable_path(str(place)) for place in places)}" if places else ""


def tree_name(source: Path | str) -> str:
    """The name of the tree for the data at this path or address."""
    return "data" + hashlib.sha256(os.fsencode(source)).hexdigest()[:8].translate(HEX_TO_LETTERS)


def _link_others(
    ctx: Context, session: ClusterSession, groups: Sequence[Sequence[int]], name: str, leaf: str, *, overwrite: bool
) -> None:
    """Give the other nodes of each machine a link to what its first node has."""
    for first, *others in groups:
        if others:
            link = FileEntry(leaf, 0, 0, 0o777, f"../../n{first}/{name}/{leaf}")
            clients: list[AgentClient] = [session.clients[index] for index in others]
            tree = scan.Tree(Path(), [link])  # of a link, nothing is read here
            upload.push_many(clients, name, tree, overwrite=overwrite, progress=ctx.progress)


def _places(session: ClusterSession, nodes: int, name: str, leaf: str) -> dict[int, str]:
    return {index: f"{session.hello(index).folder}/{name}/{leaf}" for index in range(nodes)}


def link_data(tree: scan.Tree, folder: Path, data: str, *, shared: bool) -> scan.Tree:
    """The project's tree with data that lie in the project replaced by a link: to the original on nodes on this
    computer (`shared`), else to the data's own tree on the node."""
    full = (folder / data).absolute()
    if is_address(data) or not full.is_relative_to(folder):
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
