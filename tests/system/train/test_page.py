"""docs/ddp.md and its two programs: they run, the page leads from one to the other, and what it says to type exists."""

from __future__ import annotations

import http.server
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from made import cifar10
from torch.distributed.run import get_args_parser

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "ddp.md"
BEFORE, AFTER = (ROOT / "docs" / "ddp" / name for name in ("before.py", "after.py"))
LINE = re.compile(r"epoch (\d+): loss (\d+\.\d{4}), test loss (\d+\.\d{4}), test accuracy ([01]\.\d{4})")
PER_FILE = 3  # 15 pictures to learn from and 3 to test with: two ranks share neither evenly
EAGER = ("--workers", "0")

SAMPLERS_ORDER = """\
import itertools, torch
from torch.utils.data import RandomSampler
epochs = itertools.count()
def order(self):
    return iter(torch.randperm(len(self), generator=torch.Generator().manual_seed(next(epochs))).tolist())
RandomSampler.__iter__ = order
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the programs run, with the data where they look for them."""
    (tmp_path / "data").mkdir()
    cifar10.unpack(tmp_path / "data", cifar10.contents(PER_FILE))
    return tmp_path


def test_before_runs_as_it_is(world, folder: Path) -> None:
    out = world(str(BEFORE), "1", *EAGER).succeed().out()
    assert [LINE.fullmatch(line)[1] for line in out] == ["1"]
    assert len(torch.load(folder / "cifar10.pt", weights_only=True)) == 122


def test_alone_and_in_the_same_order_after_learns_what_before_does(world, folder: Path) -> None:
    """before.py shuffles by another generator: it is given the order of DistributedSampler, and no other change."""
    ordered = folder / "ordered.py"
    ordered.write_text(SAMPLERS_ORDER + BEFORE.read_text())
    weights, told = [], []
    for program in (ordered, AFTER):
        told.append(world(str(program), "2", *EAGER).succeed().out())
        weights.append(torch.load(folder / "cifar10.pt", weights_only=True))
    assert told[0] == told[1]
    assert [LINE.fullmatch(line)[1] for line in told[0]] == ["1", "2"]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, rtol=0, atol=0)


def test_after_by_torchrun_then_on_from_its_snapshot(launch, world, folder: Path) -> None:
    code, out, err = launch(str(AFTER), "1", "--workers", "1", ranks=2)
    assert code == 0, err
    [line] = out
    assert LINE.fullmatch(line).group(1, 3, 4) == ("1", *judged(folder)), "the figures of one process"

    (folder / "replaced").mkdir()  # a machine that has no file
    nodes = [folder, folder / "replaced"]
    ran = world(str(AFTER), "2", *EAGER, "--data", str(folder / "data"), ranks=2, cwds=nodes).succeed()
    assert [LINE.fullmatch(line)[1] for line in ran.out()] == ["2"]
    assert ran.out(1) == list(nodes[1].iterdir()) == []
    assert torch.load(folder / "snapshot.pt", weights_only=True)["epochs"] == 2


def judged(folder: Path) -> tuple[str, str]:
    """Test loss and accuracy of what was saved, by one process that sees all pictures."""
    program = ModuleType("before")
    exec(BEFORE.read_text(), program.__dict__)
    model = program.resnet18()
    model.load_state_dict(torch.load(folder / "cifar10.pt", weights_only=True))
    data = program.CIFAR10(folder / "data" / cifar10.FOLDER, ["test_batch.bin"], augment=False)
    loader = torch.utils.data.DataLoader(data, len(data))
    with torch.no_grad():
        loss, accuracy = program.run_epoch(model.eval(), loader, torch.device("cpu"))
    return f"{loss:.4f}", f"{accuracy:.4f}"


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """The archive's address, and what was asked for."""
    archive, asked = cifar10.make(tmp_path, PER_FILE), []

    class Mirror(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(archive.stat().st_size))
            self.end_headers()
            self.wfile.write(archive.read_bytes())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mirror)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/{archive.name}", asked
    server.shutdown()
    server.server_close()


def test_two_ranks_of_a_machine_download_once(world, tmp_path: Path, mirror: tuple[str, list[str]]) -> None:
    url, asked = mirror
    program = tmp_path / "mirrored.py"
    program.write_text(re.sub(r'(?m)^URL = ".*"$', f'URL = "{url}"', AFTER.read_text()))
    world(str(program), "0", *EAGER, ranks=2).succeed()
    assert len(asked) == 1
    assert (tmp_path / "data" / cifar10.FOLDER / "test_batch.bin").stat().st_size == PER_FILE * 3073


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
    assert program.read_text() == AFTER.read_text()


def typed() -> list[list[str]]:
    """The page's command lines, as words."""
    lines = re.findall(r"(?m)^    ((?:python|torchrun|gpuops) .*)$", PAGE.read_text())
    inline = re.findall(r"`(python -m [^`]*)`", PAGE.read_text())
    return [shlex.split(line, comments=True) for line in (*lines, *inline)]


def test_what_it_says_to_type_exists() -> None:
    from benchmarks.__main__ import ALONE

    programs = set()
    for words in typed():
        if words[:3] == ["python", "-m", "benchmarks"]:
            assert {word for word in words[3:] if word[0] != "-"} <= set(ALONE)
            continue
        if words[0] == "torchrun":
            get_args_parser().parse_args(words[1:])
        programs |= {word for word in words if word.endswith(".py")}
    assert programs == {BEFORE.name, AFTER.name}
    for name, target in re.findall(r"\[([^]]+)\]\(([^)#]+)\)", PAGE.read_text()):
        assert (PAGE.parent / target).exists(), name


@pytest.mark.parametrize("words", [words for words in typed() if words[0] == "gpuops" and "ssh" not in words])
def test_gpuops_takes_its_command_lines(folder: Path, words: list[str]) -> None:
    shutil.copy(AFTER, folder)
    own = words.index("--")
    argv = [sys.executable, "-m", "gpuops", *words[1:own], "--dry-run", *words[own:]]
    home = {**os.environ, "GPUOPS_HOME": str(folder / "home"), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=folder, env=home, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "after.py 20" in done.stdout + done.stderr
