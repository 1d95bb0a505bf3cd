"""Renting as it is typed: a wait that is interrupted or killed, and a guard that has the key."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from gpuops.guard import daemon, start
from tests.conftest import HANG_S, Shell, until
from tests.fakes.provider import NAME, Cloud, Fault, install
from tests.fakes.tent import pitch
from tests.files import written_in
from tests.integration.cli.heard import spoken

ROOT = str(Path(__file__).parents[3])
KEY = "rpa_" + "Q7z" * 14


@pytest.fixture
def camp(shell: Shell, tmp_path: Path) -> Shell:
    """A shell in which tents can be rented."""
    shell.env["PYTHONPATH"] = os.pathsep.join([*pitch(tmp_path / "site"), ROOT])
    return shell


@pytest.fixture
def taken(shell: Shell, tmp_path: Path) -> tuple[Shell, Cloud]:
    """A provider that has nothing."""
    (tmp_path / "cloud").mkdir()
    cloud = install(tmp_path / "cloud")
    cloud.play(create_always=[Fault("NoCapacity", made=1)], settle_s=0.0)
    shell.env |= {"PYTHONPATH": os.pathsep.join([str(cloud.site), ROOT]), "SCRIPTED": str(cloud.folder)}
    return shell, cloud


def waiting(shell: Shell, cloud: Cloud, wait: Sequence[str] = ("--wait", "2h")) -> subprocess.Popen[str]:
    command = shell.start("up", NAME, "--name", "lab", "--yes", *wait)
    until(lambda: "destroy" in cloud.calls() and not cloud.machines(), "a first attempt that came to nothing")
    until(lambda: [one["state"] for one in shell.clusters()] == ["creating"], "a cluster that waits")
    return command


def test_a_wait_is_interrupted(taken: tuple[Shell, Cloud]) -> None:
    shell, cloud = taken
    command = waiting(shell, cloud)
    command.send_signal(signal.SIGINT)
    _, err = command.communicate(timeout=HANG_S)
    assert command.returncode == 130, err
    assert re.search(r"the provider said NoCapacity: asking again for (2 h 00|1 h 59) min\n", err), err
    assert "lab is undone, nothing of it is left\n" in err
    assert shell.clusters() == []
    shell.expect_clean()


def test_a_wait_is_killed(taken: tuple[Shell, Cloud]) -> None:
    shell, cloud = taken
    command = waiting(shell, cloud)
    command.kill()
    command.wait()
    until(lambda: not shell.cluster_states(), "an end to what the killed command had begun")
    assert cloud.machines() == []
    shell.expect_clean()


def test_a_wait_is_ended_from_elsewhere(taken: tuple[Shell, Cloud]) -> None:
    shell, cloud = taken
    command = waiting(shell, cloud)
    assert shell.run("down", "lab").returncode == 0
    assert shell.clusters() == []
    assert cloud.machines() == []
    command.terminate()
    assert command.wait(HANG_S) == 130


@pytest.mark.parametrize(("span", "say"), [("soon", "'soon' is not a length of time"), ("", "--wait is empty")])
def test_a_wait_that_is_none(taken: tuple[Shell, Cloud], span: str, say: str) -> None:
    shell, _ = taken
    done = shell.run("up", NAME, "--yes", "--wait", span)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, f"error: {say}")


def test_it_may_stand_in_the_projects_file(taken: tuple[Shell, Cloud]) -> None:
    shell, cloud = taken
    shell.write("gpuops.toml", '[up]\nwait = "30h"\n')
    assert shell.run("trust", "--yes").returncode == 0
    command = waiting(shell, cloud, wait=())
    command.send_signal(signal.SIGINT)
    _, err = command.communicate(timeout=HANG_S)
    assert command.returncode == 130, err
    assert re.search(r"asking again for (30 h 00|29 h 59) min\n", err), err
    shell.expect_clean()


def keys(shell: Shell, cluster: int) -> list[str | None]:
    """The key that each process of a cluster's guard has in its environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if start.command(shell.home, cluster)[1:] == process.cmdline()[1:5]:
                found.append(process.environ().get("RUNPOD_API_KEY"))
        except (psutil.Error, IndexError):
            continue
    return found


def test_each_guard_has_the_key_that_its_cluster_was_rented_with(camp: Shell) -> None:
    """Another cluster's was there already, started by a command without a key; and nothing on the disk holds it."""
    assert camp.run("up", "local", "--name", "mine", "--max-hours", "1").returncode == 0
    until(lambda: {*keys(camp, 1)} == {None}, "a guard without a key")
    camp.env["RUNPOD_API_KEY"] = KEY
    up = camp.run("up", "tent", "--name", "theirs", "--yes")
    assert up.returncode == 0, up.stderr
    until(lambda: {*keys(camp, 2)} == {KEY}, "the guard with the key")
    del camp.env["RUNPOD_API_KEY"]
    assert camp.run("status").returncode == 0
    time.sleep(2 * daemon.TICK_S)
    assert ({*keys(camp, 1)}, {*keys(camp, 2)}) == ({None}, {KEY}), "a command without a key takes none away"
    assert [path for path, data in written_in(camp.home, camp.folder).items() if KEY.encode() in data] == []
    assert camp.run("down", "--all").returncode == 0
    camp.expect_clean()


def test_the_last_words_of_what_is_rented(camp: Shell) -> None:
    up = camp.run("up", "tent", "--name", "camp", "--yes", "--max-hours", "2")
    assert up.returncode == 0, up.stderr
    first, last = up.stdout.splitlines()
    assert first == "camp is up: 1 node at $0.36/h"
    assert re.fullmatch(
        r"`gpuops down camp` ends it; it ends by itself at [\w :]+, or after 30 min without use", last
    ), last
    assert camp.run("down").returncode == 0


def test_a_dry_run_shows_what_there_is_and_the_money(camp: Shell) -> None:
    done = camp.run("up", "tent", "--dry-run", "--max-hours", "100")
    assert done.stdout.splitlines() == [
        "OFFER           REGION  $/H",
        "1 tent (small)  meadow  $0.36",
        "1 tent (large)  meadow  $0.72",
        "would create: 1 tent (small), $0.36/h",
        "the top one is tried first: the cheapest; the next ones follow where it cannot be had",
    ]
    said = "note: the balance of $20.00 lasts 55 h 33 min at $0.36/h: the lease ends shortly before"
    assert spoken(done.stderr) == [said]
