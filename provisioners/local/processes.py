"""The processes of a local node, seen from outside: starting the node, whether its watchdog lives, and killing all of
them where no agent can be asked to end it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gpuops.core.errors import ProviderError, Unknown

if TYPE_CHECKING:
    import psutil

INIT_TIMEOUT_S = 60.0
KILL_ROUNDS = 3
"""A process may start another one while it is killed, so the search is repeated this often."""
KILL_TIMEOUT_S = 5.0
"""How long killed processes may take to disappear."""


def start_node(artefact: Path, folder: Path, document: Mapping[str, object]) -> None:
    """Start a node's watchdog and agent. Raises ProviderError with the agent's own words."""
    argv = [sys.executable, "-I", str(artefact), "init", "--node", str(folder)]
    try:
        # A session of its own, so that Ctrl-C does not end a node that is half started.
        done = subprocess.run(
            argv,
            input=json.dumps(document),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=INIT_TIMEOUT_S,
            check=False,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired:
        raise Unknown(
            f"the local node in {folder} did not start within {INIT_TIMEOUT_S:.0f} s", f"look at {folder}/watchdog.log"
        ) from None
    if done.returncode != 0:
        kind, reason = _refusal(done.stderr)
        hint = (
            "take back what is there: gpuops reap --adopt; or choose another name: --name"
            if kind == "foreign"
            else f"look at {folder}/watchdog.log"
        )
        raise ProviderError(f"the local node in {folder} did not start: {reason}", hint)


def _refusal(stderr: str) -> tuple[str, str]:
    """Kind and sentence of the agent's refusal; the last line of its stderr where it crashed."""
    last = (stderr.strip().splitlines() or ["it said nothing"])[-1]
    try:
        error = json.loads(last)["error"]
        return str(error["kind"]), str(error["say"])
    except (ValueError, KeyError, TypeError):
        return "", last


def is_watchdog_alive(folder: Path) -> bool:
    """Whether the process recorded in `watchdog.json` runs: the same process, and not a zombie."""
    return _recorded_process(folder / "watchdog.json") is not None


def kill_processes(folder: Path) -> bool:
    """Kill watchdog, agent, their descendants and every process of this node's runs. Returns whether all are gone."""
    import psutil

    for _ in range(KILL_ROUNDS):
        processes = list(dict.fromkeys(_processes_of(folder)))
        if not processes:
            return True
        for process in processes:
            try:
                process.kill()
            except psutil.Error:
                continue  # it has ended by itself
        psutil.wait_procs(processes, timeout=KILL_TIMEOUT_S)
    return not list(_processes_of(folder))


def _processes_of(folder: Path) -> Iterator[psutil.Process]:
    """Watchdog and agent first: a parent comes before its children."""
    import psutil

    for name in ("watchdog.json", "agent.json"):
        parent = _recorded_process(folder / name)
        if parent is not None:
            yield parent
            try:
                yield from parent.children(recursive=True)
            except psutil.Error:
                continue  # it has ended since
    for process in psutil.process_iter():
        try:
            if process.environ().get("GPUOPS_STOP_FILE", "").startswith(f"{folder}/") and not _is_zombie(process):
                yield process
        except psutil.Error:
            continue  # it has ended, or is another user's


def _recorded_process(file: Path) -> psutil.Process | None:
    """The process that a node's file records, if it lives: `{"pid", "start"}`, `start` as by `start_time_of`."""
    import psutil

    try:
        recorded = json.loads(file.read_text(encoding="utf-8"))
        process = psutil.Process(int(recorded["pid"]))
        same = start_time_of(process.pid) == recorded["start"]
        return process if same and not _is_zombie(process) else None
    except (OSError, ValueError, KeyError, TypeError, IndexError, subprocess.SubprocessError, psutil.Error):
        return None


def _is_zombie(process: psutil.Process) -> bool:
    import psutil

    return bool(process.status() == psutil.STATUS_ZOMBIE)


def start_time_of(pid: int) -> str:
    """When a process started, in the agent's form: clock ticks since boot (`/proc`), elsewhere what `ps` prints.

    Raises OSError, IndexError, ValueError where there is no such process.
    """
    if os.path.exists("/proc/self/stat"):
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return text[text.rindex(")") + 2 :].split()[19]  # a process's name may hold anything: count from its end
    words = ["ps", "-p", str(pid), "-o", "lstart="]
    env = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}  # as the agent asks: another time zone would change the answer
    done = subprocess.run(words, capture_output=True, encoding="utf-8", env=env, timeout=20, check=False)
    return done.stdout.strip()
