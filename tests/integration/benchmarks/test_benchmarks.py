"""The benchmarks run, each with so little to do that its figures mean nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.__main__ import ALONE, BEGIN, END, NAMES, renewed
from benchmarks.measure import ROOT, alternate
from tests.conftest import HANG_S

QUICK = ("start", "connect")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.proof) for name in NAMES + ALONE]
)
def test_each_makes_its_table(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--tiny", name], cwd=ROOT, capture_output=True, text=True, timeout=HANG_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if "left out:" in done.stdout:
        pytest.skip(done.stdout.partition("left out:")[2].strip())
    assert "### " in done.stdout
    assert "|---|---:|" in done.stdout


def test_a_page_keeps_what_stands_around_the_tables() -> None:
    first = renewed("# Benchmarks\n\nHow to read them.\n", "old")
    assert first.startswith("# Benchmarks\n\nHow to read them.\n\n")
    second = renewed(first + "\nMore.\n", "new")
    assert "old" not in second
    assert second.count(BEGIN) == second.count(END) == second.count("new") == 1
    assert second.endswith("\nMore.\n")


def test_works_take_turns() -> None:
    turns: list[str] = []

    def timed_by_itself() -> float:
        turns.append("b")
        return 7.0

    taken = alternate({"a": lambda: turns.append("a"), "b": timed_by_itself}, 2)
    assert "".join(turns) == "ababab", "once before what counts"
    assert taken["b"] == [7.0, 7.0]
    assert len(taken["a"]) == 2
