"""What the disks of nodes whose agents have ended still have of a run: its logs to the last byte, and its report.

A lease that ended while this computer was away leaves both on a host of the user's own. No agent answers there any
more, but the agent's bulk programs read the same files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gpuops.core.context import Context
from gpuops.core.errors import ConnectionLost, GpuopsError, LocalDisk
from gpuops.core.safe_folder import SafeFolder
from gpuops.ledger.store import ClusterRow, RunRow
from gpuops.nodes.session import nodes_of, open_programs
from gpuops.runs.launch_spec import request_of
from gpuops.runs.outcome.node_report import NodeReport, parse_report
from gpuops.sync.archive import replace_shorter_log
from gpuops.sync.merged_outputs import OutFolder
from gpuops.sync.run_folder import MAX_DOCUMENT_BYTES, RunHome
from gpuops.sync.unmatched_files import list_unmatched_files, save_unmatched_files
from gpuops.transport.rpc import Programs

TREE = "runs"
"""The folder of a node in which all its runs are."""
LOG_FILE = re.compile(r"(launcher\.(?:out|err)|(?:events|times|usage)\.jsonl|ranks/(?P<rank>\d+)\.(?P<kind>out|err))")
RESULT_FILE = "result.json"


def salvage(ctx: Context, row: ClusterRow, run: RunRow) -> tuple[dict[int, NodeReport], dict[int, ConnectionLost]]:
    """Bring home logs that are longer there than here. Returns the reports of nodes that have one, and why others were
    unreachable. Raises LocalDisk, RowGone."""
    reports, unreachable = {}, {}
    request, machines = request_of(run), nodes_of(ctx, row)
    for index, number in enumerate(request.nodes_at or range(min(request.nodes, len(machines)))):
        try:
            programs = open_programs(row, machines[number], number)
            try:
                result = _salvage_node(programs, run, index)
            finally:
                programs.connection.close()
        except ConnectionLost as error:
            unreachable[index] = error
            continue
        except LocalDisk:
            raise  # it could not be written here: nothing there may count as lost
        except GpuopsError:
            continue
        if result is not None:
            reports[index] = parse_report(index, result)
    return reports, unreachable


def _salvage_node(programs: Programs, run: RunRow, index: int) -> Mapping[str, Any] | None:
    home = RunHome(run.home)
    home.create()
    prefix = f"{run.name}/"
    files = [entry for entry in list_unmatched_files({index: programs}, [], tree=TREE) if entry.path.startswith(prefix)]
    wanted = [
        entry for entry in files if log_stream_name(entry.path[len(prefix) :]) or entry.path == prefix + RESULT_FILE
    ]
    with OutFolder(home).staging() as folder:
        save_unmatched_files(programs, TREE, wanted, folder)
        for entry in wanted:
            if log := log_stream_name(entry.path[len(prefix) :]):
                replace_shorter_log(folder, entry.path, home, index, log)
        return _read_result(folder, prefix + RESULT_FILE)


def log_stream_name(path: str) -> str:
    """The stream that a file of a run's folder on a node holds, as logs are named here; empty for none."""
    match = LOG_FILE.fullmatch(path)
    if not match:
        return ""
    return f"rank{int(match['rank'])}.{match['kind']}" if match["rank"] else path


def _read_result(folder: SafeFolder, path: str) -> Mapping[str, Any] | None:
    from gpuops.transport import validation

    try:
        with folder.reading(path) as file:
            return validation.parse_result(file.read(MAX_DOCUMENT_BYTES))
    except OSError:
        return None
