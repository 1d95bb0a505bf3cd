"""Nothing is destroyed before its results are home, whoever loses patience; and what is said of a run at its edges."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.conftest import HANG_S, Shell, until
from tests.integration.cli.counting import Counting
from tests.integration.cli.heard import spoken

GUARD_SAYS = "the guard brings the results home and ends local-1"


@pytest.mark.parametrize("name", ["INT", "HUP"])
def test_a_signal_during_the_last_fetch(shell: Shell, name: str) -> None:
    done = shell.run(
        "run", "--", "sh", "-c", "echo made > made.pt", driver=f"signal:{name}:gpuops.runs.results.collect:fetch_now"
    )
    assert done.returncode == 130, done.stderr
    assert (GUARD_SAYS in done.stderr) is (name == "INT")
    until(lambda: not shell.cluster_states(), "the guard's end of the cluster")
    assert (shell.folder / "runs/sh-1/out/made.pt").read_text() == "made\n"
    shell.expect_clean()


def test_a_port_that_is_taken_meanwhile(shell: Shell) -> None:
    shell.write("a.py", "print('trained')")
    done = shell.run("train", "multinode", "--nodes", "2", "--gpus", "1", "a.py", driver="taken")
    assert "the port was taken by another program in the meantime: launching once more" in done.stderr, done.stderr
    assert sorted(done.stdout.splitlines()) == ["[n0 r0] trained", "[n1 r1] trained"]
    assert done.returncode in (0, 1), "the ranks of this script never meet, which is all that may be said against it"
    assert "all 2 ranks ended well" in done.stderr
    shell.expect_clean()


def test_down_is_left_by_the_second_signal_and_finished_by_the_guard(shell: Shell, tmp_path: Path) -> None:
    assert shell.run("up", "local", "--nodes", "2", "--name", "lab").returncode == 0
    counting = Counting(shell, tmp_path / "side").start("deaf")
    counting.process.kill()
    down = shell.start("down", "lab")
    assert down.stderr
    until(lambda: counting.has_event(0, "stopping"), "the stop of what hears nothing")
    down.send_signal(signal.SIGINT)
    assert "still ending lab; once more leaves that to the guard\n" in iter(down.stderr.readline, "")
    down.send_signal(signal.SIGINT)
    _, err = down.communicate(timeout=HANG_S)
    assert down.returncode == 130, err
    assert "error: interrupted: the guard goes on ending lab" in err
    until(lambda: not shell.cluster_states(), "the guard's end of the cluster")
    counting.expect_nothing_left()
    counting.expect_every_byte()


def test_a_run_that_is_still_being_prepared(shell: Shell) -> None:
    gate = shell.home.parent / "gate"
    setup = f"until [ -e {gate} ]; do sleep 0.1; done"
    first = shell.start("run", "--setup", setup, "--", "echo", "hello")
    until(lambda: shell.run_states() == ["starting"], "the preparation")
    stop = shell.run("stop")
    assert stop.returncode == 2
    assert spoken(stop.stderr) == [
        "error: echo-1 is still being prepared", "hint: press Ctrl-C where it was started",
    ]  # fmt: skip
    logs = shell.start("logs", "-f")
    assert logs.stderr
    assert logs.stderr.readline() == "echo-1 is still being prepared\n"
    gate.touch()
    assert first.communicate(timeout=HANG_S)[0] == "hello\n"
    assert logs.communicate(timeout=HANG_S)[0] == "hello\n"
    assert logs.returncode == 0


def test_logs_of_a_node_out_of_reach(shell: Shell, tmp_path: Path) -> None:
    counting = Counting(shell, tmp_path / "side").start()
    agents = shell.home / "local" / "agent"
    away = agents.with_name("away")
    agents.rename(away)
    agents.touch()  # in the way of another agent that a command would put there
    try:
        logs = shell.run("logs", "--tail", "5")
    finally:
        agents.unlink()
        away.rename(agents)
    assert logs.returncode == 0, logs.stderr
    assert len(logs.stdout.splitlines()) == 5
    assert "its lines so far are those at home" in logs.stderr
    counting.enough()
    assert counting.end().returncode == 0
