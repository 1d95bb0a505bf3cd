"""The page for the first hour with an account, and README: every line to type is one that gpuops takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.desk import Desk

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "first_hour.md").read_text(encoding="utf-8")
TYPED = re.compile(r"`(gpuops [^`]+)`|^    (gpuops .+)$", re.M)
ABSENT = re.compile(r"there is no (live cluster|cluster|run)\b|no live cluster\b|has had no run")
"""What gpuops says (exit code 2) to a line that it takes, where nothing is up; without credentials it is 3, and 4 where
doctor finds an error of this computer."""


def lines() -> list[str]:
    found = (first or second for first, second in TYPED.findall(PAGE))
    return list(dict.fromkeys(one.partition(" > ")[0] for one in found if one != "gpuops prove"))


def readme_lines() -> list[str]:
    """Those without a placeholder. `train`, `run` and `up` are to say what they would do."""
    found = (first or second.partition(" #")[0] for first, second in TYPED.findall(README))
    typed = (one.strip() for several in found for one in re.split(r"\s{2,}(?=gpuops )", several))
    whole = (one for one in typed if not re.search(r"[\[\]|…]|\b[A-Z]{2,}\b|gpuops --", one))
    return list(
        dict.fromkeys(re.sub(r"^(gpuops (?:train|run|up)\b.*?)(?= -- |$)", r"\1 --dry-run", one) for one in whole)
    )


def test_the_page_has_lines_for_both_providers() -> None:
    for line in ("gpuops prove runpod", "gpuops prove aws --cpu", "gpuops reap"):
        assert any(one.startswith(line) for one in lines()), line


def test_readme_has_lines_for_all_kinds_of_nodes() -> None:
    for line in ("gpuops train multinode --nodes 2", "gpuops up ssh", "gpuops up cheapest", "gpuops down"):
        assert any(one.startswith(line) for one in readme_lines()), line


@pytest.mark.parametrize("line", list(dict.fromkeys([*lines(), *readme_lines()])))
def test_each_line_is_one_that_gpuops_takes(desk: Desk, monkeypatch: pytest.MonkeyPatch, line: str) -> None:
    desk.write("train.py", "")
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "RUNPOD_API_KEY", "LAMBDA_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(desk.home))
    said = desk.type(*shlex.split(line)[1:])
    assert said.code in (0, 3, 4) or (said.code == 2 and ABSENT.search(said.err)), said.err


def test_a_line_that_it_does_not_take_is_found(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(desk.folder))
    for line in ("up aws --no-such-thing", "train multinode --on runpod --pods 2", "quota aws --everywhere"):
        said = desk.type(*line.split())
        assert said.code == 2
        assert not ABSENT.search(said.err)


def test_the_page_is_found_from_where_people_begin() -> None:
    for name in ("README.md", "docs/aws.md", "docs/runpod.md", "docs/lambda.md", "docs/verified.md"):
        assert "first_hour.md" in (ROOT / name).read_text(encoding="utf-8"), name
