"""docs/ddp.md and its two programs: they run, the page leads from one to the other, and what it says to type exists."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from late import torch
from learnt import module_of

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "ddp.md"
BEFORE, FIRST = (ROOT / "train" / name for name in ("before.py", "first.py"))
LINE = re.compile(r"loss (\d+\.\d{4}), test accuracy ([01]\.\d{4})")

SAMPLERS_ORDER = """\
import itertools, torch
from torch.utils.data import RandomSampler
epochs = itertools.count()
def order(self):
    generator = torch.Generator().manual_seed(1998 + next(epochs))
    return iter(torch.randperm(len(self), generator=generator).tolist())
RandomSampler.__iter__ = order
"""


def kept(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(folder / "snapshots/first.pt", weights_only=True)
    return state


def same(some: dict[str, Any], others: dict[str, Any]) -> bool:
    return some.keys() == others.keys() and all(torch.equal(some[name], others[name]) for name in some)


def test_alone_and_in_the_same_order_first_learns_what_before_does(world, tmp_path: Path) -> None:
    """before.py shuffles by another generator: it is given the order of DistributedSampler, and no other change."""
    ordered = tmp_path / "ordered.py"
    ordered.write_text(SAMPLERS_ORDER + BEFORE.read_text())
    data = ("--data", str(ROOT / "train/data/digits.csv.gz"))
    told = [world(str(program), "2", *data).succeed().out() for program in (ordered, FIRST)]
    assert told[0] == told[1]
    assert told[0][2] == "[GPU0] Epoch 1 | Batchsize: 64 | Steps: 24"
    assert same(torch.load(tmp_path / "first.pt", weights_only=True), kept(tmp_path)["model"])


def test_first_on_two_ranks_goes_on_from_the_first_ones_snapshot(world, tmp_path: Path) -> None:
    """The second machine was replaced, and has no file; the weights are those of a run that nobody stopped."""
    nodes = [tmp_path / name for name in ("node0", "node1", "whole")]
    for node in nodes:
        node.mkdir()
    for epochs in ("1", "3"):
        ran = world("first.py", epochs, "2", ranks=2, cwds=nodes[:2]).succeed()
    assert ran.out(1) == [f"[GPU1] Epoch {epoch} | Batchsize: 32 | Steps: 24" for epoch in (1, 2)]
    assert list(nodes[1].iterdir()) == []
    whole = world("first.py", "3", "3", ranks=2, cwd=nodes[2]).succeed()
    assert kept(nodes[0])["epochs"] == 3
    assert same(kept(nodes[0])["model"], kept(nodes[2])["model"])
    assert ran.out()[-1] == whole.out()[-1]
    accuracy = judged(kept(nodes[0])["model"])
    assert accuracy > 0.9
    assert LINE.fullmatch(ran.out()[-1])[2] == f"{accuracy:.4f}", "the figure of one process"


def judged(weights: dict[str, Any]) -> float:
    """Test accuracy by one process that sees all images."""
    program = module_of("before")
    model = program.build_model()
    model.load_state_dict(weights)
    images, digits = program.load_data(program.DATA)[1].tensors
    return float((model(images).argmax(1) == digits).float().mean())


@pytest.mark.proof  # each of its processes loads torch
def test_what_the_page_shows_of_spawn_runs(tmp_path: Path) -> None:
    [program] = re.findall(r"(?ms)^```python\n(.*?)^```$", PAGE.read_text())
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True)
    said = re.findall(r"rank \d of 2: sum 1", done.stdout)  # they share a terminal, where lines may mix
    assert sorted(said) == [f"rank {rank} of 2: sum 1" for rank in range(2)], done.stderr


def test_the_steps_lead_from_before_to_after(tmp_path: Path) -> None:
    diffs = re.findall(r"(?ms)^```diff\n(.*?)^```$", PAGE.read_text())
    assert len(diffs) == len(re.findall(r"(?m)^### \d+\. ", PAGE.read_text()))
    program = tmp_path / "program.py"
    program.write_text(BEFORE.read_text())
    for number, diff in enumerate(diffs, 1):
        patch = f"--- a/program.py\n+++ b/program.py\n{diff}"
        done = subprocess.run(
            ["git", "apply", "--unidiff-zero", "-"], cwd=tmp_path, input=patch, capture_output=True, text=True
        )
        assert done.returncode == 0, f"step {number}: {done.stderr}"
        compile(program.read_text(), f"after step {number}", "exec")
    assert program.read_text() == FIRST.read_text()


def typed() -> list[list[str]]:
    """The page's command lines, as words."""
    lines = re.findall(r"(?m)^    ((?:python|torchrun|gpuops) .*)$", PAGE.read_text())
    inline = re.findall(r"`(python -m [^`]*)`", PAGE.read_text())
    return [shlex.split(line, comments=True) for line in (*lines, *inline)]


def test_what_it_says_to_type_exists() -> None:
    from torch.distributed.run import get_args_parser

    from benchmarks.__main__ import ALONE

    programs = set()
    for words in typed():
        if words[:3] == ["python", "-m", "benchmarks"]:
            assert {word for word in words[3:] if word[0] != "-"} <= set(ALONE)
            continue
        if words[0] == "torchrun":
            get_args_parser().parse_args(words[1:])
        programs |= {word for word in words if word.endswith(".py")}
    assert programs == {BEFORE.name, FIRST.name}
    for name, target in re.findall(r"\[([^]]+)\]\(([^)#]+)\)", PAGE.read_text()):
        assert (PAGE.parent / target).exists(), name


@pytest.mark.parametrize("words", [words for words in typed() if words[0] == "gpuops" and "ssh" not in words])
def test_gpuops_takes_its_command_lines(tmp_path: Path, words: list[str]) -> None:
    own = words.index("--")
    argv = [sys.executable, "-m", "gpuops", *words[1:own], "--dry-run", *words[own:]]
    home = {**os.environ, "GPUOPS_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=tmp_path, env=home, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "first.py 20 5" in done.stdout + done.stderr
