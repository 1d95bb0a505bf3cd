"""Ctrl-C, SIGTERM, SIGHUP, `gpuops stop` and the end of a lease: each means one thing, and nothing is left."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.conftest import HANG_S, Shell, until
from tests.files import expire_lease
from tests.integration.cli.counting import PLAIN, TORCHRUN, Counting
from tests.system.chaos.hits import is_guard

SAYS = "interrupted: stopping in good order (again to hurry)"
STOPPED = "the run was stopped before its end"


@pytest.mark.parametrize(("kind", "sign"), [(PLAIN, signal.SIGINT), (PLAIN, signal.SIGTERM), (TORCHRUN, signal.SIGINT)])
def test_the_first_signal_stops_in_good_order(
    shell: Shell, tmp_path: Path, kind: tuple[str, ...], sign: signal.Signals
) -> None:
    counting = Counting(shell, tmp_path / "side", kind).start("saving", "leaving")
    counting.process.send_signal(sign)
    done = counting.end()
    assert done.returncode == 130, done.stderr
    assert SAYS in done.stderr
    assert done.stderr.splitlines()[-2:] == [
        STOPPED,
        f"hint: run it again with `--resume {counting.run}` to continue from the newest snapshot that came home",
    ]
    for who in (0, 1):
        assert (shell.folder / f"runs/{counting.run}/out/snapshot-{who}.pt").read_text() == f"saved by {who}\n"
    counting.expect_nothing_left()
    counting.expect_every_byte()
    assert counting.verdict()["outcome"] == "stopped"


def test_the_second_signal_hurries_what_hears_nothing(shell: Shell, tmp_path: Path) -> None:
    counting = Counting(shell, tmp_path / "side").start("deaf")
    counting.process.send_signal(signal.SIGINT)
    for node in (0, 1):
        until(lambda node=node: counting.has_event(node, "stopping"), "the first is heard")
    counting.process.send_signal(signal.SIGINT)
    done = counting.end()
    assert done.returncode == 130, done.stderr
    assert "hurrying: ending everything now" in done.stderr
    assert done.stderr.splitlines()[-2:] == [STOPPED, "hint: run it again: it left no snapshot to continue from"]
    counting.expect_nothing_left()
    counting.expect_every_byte()
    for node in (0, 1):
        events = (shell.folder / f"runs/{counting.run}/logs/node{node}/events.jsonl").read_text().splitlines()
        assert [event["how"] for event in map(json.loads, events) if event["event"] == "stopping"] == [
            "graceful",
            "now",
        ]


@pytest.mark.parametrize(
    ("name", "place", "starting"),
    [
        ("INT", "gpuops.clusters.available_offers:find_offers", False),
        ("INT", "gpuops.clusters.creation:_create_first_available", False),
        ("INT", "gpuops.clusters.creation:wait_ready", False),
        ("INT", "gpuops.sync.upload:push_many", True),
        ("INT", "gpuops.nodes.python:prepare_pythons", True),
        ("INT", "gpuops.runs.launch:node_specs", True),
        ("HUP", "gpuops.clusters.creation:_create_first_available", False),
        pytest.param("HUP", "gpuops.runs.launch:node_specs", True, marks=pytest.mark.proof),
    ],
)
def test_a_signal_before_there_is_a_run(shell: Shell, place: str, starting: bool, name: str) -> None:
    done = shell.run("run", "--nodes", "2", "--", "echo", "never", driver=f"signal:{name}:{place}")
    assert done.returncode == 130, done.stderr
    assert "never" not in done.stdout
    assert "Traceback" not in done.stderr
    shell.expect_clean()
    until(lambda: not shell.cluster_states(), "nothing is up")
    assert len(shell.json("runs")["runs"]) == starting
    if name == "INT":
        assert SAYS in done.stderr


def test_ctrl_c_during_up(shell: Shell) -> None:
    done = shell.run("up", "local", "--nodes", "2", driver="signal:INT:gpuops.clusters.creation:wait_ready")
    assert done.returncode == 130, done.stderr
    assert "undoing local-1\n" in done.stderr
    assert "local-1 is undone, nothing of it is left\n" in done.stderr
    assert shell.clusters() == []
    shell.expect_clean()


def test_the_terminal_goes_away(shell: Shell, tmp_path: Path) -> None:
    """A real terminal that is closed: SIGHUP, and nothing can be written any more."""
    master, slave = os.openpty()
    counting = Counting(shell, tmp_path / "side")
    counting.options = {"stdin": slave, "stdout": slave, "stderr": slave, "preexec_fn": lambda: take_terminal(slave)}
    counting.start()
    os.close(slave)
    os.close(master)
    assert counting.process.wait(HANG_S) == 130
    counting.wait_beside()
    assert shell.clusters() != []
    counting.enough()
    counting.expect_nothing_left()
    counting.expect_every_byte()
    said = shell.run("status").stderr
    assert "python3-1: the command ended well; results in" in said
    assert "was torn down after its run" in said


def take_terminal(slave: int) -> None:
    import fcntl
    import termios

    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)


def test_a_cluster_that_was_there_before_stays(shell: Shell, tmp_path: Path) -> None:
    assert shell.run("up", "local", "--nodes", "2").returncode == 0
    counting = Counting(shell, tmp_path / "side").start("saving", "leaving")
    counting.process.send_signal(signal.SIGINT)
    done = counting.end()
    assert done.returncode == 130, done.stderr
    assert STOPPED in done.stderr.splitlines()
    assert [one["name"] for one in shell.clusters()] == ["local-1"]
    counting.expect_children_gone()
    assert shell.run("run", "--", "echo", "still there").stdout == "still there\n"
    assert shell.run("down").returncode == 0
    counting.expect_nothing_left()


def test_ctrl_c_in_logs_only_detaches(shell: Shell, tmp_path: Path) -> None:
    counting = Counting(shell, tmp_path / "side").start()
    logs = shell.start("logs", "-f", stdout=(tmp_path / "seen").open("w"))
    until(lambda: (tmp_path / "seen").stat().st_size > 0, "lines in the second terminal")
    logs.send_signal(signal.SIGINT)
    _, err = logs.communicate(timeout=HANG_S)
    assert logs.returncode == 0, err
    assert "detached; python3-1 goes on" in err
    assert "stopping in good order" not in err
    counting.wait_beside()
    counting.enough()
    assert counting.end().returncode == 0
    counting.expect_nothing_left()
    counting.expect_every_byte()


def test_stop_from_another_terminal(shell: Shell, tmp_path: Path) -> None:
    """The run's own command says that it was stopped, as if it had been interrupted itself, and tears down."""
    counting = Counting(shell, tmp_path / "side").start("saving", "leaving")
    stop = shell.run("stop")
    assert stop.returncode == 0, stop.stderr
    assert stop.stdout.startswith("python3-1 is stopped; its results are in ")
    done = counting.end()
    assert done.returncode == 130, done.stderr
    assert STOPPED in done.stderr.splitlines()
    assert (shell.folder / "runs/python3-1/out/snapshot-0.pt").exists()
    counting.expect_nothing_left()
    counting.expect_every_byte()


def test_ctrl_c_in_stop(shell: Shell, tmp_path: Path) -> None:
    """The stop goes on: it is the nodes that do it."""
    counting = Counting(shell, tmp_path / "side").start("saving")
    stop = shell.start("stop")
    until(lambda: counting.has_event(0, "stopping"), "the stop is heard")
    stop.send_signal(signal.SIGINT)
    _, err = stop.communicate(timeout=HANG_S)
    assert stop.returncode == 130, err
    assert "Traceback" not in err
    counting.enough()
    assert counting.end().returncode == 130
    counting.expect_nothing_left()


def test_the_lease_ends_during_a_run(shell: Shell, tmp_path: Path) -> None:
    """By the nodes' watchdogs: in good order, and only when what was saved is home."""
    assert shell.run("up", "local", "--nodes", "2", "--max-hours", "0.5").returncode == 0
    counting = Counting(shell, tmp_path / "side").start("saving", "leaving")
    for index in (0, 1):
        lease = json.loads((counting.node(index) / "lease.json").read_text())
        assert 0 < lease["hard_wall"] - time.time() <= 1800
    nodes = [counting.node(index) for index in (0, 1)]
    for node in nodes:
        end_now(node)
    expect_ended_by_lease(counting)
    # The guard, which looks once a minute, may clear them away as soon as they have.
    ended = [lambda node=node: not node.exists() or (node / "ended.json").exists() for node in nodes]
    until(lambda: all(one() for one in ended), "both nodes ended by themselves")
    assert shell.run("down").returncode == 0
    counting.expect_nothing_left()
    counting.expect_every_byte()


def test_the_guard_ends_what_outlived_its_lease(shell: Shell, tmp_path: Path) -> None:
    """The second dead-man: the nodes' watchdogs hang."""
    assert shell.run("up", "local", "--nodes", "2", "--max-hours", "1").returncode == 0
    counting = Counting(shell, tmp_path / "side").start("saving", "leaving")
    for index in (0, 1):
        counting.kill("watchdog", index, signal.SIGSTOP)
    expire(shell)
    expect_ended_by_lease(counting)
    counting.expect_nothing_left()
    counting.expect_every_byte()
    assert "local-1 reached the end of its lease and was ended" in shell.run("status").stderr


ENDS = ("lab reached the end of its lease and was ended", "lab had ended by itself and was cleared away")
"""What the guard sees first: it looks at the lease every second, and at the nodes once a minute."""


def test_the_guard_saves_edits_from_nodes_that_their_lease_has_ended(shell: Shell) -> None:
    shell.write("train.py", "print(1)\n")
    assert shell.run("up", "local", "--name", "lab", "--max-hours", "1").returncode == 0
    node = shell.home / "local" / "lab" / "n0"
    assert shell.run("push").returncode == 0
    (node / "project" / "train.py").write_text("print(1)  # precious\n")
    end_now(node)
    until(lambda: not node.exists() or (node / "ended.json").exists(), "the node ended by itself")
    expire(shell)
    said = ""

    def told() -> bool:
        nonlocal said
        said += shell.run("status").stderr
        return any(end in said for end in ENDS)

    until(told, "the guard's notice")
    assert (shell.folder / "runs/lab-left/node0/train.py").read_text() == "print(1)  # precious\n"
    assert "edited or made on node0, saved in" in said
    shell.expect_clean()


def test_the_guard_ends_a_lease_when_nobody_is_left(shell: Shell, tmp_path: Path) -> None:
    assert shell.run("up", "local", "--nodes", "2", "--max-hours", "1").returncode == 0
    counting = Counting(shell, tmp_path / "side").start("saving", "leaving")
    guards = [process for process in psutil.process_iter() if is_guard(process.pid, shell.home)]
    to_all(guards, signal.SIGSTOP)  # else it may take the run up before its lease has ended, which is a minute ago
    counting.process.kill()
    counting.process.wait()
    expire(shell)
    to_all(guards, signal.SIGCONT)
    counting.expect_nothing_left()
    counting.expect_every_byte()
    assert (shell.folder / "runs/python3-1/out/snapshot-1.pt").exists()
    assert re.fullmatch("the lease of node[01] ended the run", str(counting.verdict()["say"]))


def to_all(processes: list[psutil.Process], sign: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # a second guard waits a little, and leaves
            process.send_signal(sign)


def end_now(node: Path) -> None:
    """Let a node's lease end at once, as its watchdog sees it."""
    expire_lease(node / "lease.json")


def expire(shell: Shell) -> None:
    """Let the lease have ended a good while ago, as this computer sees it."""
    from gpuops.core.models import Lease
    from gpuops.guard.schedule import LEASE_MARGIN_S
    from gpuops.ledger.store import Ledger

    ledger = Ledger.open(shell.home)
    for row in ledger.clusters():
        ledger.set_cluster(row.id, lease=Lease(hard_end=time.time() - LEASE_MARGIN_S - 1))
    ledger.close()


def expect_ended_by_lease(counting: Counting) -> None:
    done = counting.end()
    assert done.returncode == 4, done.stderr
    assert re.search("^the lease of node[01] ended the run$", done.stderr, re.MULTILINE), done.stderr
    assert "--resume python3-1" in done.stderr.splitlines()[-1]
    for who in (0, 1):
        saved = counting.shell.folder / f"runs/python3-1/out/snapshot-{who}.pt"
        assert saved.read_text() == f"saved by {who}\n"
