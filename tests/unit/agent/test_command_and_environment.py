"""Which command line is started, in which environment: values in, values out."""

from __future__ import annotations

import pytest

from gpuops.agent.run import command_and_environment
from gpuops.agent.run_documents import LaunchSpec, RunKind

TOKENS = {"{python}": "/py", "{agent}": "/a.pyz", "{run}": "/node/runs/r-1"}


def test_tokens_are_ours_only_before_the_dashes() -> None:
    argv = ["/venv/python", "--log-dir={run}/t", "{python}", "{agent}", "--", "{run}", "--", "x"]
    assert command_and_environment.build_command(LaunchSpec("r-1", kind=RunKind.TORCHRUN, argv=argv), TOKENS) == [
        *["/venv/python", "--log-dir=/node/runs/r-1/t", "/py", "/a.pyz", "--", "{run}", "--", "x"]
    ]


def test_a_users_command_is_left_alone() -> None:
    argv = ["echo", "{run}", "{python}"]
    assert command_and_environment.build_command(LaunchSpec("r-1", argv=argv), TOKENS) == argv


def test_what_runs_in_an_image_stands_behind_the_words_that_start_it() -> None:
    within = ["apptainer", "exec", "/srv/{run}.sif"]
    torchrun = LaunchSpec("r-1", kind=RunKind.TORCHRUN, argv=["py", "{run}/x", "--", "{run}"], within=within)
    ours = command_and_environment.replace_tokens("{run}/x", TOKENS)
    assert command_and_environment.build_command(torchrun, TOKENS) == [*within, "py", ours, "--", "{run}"]
    command = LaunchSpec("r-1", argv=["a"], within=within, prelude=["module load x"])
    words = command_and_environment.build_command(command, TOKENS)
    assert (words[:4], words[-2:]) == ([*within, "/bin/sh"], ["/bin/sh", "a"]), "a shell that every image has"


def test_a_prelude_never_quotes_the_command() -> None:
    found = command_and_environment.with_prelude(
        ["module load cuda"], ["echo", "$(x)"], which=lambda name: f"/bin/{name}"
    )
    script = command_and_environment.prelude_script(["module load cuda"])
    assert found == ["/bin/bash", "-c", script, "/bin/bash", "echo", "$(x)"]
    assert script.endswith('\nexec "$@"')
    assert command_and_environment.with_prelude(["x"], ["echo"], which=lambda _: None)[0] == "/bin/sh"


@pytest.mark.parametrize(
    ("line", "asks"),
    [
        ("module load x", True),
        ("cd / && ml x", True),
        ("[ -e x ]; module use y", True),
        ("source module.sh", False),
        ("export MODULE=1", False),
        ("html x", False),
    ],
)
def test_a_login_shell_is_asked_for_module_where_a_line_needs_it(line: str, asks: bool) -> None:
    assert ("bash -lc" in command_and_environment.prelude_script([line])) is asks


@pytest.mark.parametrize(
    ("name", "gone"),
    [("PET_NNODES", True), ("PET", False), ("RANK", True), ("RANKS", False), ("XPET_A", False)],
)
def test_scrubbing_is_by_name_or_prefix(name: str, gone: bool) -> None:
    env = command_and_environment.build_environment(
        {name: "1"}, LaunchSpec("r-1", scrub=["PET_", "RANK"]), {}, TOKENS, {}
    )
    assert (name not in env) is gone


def test_later_sources_win() -> None:
    spec = LaunchSpec("r-1", env={"A": "spec", "B": "spec", "DIR": "{run}/x"})
    env = command_and_environment.build_environment(
        {"A": "base", "PATH": "/bin"}, spec, {"B": "secret"}, TOKENS, {"GPUOPS_RUN": "mark"}
    )
    ours = {"A": "spec", "B": "secret", "DIR": "/node/runs/r-1/x", "GPUOPS_RUN": "mark", "PATH": "/bin"}
    assert env == ours
