"""What `end` removes beside a node: the shared folders, in such a way that whoever comes next does not meet it."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from gpuops.agent.daemon.end_command import main, remove_node, remove_root
from gpuops.agent.node import Node, Refusal


def make_root(root: Path, *folders: str) -> None:
    for name in folders or ("agent", "env/large", "data/mnist"):
        (root / name).mkdir(parents=True)


def test_who_comes_while_a_root_is_deleted_is_not_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment takes minutes to delete, and `down` has called the node gone by then."""
    root = tmp_path / ".gpuops-0badcafe"
    make_root(root)
    rmtree, agent = shutil.rmtree, root / "agent" / "newer.pyz"
    coming = [agent, root / "lab" / "n0" / "node.json"]

    def delete(folder: str, **options: Any) -> None:
        while coming:
            path = coming.pop()
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        rmtree(folder, **options)

    monkeypatch.setattr(shutil, "rmtree", delete)
    remove_root(str(root))
    assert [path.name for path in tmp_path.iterdir()] == [root.name], "nothing else is left"
    assert agent.exists()


def test_a_node_that_is_made_in_this_very_moment_gets_its_root_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, rename = tmp_path / ".gpuops-0badcafe", os.rename
    make_root(root)

    def rename_late(source: str, target: str) -> None:
        (Path(source) / "lab" / "n0").mkdir(parents=True, exist_ok=True)
        rename(source, target)

    monkeypatch.setattr(os, "rename", rename_late)
    remove_root(str(root))
    assert [path.name for path in tmp_path.iterdir()] == [root.name]
    assert sorted(path.name for path in root.iterdir()) == ["agent", "data", "env", "lab"]


def test_what_a_killed_end_left_is_deleted_by_the_next(tmp_path: Path) -> None:
    root = tmp_path / ".gpuops-0badcafe"
    make_root(tmp_path / ".gpuops-0badcafe.gone-7", "env/large")
    make_root(tmp_path / ".gpuops-0badcafe.gone-8", "lab/n0")
    make_root(tmp_path / ".gpuops-0badcaff.gone-7", "env/large")
    remove_root(str(root))
    left = [".gpuops-0badcafe.gone-8", ".gpuops-0badcaff.gone-7"]
    assert sorted(path.name for path in tmp_path.iterdir()) == left, "a node's folder, and another owner's"


def test_a_disk_that_became_read_only_is_said_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("node.json", "watchdog.log"):
        (tmp_path / name).write_text("{}")

    def refuse(path: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system", path)

    monkeypatch.setattr(os, "unlink", refuse)
    with pytest.raises(Refusal) as caught:
        remove_node(Node(str(tmp_path)))
    assert caught.value.say == f"{tmp_path}/watchdog.log cannot be removed"


def test_a_node_that_took_the_place_of_the_one_that_is_meant_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / ".gpuops-0badcafe" / "lab" / "n0"
    folder.mkdir(parents=True)
    (folder / "node.json").write_text(json.dumps({"token": "later-0"}))
    words = ["--node", str(folder), "--remove", "--root", "--token"]
    assert main("end", [*words, "sooner-0"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["ended"], said["left"], [node["token"] for node in said["nodes"]]) == (0, 0, ["later-0"])
    assert [path.name for path in folder.iterdir()] == ["node.json"]
    assert main("end", [*words, "later-0"]) == 0
    assert json.loads(capsys.readouterr().out)["nodes"] == []
    assert list(tmp_path.iterdir()) == []
