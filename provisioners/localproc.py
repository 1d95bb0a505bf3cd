"""The processes of a local node, seen from outside: does the watchdog live; ending all where no agent can be asked."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import psutil

ROUNDS = 3
"""How often processes that appeared while others ended are looked for."""
GONE_S = 5.0
"""How long killed processes may take to be gone, in seconds."""


def watchdog_lives(folder: Path) -> bool:
    """Whether the process noted in `watchdog.json` runs: the same one, and not a zombie."""
    return _noted(folder / "watchdog.json") is not None


def end_by_force(folder: Path) -> bool:
    """Kill watchdog, agent, what descends from them and what belongs to a run of this node; whether all are gone."""
    import psutil

    for _ in range(ROUNDS):
        found = list(dict.fromkeys(_family(folder)))
        if not found:
            return True
        for process in found:
            try:
                process.kill()
            except psutil.Error:
                continue  # gone already
        psutil.wait_procs(found, timeout=GONE_S)
    return not list(_family(folder))


def _family(folder: Path) -> Iterator[psutil.Process]:
    """Watchdog and agent first: what starts others goes before what it started."""
    import psutil

    for name in ("watchdog.json", "agent.json"):
        head = _noted(folder / name)
        if head is not None:
            yield head
            try:
                yield from head.children(recursive=True)
            except psutil.Error:
                continue  # it ended while we looked
    for process in psutil.process_iter():
        try:
            if process.environ().get("GPUOPS_STOP_FILE", "").startswith(f"{folder}/") and not _is_zombie(process):
                yield process
        except psutil.Error:
            continue  # gone, or another user's


def _noted(file: Path) -> psutil.Process | None:
    """The process that a node's file names, if it lives: `{"pid", "start"}`, `start` as `start_of` gives it."""
    import psutil

    try:
        noted = json.loads(file.read_text(encoding="utf-8"))
        process = psutil.Process(int(noted["pid"]))
        same = start_of(process.pid) == noted["start"]
        return process if same and not _is_zombie(process) else None
    except (OSError, ValueError, KeyError, TypeError, IndexError, subprocess.SubprocessError, psutil.Error):
        return None


def _is_zombie(process: psutil.Process) -> bool:
    import psutil

    return bool(process.status() == psutil.STATUS_ZOMBIE)


def start_of(pid: int) -> str:
    """When a process started, in the agent's words: clock ticks since boot (`/proc`), elsewhere what `ps` says.

    Raises OSError, IndexError, ValueError where there is no such process.
    """
    if os.path.exists("/proc/self/stat"):
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return text[text.rindex(")") + 2 :].split()[19]  # a name may hold anything, so count from its end
    words = ["ps", "-p", str(pid), "-o", "lstart="]
    env = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}  # as the agent asks: else a journey would change the answer
    done = subprocess.run(words, capture_output=True, encoding="utf-8", env=env, timeout=20, check=False)
    return done.stdout.strip()
