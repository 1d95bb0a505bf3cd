"""SIGKILL any process of ours or of the run: nothing is left, no byte of a log is lost, and one sentence says why."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.conftest import HANG_S, Shell, until
from tests.integration.cli.counting import PLAIN, TORCHRUN, Counting, line, remove
from tests.system.chaos.hits import guards, kill

AGENT_SAYS = "gpuops' agent on this node was killed while the run was on"
WATCHDOG_SAYS = "gpuops' watchdog on this node was killed while the run was on"


def test_the_command_line_is_killed(shell: Shell, tmp_path: Path) -> None:
    counting = Counting(shell, tmp_path / "side").start()
    counting.process.send_signal(signal.SIGKILL)
    counting.process.wait()
    behind = len(counting.home(0))
    logs = shell.start("logs", "-f")
    until(lambda: len(counting.home(0)) > behind, "lines that came home after the kill")
    counting.enough()
    out, err = logs.communicate(timeout=HANG_S)
    assert logs.returncode == 0, err
    for who in (0, 1):
        shown = [text.removeprefix(f"[n{who}] ") for text in out.splitlines() if text.startswith(f"[n{who}] ")]
        assert "\n".join([*shown, ""]).encode() == counting.home(who)
    assert "the command ended well" in err
    counting.expect_nothing_left()
    counting.expect_every_byte()
    said = until(lambda: shell.run("status").stderr, "the guard's notices")
    assert "python3-1: the command ended well; results in" in said
    assert "was torn down after its run" in said


def test_logs_after_the_kill_show_every_line_once(shell: Shell, tmp_path: Path) -> None:
    """Two terminals look while the guard mirrors as well: three writers of the same bytes."""
    counting = Counting(shell, tmp_path / "side").start()
    counting.process.send_signal(signal.SIGKILL)
    both = [shell.start("logs", "-f"), shell.start("logs", "-f", "--node", "1")]
    until(lambda: len(counting.home(1).splitlines()) > 100, "more lines")
    counting.enough()
    outs = [process.communicate(timeout=HANG_S) for process in both]
    counting.expect_every_byte()
    lines = counting.home(1).decode().splitlines()
    assert [text.removeprefix("[n1] ") for text in outs[0][0].splitlines() if text.startswith("[n1] ")] == lines
    assert [text.removeprefix("[n1] ") for text in outs[1][0].splitlines()] == lines
    counting.expect_nothing_left()


@pytest.mark.parametrize(
    ("what", "node", "says"),
    [
        ("agent", 1, AGENT_SAYS),
        ("watchdog", 0, WATCHDOG_SAYS),
        pytest.param("watchdog", 1, WATCHDOG_SAYS, marks=pytest.mark.proof),
    ],
)
def test_a_process_of_ours_is_killed(shell: Shell, tmp_path: Path, what: str, node: int, says: str) -> None:
    counting = Counting(shell, tmp_path / "side").start()
    counting.kill(what, node)
    done = counting.end()
    assert done.returncode == 4, done.stderr
    last = done.stderr.splitlines()[-2:]
    assert last[0] == f"the run was lost on node{node}: {says}"
    assert last[1].startswith("hint: ")
    counting.expect_nothing_left()
    counting.expect_every_byte()
    assert counting.verdict()["outcome"] == "lost"


@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.proof)])
def test_the_command_is_killed(shell: Shell, tmp_path: Path, how: signal.Signals) -> None:
    counting = Counting(shell, tmp_path / "side").start()
    counting.kill("launcher", 1, how)
    done = counting.end()
    assert done.returncode == 1, done.stderr
    assert f"the command on node1 was ended by {how.name}" in done.stderr.splitlines()
    counting.expect_nothing_left()
    counting.expect_every_byte()


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("launcher", "torchrun on node1 was ended by SIGKILL"),
        pytest.param(
            *("wrapper", "rank 1 on node1 was ended by SIGKILL"),
            marks=pytest.mark.real_torch,  # which names the rank whose wrapper was killed
        ),
        ("worker", "rank 1 on node1 was ended by SIGKILL"),
    ],
)
def test_a_process_under_torchrun_is_killed(shell: Shell, tmp_path: Path, what: str, says: str) -> None:
    counting = Counting(shell, tmp_path / "side", TORCHRUN).start("deaf")
    counting.kill(what, 1)
    done = counting.end()
    assert done.returncode == 1, done.stderr
    assert says in done.stderr.splitlines()
    assert "hint: " in done.stderr.splitlines()[-1]
    counting.expect_nothing_left()
    counting.expect_every_byte()
    assert counting.verdict()["outcome"] == "failed"


def test_the_agent_is_killed_under_torchrun(shell: Shell, tmp_path: Path) -> None:
    counting = Counting(shell, tmp_path / "side", TORCHRUN).start("deaf")
    counting.kill("agent", 0)
    done = counting.end()
    assert done.returncode == 4, done.stderr
    assert f"the run was lost on node0: {AGENT_SAYS}" in done.stderr.splitlines()
    counting.expect_nothing_left()
    counting.expect_every_byte()


def test_agent_and_watchdog_are_killed_at_once(shell: Shell, tmp_path: Path) -> None:
    """Nobody of ours is left on the node: its end comes from outside, and by the marker."""
    counting = Counting(shell, tmp_path / "side").start()
    counting.kill_together(1, "watchdog", "agent")
    done = counting.end()
    assert done.returncode == 4, done.stderr
    assert "node1" in done.stderr.splitlines()[-2]
    shell.expect_clean()


def test_everything_at_home_is_killed(shell: Shell, tmp_path: Path) -> None:
    """Command line and guard: the run goes on, and the next command starts a guard that finishes."""
    counting = Counting(shell, tmp_path / "side").start()
    for guard in until(lambda: guards(shell), "a guard"):
        kill(guard)
    counting.process.send_signal(signal.SIGKILL)
    counting.process.wait()
    counting.wait_beside()
    assert shell.run("runs").returncode == 0
    counting.enough()
    counting.expect_nothing_left()
    counting.expect_every_byte()
    assert counting.verdict()["outcome"] == "done"


def test_the_program_writes_the_lines_that_are_compared(shell: Shell, tmp_path: Path) -> None:
    counting = Counting(shell, tmp_path / "side", PLAIN).start()
    counting.enough()
    done = counting.end()
    assert done.returncode == 0, done.stderr
    assert counting.home(1).startswith(line(1, 0) + line(1, 1))
    counting.expect_nothing_left()
    counting.expect_every_byte()


def test_a_removed_node_folder_takes_its_processes_along(shell: Shell) -> None:
    assert shell.run("up", "local").returncode == 0
    [node] = (shell.home / "local").glob("*/n0")
    remove(node)
    shell.expect_clean()
