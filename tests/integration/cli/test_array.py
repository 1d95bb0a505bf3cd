"""`--array` on two nodes of this machine: one push, runs side by side, each with its own index, nodes and results."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import HANG_S, Shell, until
from tests.desk import Desk

SWEEP = """
import os, pathlib, sys, time
index, side = os.environ["GPUOPS_ARRAY_INDEX"], pathlib.Path(sys.argv[1])
assert sys.argv[2] == index
print("index", index, "on", os.path.basename(os.path.dirname(os.getcwd())), flush=True)
print("version", open("version.txt").read(), "finds", sorted(map(str, pathlib.Path().glob("*.pt"))), flush=True)
pathlib.Path("model.pt").write_text(index)
with open("outputs/log.txt", "a") as log:  # which came with the project
    log.write(index)
(side / index).touch()
deadline = time.monotonic() + 60
while index in "01" and not (side / "10"[int(index)]).exists():  # these two end only where both run at the same time
    assert time.monotonic() < deadline
    time.sleep(0.02)
if index == "0":
    pathlib.Path(sys.argv[3]).write_text("2")  # at home, while the array goes on
if index == "2":
    raise ValueError("no luck")
"""
WAITS = """
import os, pathlib, time
index, stop = os.environ["GPUOPS_ARRAY_INDEX"], pathlib.Path(os.environ["GPUOPS_STOP_FILE"])
print("began", index, flush=True)
while not stop.exists():
    time.sleep(0.02)
pathlib.Path("model.pt").write_text(f"saved by {index}")
"""


def test_a_dry_run_shows_the_queue(desk: Desk) -> None:
    desk.write("a.py", "")
    words = ("train", "single", "--on", "local", "--nodes", "3", "--array", "0-9%2", "a.py", "--dry-run")
    said = desk.type(*words, "--", "--seed", "{index}")
    assert said.code == 0, said.err
    assert said.out.startswith("would create: 3 nodes on this machine")
    assert said.out.splitlines()[-1] == "would queue 10 runs (--array 0-9%2), each on 1 node, at most 2 at once"
    document = json.loads(desk.type(*words, "--json").out)
    assert document["array"] == {"indices": [*range(10)], "at_most": 2}
    assert len(document["execute"]) == 1


def test_four_runs_share_two_nodes(shell: Shell, tmp_path: Path) -> None:
    side = tmp_path / "side"
    side.mkdir()
    shell.write("sweep.py", SWEEP)
    version = shell.write("version.txt", "1")
    shell.write("outputs/log.txt", "log ")
    line = ("run", "--on", "local", "--nodes", "2", "--array", "0-3", "--json", "--")
    done = shell.run(*line, "python3", "sweep.py", str(side), "{index}", str(version))
    assert done.returncode == 1, done.stderr

    document = json.loads(done.stdout)
    assert (document["kind"], document["array"], document["exit_code"]) == ("array", "0-3", 1)
    runs: list[dict[str, Any]] = document["runs"]
    assert [(one["index"], one["exit_code"], one["verdict"]["outcome"]) for one in runs] == [
        (0, 0, "done"), (1, 0, "done"), (2, 1, "failed"), (3, 0, "done"),
    ]  # fmt: skip
    assert len({one["run"] for one in runs}) == 4
    for one in runs:
        out = Path(one["home"], "logs/node0/launcher.out").read_text().splitlines()
        assert out[0].startswith(f"index {one['index']} on n")
        assert out[1] == "version 1 finds []", "sent once, and without what the run before has made there"
        assert Path(one["home"], "out/model.pt").read_text() == str(one["index"])
        assert Path(one["home"], "out/outputs/log.txt").read_text() == f"log {one['index']}"
        assert [one["request"]["nodes_at"]] == [[int(out[0][-1])]]
    assert {tuple(one["request"]["nodes_at"]) for one in runs[:2]} == {(0,), (1,)}
    assert re.findall(r"^code: ", done.stderr, re.M) == ["code: "]

    table = [line.split()[:2] for line in done.stderr.splitlines() if re.match(r"\d  ", line)]
    assert table == [[str(one["index"]), one["run"]] for one in runs]
    assert done.stderr.splitlines()[-2:] == [
        "1 of 4 runs of the array did not end well",
        "hint: again: --array 2",
    ]
    assert re.search(r"^\[2\] index 2 on n[01]$", done.stderr, re.M)
    assert re.findall(r"^.*ValueError: .*$", done.stderr, re.M) == ["[2] ValueError: no luck"], "its last words, once"
    listed = json.loads(shell.run("runs", "--json").stdout)["runs"]
    assert {one["run"]: one["array_index"] for one in listed} == {one["run"]: one["index"] for one in runs}
    shell.expect_clean()


@pytest.mark.parametrize("verb", ["made", "discard"])
def test_a_connection_that_is_lost_between_two_runs_is_opened_again(shell: Shell, verb: str) -> None:
    """What the run before had made or changed is taken off all the same, and what came with the project is there."""
    shell.write("words.txt", "as it came\n")
    line = "cat words.txt; ls *.pt; echo $GPUOPS_ARRAY_INDEX >words.txt; echo $GPUOPS_ARRAY_INDEX >model.pt"
    done = shell.run("run", "--on", "local", "--array", "0-2", "--out", "words.txt", "--", "sh", "-c", line,
                     driver=f"cut:{verb}:1")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "[1] local-1 does not answer; trying again" in done.stderr.splitlines()
    assert re.findall(r"^\[\d\] as it came$", done.stdout, re.M) == [f"[{index}] as it came" for index in range(3)]
    assert "model.pt" not in done.stdout
    for index in range(3):
        assert (shell.folder / f"runs/sh-{index + 1}/out/model.pt").read_text() == f"{index}\n"
    shell.expect_clean()


def test_an_interrupt_stops_all_with_their_snapshots_and_nobody_else_gets_between(shell: Shell) -> None:
    shell.write("waits.py", WAITS)
    assert shell.run("up", "local", "--nodes", "2", "--name", "lab").returncode == 0
    array = shell.start("run", "--array", "0-3", "--", "python3", "waits.py")
    logs = shell.folder / "runs"
    until(lambda: len([*logs.glob("*/logs/node0/launcher.out")]) == 2, "both are followed")
    until(lambda: all(path.read_text() for path in logs.glob("*/logs/node0/launcher.out")), "both have begun")
    refused = shell.run("run", "--", "true")
    assert refused.returncode == 2
    assert "error: the array of python3-1 is running on lab" in refused.stderr

    array.send_signal(signal.SIGINT)
    _, err = array.communicate(timeout=HANG_S)
    assert array.returncode == 130, err
    assert sorted(path.read_text() for path in logs.glob("*/out/model.pt")) == ["saved by 0", "saved by 1"]
    assert err.count("not started: interrupted") == 2
    assert [cluster["state"] for cluster in shell.clusters()] == ["up"]
    down = shell.run("down")
    assert down.returncode == 0
    assert "saved in" not in down.stderr, "what the runs made is home, from node1 as well"
    shell.expect_clean()


def test_a_cluster_that_is_ended_meanwhile_gets_no_further_run(shell: Shell) -> None:
    shell.write("waits.py", WAITS)
    assert shell.run("up", "local", "--name", "lab").returncode == 0
    array = shell.start("run", "--array", "0-2", "--", "python3", "waits.py")
    log = shell.folder / "runs/python3-1/logs/node0/launcher.out"
    until(lambda: log.exists() and log.read_text(), "the first has begun")
    assert shell.run("down").returncode == 0
    _, err = array.communicate(timeout=HANG_S)
    assert array.returncode == 130, err
    assert err.count("not started: another command ends lab") == 2
    assert (shell.folder / "runs/python3-1/out/model.pt").read_text() == "saved by 0"
    shell.expect_clean()


def test_runs_that_need_one_gpu_share_those_of_a_machine(shell: Shell) -> None:
    """Which is said to have two."""
    shell.env["CUDA_VISIBLE_DEVICES"] = "4,7"
    assert shell.run("up", "local", "--name", "lab").returncode == 0
    line = ("run", "--gpus", "1", "--array", "0-2", "--")
    done = shell.run(*line, "sh", "-c", "echo $GPUOPS_ARRAY_INDEX has $CUDA_VISIBLE_DEVICES.; sleep 1")
    assert done.returncode == 0, done.stderr
    assert "2 nodes on 1 machine: virtual nodes, 1 GPU each" in done.stderr.splitlines()
    said = dict(line.removeprefix("[").split("] ") for line in done.stdout.splitlines())
    assert {said["0"], said["1"]} == {"0 has 4.", "1 has 7."}
    assert said["2"] in ("2 has 4.", "2 has 7.")
    assert shell.run("down").returncode == 0
    shell.expect_clean()
