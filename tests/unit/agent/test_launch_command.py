"""Which command line, in which environment, and what its end means: values in, values out."""

from __future__ import annotations

import math

import pytest

from gpuops.agent.run import launch_command, result
from gpuops.agent.run.result import decide_outcome
from gpuops.agent.run.stopping import Step, StopAction, StopRequest, stop_steps
from gpuops.agent.run_documents import LaunchSpec, Outcome, RankRecord, Reason, RunKind, StopMode

TOKENS = {"{python}": "/py", "{agent}": "/a.pyz", "{run}": "/node/runs/r-1"}


def test_tokens_are_ours_only_before_the_dashes() -> None:
    argv = ["/venv/python", "--log-dir={run}/t", "{python}", "{agent}", "--", "{run}", "--", "x"]
    assert launch_command.launch_command(LaunchSpec("r-1", kind=RunKind.TORCHRUN, argv=argv), TOKENS) == [
        *["/venv/python", "--log-dir=/node/runs/r-1/t", "/py", "/a.pyz", "--", "{run}", "--", "x"]
    ]


def test_a_users_command_is_left_alone() -> None:
    argv = ["echo", "{run}", "{python}"]
    assert launch_command.launch_command(LaunchSpec("r-1", argv=argv), TOKENS) == argv


def test_a_prelude_never_quotes_the_command() -> None:
    found = launch_command.with_prelude(["module load cuda"], ["echo", "$(x)"], which=lambda name: f"/bin/{name}")
    assert found == ["/bin/bash", "-c", 'module load cuda\nexec "$@"', "/bin/bash", "echo", "$(x)"]
    assert launch_command.with_prelude(["x"], ["echo"], which=lambda _: None)[0] == "/bin/sh"


@pytest.mark.parametrize(
    ("name", "gone"),
    [("PET_NNODES", True), ("PET", False), ("RANK", True), ("RANKS", False), ("XPET_A", False)],
)
def test_scrubbing_is_by_name_or_prefix(name: str, gone: bool) -> None:
    env = launch_command.launch_environment({name: "1"}, LaunchSpec("r-1", scrub=["PET_", "RANK"]), {}, TOKENS, {})
    assert (name not in env) is gone


def test_later_sources_win() -> None:
    spec = LaunchSpec("r-1", env={"A": "spec", "B": "spec", "DIR": "{run}/x"})
    env = launch_command.launch_environment(
        {"A": "base", "PATH": "/bin"}, spec, {"B": "secret"}, TOKENS, {"GPUOPS_RUN": "mark"}
    )
    ours = {"A": "spec", "B": "secret", "DIR": "/node/runs/r-1/x", "GPUOPS_RUN": "mark", "PATH": "/bin"}
    assert env == ours


def test_the_ladder() -> None:
    ask, term, kill = Step(0.0, StopAction.ASK), Step(10.0, StopAction.TERM), Step(20.0, StopAction.KILL)
    assert stop_steps(StopMode.GRACEFUL, 10.0) == [ask, term, kill]
    assert stop_steps(StopMode.NOW, 10.0) == [Step(0.0, StopAction.TERM), Step(2.0, StopAction.KILL)]


STOP = StopRequest(Reason("stop", "enough"))


def record(rank: int, ended: float | None, code: int | None = 0, signal: int | None = None) -> RankRecord:
    return RankRecord(rank, ended=ended, code=code, signal=signal)


@pytest.mark.parametrize(
    ("kind", "returncode", "records", "stop", "expected"),
    [
        ("torchrun", 0, [record(0, 50), record(1, 51)], None, ("done", "launcher", "it ended by itself")),
        ("command", 0, [], None, ("done", "command", "it ended by itself")),
        ("command", 3, [], None, ("failed", "command", "the command failed with exit code 3")),
        ("command", -9, [], None, ("failed", "command", "the command was ended by SIGKILL")),
        ("torchrun", 1, [], None, ("failed", "launcher", "torchrun failed with exit code 1")),
        ("torchrun", -9, [record(0, None)], None, ("failed", "launcher", "torchrun was ended by SIGKILL")),
        (
            "torchrun",
            1,
            [record(0, 52, 1), record(1, 51, 3)],
            None,
            ("failed", "rank", "rank 1 failed with exit code 3"),
        ),
        ("torchrun", 1, [record(0, 52, None, 11)], None, ("failed", "rank", "rank 0 was ended by SIGSEGV")),
        ("torchrun", 1, [record(0, 101, 1)], STOP, ("stopped", "stop", "enough")),
        ("torchrun", 0, [record(0, 101)], STOP, ("stopped", "stop", "enough")),
        ("torchrun", None, [record(0, None)], STOP, ("stopped", "stop", "enough")),
        ("torchrun", 1, [record(0, 99, 1)], STOP, ("failed", "rank", "rank 0 failed with exit code 1")),
        ("command", -15, [], STOP._replace(outcome=Outcome.LOST), ("lost", "stop", "enough")),
    ],
)
def test_how_a_run_ended(
    kind: str,
    returncode: int | None,
    records: list[RankRecord],
    stop: StopRequest | None,
    expected: tuple[str, str, str],
) -> None:
    found, reason = decide_outcome(RunKind(kind), returncode, records, stop, 100.0 if stop else math.inf)
    assert (found, reason.kind, reason.say) == expected


def test_signals_have_names_where_they_do() -> None:
    assert result.signal_name(9) == "SIGKILL"
    assert result.signal_name(63) == "signal 63"
