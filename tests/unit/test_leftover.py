"""What no pattern names: seen on the node, small things worth bringing, the rest named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuops.agent.outs import matcher
from gpuops.progress import Silent
from gpuops.push import push_many, scan
from gpuops.results.leftover import MANY, SMALL, Left, exactly, left, save, sentence, worth
from tests.fakes.inprocess import InProcessClient


@pytest.fixture
def client(tmp_path: Path) -> InProcessClient:
    """A node that a project of two files and a link was pushed to."""
    project = tmp_path / "project"
    (project / "sub").mkdir(parents=True)
    (project / "train.py").write_text("print(1)\n")
    (project / "sub" / "same.txt").write_text("same\n")
    (project / "link").symlink_to("train.py")
    one = InProcessClient(tmp_path / "root" / "c" / "n0")
    push_many([one], "project", scan(project, tmp_path / "cache"), progress=Silent())  # type: ignore[list-item]
    return one


def there(client: InProcessClient) -> Path:
    return Path(client.node.tree("project"))


def seen(client: InProcessClient, patterns: list[str]) -> dict[str, tuple[int, bool]]:
    found = left({0: client}, patterns, tree="project")  # type: ignore[dict-item]
    return {one.path: (one.size, one.edited) for one in found}


def test_what_was_pushed_is_not_left(client: InProcessClient) -> None:
    assert seen(client, []) == {}


def test_edits_and_new_files_are_left_unless_a_pattern_names_them(client: InProcessClient, tmp_path: Path) -> None:
    outside = tmp_path / "dataset"
    outside.mkdir()
    (outside / "huge.bin").write_text("not ours")
    (there(client) / "data").symlink_to(outside)
    (there(client) / "train.py").write_text("print(22)\n")
    (there(client) / "metrics [1].json").write_text("{}")
    (there(client) / "model.pt").write_text("weights")
    assert seen(client, ["*.pt"]) == {"train.py": (10, True), "metrics [1].json": (2, False)}
    assert exactly([Left(0, "metrics [1].json", 2, 0, False)]) == ["./metrics [[]1].json"]


def test_what_the_user_gives_up_is_not_left(client: InProcessClient) -> None:
    (there(client) / "data").mkdir()
    for name in ("data/a.bin", "data/keep.bin", "!odd", "x.json"):
        (there(client) / name).write_text("1")
    assert set(seen(client, ["!data/*"])) == {"!odd", "x.json"}
    everything = left({0: client}, [], tree="project")  # type: ignore[dict-item]
    matches = matcher([*exactly(everything), "!data/a*"])
    assert [one.path for one in everything if matches(one.path)] == ["!odd", "data/keep.bin", "x.json"]


def test_small_things_are_worth_it_and_large_ones_are_named() -> None:
    small, large = Left(0, "a.json", 10, 0, False), Left(1, "b.bin", SMALL + 1, 0, False)
    assert worth([small, large]) == ([small], [large])
    assert sentence([large]) == "b.bin (100.0 MB, node1)"
    many = [Left(0, f"{index}", 1, 0, index == 0) for index in range(MANY + 1)]
    assert worth(many) == (many[:1], many[1:])


def test_saving_copies_byte_for_byte(client: InProcessClient, tmp_path: Path) -> None:
    data = os.urandom(300_000)
    (there(client) / "deep").mkdir()
    (there(client) / "deep" / "x y.npy").write_bytes(data)
    found = left({0: client}, [], tree="project")  # type: ignore[dict-item]
    save(client, "project", found, tmp_path / "saved")  # type: ignore[arg-type]
    assert (tmp_path / "saved" / "deep" / "x y.npy").read_bytes() == data
