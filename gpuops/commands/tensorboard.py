"""`gpuops tensorboard`: TensorBoard on this computer, on what came home of runs.

What a live run writes keeps coming home meanwhile, so that nothing need be installed on a node and no port opened.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from gpuops.commands.ssh import run_foreground
from gpuops.commands.stop import pick_run
from gpuops.core.context import Context
from gpuops.core.errors import GpuopsError, UsageError
from gpuops.core.polling import Poller
from gpuops.core.reporting import Silent
from gpuops.core.timings import Whose
from gpuops.ledger.rows import ClusterState, RunState
from gpuops.ledger.store import RunRow
from gpuops.nodes.session import ClusterSession, open_session
from gpuops.runs.monitor import LiveFetch, board_folder
from gpuops.runs.results.collect import fetch_now
from gpuops.sync.run_folder import RunHome

POLL_INTERVAL_S = 1.0
SEPARATORS = ",:"
"""What separates runs, and a run from its folder, in TensorBoard's `--logdir_spec`."""


def open_board(ctx: Context, names: Sequence[str], port: int | None) -> int:
    """Show these runs, or this folder's latest, until Ctrl-C. Returns TensorBoard's exit code. Raises UsageError."""
    program = find_program(ctx.env)
    rows = [pick_run(ctx, name, running=False) for name in names or (None,)]
    with ExitStack() as stack:
        fetches = [fetch for row in rows if (fetch := _start_fetch(ctx, stack, row))]
        argv = board_argv(program, rows, port, is_live=bool(fetches))

        def fetch_on(process: subprocess.Popen[bytes]) -> None:
            for _ in Poller.every(ctx.clock, POLL_INTERVAL_S):
                if process.poll() is not None:
                    return
                for fetch in fetches:
                    fetch.poll()

        return run_foreground(argv, fetch_on if fetches else None)


def find_program(env: Mapping[str, str]) -> str:
    """TensorBoard of gpuops' own environment, else of `PATH`. Raises UsageError where there is none."""
    own = os.path.dirname(sys.executable)
    found = shutil.which("tensorboard", path=os.pathsep.join([own, env.get("PATH", os.defpath)]))
    if found is None:
        raise UsageError(
            "TensorBoard is not installed on this computer",
            "pip install 'gpuops[tensorboard]'; without it: gpuops report draws the same numbers",
        )
    return found


def board_argv(program: str, rows: Sequence[RunRow], port: int | None, *, is_live: bool) -> list[str]:
    """TensorBoard's command line. Its fast loader keeps the first version of a file open (`is_live`). Raises
    UsageError."""
    folders = {row.name: _folder_of(row, is_live=is_live) for row in rows}
    argv = [program, *(["--load_fast=false"] * is_live), *([f"--port={port}"] if port is not None else [])]
    if len(folders) == 1:
        return [*argv, "--logdir", *map(str, folders.values())]
    for name, folder in folders.items():
        if set(SEPARATORS) & set(str(folder)):
            raise UsageError(f"TensorBoard cannot show several runs: there is a , or : in {folder}",
                             f"show one: gpuops tensorboard {name}")  # fmt: skip
    return [*argv, "--logdir_spec", ",".join(f"{name}:{folder}" for name, folder in folders.items())]


def _folder_of(row: RunRow, *, is_live: bool) -> Path:
    home = RunHome(row.home)
    folder = board_folder(home)
    if folder is None and not is_live:
        raise UsageError(
            f"{row.name} wrote nothing for TensorBoard",
            f"gpuops report {row.name} draws the losses that it printed; most workloads write with -- --tensorboard",
        )
    return folder or home.out


def _start_fetch(ctx: Context, stack: ExitStack, row: RunRow) -> LiveFetch | None:
    """Bring home what a live run has written by now; returns what goes on with that. None for one that has ended, and
    where no node answers, which is printed."""
    cluster = ctx.ledger.cluster(row.cluster)
    if row.state is not RunState.RUNNING or cluster.state is not ClusterState.UP:
        return None
    try:
        session: ClusterSession = stack.enter_context(closing(open_session(ctx, cluster, some=True)))
        with ctx.progress.during(f"fetching what {row.name} has written", whose=Whose.NETWORK):
            fetch_now(session, row, Silent(), final=False)
    except GpuopsError as error:
        ctx.out.say(f"note: {error.message}; what is shown is what is home")
        return None
    return LiveFetch(session, row, ctx.clock)
