"""What tests/unit/cli/test_bad_input.py leaves to commands that start git or a node."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys

import pytest

from gpuops.ledger.store import Ledger
from tests.conftest import HANG_S, Shell, until
from tests.desk import Desk
from tests.unit.cli.test_bad_input import KEY, TRAIN, Row, expect, expect_document, expect_row, nothing_left
from tests.unit.runs.test_script_check import SPAWNS

ROWS = [
    Row("an ignored script", (*TRAIN, "a.py"), "a.py is not sent, since git or .gpuopsignore ignores it",
        "take it out of the ignore file", files={"a.py": "", ".gpuopsignore": "*.py\n"}),
    Row("a script that holds a key", (*TRAIN, "a.py"), "a.py is not sent: a secret of the kind private-key",
        "send it: --send-anyway a.py", files={"a.py": KEY}),
    Row("a script with a syntax error", (*TRAIN, "--on", "runpod", "a.py"), "a.py line 2: syntax error: expected ':'",
        "correct it (or send it as it is, for a newer Python on the nodes: --send-anyway a.py)",
        files={"a.py": "import torch\nfor step in range(3)\n"}),
    Row("a script that starts its own ranks", ("train", "multigpu", "multigpu.py", "--", "50", "10"),
        "multigpu.py starts its own processes, and torchrun would start it once for each rank: they would never meet",
        "start it once: gpuops run -- python multigpu.py 50 10 (if it can be a rank of torchrun's after all: "
        "--send-anyway multigpu.py)", files={"multigpu.py": SPAWNS}),
    Row("one that was to be rented for",
        ("train", "multigpu", "--on", "runpod", "--cloud", "any", "-m", "my", "--gpus=4", "--", "50"),
        "my.py starts its own processes, and torchrun would start it once for each rank: they would never meet",
        "start it once: gpuops run --on runpod --gpus=4 --cloud any -- python -m my 50 (if it can be a rank of "
        "torchrun's after all: --send-anyway my.py)", files={"my.py": SPAWNS}),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_a_sentence_a_hint_a_code_and_nothing_left(desk: Desk, row: Row) -> None:
    expect_row(desk, row)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_with_json_it_is_an_object_as_well(desk: Desk, row: Row) -> None:
    expect_document(desk, row)


@pytest.mark.parametrize("mode", ["single", "multigpu"])
def test_numbers_in_the_file_that_do_not_fit_a_mode_are_for_the_others(desk: Desk, mode: str) -> None:
    desk.write("gpuops.toml", "[train]\nnodes = 2\ngpus = 3\n")
    said = desk.type("train", mode, "--dry-run", "--json")
    assert said.code == 0, said.err
    plan = json.loads(said.out)
    ((*_, nodes, _, ranks),) = [command[:6] for command in plan["execute"]]
    assert (plan["create"]["nodes"], nodes, ranks) == (
        1,
        "--nnodes=1",
        f"--nproc-per-node={1 if mode == 'single' else 3}",
    )


def test_a_ledger_that_cannot_be_written_is_said_and_keeps_nobody_from_looking(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program holds it for too long: what is shown as seen stays unseen, the rest is told."""
    monkeypatch.setattr("gpuops.ledger.schema.BUSY_S", 0.1)
    desk.type("train", "multinode", "--dry-run")
    ledger = Ledger.open(desk.home)
    ledger.add_notice("something happened")
    ledger.db.execute("BEGIN IMMEDIATE")
    for words in (("runs",), ("status",), ("down",), ("reap",)):
        said = desk.type(*words)
        assert said.code == 0
        assert said.err.startswith(
            f"note: another command holds the ledger {desk.home / 'ledger.db'}: database is locked\n"
        )
    ledger.db.execute("ROLLBACK")
    ledger.close()
    assert "something happened" in desk.type("runs").err


@pytest.mark.parametrize("words", [("runs",), ("status",), ("down", "lab"), ("logs",), ("train", "multinode")])
def test_a_ledger_that_cannot_be_read_is_a_sentence(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr("gpuops.ledger.schema.BUSY_S", 0.1)
    desk.type("train", "multinode", "--dry-run")
    with sqlite3.connect(desk.home / "ledger.db", isolation_level=None) as db:
        db.execute("BEGIN EXCLUSIVE")
        said = desk.type(*words)
        db.execute("ROLLBACK")
    db.close()
    assert said.code == 4
    assert f"error: another command holds the ledger {desk.home / 'ledger.db'}: database is locked\n" in said.err
    assert not list(desk.home.glob("bug-*"))


def test_a_key_that_git_tracks_stops_the_push_before_anything_is_created(desk: Desk) -> None:
    desk.write("id_deploy", KEY)
    desk.write("a.py", "")
    subprocess.run(["git", "init", "-q"], cwd=desk.folder, check=True)
    subprocess.run(["git", "add", "."], cwd=desk.folder, check=True)
    expect(
        desk.type("train", "multinode", "a.py"),
        "git tracks files that should not leave this computer: id_deploy (a secret of the kind private-key)",
        "remove them from git or list them in .gpuopsignore; `--send-anyway id_deploy` sends one all the same",
        2,
    )
    assert nothing_left(desk.home)


@pytest.fixture
def newer(desk: Desk) -> Desk:
    """A ledger that a later gpuops has written."""
    assert desk.type("train", "multinode", "--dry-run").code == 0
    with sqlite3.connect(desk.home / "ledger.db") as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    return desk


@pytest.mark.parametrize(
    "words", [("up", "local"), ("train", "multinode"), ("run", "--", "true"), ("runs",), ("logs",), ("status",)]
)
def test_a_ledger_of_a_newer_version_stops_what_would_add_to_it(newer: Desk, words: tuple[str, ...]) -> None:
    said = newer.type(*words)
    expect(said, f"{newer.home / 'ledger.db'} was written by a newer gpuops (schema 99, this one knows 1)",
           "upgrade gpuops; `gpuops down` and `gpuops reap` work all the same", 2)  # fmt: skip
    assert not (newer.home / "local").exists()


def test_with_a_ledger_of_a_newer_version_what_is_there_can_be_seen_and_ended(shell: Shell) -> None:
    assert shell.run("up", "local", "--name", "lab").returncode == 0
    with sqlite3.connect(shell.home / "ledger.db") as db:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        db.execute("PRAGMA user_version = 99")
    db.close()
    assert [one["known"] for one in shell.json("status", "--cloud")["resources"]] == [False]
    unasked = shell.run("reap")
    assert unasked.returncode == 5
    assert unasked.stderr.endswith("gpuops reap --adopt; or end it: gpuops reap --yes\n")
    assert shell.run("down", "other").returncode == 2
    ended = shell.run("down", "lab")
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (0, "lab is gone")
    assert shell.json("status", "--cloud")["resources"] == []
    with sqlite3.connect(shell.home / "ledger.db") as db:
        db.execute(f"PRAGMA user_version = {version}")
    db.close()


def failed(shell: Shell, *words: str) -> tuple[int, list[str]]:
    done = shell.run(*words)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr.splitlines()[-2:]


def test_what_only_a_live_cluster_can_say(shell: Shell) -> None:
    assert shell.run("up", "local", "--name", "lab").returncode == 0
    shell.write("a.py", "")
    assert failed(shell, "up", "local", "--name", "lab") == (
        2, ["error: a cluster named lab exists already", "hint: choose another --name, or end it: gpuops down lab"],
    )  # fmt: skip
    assert failed(shell, "train", "multinode", "--nodes", "200", "a.py") == (
        2, ["error: 200 nodes are more than the machine of node0 can bear, at most 128",
            "hint: ask for fewer --nodes or --gpus"],
    )  # fmt: skip
    assert failed(shell, "run", "--python", "/nowhere/python", "--", "true") == (
        2, ["error: node0: there is no Python at '/nowhere/python' on this node",
            "hint: name a Python of the node with --python PATH, or leave --python out"],
    )  # fmt: skip
    bare = shell.home / "bare" / "python3"
    bare.parent.mkdir()
    bare.symlink_to(os.path.realpath(sys.executable))  # the interpreter without its environment: no torch
    assert failed(shell, "train", "single", "a.py", "--python", str(bare)) == (
        2, [f"error: node0: '{bare}' has no torch", "hint: install torch there, or leave --python out"],
    )  # fmt: skip
    assert failed(shell, "train", "single", "--resume", "true-1") == (
        2, ["error: true-1 was never started, and left nothing to resume from",
            "hint: leave --resume out to start from the beginning"],
    )  # fmt: skip
    first = shell.start("run", "--", "sh", "-c", "trap 'exit 0' USR1; echo on; while :; do sleep 0.1; done")
    log = shell.folder / "runs/sh-1/logs/node0/launcher.out"
    until(lambda: log.exists() and log.read_text() == "on\n", "sh-1 running")
    assert failed(shell, "run", "--", "true") == (
        2, ["error: sh-1 is running on lab",
            "hint: wait for it with --queue, or end it: gpuops stop sh-1; beside it: gpuops ssh lab -- true"],
    )  # fmt: skip
    assert shell.run("stop", "sh-1").returncode == 0
    first.communicate(timeout=HANG_S)
    assert shell.run("down").returncode == 0
    rows = {row["run"]: row["say"] for row in shell.json("runs")["runs"]}
    assert rows["true-1"] == "not started: node0: there is no Python at '/nowhere/python' on this node"
    assert list((shell.folder / "runs").iterdir()) != []
    shell.expect_clean()
