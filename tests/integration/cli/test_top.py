"""`gpuops top` of real local nodes, of which one goes away."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import termios
from pathlib import Path

from tests.conftest import HANG_S, Shell, until

WORK = """
import json, os, time
from pathlib import Path
rank, here = int(os.environ["RANK"]), os.environ["GPUOPS_PROGRESS"]
told = Path(f"{here}.{rank}" if rank else here)
for step in range(100_000):
    told.with_suffix(".new").write_text(json.dumps({"step": step, "data_wait": 0.25}))
    told.with_suffix(".new").rename(told)
    time.sleep(0.1)
"""
ON, OFF = "\x1b[?1049h", "\x1b[?1049l"
"""The alternate screen."""


def test_every_node_and_rank_and_a_node_that_goes_away(shell: Shell) -> None:
    shell.write("work.py", WORK)
    assert shell.run("up", "local", "--name", "lab", "--nodes", "2").returncode == 0
    assert shell.run("train", "multinode", "--gpus", "1", "--detach", "work.py").returncode == 0

    def ranks() -> list[dict[str, float]]:
        nodes = [node["sample"] for node in shell.json("top", "lab")["nodes"]]
        return [rank for node in nodes if node and node["run"] for rank in node["run"]["ranks"] if rank["rate"]]

    first, second = until(lambda: (found := ranks()) and len(found) == 2 and found, "both ranks told two steps")
    assert (first["rank"], second["rank"], first["data_wait"]) == (0, 1, 0.25)
    _at_a_terminal(shell)

    _kill_node(shell.home / "local/lab/n1")
    seen = shell.run("top", "--once")
    assert seen.returncode == 0, seen.stderr
    assert "work-1 for" in seen.stdout
    assert "\nnode0  CPU" in seen.stdout
    assert "node1 does not answer since" in seen.stdout
    assert "\x1b" not in seen.stdout
    shell.run("down", "--all", "--force")


def _at_a_terminal(shell: Shell) -> None:
    """It is drawn on a screen of its own, follows a terminal that is resized, and `q` ends it."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(ours, (40, 80))
    shell.env |= {"TERM": "xterm-256color", "LINES": "40", "COLUMNS": "80"}  # as a shell may have exported them
    process = shell.start("top", stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    sent = ""

    def has_drawn(words: str) -> bool:
        nonlocal sent
        if select.select([ours], [], [], 0.1)[0]:
            sent += os.read(ours, 65536).decode(errors="replace")
        return words in sent

    until(lambda: has_drawn("q ends it"), "the first picture")
    assert "a taller terminal" not in sent
    termios.tcsetwinsize(ours, (8, 80))
    until(lambda: has_drawn("a taller terminal shows"), "a picture of eight lines")
    os.write(ours, b"q")
    try:
        while chunk := os.read(ours, 65536):
            sent += chunk.decode(errors="replace")
    except OSError:
        pass  # how Linux says that nobody holds the other end any more
    os.close(ours)
    assert process.wait(HANG_S) == 0
    assert sent.index(ON) < sent.index("node0") < sent.rindex(OFF)


def _kill_node(folder: Path) -> None:
    pids = [json.loads((folder / f"{name}.json").read_text())["pid"] for name in ("watchdog", "agent")]
    for sign in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, so that neither starts the other anew
        for pid in pids:
            os.kill(pid, sign)
