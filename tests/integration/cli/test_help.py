"""What tests/unit/cli/test_help.py leaves to commands that start git."""

from __future__ import annotations

from tests.desk import Desk


def test_they_reach_it_from_a_run_too(moon: Desk) -> None:
    moon.write("a.py", "")
    for words in (
        ["train", "multinode", "--on", "moon", "--crater", "Tycho", "--far-side", "a.py"],
        ["run", "--crater=Tycho", "--far-side", "--on=moon", "--", "sh", "--dust", "2"],
    ):
        said = moon.type(*words)
        assert said.code == 3
        assert said.err == (
            "error: no rocket for [('crater', 'Tycho'), ('dust', 1.5), ('far-side', True)]\nhint: build one\n"
        )
    assert moon.type("train", "multinode", "--crater", "Tycho").err.startswith("error: there is no option --crater\n")
    assert moon.type("run", "--on", "moon", "--dust", "--", "true").err.startswith("error: --dust needs a value\n")
