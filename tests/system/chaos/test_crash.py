"""SIGKILL the command line at every step: the guard or the next command finishes or undoes, and says so."""

from __future__ import annotations

import json

import pytest

from tests.conftest import HANG_S, Shell, until

COMMITS_OF_A_RUN = 12
"""How often `run` commits on the way (checked below); each commit is a step at which it may die."""
WORK = ["run", "--", "sh", "-c", "echo working; sleep 0.3; echo made > made.pt"]


def test_the_number_of_steps_is_known(shell: Shell) -> None:
    done = shell.run(*WORK, driver="none")
    assert done.returncode == 0, done.stderr
    assert f"commits: {COMMITS_OF_A_RUN}" in done.stderr
    assert (shell.folder / "runs/sh-1/out/made.pt").read_text() == "made\n"
    shell.expect_clean()


@pytest.mark.parametrize(
    "step",
    [pytest.param(step, marks=[pytest.mark.proof] * (step % 2 == 0)) for step in range(1, COMMITS_OF_A_RUN + 1)],
)
def test_killed_after_each_commit(shell: Shell, step: int) -> None:
    died = shell.run(*WORK, driver=f"commit:{step}")
    assert died.returncode == -9
    after = shell.run("runs", "--json")  # the next command: starts a guard where none is left
    said = after.stderr

    until(lambda: shell.is_clean() and not shell.cluster_states(), f"an end to what died after commit {step}")
    look = shell.run("runs", "--json")
    said += look.stderr
    rows = json.loads(look.stdout)["runs"]
    if rows and rows[0]["outcome"] == "done":
        assert (shell.folder / "runs/sh-1/out/made.pt").read_text() == "made\n"
        assert (shell.folder / "runs/sh-1/logs/node0/launcher.out").read_text() == "working\n"

    def told() -> bool:
        nonlocal said
        if any(words in said for words in ("undone", "torn down", "teardown finished")):
            return True
        said += shell.run("runs").stderr
        return False

    if step < COMMITS_OF_A_RUN:
        until(told, f"a word about what died after commit {step}, but: {said}")


BEFORE = ("before:create", "before:describe", "before:destroy")
"""Nothing has come of it: as killed after the last commit before that."""


@pytest.mark.parametrize(
    "point", ["after:create", "after:destroy", *(pytest.param(point, marks=pytest.mark.proof) for point in BEFORE)]
)
def test_killed_around_each_provider_call(shell: Shell, point: str) -> None:
    died = shell.run(*WORK, driver=point)
    assert died.returncode == -9
    shell.run("status")  # it may have died before it had a guard
    until(lambda: shell.is_clean() and not shell.cluster_states(), f"an end to what died {point}")


LOOPS = ("run", "--nodes", "2", "--all-nodes", "--", "sh", "-c", 'until [ -e "$GPUOPS_STOP_FILE" ]; do sleep 0.1; done')


def test_killed_between_two_starts_on_a_kept_cluster(shell: Shell) -> None:
    """One node runs it already: it is known, can be stopped, and is seen to its end."""
    assert shell.run("up", "local", "--nodes", "2").returncode == 0
    assert shell.run(*LOOPS, driver="call:start:2:KILL").returncode == -9
    assert [row["state"] for row in shell.json("runs")["runs"]] == ["running"]
    stop = shell.run("stop")
    assert stop.returncode == 0, stop.stderr
    assert stop.stdout.startswith("sh-1 is stopped")
    until(lambda: shell.run_states() == ["home"], "the run at home")
    assert shell.run("run", "--", "echo", "free").stdout == "free\n"
    assert shell.run("down").returncode == 0
    shell.expect_clean()


def test_killed_before_the_first_start_it_was_never_started(shell: Shell) -> None:
    assert shell.run("up", "local", "--nodes", "2").returncode == 0
    assert shell.run(*LOOPS, driver="call:start:1:KILL").returncode == -9
    until(lambda: shell.run_states() == ["home"], "the run cleared away")
    until(lambda: "sh-1 was never started" in shell.run("runs").stderr, "the guard's notice")


def test_interrupted_between_two_starts_nothing_runs_on(shell: Shell) -> None:
    assert shell.run("up", "local", "--nodes", "2").returncode == 0
    done = shell.run(*LOOPS, driver="call:start:2:INT")
    assert done.returncode == 130, done.stderr
    (row,) = shell.json("runs")["runs"]
    assert (row["state"], row["outcome"], row["say"]) == ("home", "stopped", "stopped before it was started")
    assert shell.run("run", "--queue", "--", "echo", "free").stdout == "free\n"


def test_a_lost_answer_of_create_is_looked_up_by_mark(shell: Shell) -> None:
    done = shell.run("up", "local", "--nodes", "2", driver="lost:create")
    assert done.returncode == 0, done.stderr
    assert [len(one["nodes"]) for one in shell.clusters()] == [2]
    assert shell.run("down").returncode == 0
    shell.expect_clean()


def test_a_killed_up_is_undone(shell: Shell) -> None:
    assert shell.run("up", "local", "--nodes", "2", driver="after:create").returncode == -9
    until(lambda: not shell.cluster_states(), "the half-made cluster undone")
    shell.expect_clean()


def test_a_killed_down_is_finished(shell: Shell) -> None:
    assert shell.run("up", "local").returncode == 0
    assert shell.run("down", driver="before:destroy").returncode == -9
    shell.run("status")
    until(lambda: not shell.cluster_states(), "the teardown finished")
    shell.expect_clean()


def test_two_command_lines_at_once(shell: Shell) -> None:
    both = [shell.start("run", "--", "sh", "-c", "echo $GPUOPS_RUN") for _ in range(2)]
    outs = [process.communicate(timeout=HANG_S) for process in both]
    assert [process.returncode for process in both] == [0, 0], outs
    assert len({out for out, _ in outs}) == 2
    shell.expect_clean()
