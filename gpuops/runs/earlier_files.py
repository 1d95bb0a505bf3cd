"""What earlier runs left in the nodes' trees, compared before a launch: ranks must not begin at different places.

A script finds a snapshot or not, on each node for itself. `decide_start` says, from every node's list, which files some
nodes lack or have an older version of; `prepare_start` puts those on them, or refuses; `clear_start` (`--fresh`) takes
all of them off the nodes, once they are home.
"""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuops.core.context import Context
from gpuops.core.errors import NodeRefused, RefusalKind, UsageError
from gpuops.core.format import amount, first_few, plural
from gpuops.core.parallel import on_each
from gpuops.core.reporting import Progress
from gpuops.core.timings import Whose
from gpuops.ledger.rows import RunState
from gpuops.ledger.store import RunRow
from gpuops.runs.start_decision import EarlierFile, NodeFiles, Start, Uneven, decide_start
from gpuops.sync.download import DEFAULT_OUTS, LIST_TIMEOUT_S, fetch
from gpuops.sync.merged_outputs import OutFolder, read_stamp
from gpuops.sync.project_files import printable_path
from gpuops.sync.restore_snapshots import put_files
from gpuops.sync.run_folder import RunHome
from gpuops.transport.rpc import AgentClient

if TYPE_CHECKING:
    from gpuops.transport.file_schemas import MadeFiles

MAX_NAMED = 2
"""Files that one sentence names."""
LARGE_BYTES = 1_000_000_000
"""What is announced before it is sent: machines that are rented may bill for hours meanwhile."""
FRESH_HINT = "start afresh: --fresh"
TWO_WAYS = "put one run's files on every node: --resume RUN; or start without what earlier runs made: --fresh"


@dataclass(frozen=True)
class Launch:
    """The run that is about to start, as far as this module needs it."""

    clients: Sequence[AgentClient]
    """Of the nodes that it uses, in order."""
    tree: str
    row: RunRow
    outs: Sequence[str]
    is_training: bool
    """Whether its nodes work together on one thing: `train`, and not `run`."""
    resumes: str
    """The run whose files were put back; empty for none."""
    numbers: Sequence[int] = ()
    """The clients' numbers in the cluster; empty: as they stand."""

    def numbers_in(self, run: RunRow) -> list[int]:
        """The number in `run` of each of these nodes; -1 for one that it was not on."""
        numbers = self.numbers or range(len(self.clients))
        if not run.nodes_at:
            return [*numbers]
        return [run.nodes_at.index(number) if number in run.nodes_at else -1 for number in numbers]

    def number(self, node: int) -> int:
        """The number in the cluster of one of its nodes."""
        return self.numbers[node] if self.numbers else node


def prepare_start(ctx: Context, launch: Launch, progress: Progress) -> None:
    """Say what the run goes on from, and put on every node what only some have.

    Raises UsageError where the nodes differ and that cannot be, NodeError, LocalDisk.
    """
    rows = _rows_by_name(ctx)
    nodes = _list_made(ctx, launch, progress)
    start = decide_start(nodes, list(rows))
    if launch.is_training:
        _drop_outdated(launch, nodes, start.outdated, rows)
    if launch.resumes and (newer := [one for one in start.files if rows[one[1]].id > rows[launch.resumes].id]):
        there = f"later than {launch.resumes}, and on the nodes: {_describe(newer)}"
        remove = f"where that shall not be, remove it: gpuops ssh {launch.row.facts.text('cluster')}"
        ctx.out.say(f"note: {there}; a script that takes the newest goes on from it; {remove}")
    if start.uneven and not launch.is_training:
        ctx.out.say(f"note: {_describe_uneven(start.uneven)}; {TWO_WAYS}")
    elif start.uneven and (start.is_one_state or launch.resumes):
        size = sum(nodes[one.holders[0]][one.path].size * len(one.lacking) for one in start.uneven)
        if size >= LARGE_BYTES:
            ctx.out.say(f"note: {amount(size)} go to nodes that lack what others have to go on from; {FRESH_HINT}")
        with progress.during(f"putting on every node what only some have: {amount(size)}", whose=Whose.NETWORK):
            kept = _even_out(launch, nodes, start.uneven, rows, progress)
        why = next(iter(kept.values()), "")
        if kept and not launch.resumes:
            raise UsageError(f"{_describe_uneven(list(kept))}, and {why}", TWO_WAYS)
        now = f"now on every node, to go on from; {FRESH_HINT}"
        say = f"it stays there, since {why}; {FRESH_HINT}" if kept else "now on every node" if launch.resumes else now
        ctx.out.say(f"{_describe_uneven(list(kept) or start.uneven, 'lay')}: {say}")
    elif start.uneven:
        raise UsageError(f"the nodes have files of different runs: {_describe_uneven(start.uneven)}", TWO_WAYS)
    elif start.files and not launch.resumes:
        where = (
            "on node0" if len(nodes) == 1 else "on every node" if is_alike(nodes, start, rows) else "each node its own"
        )
        ctx.out.say(f"finds {_describe(start.files)} ({where}) to go on from; {FRESH_HINT}")


def clear_start(ctx: Context, launch: Launch, progress: Progress, *, of_array: bool = False) -> set[str]:
    """Take off the nodes what earlier runs made, once all of it is home. Returns the paths.

    `of_array`: what runs of the same array made. Its first has taken off the rest; what seems to be of runs before that
    was made since, by `--setup` or by hand. Raises UsageError where something cannot come home, NodeError, LocalDisk.
    """
    rows = _rows_by_name(ctx)
    if of_array:
        rows = {name: row for name, row in rows.items() if row.facts.get("array") == launch.row.facts.get("array")}
    listed = _list_made(ctx, launch, progress, required=True)
    nodes = [{path: file for path, file in files.items() if file.run in rows} for files in listed]
    with progress.during("looking whether what earlier runs made is home"):
        places = _bring_home(launch, nodes, rows, progress)
    for node, files in enumerate(nodes):
        if missing := [path for path in files if (node, path) not in places]:
            path, run, number = missing[0], files[missing[0]].run, launch.number(node)
            raise UsageError(
                f"{printable_path(path)} of {run} on node{number} is not home, and --fresh would lose it",
                f"give it another name there, under which it comes home: "
                f"gpuops ssh {launch.row.facts.text('cluster')} --node {number}",
            )

    with progress.during("taking off the nodes what earlier runs made", whose=Whose.NODE):
        _discard(launch, nodes)
    taken = sorted({(path, file.run) for files in nodes for path, file in files.items()})
    if taken:
        ctx.out.say(f"starts afresh: {_describe(taken)} taken off the nodes; all of it is home")
    elif not launch.row.facts.get("array"):  # nobody asked an array's runs to start afresh
        ctx.out.say("starts afresh: earlier runs left no snapshots on the nodes")
    return {path for path, _ in taken}


def _rows_by_name(ctx: Context) -> dict[str, RunRow]:
    """All runs, the oldest first."""
    return {row.name: row for row in sorted(ctx.ledger.runs(), key=lambda row: row.id)}


def _list_made(
    ctx: Context, launch: Launch, progress: Progress, *, required: bool = False
) -> list[dict[str, EarlierFile]]:
    """What each node has of earlier runs. Nothing is asked where there were none.

    An agent that is too old to say has nothing, or, where it is `required`, raises NodeRefused.
    """
    before = [run for run in ctx.ledger.runs(cluster=launch.row.cluster) if run.id < launch.row.id]
    names = [run.name for run in sorted(before, key=lambda run: run.id) if run.tree == launch.tree]
    if not names:
        return [{} for _ in launch.clients]
    patterns = list(dict.fromkeys([*DEFAULT_OUTS, *launch.outs]))

    def ask(client: AgentClient) -> dict[str, EarlierFile]:
        answer: MadeFiles = client.call("made", timeout=LIST_TIMEOUT_S, tree=launch.tree, patterns=patterns, runs=names)
        return {path: EarlierFile(size, mtime, run, back) for path, size, mtime, run, back in answer.files}

    with progress.during("looking for what earlier runs made", whose=Whose.NODE):
        try:
            return on_each(ask, list(launch.clients))
        except NodeRefused as refusal:
            if required or refusal.kind != RefusalKind.UNKNOWN_VERB:
                raise
    return [{} for _ in launch.clients]


def _discard(launch: Launch, nodes: Sequence[NodeFiles]) -> None:
    """Remove these files, which are home, on each node."""

    def discard(numbered: tuple[AgentClient, NodeFiles]) -> None:
        client, files = numbered
        if files:
            rows = [[path, file.size, file.mtime_ns] for path, file in files.items()]
            client.call("discard", timeout=LIST_TIMEOUT_S, tree=launch.tree, files=rows)

    on_each(discard, list(zip(launch.clients, nodes, strict=True)))


def _drop_outdated(
    launch: Launch, nodes: Sequence[NodeFiles], outdated: Sequence[Uneven], rows: Mapping[str, RunRow]
) -> None:
    """Remove what was put back and is outdated where it is still home: nodes would gather old snapshots."""
    dropped: list[dict[str, EarlierFile]] = [{} for _ in nodes]
    for run in dict.fromkeys(one.run for one in outdated):
        its = [one for one in outdated if one.run == run]
        held = [{one.path: files[one.path] for one in its if node in one.holders} for node, files in enumerate(nodes)]
        for node, path in find_places(RunHome(rows[run].home), held):
            dropped[node][path] = nodes[node][path]
    _discard(launch, dropped)


def _even_out(
    launch: Launch,
    nodes: Sequence[NodeFiles],
    uneven: Sequence[Uneven],
    rows: Mapping[str, RunRow],
    progress: Progress,
) -> dict[Uneven, str]:
    """Put the latest version of each file on the nodes that lack it, from home. Returns those that stay as they are,
    and why: they are not home, or what they would replace is not."""
    older = [
        {one.path: files[one.path] for one in uneven if one.path in files and node in one.lacking}
        for node, files in enumerate(nodes)
    ]
    wanted = [
        {one.path: files[one.path] for one in uneven if one.holders[0] == node}
        | {path: file for path, file in older[node].items() if file.run in rows}
        for node, files in enumerate(nodes)
    ]
    places = _bring_home(launch, wanted, rows, progress)
    kept: dict[Uneven, str] = {}
    by_run: dict[str, dict[int, dict[str, str]]] = {}
    for one in uneven:
        place = places.get((one.holders[0], one.path))
        replaced = [node for node in one.lacking if one.path in older[node] and not older[node][one.path].restored]
        unsaved = [node for node in replaced if (node, one.path) not in places]
        if place is None:
            kept[one] = f"that is not home in {rows[one.run].home}"
        elif unsaved:
            kept[one] = f"what it would replace on node{unsaved[0]} is not home"
        else:
            for node in one.lacking:
                by_run.setdefault(one.run, {}).setdefault(node, {})[one.path] = place
    for run, chosen in by_run.items():
        try:
            put_files(launch.tree, rows[run], [(launch.clients[node], files) for node, files in chosen.items()])
        except NodeRefused as refusal:  # a link is in the way: a folder on a larger disk, say
            refusal.hint = f"{refusal.hint}; or {FRESH_HINT}"
            raise
    return kept


def _bring_home(
    launch: Launch, nodes: Sequence[NodeFiles], rows: Mapping[str, RunRow], progress: Progress
) -> dict[tuple[int, str], str]:
    """(node, path) -> place in the `out/` of the run that made the file; fetched where it is not home. What cannot be
    fetched has no place, nor has what was changed after all of its run was home: it would replace that run's result
    there. Raises NodeError, LocalDisk."""
    places = {}
    for run in dict.fromkeys(file.run for files in nodes for file in files.values()):
        its = [{path: file for path, file in files.items() if file.run == run} for files in nodes]
        home, own = RunHome(rows[run].home), launch.numbers_in(rows[run])
        at_home = find_places(home, its, own)
        absent = {(node, path) for node, files in enumerate(its) for path in files} - at_home.keys()
        held = OutFolder(home).memory().held if rows[run].state is RunState.HOME else {}
        absent = {
            (node, path)
            for node, path in absent
            if not its[node][path].restored
            and own[node] >= 0
            and (own[node] not in held.get(path, {}) or held[path][own[node]].stamp == its[node][path].stamp)
        }
        if absent:
            clients = {own[node]: launch.clients[node] for node, _ in absent}
            patterns = sorted({"./" + glob.escape(path) for _, path in absent})
            fetch(clients, run, launch.tree, patterns, home, final=True, progress=progress)
            at_home = find_places(home, its, own)
        places.update(at_home)
    return places


def find_places(home: RunHome, nodes: Sequence[NodeFiles], numbers: Sequence[int] = ()) -> dict[tuple[int, str], str]:
    """(node, path) -> place in `out/` of exactly that version, as gpuops wrote it there; without those that are not.
    `numbers`: the nodes' in that run; empty: as they stand."""
    out = OutFolder(home)
    memory = out.memory()
    places = {}
    for node, files in enumerate(nodes):
        for path, file in files.items():
            versions = memory.held.get(path, {})
            held = versions.get(numbers[node] if numbers else node)
            if file.restored and versions:
                held = held or versions[min(versions)]
            if held is None or (not file.restored and held.stamp != file.stamp):
                continue
            written, now = memory.written.get(held.place), read_stamp(out.folder, held.place)
            if written and now and now == written.stamps[-1] and now[0] == file.size:
                places[node, path] = held.place
    return places


def is_alike(nodes: Sequence[NodeFiles], start: Start, rows: Mapping[str, RunRow]) -> bool:
    """Whether every node has all that the run may go on from, and not another version of it than its peers."""
    for run in dict.fromkeys(run for _, run in start.files):
        paths = [path for path, maker in start.files if maker == run]
        if any(path not in files for path in paths for files in nodes):
            return False
        its = [{path: files[path] for path in paths if files[path].run == run} for files in nodes]
        place_of: dict[str, str] = {}
        for (_, path), place in find_places(RunHome(rows[run].home), its).items():
            if place_of.setdefault(path, place) != place:  # equal bytes have one place
                return False
    return True


def _describe(files: Sequence[tuple[str, str]]) -> str:
    return first_few([f"{printable_path(path)} of {run}" for path, run in files], MAX_NAMED)


def _describe_uneven(uneven: Sequence[Uneven], verb: str = "lies") -> str:
    """`snapshot.pt of multigpu-1 lies on node0 alone (and 2 more files)`; of several nodes: how many have it."""
    first = uneven[0]
    has = f"node{first.holders[0]} alone" if len(first.holders) == 1 else plural(len(first.holders), "node") + " only"
    more = f" (and {plural(len(uneven) - 1, 'more file')})" if len(uneven) > 1 else ""
    return f"{printable_path(first.path)} of {first.run} {verb} on {has}{more}"
