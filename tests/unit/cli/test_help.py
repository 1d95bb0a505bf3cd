"""Help: every command has a sentence and an example, and every flag a description."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from gpuops.cli.other_tools import LINE_OF, LINES
from gpuops.cli.registry import COMMANDS
from gpuops.core.account_variables import OURS
from gpuops.core.models import Lease
from gpuops.core.processes import Identity
from gpuops.core.run_models import Verdict, VerdictOutcome
from gpuops.ledger.store import Ledger
from tests.desk import Desk

NOBODY = Identity(1 << 22, 0.0)


def test_alone_it_shows_what_there_is(desk: Desk) -> None:
    said = desk.type()
    assert (said.code, said.err) == (0, "")
    assert said.out == desk.type("--help").out == desk.type("-h").out
    for name in COMMANDS:
        assert re.search(rf"^  {name} +[A-Z].*\.$", said.out, re.M), f"{name} has a whole sentence"
    assert not desk.home.exists()


def test_help_is_a_word_as_well(desk: Desk) -> None:
    assert desk.type("help") == desk.type("--help")
    assert desk.type("help", "down") == desk.type("down", "--help")


def test_what_other_tools_call_so_leads_to_commands_that_there_are() -> None:
    for line in LINES:
        for typed in re.findall(r"gpuops ([a-z-]+)", line):
            assert typed in {*COMMANDS, "--version"}, line
    assert not set(LINE_OF) & set(COMMANDS)
    assert len(LINE_OF) == sum(map(len, LINES.values())), "no word stands twice"


@pytest.mark.parametrize("name", ["README.md", "Makefile"])
def test_how_gpuops_is_called_once_the_demo_has_run(name: str) -> None:
    text = (Path(__file__).parents[3] / name).read_text(encoding="utf-8")
    demo = text[text.index("\ndemo:") if name == "Makefile" else text.index("make demo") :].split("make check")[0]
    assert "source .venv/bin/activate" in demo
    assert ".venv/bin/gpuops" in demo


def test_a_list_of_runs_in_a_pipe_has_no_blanks_at_its_ends(desk: Desk) -> None:
    """The long sentence comes last, where nothing is padded to its width."""
    desk.home.mkdir(mode=0o700)
    ledger = Ledger.open(desk.home)
    try:
        row = ledger.intend(provider="local", name="lab", folder=desk.folder, ephemeral=False, token="t", request={},
                            boot_deadline=1.0, lease=Lease(), owner_process=NOBODY, now=0.0)  # fmt: skip
        for say in ("well", "ill, and " * 20):
            run = ledger.add_run(stem="toy", cluster=row.id, folder=desk.folder, tree="project", request={}, facts={},
                                 owner_process=NOBODY, now=0.0)  # fmt: skip
            ledger.set_run(run.id, state="home", verdict=Verdict(VerdictOutcome.DONE, 0, say))
        ledger.mark_gone(row.id, 1.0, "its run ended")
    finally:
        ledger.close()
    lines = desk.type("runs").out.splitlines()
    assert lines[0].endswith("WHAT CAME OF IT")
    assert lines[1].endswith("  well")
    assert len(lines[1]) < 80


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_says_what_it_does_and_shows_it(desk: Desk, name: str) -> None:
    said = desk.type(name, "--help")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith(f"Usage: gpuops {name} ")
    assert re.search(rf"\n  Examples:\n    gpuops {name}", said.out)
    options = said.out[said.out.index("\nOptions:") :]
    for flag in re.findall(r"^  (?:-\w, )?(--[a-z-]+|-m)\b.*(?:\n {10,}.*)*", options, re.M):
        assert re.search(rf"{flag}\b[^.]*[.]", options), f"{flag} is described"
    assert not desk.home.exists()


def test_where_the_arguments_of_a_program_stand(desk: Desk) -> None:
    assert desk.type("train", "--help").out.startswith("Usage: gpuops train [OPTIONS] {MODE} [SCRIPT] [-- ARGS...]\n")
    assert desk.type("run", "--help").out.startswith("Usage: gpuops run [OPTIONS] -- COMMAND [ARGS...]\n")


def test_up_names_the_providers_and_their_own_options(moon: Desk) -> None:
    everybody = moon.type("up", "--help").out
    assert "Providers: aws, lambda, local, moon, pbs, runpod, slurm, ssh, vast." in everybody
    assert moon.type("up", "local", "--help").out.endswith("Options of local:\n  none of its own\n")
    said = moon.type("up", "moon", "--nodes", "2", "-h").out
    assert [line.split(maxsplit=1)[0] for line in said.partition("Options of moon:\n")[2].splitlines()] == [
        "--crater", "--dust", "--far-side", "--flag",
    ]  # fmt: skip
    assert "Which crater to land in." in said


@pytest.mark.parametrize("name", [*OURS])
def test_a_providers_help_has_its_own_examples(desk: Desk, name: str) -> None:
    """Each with flags that there are."""
    said = desk.type("up", name, "--help").out
    examples = re.findall(r"^    (gpuops .*)$", said[: said.index("Arguments:")], re.M)
    assert len(examples) > 1
    assert {tuple(line.split()[:3]) for line in examples} == {("gpuops", "up", name)}
    for flag in set(re.findall(r"--[a-z-]+", " ".join(examples))):
        assert re.search(rf"^  (?:-\w, )?{flag}\b", said[said.index("\nOptions:") :], re.M), flag


def test_the_examples_of_a_provider_for_another_command(desk: Desk) -> None:
    assert re.findall(r"gpuops doctor .*", desk.type("doctor", "slurm", "--help").out) == [
        "gpuops doctor [OPTIONS] [PROVIDER|NAME]", "gpuops doctor slurm --host alice@login.hpc.example",
    ]  # fmt: skip
    assert "gpuops doctor lab --json" in desk.type("doctor", "lambda", "--help").out, "it has none of its own"
    assert "gpuops up ssh" in desk.type("up", "--help").out, "the next help is not changed by that"


def test_a_providers_own_options_reach_it(moon: Desk) -> None:
    said = moon.type("up", "moon", "--flag", "a", "--crater", "Tycho", "--flag=b b", "--far-side", "--dust", "2")
    assert said.code == 3
    assert said.err == (
        "error: no rocket for [('crater', 'Tycho'), ('dust', 2.0), ('far-side', True), ('flag', ['a', 'b b'])]\n"
        "hint: build one\n"
    )


@pytest.mark.parametrize(
    ("words", "say"),
    [
        (["--dust", "much"], "--dust takes a number, not 'much'"),
        (["--dust"], "--dust needs a value"),
        (["--crate", "x"], "there is no option --crate; did you mean --crater?"),
    ],
)
def test_a_providers_own_options_are_checked(moon: Desk, words: list[str], say: str) -> None:
    said = moon.type("up", "moon", *words)
    assert (said.code, said.err.splitlines()[0]) == (2, f"error: {say}")


def test_every_variable_that_is_read_is_explained() -> None:
    from gpuops.core.settings import FROM_DOTENV, FROM_ENVIRONMENT, KEYS

    example = (Path(__file__).parents[3] / ".env.example").read_text()
    assert set(re.findall(r"^# ([A-Z_]+)=", example, re.M)) == {*FROM_DOTENV, *FROM_ENVIRONMENT, *KEYS}
    assert os.linesep.join(line for line in example.splitlines() if not line.startswith("#")).strip() == ""
