"""gpuops.sync.workloads_and_data: `--data` as a tree of its own, and as a link in the project."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuops.core.errors import UsageError
from gpuops.core.run_models import RunRequest
from gpuops.sync import scan, workloads_and_data
from tests.conftest import open_folder, without_root


@pytest.fixture
def far(tmp_path: Path) -> Path:
    folder = tmp_path / "far"
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / ".gitignore").write_text("*.bin\n")
    (folder / "deep" / "er" / "x.bin").write_bytes(b"x" * 5)
    return folder


def sent(path: Path, *allow: str) -> dict[str, int]:
    return {file.path: file.size for file in scan.scan_data(path, path.parent / "cache", allow).files}


def test_all_of_a_folder_is_sent_under_its_name_whatever_an_ignore_file_says(far: Path) -> None:
    assert sent(far) == {"far/.gitignore": 6, "far/deep/er/x.bin": 5}
    assert sent(far / "deep" / "er" / "x.bin") == {"x.bin": 5}


def test_a_folder_with_two_names_is_there_under_both(tmp_path: Path) -> None:
    (tmp_path / "set" / "validation").mkdir(parents=True)
    (tmp_path / "set" / "validation" / "x").write_text("x")
    (tmp_path / "set" / "val").symlink_to("validation")
    assert set(sent(tmp_path / "set")) == {"set/val/x", "set/validation/x"}


def test_of_a_link_what_it_leads_to_is_sent_and_a_circle_is_gone_round_once(far: Path, tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"y" * 7)
    (far / "y.bin").symlink_to(tmp_path / "big")
    (far / "deep" / "round").symlink_to(far)
    (tmp_path / "shelf").symlink_to(far)
    with pytest.raises(UsageError, match="links in the data lead out of it"):
        sent(tmp_path / "shelf")
    assert sent(tmp_path / "shelf", str(tmp_path / "big")) == {
        "shelf/.gitignore": 6,
        "shelf/deep/er/x.bin": 5,
        "shelf/y.bin": 7,
    }


def test_keys_stay_here_unless_they_are_named(far: Path) -> None:
    (far / ".env").write_text("KEY=hush\n")
    tree = scan.scan_data(far, far.parent / "cache")
    assert [(held.path, held.why) for held in tree.held] == [("far/.env", "a file of secrets by its name")]
    assert "far/.env" not in sent(far)
    assert "far/.env" in sent(far, ".env")


def test_what_cannot_be_read_is_said(far: Path) -> None:
    (far / "lost").symlink_to("nowhere")
    with pytest.raises(UsageError, match="lost cannot be read: No such file"):
        sent(far)
    with open_folder() as folder:
        (folder / "deep").mkdir(0o700)
        with without_root(), pytest.raises(UsageError, match="deep cannot be read: Permission denied"):
            scan.scan_data(folder, far)


def test_every_path_has_a_tree_of_its_own_with_a_name_that_a_node_takes() -> None:
    one, other = (workloads_and_data.tree_name(Path(path)) for path in ("/d/mnist", "/e/mnist"))
    assert one != other
    assert all(name.isalpha() and name.islower() and len(name) == 12 for name in (one, other))


@pytest.mark.parametrize(
    ("workload", "changes", "here", "said"),
    [
        ("mnist", {}, True, "data: kept in /r/data/mnist for later runs; "),
        ("mnist", {}, False, "data: kept in /r/data/mnist on each machine until its last node ends; "),
        ("digits", {}, True, ""),
        (None, {}, True, ""),
        ("mnist", {"data": "/d"}, True, ""),
        ("mnist", {"env": {"GPUOPS_DATA": "/d"}}, True, ""),
        ("mnist", {"argv": ["1", "--data", "/d"]}, True, ""),
    ],
)
def test_where_downloads_are_kept_is_said(workload: str | None, changes: dict[str, Any], here: bool, said: str) -> None:
    request = RunRequest(kind="torchrun", mode="single", nodes=1, gpus=None, workload=workload, **changes)
    provider = SimpleNamespace(capabilities={"shares_disk": here or "it has its own"})
    world: Any = SimpleNamespace(env={}, provisioner=lambda _: provider)
    live: Any = SimpleNamespace(hello=lambda _: SimpleNamespace(folder="/r/lab/n0"), row=SimpleNamespace(provider="x"))
    assert workloads_and_data.describe_downloads(world, live, request) == (
        said and f"{said}what is missing there is downloaded once"
    )
