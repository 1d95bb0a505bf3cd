"""Which files are the project."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gpuops.core.errors import UsageError
from gpuops.core.git import commit_of
from gpuops.sync.project_files import project_files

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")

IDENTITY = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always"]


def git(folder: Path, *command: str) -> None:
    subprocess.run(["git", *IDENTITY, *command], cwd=folder, check=True, capture_output=True)


def write(folder: Path, *paths: str, text: str = "x") -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def repository(project: Path) -> Path:
    git(project, "init", "-q")
    return project


def test_in_a_repository_git_decides(repository: Path) -> None:
    write(repository, "train.py", "new.py", "data/big.bin", "data/kept.txt", "forced.bin", "gone.py")
    write(repository, ".gitignore", text="*.bin\n")
    git(repository, "add", "train.py", "gone.py")
    git(repository, "add", "-f", "forced.bin")
    (repository / "gone.py").unlink()

    listing = project_files(repository)

    assert [path for path in listing.paths if (repository / path).exists()] == [
        ".gitignore", "data/kept.txt", "forced.bin", "new.py", "train.py"]  # fmt: skip
    assert listing.tracked == {"train.py", "gone.py", "forced.bin"}


def test_a_subfolder_of_a_repository_is_a_project_of_its_own(repository: Path) -> None:
    write(repository, "outside.py", "sub/train.py", "sub/skip.log", "sub/deep/more.py")
    write(repository, ".gitignore", text="*.log\n")
    assert project_files(repository / "sub").paths == ["deep/more.py", "train.py"]


@pytest.fixture
def with_library(repository: Path, tmp_path: Path) -> Path:
    """A repository with a submodule in `vendor/lib` and somebody's clone in `clone`."""
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init", "-q")
    write(library, "lib.py")
    git(library, "add", ".")
    git(library, "commit", "-qm", "one")
    git(repository, "submodule", "add", "-q", str(library), "vendor/lib")
    git(tmp_path, "clone", "-q", str(library), "project/clone")
    return repository


def test_submodules_that_are_checked_out_are_part_of_the_project(with_library: Path) -> None:
    write(with_library, "vendor/lib/local.py")
    listing = project_files(with_library)
    assert listing.paths == [".gitmodules", "clone/lib.py", "vendor/lib/lib.py", "vendor/lib/local.py"]
    assert "vendor/lib/lib.py" in listing.tracked
    assert "vendor/lib/local.py" not in listing.tracked


def test_an_empty_submodule_is_nothing(with_library: Path) -> None:
    git(with_library, "submodule", "deinit", "--force", "vendor/lib")
    assert project_files(with_library).paths == [".gitmodules", "clone/lib.py"]


def test_a_repository_that_ignores_the_folder_does_not_decide(repository: Path) -> None:
    write(repository, ".gitignore", text="*\n")
    write(repository, "work/train.py", "work/old.log")
    write(repository, "work/.gitignore", text="*.log\n")
    listing = project_files(repository / "work")
    assert listing.paths == [".gitignore", "train.py"]
    assert not listing.in_git


def test_a_repository_that_git_refuses_is_said(repository: Path) -> None:
    (repository / ".git" / "HEAD").write_text("nonsense")
    (repository / ".git" / "config").write_text("[broken")
    with pytest.raises(UsageError, match="git cannot read this repository"):
        project_files(repository)


TREE = [
    "train.py", "a.log", "keep.log", "logs/x.txt", "sub/logs/x.txt", "sub/only.tmp", "only.tmp", "build/out.o",
    "sub/build/out.o", "deep/a/b/c/x.dat", "deep/y.dat", "#odd", "!odd", "space ", "sub/negated.csv", "other.csv",
    "foo/bar/baz.txt", "foo/keep/baz.txt",
]  # fmt: skip
RULES = {
    ".gitignore": "*.log\n!keep.log\nlogs/\n/only.tmp\n/build\ndeep/**/x.dat\n\\#odd\n\\!odd\n"
    "space\\ \n*.csv\nfoo/*\n!foo/keep\n# c\n",
    "sub/.gitignore": "!negated.csv\nbuild\n",
    "foo/keep/.gitignore": "none\n",
}


def test_outside_a_repository_the_rules_are_the_same(repository: Path, tmp_path: Path) -> None:
    write(repository, *TREE)
    for path, text in RULES.items():
        write(repository, path, text=text)
    plain = tmp_path / "plain"
    shutil.copytree(repository, plain, ignore=shutil.ignore_patterns(".git"))

    by_git, by_library = project_files(repository), project_files(plain)

    assert by_git.in_git
    assert not by_library.in_git
    assert by_library.paths == by_git.paths
    assert "keep.log" in by_git.paths
    assert "only.tmp" not in by_git.paths


def test_without_git_the_library_decides(repository: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write(repository, "train.py", "x.log")
    write(repository, ".gitignore", text="*.log\n")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert project_files(repository).paths == [".gitignore", "train.py"]
    assert commit_of(repository) == (None, False)


@pytest.mark.parametrize("in_git", [True, False])
def test_never_sent(project: Path, in_git: bool) -> None:
    if in_git:
        git(project, "init", "-q")
    write(
        project,
        "train.py",
        "runs/one/log.txt",
        "src/runs/mine.py",
        "__pycache__/x.pyc",
        "a/__pycache__/y.pyc",
        ".gpuops-0123456789abcdef.part",
    )
    write(project, "env/pyvenv.cfg", "env/bin/python", "a/venv/pyvenv.cfg", "a/venv/lib/x.py", "a/lib.py")
    write(project, ".gpuopsignore", text="*.mp4\n/data/*\n!/data/small\n")
    write(project, "film.mp4", "data/large", "data/small", "a/b/film.mp4")
    assert project_files(project).paths == [".gpuopsignore", "a/lib.py", "data/small", "src/runs/mine.py", "train.py"]


def test_a_tracked_file_can_be_left_out_by_gpuopsignore(repository: Path) -> None:
    write(repository, "train.py", "big.bin", "sub/big.bin")
    git(repository, "add", ".")
    write(repository, "sub/.gpuopsignore", text="*.bin\n")
    assert project_files(repository).paths == ["big.bin", "sub/.gpuopsignore", "train.py"]


@pytest.mark.parametrize("in_git", [True, False])
def test_links_and_odd_names(project: Path, in_git: bool) -> None:
    if in_git:
        git(project, "init", "-q")
    write(project, "folder/x", "a b", "q'\"$(id)", "two\nlines", "ünï")
    with open(os.fsencode(project) + b"/raw\xff", "w"):
        pass
    os.symlink("folder", project / "link")
    os.symlink("nowhere", project / "dangling")
    os.mkfifo(project / "pipe")
    assert set(project_files(project).paths) - {"pipe"} == {
        "folder/x", "a b", "q'\"$(id)", "two\nlines", "ünï", "raw\udcff", "link", "dangling"}  # fmt: skip


def test_commit_and_dirt(repository: Path) -> None:
    assert commit_of(repository) == (None, False)
    write(repository, "train.py")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "one")
    commit, dirty = commit_of(repository)
    assert commit is not None
    assert len(commit) == 40
    assert not dirty
    write(repository, "train.py", text="changed")
    assert commit_of(repository) == (commit, True)


def test_a_hook_that_runs_gpuops_does_not_lead_git_astray(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(repository, "train.py")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert project_files(repository).paths == ["train.py"]


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder"):
        project_files(tmp_path / "none")
