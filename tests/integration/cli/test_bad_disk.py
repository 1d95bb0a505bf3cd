"""This computer's disk is full, or may not be written to; a node of several is away: what can be had is had, the rest
is said."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass

import psutil
import pytest

from gpuops.ledger.store import Ledger
from tests.conftest import HANG_S, Shell, until
from tests.integration.cli.heard import spoken
from tests.integration.cli.test_user_away import leave

G = f"{sys.executable} -m gpuops"
FULL = "mount -t tmpfs -o size=64k,mode=700 tmpfs {home}; cat /dev/zero >{home}/filler 2>&-"
READ_ONLY = "mount --bind {home} {home}; mount -o remount,bind,ro {home}"


@dataclass(frozen=True)
class Row:
    what: str
    mounts: str
    words: str
    code: int
    say: str
    used: bool = False
    """The home was used before, and holds a ledger."""


ROWS = [
    Row("a full disk, the first command", FULL, "stop", 4, "gpuops cannot keep its mark in {home}/owner: No space"),
    Row("a full disk, a first look", FULL, "status", 0, "nothing is up"),
    Row("a full disk, a run", FULL, "run -- true", 4, "gpuops cannot keep its mark in {home}/owner: No space"),
    Row("a read-only home, the first command", READ_ONLY, "stop", 2, "gpuops may not write to its folder {home}"),
    Row("a read-only home, a run", READ_ONLY, "run -- true", 2, "gpuops may not write to its folder {home}", used=True),
    Row("a read-only home, a look", READ_ONLY, "status", 0, "nothing is up", used=True),
    Row("a read-only home, an end", READ_ONLY, "down", 0, "nothing is up", used=True),
]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to fill a disk of its own")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_one_sentence_and_what_was_there_is_there(shell: Shell, row: Row) -> None:
    shell.home.mkdir()
    if row.used:
        (shell.home / "owner").write_text("0a1b2c3d\n")
        Ledger.open(shell.home).close()
    before = {path.name: path.read_bytes() for path in shell.home.iterdir()}
    mounts = row.mounts.format(home=shell.home)
    script = f"mount --make-rprivate /\n{mounts}\n{G} {row.words}"
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], cwd=shell.folder, env=shell.environment(), text=True,
                          capture_output=True, timeout=HANG_S, check=False)  # fmt: skip
    lines = spoken(done.stderr)
    assert done.returncode == row.code, done.stderr
    said = [line for line in lines if not line.startswith("note: ")]
    if row.code:
        assert [line.partition(": ")[0] for line in said] == ["error", "hint"]
        assert said[0].startswith("error: " + row.say.format(home=shell.home))
    else:
        assert (said, done.stdout) == ([], f"{row.say}\n")
    assert {path.name: path.read_bytes() for path in shell.home.iterdir()} == before
    assert list(shell.folder.iterdir()) == []


def one_of(shell: Shell, *words: str) -> psutil.Process:
    """The process of this home whose command line has all of these."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            line = " ".join(process.cmdline())
            if str(shell.home) in line and all(word in line for word in words):
                return process
    raise AssertionError(f"no process with {words}")


def test_a_node_that_is_away_keeps_nothing_of_the_others_away(shell: Shell) -> None:
    """`pull` and `pull --edits` bring what answers, then say who did not, and end with 4."""
    shell.write("a.txt", "as pushed\n")
    assert shell.run("up", "local", "--name", "lab", "--nodes", "2").returncode == 0
    line = "echo $GPUOPS_NODE > made.pt; echo edited by $GPUOPS_NODE > a.txt; sleep 300"
    assert shell.run("run", "--detach", "--all-nodes", "--", "sh", "-c", line).returncode == 0
    project = shell.home / "local" / "lab" / "n1" / "project"
    until(lambda: "edited" in (project / "a.txt").read_text(), "the edit on node1")
    leave(shell)  # or the guard would bring them home itself
    watchdog = one_of(shell, " watchdog --node ", "/lab/n0")
    watchdog.send_signal(signal.SIGSTOP)
    ended = shell.home / "local" / "lab" / "n0" / "ended.json"
    ended.write_text('{"at": 0, "why": "its lease ended"}')  # it refuses at once: nobody is waited for
    try:
        pulled = shell.run("pull")
        assert pulled.returncode == 4, pulled.stderr
        assert pulled.stderr.splitlines()[-2].startswith("error: what sh-1 made there is not home: node0: ")
        assert pulled.stderr.endswith("hint: what answers is home; try again: gpuops pull sh-1\n")
        assert (shell.folder / "runs/sh-1/out/made.pt").read_text() == "1\n"
        edits = shell.run("pull", "--edits")
        assert edits.returncode == 4, edits.stderr
        assert "error: what was edited there is not home: node0: " in edits.stderr
        assert (shell.folder / "a.txt").read_text() == "edited by 1\n"
    finally:
        ended.unlink()
        watchdog.send_signal(signal.SIGCONT)
