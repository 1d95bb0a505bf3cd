"""`offers`, `up cheapest`, and a run that goes on at another provider (tests/fakes/stalls.py)."""

from __future__ import annotations

import json
import os
import time
from functools import reduce
from pathlib import Path

import pytest

from tests.conftest import HANG_S, Shell, until
from tests.fakes import fair, stalls
from tests.integration.cli.heard import spoken

ROOT = str(Path(__file__).parents[3])
KEYS = {"schema", "kind", "asked", "hours", "offers", "left_out", "unasked"}
SUM = """
import os, pathlib, time
saved = pathlib.Path("saved.txt")
done, total = map(int, saved.read_text().split()) if saved.exists() else (0, 1)
print("began at", done, flush=True)
for step in range(done + 1, 9):
    total = total * 31 % 1000003 + step
    pathlib.Path("draft").write_text(f"{step} {total}")
    os.replace("draft", saved)
    if step == 4 and done == 0:
        print("waits", flush=True)
        time.sleep(600)
pathlib.Path("result.txt").write_text(str(total))
"""
"""Saves after each step, and waits in the fourth to be taken back."""


def settle(shell: Shell, tmp_path: Path, *names: str) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "RUNPOD_"))]:
        shell.env[name] = ""
    shell.env |= {
        "HOME": str(tmp_path),
        "PYTHONPATH": os.pathsep.join([*stalls.settle(tmp_path / "site", names), ROOT]),
    }


def test_a_table_of_all_who_answer(shell: Shell, tmp_path: Path) -> None:
    """One is silent for ever, one slow, one lies, one wants a key, one fails: none of them keeps the others from being
    shown, or the command from ending."""
    settle(shell, tmp_path, *stalls.NAMES)
    began = time.monotonic()
    done = shell.run("offers", "--gpus", "4", "--gpu-mem", "24", "--hours", "3", "--json")
    assert time.monotonic() - began < HANG_S
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document.keys() == KEYS
    assert (document["kind"], document["hours"]) == ("market", 3.0)
    shown = [(one["provider"], one["id"], one["total"]) for one in document["offers"]]
    assert shown == [
        ("liar", "RTX-3060", pytest.approx(1.2)),  # told to have 24 GB, and nobody named a GPU
        ("keyless", "L40S", pytest.approx(2.4)),
        ("booth", "A10G", pytest.approx(3.6)),
        ("stall", "RTX-4090", pytest.approx(4.08)),
        ("liar", "L4", pytest.approx(6.0)),
        ("stall", "A100-SXM", pytest.approx(11.88)),
        ("slow", "H100-SXM", pytest.approx(30.0)),
    ]
    assert [one["provider"] for one in document["offers"] if not one["rentable"]] == ["keyless"]
    unasked = [one["provider"] for one in document["unasked"]]
    assert [name for name in unasked if name in stalls.NAMES] == ["keyless", "shut", "silent"]
    assert {"aws", "runpod"} <= {*unasked}
    assert all(one["hint"] for one in document["unasked"])
    assert len(document["left_out"]) == 10
    notes = spoken(done.stderr)
    assert "note: silent did not answer within 5 s; try again, or ask it alone: gpuops up silent --dry-run" in notes
    assert "note: liar: 8 other offers left out, too" in notes
    assert not shell.home.exists() or not (shell.home / "ledger.db").exists(), "looking makes nothing"


def test_the_cheapest_that_can_be_had_and_how_long_it_took(shell: Shell, tmp_path: Path) -> None:
    settle(shell, tmp_path, "stall", "booth")
    (shell.home / "booth").mkdir(parents=True)
    (shell.home / "booth" / "full").write_text("A10G")
    assert shell.run("up", "cheapest", "--gpus", "4", "--gpu-mem", "24", "--awning", "red", "--yes").returncode == 2
    done = shell.run("up", "cheapest", "--gpus", "4", "--gpu-mem", "24", "--yes", "--name", "lab", "--json")
    assert done.returncode == 0, done.stderr
    assert "no tent is left in the A10G: on to the next offer\n" in done.stderr.replace("booth: ", "")
    up = json.loads(done.stdout)
    assert (up["name"], up["provider"]) == ("lab", "stall")
    assert [one["provider"] for one in shell.clusters()] == ["stall"]
    (again,) = shell.json("offers", "--on", "stall", "--gpus", "4", "--gpu-type", "rtx4090")["offers"]
    assert again["ready_s"] > 0
    assert shell.run("down", "lab").returncode == 0
    shell.expect_clean()


def test_a_run_goes_on_at_the_next_provider_and_ends_as_one_that_was_never_taken(shell: Shell, tmp_path: Path) -> None:
    settle(shell, tmp_path, "stall", "booth")
    shell.write("sum.py", SUM)
    words = ("run", "--on", "stall,booth", "--yes", "--retries", "1", "--out", "*.txt", "--max-hours", "1", "--json")
    command = shell.start(*words, "--", "python3", "sum.py")
    saved = shell.folder / "runs" / "python3-1" / "out" / "saved.txt"
    until(lambda: saved.exists() and saved.read_text().startswith("4 "), "the snapshot at home")
    assert fair.take_back(shell.home / "stall")
    out, err = command.communicate(timeout=HANG_S)
    assert command.returncode == 0, err
    assert "stall lost machines of this run: asked last\n" in err
    document = json.loads(out)
    (loss,) = document["retries"]
    assert (loss["provider"], loss["run"], document["provider"]) == ("stall", "python3-1", "booth")
    log = shell.folder / "runs" / "python3-2" / "logs" / "node0" / "launcher.out"
    assert log.read_text() == "began at 4\n"
    result = (shell.folder / "runs" / "python3-2" / "out" / "result.txt").read_text()
    assert int(result) == reduce(lambda total, step: total * 31 % 1000003 + step, range(1, 9), 1)
    assert shell.clusters() == []
    shell.expect_clean()
