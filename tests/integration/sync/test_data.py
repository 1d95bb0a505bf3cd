"""What tests/unit/sync/test_data.py leaves to real processes or sockets."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.sync import scan, workloads_and_data


@pytest.fixture
def far(tmp_path: Path) -> Path:
    folder = tmp_path / "far"
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / ".gitignore").write_text("*.bin\n")
    (folder / "deep" / "er" / "x.bin").write_bytes(b"x" * 5)
    return folder


def test_inside_the_project_it_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "a" / "data").mkdir(parents=True)
    (tmp_path / "a" / "data" / "x").touch()
    (tmp_path / "a" / "b.py").touch()
    tree = scan.scan(tmp_path, tmp_path / "home" / "cache")
    links = {
        shared: {
            file.path: file.link for file in workloads_and_data.link_data(tree, tmp_path, "a/data", shared=shared).files
        }
        for shared in (True, False)
    }
    name = workloads_and_data.tree_name(tmp_path / "a" / "data")
    assert links[True] == {"a/b.py": None, "a/data": str(tmp_path / "a" / "data")}
    assert links[False] == {"a/b.py": None, "a/data": f"../../{name}/data"}, "from its place in the tree beside"
    assert workloads_and_data.link_data(tree, tmp_path, str(tmp_path.parent / "far"), shared=False) is tree
