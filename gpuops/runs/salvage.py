"""What nodes whose agents have ended still tell of a run: its logs to the last byte, and how it ended.

A lease that ended while this computer was away leaves both on a host's disk. No agent answers there any more,
but its bulk programs read the same files.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from gpuops.core.context import Context
from gpuops.core.errors import ConnectionLost, GpuopsError, LocalDisk, NodeError
from gpuops.core.models import Resource
from gpuops.core.provider import is_rented
from gpuops.core.reporting import Silent
from gpuops.core.safe_folder import SafeFolder, local_errors
from gpuops.ledger.store import ClusterRow, RunRow
from gpuops.nodes.session import ClusterSession, absent, how_ended, nodes_of, programs_of
from gpuops.runs.finish import Conclusion, conclude, unreached
from gpuops.sync import RunHome
from gpuops.sync.archive import keep_longer
from gpuops.sync.leftovers import left, save
from gpuops.sync.run_folder import DOCUMENT
from gpuops.transport.rpc import Programs

TREE = "runs"
"""The folder of a node in which all its runs are."""
STREAM = re.compile(r"(launcher\.(?:out|err)|(?:events|times)\.jsonl|ranks/(?P<rank>\d+)\.(?P<kind>out|err))")
RESULT = "result.json"


def salvage(
    ctx: Context, row: ClusterRow, run: RunRow
) -> tuple[dict[int, Mapping[str, Any]], dict[int, ConnectionLost]]:
    """Bring home what is longer there than here; the results of nodes that have one, and why others were out of
    reach. Raises LocalDisk."""
    results, away = {}, {}
    for index, machine in enumerate(nodes_of(ctx, row)[: int(run.request["nodes"])]):
        try:
            programs = programs_of(row, machine, index)
            try:
                result = _salvage(programs, run, index)
            finally:
                programs.connection.close()
        except ConnectionLost as error:
            away[index] = error
            continue
        except LocalDisk:
            raise  # of what is there nothing may be taken for gone
        except GpuopsError:
            continue
        if result is not None:
            results[index] = result
    return results, away


def conclude_without(ctx: Context, row: ClusterRow, run: RunRow, error: NodeError, *, gone: bool) -> Conclusion:
    """Judge a run whose nodes answer no more, by what they left. `gone`: their provider says that they ended.

    Raises ConnectionLost where a host of the user's own is out of reach: it costs nothing, and keeps what it has.
    """
    live = absent(row, nodes_of(ctx, row), error)
    told = _told(ctx, row, live.machines) if gone else {}
    found, away = salvage(ctx, row, run)
    if away and not is_rented(ctx.provisioner(row.provider)):
        raise next(iter(away.values()))
    results = {**unreached(run, error, gone=gone, told=told), **found}
    return conclude(ctx, live, run, results, Silent())


def salvaged(
    ctx: Context, live: ClusterSession, run: RunRow, results: dict[int, Mapping[str, Any]]
) -> tuple[ClusterSession, dict[int, Mapping[str, Any]]]:
    """A run whose nodes all ended while it was followed: what lies on hosts of the user's own comes home as well.

    Returns what `conclude` takes. Raises ConnectionLost, as `conclude_without`.
    """
    if is_rented(ctx.provisioner(live.row.provider)):
        return live, results
    found, away = salvage(ctx, live.row, run)
    if away:
        raise next(iter(away.values()))
    error = NodeError("its node has ended", "gpuops runs shows what came of it")
    return absent(live.row, nodes_of(ctx, live.row), error), {**results, **found}


def _told(ctx: Context, row: ClusterRow, machines: Sequence[Resource]) -> dict[int, dict[str, Any]]:
    """What their provider says of how machines ended."""
    with suppress(GpuopsError):
        provider = ctx.provisioner_of(row)
        return {index: how_ended(provider.describe(machine)) for index, machine in enumerate(machines)}
    return {}


def _salvage(programs: Programs, run: RunRow, index: int) -> Mapping[str, Any] | None:
    home = RunHome(run.home)
    home.create()
    prefix = f"{run.name}/"
    found = [one for one in left({index: programs}, [], tree=TREE) if one.path.startswith(prefix)]
    wanted = [one for one in found if stream(one.path[len(prefix) :]) or one.path == prefix + RESULT]
    name = f".salvage-{os.getpid()}-{secrets.token_hex(4)}"
    with local_errors(run.home):
        folder = home.folder.below(name).make()
    try:
        save(programs, TREE, wanted, folder)
        for one in wanted:
            if log := stream(one.path[len(prefix) :]):
                keep_longer(folder, one.path, home, index, log)
        return _result(folder, prefix + RESULT)
    finally:
        home.folder.remove_tree(name)


def stream(path: str) -> str:
    """The stream that a file of a run's folder on a node holds, as logs are named here; empty for none."""
    found = STREAM.fullmatch(path)
    if not found:
        return ""
    return f"rank{int(found['rank'])}.{found['kind']}" if found["rank"] else path


def _result(folder: SafeFolder, path: str) -> Mapping[str, Any] | None:
    from gpuops.transport import answers

    try:
        with folder.reading(path) as file:
            return answers.result(file.read(DOCUMENT))
    except OSError:
        return None
