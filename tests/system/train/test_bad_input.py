"""Whatever is wrong with what a program is given: one sentence, said by rank 0, and exit code 1 on all ranks."""

from __future__ import annotations

import importlib
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from late import torch
from mirror import Mirror

PROGRAMS = ["mnist", "cifar10", "movielens"]
"""Those with data from elsewhere; `made/NAME.py` makes them."""
SMALL = str(Path(__file__).parent / "programs" / "small.py")
PROGRESS = re.compile(r"\S+: \d+\.\d MB from \S+")


class Given(NamedTuple):
    """Where a program is run, and what is there."""

    program: str
    cwd: Path
    data: Path
    """A folder that has all files, whole."""
    mirror: Mirror
    """Of the same."""


def cut_files(given: Given) -> None:
    for path in given.data.iterdir():
        path.write_bytes(path.read_bytes()[:-20])


def change_files(given: Given) -> None:
    given.mirror.contents = {name: content[:-1] + b"?" for name, content in given.mirror.contents.items()}


def keep_another_model(given: Given) -> None:
    folder = given.cwd / "snapshots" / given.program
    folder.mkdir(parents=True)
    torch.save(
        {"format": 1, "program": given.program, "model": {"weight": torch.zeros(2)}}, folder / "step-00000001.pt"
    )


def nothing(_: Given) -> None:
    pass


class Case(NamedTuple):
    """`{data}` and `{program}` stand for what is given."""

    says: str
    arguments: tuple[str, ...] = ()
    env: tuple[str, str] = ("", "")
    harm: Callable[[Given], None] = nothing
    code: int = 1


CASES = {
    "no network": Case(
        r"error: \S+ could not be downloaded from http://127.0.0.1:9/\S+: Connection refused; "
        r"put it into \S+/data/{program} by hand, or name a mirror with --data",
        env=("SOURCE", "http://127.0.0.1:9"),
    ),
    "corrupt archive": Case(
        r"error: {data}/\S+ is damaged: .+; remove it, and it is downloaded again", ("--data", "{data}"), harm=cut_files
    ),
    "wrong checksum": Case(
        r"error: \S+ is not the published \S+: its SHA-256 is \w{{12}}… and not \w{{12}}…; "
        "name another mirror with --data",
        harm=change_files,
    ),
    "snapshot of another model": Case(
        r"error: snapshots/{program}/step-00000001.pt is of another model \(.*\); "
        "move snapshots/{program} away to start from the beginning",
        ("--data", "{data}"),
        harm=keep_another_model,
    ),
    "impossible batch size": Case(
        r"error: --batch_size 1000000 is more than there is: .* samples; use \d+ or less",
        ("--data", "{data}", "--batch_size", "1000000"),
    ),
    "data that are nowhere": Case(
        "error: nowhere is not a folder; --data names one, or the http address of a mirror", ("--data", "nowhere")
    ),
    "unknown argument": Case(r"usage: .*\S+: error: unrecognized arguments: --no-such", ("--no-such",), code=2),
}


@pytest.fixture
def given(request: pytest.FixtureRequest, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Given]:
    """For the program that the test names."""
    data = tmp_path_factory.mktemp("data")
    importlib.import_module(f"made.{request.param}").make(data)
    with Mirror({path.name: path.read_bytes() for path in data.iterdir()}) as mirror:
        yield Given(request.param, tmp_path, data, mirror)


def environment(given: Given, truth: Path) -> dict[str, str]:
    """Small files count as the published ones, as they are before any harm."""
    shutil.copytree(given.data, truth)
    no_pause = json.dumps({"PAUSE_S": 0})
    return {"SMALL": str(truth), "SOURCE": given.mirror.address, "DOWNLOADS": no_pause, "no_proxy": "127.0.0.1"}


@pytest.mark.parametrize(
    ("given", "ranks"),
    [
        (PROGRAMS[0], 1),
        pytest.param(PROGRAMS[0], 2, marks=pytest.mark.proof),  # it is said alone, and the others say theirs in twos
        *((program, 2) for program in PROGRAMS[1:]),
    ],
    indirect=["given"],
)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_is_one_sentence(world, given: Given, case: Case, ranks: int, tmp_path_factory) -> None:
    env = environment(given, tmp_path_factory.mktemp("truth") / "data")
    case.harm(given)
    arguments = [argument.format(data=given.data) for argument in case.arguments]
    env.update([case.env] if case.env[0] else [])
    ended = world("small.py", f"{given.program}.py", *arguments, ranks=ranks, **env).finish()
    assert ended.codes == [case.code] * ranks
    assert {ended.err(rank) for rank in range(1, ranks)} <= {""}
    said = [line for line in ended.err().splitlines() if not PROGRESS.fullmatch(line)]
    if case.code == 2:  # argparse tells the usage, too
        said = [" ".join(said)]
    [sentence] = said
    assert re.fullmatch(case.says.format(program=given.program, data=given.data), sentence)


@pytest.mark.parametrize("given", PROGRAMS[:1], indirect=True)
def test_by_torchrun_it_is_said_once(launch, given: Given, tmp_path_factory, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment(given, tmp_path_factory.mktemp("truth") / "data").items():
        monkeypatch.setenv(name, value)
    change_files(given)
    code, out, err = launch(SMALL, f"{given.program}.py", ranks=2)
    assert (code, out) == (1, [])
    assert len(re.findall("^error: .* is not the published", err, re.MULTILINE)) == 1
    assert set(re.findall(r"exitcode *: (-?\d+)", err)) == {"1"}
    assert err.count("Traceback") == 1  # torchrun's own
