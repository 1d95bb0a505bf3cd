"""Looking at runs on real local nodes: which lines, in which order; what is said of what drags."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from datetime import datetime
from functools import partial
from pathlib import Path

import pytest

from gpuops.cli.terminal.progress import FRAMES
from gpuops.core.processes import myself
from gpuops.core.run_models import Verdict, VerdictOutcome
from gpuops.ledger.store import Ledger
from tests.conftest import HANG_S, Shell, until
from tests.desk import Desk
from tests.integration.cli.test_json import on_a_terminal

TALK = """
import os, time
from pathlib import Path
rank = os.environ["RANK"]
there = Path({folder!r})
for step in "ab":
    while not (there / (step + rank)).exists():
        time.sleep(0.02)
    print(step, "of", rank, flush=True)
    (there / (step + rank + "-said")).touch()
while not (there / "enough").exists():
    time.sleep(0.02)
"""
EVERY = ["[n1 r1] a of 1", "[n0 r0] a of 0", "[n1 r1] b of 1", "[n0 r0] b of 0"]
"""In the order in which it is said, a good second apart: what a node notes of it is that coarse."""


def talk(shell: Shell, there: Path) -> None:
    """A run whose ranks take turns."""
    there.mkdir()
    shell.write("talk.py", TALK.format(folder=str(there)))
    process = shell.start("train", "multinode", "--gpus", "1", "talk.py")
    for turn, node, lines in (("a1", 1, 1), ("a0", 0, 1), ("b1", 1, 2), ("b0", 0, 2)):
        (there / turn).touch()
        until((there / f"{turn}-said").exists, f"turn {turn}")
        until(partial(is_noted, shell, node, lines), f"the note of turn {turn}")
        time.sleep(0.7)
    (there / "enough").touch()  # a node that goes takes its notes along
    process.communicate(timeout=HANG_S)


def is_noted(shell: Shell, node: int, lines: int) -> bool:
    """Whether a node has noted when it wrote so many lines."""
    notes = next((shell.home / "local").glob(f"*/n{node}/runs/talk-1/times.jsonl"), None)
    return notes is not None and notes.read_text().count("\n") >= lines


def test_lines_of_a_past_run(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    talk(shell, tmp_path / "turns")
    monkeypatch.setenv("GPUOPS_HOME", str(shell.home))
    monkeypatch.chdir(shell.folder)
    desk = Desk(shell.home, shell.folder, capsys)

    def logs(*words: str) -> list[str]:
        said = desk.type("logs", *words)
        assert said.code == 0, said.err
        return said.out.splitlines()

    assert logs() == EVERY
    assert logs("--grep", "^[ab] ", "--rank", "1", "--tail", "1", "--since", "1h") == EVERY[2:3]
    assert logs("-f", "--grep", "^a") == EVERY[:2]
    assert [json.loads(line)["line"] for line in logs("--json", "--node", "0", "--since", "10m")] == EVERY[1::2]
    notes = [shell.folder / f"runs/talk-1/logs/node{node}/times.jsonl" for node in (0, 1)]
    third = json.loads(notes[1].read_text().splitlines()[1])["at"]
    assert logs("--since", datetime.fromtimestamp(third - 0.5).isoformat()) == EVERY[2:]
    nothing = desk.type("logs", "--grep", "nowhere")
    assert (nothing.code, nothing.out) == (0, "")
    assert re.fullmatch(r"no line of talk-1 fits; its last line is from (\d+ s|\d+:\d\d min) ago\n", nothing.err)
    code, sent = on_a_terminal(shell, "logs", "--rank", "1", "--tail", "1")
    assert (code, sent) == (0, "\x1b[33m[n1 r1]\x1b[0m b of 1\x1b[0m\r\n")
    for note in notes:
        note.unlink()
    assert logs() == [*EVERY[1::2], *EVERY[::2]]
    assert len(logs("--since", "1h")) == 4, "the run began within it: all of it is that young"
    old = desk.type("logs", "--since", "1s")
    assert (old.code, old.err.splitlines()[0]) == (
        2, "error: the times of talk-1's lines were not recorded: an older gpuops started it",
    )  # fmt: skip


def test_why_there_is_no_line(desk: Desk) -> None:
    """Of runs that are in the ledger alone."""
    desk.home.mkdir()
    ledger = Ledger.open(desk.home)

    def row(stem: str, kind: str = "torchrun", **columns: object) -> Path:
        request = {"kind": kind, "mode": "multinode", "nodes": 2, "gpus": 1}
        run = ledger.add_run(stem=stem, cluster=1, folder=desk.folder, tree="project", request=request,
                             facts={"world": 2}, owner_process=myself(), now=time.time())  # fmt: skip
        ledger.set_run(run.id, **columns)
        return run.home

    ended = {"state": "home", "owner_process": None, "started": time.time() - 9}
    row("new", state="starting")
    row("dead", owner_process=None)
    row("board", state="home", owner_process=None, verdict=Verdict(VerdictOutcome.FAILED, 2, "not started: no disk"))
    row("bash", "command", **ended)
    row("mute", **ended)
    out = row("toy", **ended) / "logs/node0/rank0.out"
    out.parent.mkdir(parents=True)
    out.write_text("here\n")
    ledger.close()
    for words, said in {
        "new-1": "new-1 is still being prepared",
        "dead-1 --tail 3": "dead-1 was not started: its command died first",
        "board-1 -f": "board-1 was not started: no disk",
        "mute-1": "mute-1 printed nothing",
        "mute-1 --since 1s": "mute-1 printed nothing",
        "toy-1 --rank 1 --grep x": "rank 1 of toy-1 printed nothing",
        "toy-1 --rank 0 --grep x": "no line of toy-1 fits",
        "toy-1 --since 1s": "error: the times of toy-1's lines were not recorded: an older gpuops started it",
        "bash-1 --rank 0": "error: bash-1 is a plain command: it has no ranks",
    }.items():
        saw = desk.type("logs", *words.split())
        assert said in saw.err.splitlines(), saw.err
        assert (saw.code, saw.out) == (2 if said.startswith("error") else 0, "")


@pytest.mark.parametrize(
    ("words", "say"),
    [
        (("--grep", "("), "'(' is no regular expression: missing ), unterminated subpattern at position 0"),
        (("-f", "--grep", "a**"), "'a**' is no regular expression: multiple repeat at position 2"),
        (("--since", "yesterday"), "'yesterday' is no time"),
        (("--since", "9999-01-01"), "'9999-01-01' is still to come"),
        (("--tail", "0", "--since", "1h"), "--tail is at least 1 line, not 0"),
    ],
)
def test_what_is_no_filter(desk: Desk, words: tuple[str, ...], say: str) -> None:
    said = desk.type("logs", *words)
    assert (said.code, said.out, said.err.splitlines()[0]) == (2, "", f"error: {say}")


STUBBORN = """
import os, signal, sys, time
def wait(*_):
    while not os.path.exists({enough!r}):
        time.sleep(0.1)
    sys.exit(0)
signal.signal(signal.SIGUSR1, wait)
print("here", flush=True)
while True:
    time.sleep(0.1)
"""


def test_what_drags_is_said(shell: Shell) -> None:
    """In a log: a set-up that takes time, what it says, and how long a stop may take."""
    ready, enough = shell.home.parent / "ready", shell.home.parent / "enough"
    shell.write("a.py", STUBBORN.format(enough=str(enough)))
    setup = ("--setup", f"echo first words; until [ -e {ready} ]; do sleep 0.1; done")
    said = shell.home.parent / "said"
    process = shell.start("run", "--json", *setup, "--", "python3", "a.py", stderr=said.open("w"))

    def line(begin: str) -> str:
        return next((one for one in said.read_text().splitlines(keepends=True) if one.startswith(begin)), "")

    until(lambda: line("running the set-up command: node0: first words"), "what the set-up says")
    ready.touch()
    log = shell.folder / "runs/python3-1/logs/node0/launcher.out"
    until(lambda: log.exists() and log.read_text(), "the run to speak")
    busy = shell.run("status").stdout
    assert re.search(r"^local-1: python3-1 runs for (\d+ s|\d+:\d\d min), last line \d+ s ago$", busy, re.M), busy
    os.kill(process.pid, signal.SIGINT)
    stopping = until(lambda: line("stopping "), "that it stops")
    assert stopping == "stopping python3-1 (at most 20 s): 10 s for a snapshot, then 10 s to end\n"
    enough.touch()
    out, _ = process.communicate(timeout=HANG_S)
    assert json.loads(out)["kind"] == "run"
    assert process.returncode == 130


def test_what_drags_lives_on_a_terminal(shell: Shell) -> None:
    """And at the end it is said how to see the curves."""
    ready, enough = shell.home.parent / "ready", shell.home.parent / "enough"
    gates = {
        r"\r\x1b\[2K. running the set-up command: node0: first words, \d+ s": ready,
        r"\r\x1b\[2K. sh-1 runs: no line yet, \d+ s": enough,
    }
    waits = {gate: f"until [ -e {gate} ]; do sleep 0.1; done" for gate in (ready, enough)}
    script = f"{waits[enough]}; mkdir -p tb/a; touch tb/a/events.out.tfevents.1; echo done"
    setup = f"echo first words; {waits[ready]}"
    code, sent = on_a_terminal(shell, "run", "--setup", setup, "--", "sh", "-c", script, gates=gates)
    assert code == 0
    assert all(re.search(pattern, sent) for pattern in gates)
    stays = [line.rpartition("\x1b[2K")[2] for line in sent.split("\r\n")]
    assert {"done", "curves: gpuops tensorboard sh-1"} <= set(stays)
    assert not [line for line in stays if line and line[0] in FRAMES], "nothing of the live line stays"
