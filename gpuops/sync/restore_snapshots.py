"""`--resume RUN`: that run's files go back onto every node before the new run starts.

A replaced node without the newest snapshot would silently train from epoch 0 beside others at epoch 6, so every node
gets every file: its own version where nodes had different ones.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial

from gpuops.core.errors import UsageError
from gpuops.core.parallel import on_each
from gpuops.core.safe_folder import SafeFolder
from gpuops.ledger.store import RunRow
from gpuops.sync.merged_outputs import OutFolder
from gpuops.sync.merged_outputs_record import Memory
from gpuops.sync.project_files import printable_path
from gpuops.sync.run_folder import RunHome
from gpuops.transport.bulk_transfer import Sending, transfer
from gpuops.transport.rpc import AgentClient


def check_resumable(row: RunRow, tree: str) -> None:
    """Raises UsageError where a run in `tree` cannot resume this one: no files, another kind of run, a file is gone."""
    home = RunHome(row.home)
    if not home.path.is_dir() and row.started is None:
        raise UsageError(
            f"{row.name} was never started, and left nothing to resume from",
            "leave --resume out to start from the beginning",
        )
    if not home.path.is_dir():
        raise UsageError(
            f"the results of {row.name} are gone: there is no {row.home}",
            "put that folder back, or leave --resume out to start from the beginning",
        )
    memory = OutFolder(home).memory()
    if not memory.written:
        raise UsageError(f"{row.name} left no snapshots to resume from", f"look into {row.home}")
    if row.tree != tree:
        raise UsageError(
            f"{row.name} was a run of {'our workloads' if row.tree == 'train' else 'your own script'}, this is not",
            "resume it with what it was started with",
        )
    out = OutFolder(home).folder
    missing = [place for place in memory.written if out.size(place) is None]
    if missing:
        raise UsageError(
            f"{printable_path(missing[0])} of {row.name} is not in {home.out} any more", "resume another run"
        )


def restore_files(clients: Sequence[AgentClient], tree: str, row: RunRow) -> int:
    """Restore a run's files on every node; returns how many. Raises UsageError as `check_resumable` does."""
    check_resumable(row, tree)
    memory = OutFolder(RunHome(row.home)).memory()
    put_files(tree, row, [(client, select_places(memory, node)) for node, client in enumerate(clients)])
    return len(memory.held)


def put_files(tree: str, row: RunRow, chosen: Sequence[tuple[AgentClient, Mapping[str, str]]]) -> None:
    """Put files of a run on nodes, over what is there. `chosen`: for each node path -> place in `out/`.

    Raises NodeRefused, ConnectionLost, and UsageError where a file cannot be read.
    """
    on_each(partial(_send_files, tree, row.name, OutFolder(RunHome(row.home)).folder), list(chosen))


def select_places(memory: Memory, node: int) -> dict[str, str]:
    """Path to place in `out/` of the version a node gets: its own, else the lowest node's."""
    return {
        path: (versions.get(node) or versions[min(versions)]).place
        for path, versions in memory.held.items()
        if versions
    }


def _send_files(tree: str, run: str, out: SafeFolder, chosen: tuple[AgentClient, Mapping[str, str]]) -> None:
    client, places = chosen
    with transfer(client.bulk("restore", "--tree", tree, "--of", run), client.label) as channel:
        sending = Sending(channel)
        for path, place in places.items():
            try:
                with out.reading(place) as file:
                    sending.add(path, os.fstat(file.fileno()).st_size, file)
            except OSError as error:
                raise UsageError(
                    f"{printable_path(str(out.path / place))} cannot be read: {error.strerror or error}",
                    "resume another run",
                ) from error
        sending.end()
