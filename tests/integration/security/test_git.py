"""A repository's own configuration runs nothing when gpuops asks git about its files, wherever the repository lies."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuops.core.errors import UsageError
from gpuops.core.git import commit_of
from gpuops.sync.project_files import project_files
from tests.conftest import Shell

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")

IDENTITY = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "protocol.file.allow=always")


def git(folder: Path, *command: str) -> str:
    done = subprocess.run(["git", *IDENTITY, *command], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def make(folder: Path) -> Path:
    """A repository with one commit."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q")
    (folder / "train.py").write_text("print('trained')\n")
    (folder / "notes.txt").write_text("one\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "one")
    return folder


def own(repository: Path) -> Path:
    """Where git keeps what it knows of it."""
    return Path(git(repository, "rev-parse", "--absolute-git-dir"))


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A program that leaves `ran` beside itself."""
    program = tmp_path / "canary"
    program.write_text(f'#!/bin/sh\necho "$0 $@" >> {tmp_path / "ran"}\ncat\n')
    program.chmod(0o755)
    return program


KEYS = [
    "core.fsmonitor", "core.sshCommand", "core.pager", "core.editor", "core.askPass", "core.gitProxy",
    "core.alternateRefsCommand", "diff.external", "diff.x.command", "diff.x.textconv", "filter.x.clean",
    "filter.x.process", "filter.x.smudge", "filter.a=b.clean", "gpg.program", "gpg.ssh.program", "merge.x.driver",
    "pager.status", "pager.log", "credential.helper", "remote.origin.uploadpack", "sequence.editor", "alias.ls-files",
    "alias.status", "uploadpack.packObjectsHook", "trailer.x.command", "browser.x.cmd", "submodule.sub.update",
]  # fmt: skip
"""Of which git says that they name a program."""


def plant_key(key: str) -> Callable[[Path, Path], None]:
    def plant(repository: Path, canary: Path) -> None:
        git(repository, "config", key, f"!{canary}" if key.startswith(("alias", "submodule")) else str(canary))

    return plant


def plant_hooks(repository: Path, canary: Path) -> None:
    hooks = own(repository) / "planted"
    hooks.mkdir()
    for name in ("post-index-change", "reference-transaction", "pre-auto-gc", "fsmonitor-watchman", "query-watchman"):
        shutil.copy(canary, hooks / name)
    git(repository, "config", "core.hooksPath", str(hooks))


def plant_include(repository: Path, canary: Path) -> None:
    (repository / "more").write_text(f'[core]\nfsmonitor = {canary}\n[filter "x"]\nclean = {canary}\n')
    git(repository, "config", "include.path", str(repository / "more"))


def plant_partial_clone(repository: Path, canary: Path) -> None:
    """Objects are gone, and where they would be fetched is a program."""
    git(repository, "config", "core.repositoryformatversion", "1")
    git(repository, "config", "extensions.partialClone", "origin")
    git(repository, "config", "remote.origin.promisor", "true")
    git(repository, "config", "remote.origin.url", f"ext::{canary}")
    git(repository, "config", "protocol.ext.allow", "always")
    git(repository, "config", "protocol.allow", "always")
    git(repository, "config", "remote.origin.uploadpack", str(canary))
    commit = git(repository, "rev-parse", "HEAD")
    shutil.rmtree(own(repository) / "objects" / commit[:2])


def plant_signature(repository: Path, canary: Path) -> None:
    """`git log` would have a commit's signature checked."""
    git(repository, "config", "log.showSignature", "true")
    git(repository, "config", "gpg.program", str(canary))
    signed = git(repository, "cat-file", "commit", "HEAD").replace(
        "\n\n", "\ngpgsig -----BEGIN PGP SIGNATURE-----\n \n aaaa\n -----END PGP SIGNATURE-----\n\n", 1
    )
    (own(repository) / "signed").write_text(f"{signed}\n")
    commit = git(repository, "hash-object", "-t", "commit", "-w", "--no-filters", str(own(repository) / "signed"))
    git(repository, "update-ref", "HEAD", commit)


PLANTS: dict[str, Callable[[Path, Path], None]] = {
    **{key: plant_key(key) for key in KEYS},
    "hooks": plant_hooks,
    "include": plant_include,
    "partial clone": plant_partial_clone,
    "signature": plant_signature,
}


def plant(repository: Path, canary: Path, what: str) -> None:
    """Put a program into the repository's configuration, and give git every reason to use it."""
    (repository / ".gitattributes").write_text("*.txt filter=x diff=x merge=x\n*.py filter=a=b\n")
    PLANTS[what](repository, canary)
    for path in (repository / "notes.txt", repository / "train.py"):
        path.write_text(path.read_text().replace("one", "two"))  # as long as it was, and younger than the index
        os.utime(path)


def where_top(project: Path) -> Path:
    return make(project)


def where_nested(project: Path) -> Path:
    make(project)
    return make(project / "clone")


def where_loose(project: Path) -> Path:
    """Below a project that is no repository."""
    return make(project / "clone")


def where_submodule(project: Path) -> Path:
    library = make(project.parent / "library")
    make(project)
    git(project, "submodule", "add", "-q", str(library), "sub")
    git(project, "commit", "-qm", "two")
    return project / "sub"


PLACES = {"top": where_top, "nested": where_nested, "loose": where_loose, "submodule": where_submodule}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("what", PLANTS)
def test_nothing_of_it_runs(tmp_path: Path, canary: Path, what: str, place: str) -> None:
    project = tmp_path / "project"
    plant(PLACES[place](project), canary, what)
    listing = project_files(project)
    assert {path.rpartition("/")[2] for path in listing.paths} >= {"train.py", "notes.txt"}
    commit_of(project)
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()


COMMANDS = {
    "push": ("push", "--dry-run"),
    "plan": ("run", "--dry-run", "--", "true"),
    "run": ("run", "--", "true"),
    "status": ("status",),
    "train": ("train", "single", "train.py", "--dry-run"),
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_an_unpacked_archive(shell: Shell, tmp_path: Path, canary: Path, words: tuple[str, ...]) -> None:
    """Through the real command line: a monitor, filters, hooks and a nested repository at once."""
    make(shell.folder)
    for repository in (shell.folder, make(shell.folder / "clone")):
        for what in ("signature", "core.fsmonitor", "filter.x.clean", "filter.a=b.clean", "hooks"):
            plant(repository, canary, what)
    done = shell.run(*words)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()


def test_git_itself_would_run_them(tmp_path: Path, canary: Path) -> None:
    """The bait is good: what git does when asked plainly."""
    for what in ("core.fsmonitor", "filter.x.clean", "filter.a=b.clean", "signature"):
        repository = make(tmp_path / what)
        plant(repository, canary, what)
        subprocess.run(["git", "status"], cwd=repository, capture_output=True, check=False)
        subprocess.run(["git", "log", "-1"], cwd=repository, capture_output=True, check=False)
        assert (tmp_path / "ran").exists(), what
        (tmp_path / "ran").unlink()


@pytest.mark.parametrize("hidden", ["runs/one/out/sub", ".git/deep", "a/__pycache__/sub", "left/out"])
def test_what_is_never_sent_is_not_entered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: str) -> None:
    project = make(tmp_path / "project")
    make(project / hidden)
    (project / ".gpuopsignore").write_text("left/\n")
    entered = spied(tmp_path, monkeypatch)
    project_files(project)
    assert {Path(place) for place in entered.read_text().splitlines()} == {project}


def spied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where git is called from here on, a line each."""
    told = tmp_path / "called"
    program = tmp_path / "bin" / "git"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\npwd >> {told}\nexec {shutil.which("git")} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return told


def test_whether_it_is_dirty_is_still_told(tmp_path: Path) -> None:
    project = make(tmp_path / "project")
    clean = (git(project, "rev-parse", "HEAD"), False)
    dirty = (clean[0], True)
    (project / "sub").mkdir()
    assert commit_of(project) == clean
    assert commit_of(project / "sub") == clean, "git tracks no empty folders"
    os.utime(project / "train.py")
    assert commit_of(project) == clean, "the same bytes"
    with changed(project / "train.py", "other\n"):
        assert commit_of(project) == dirty
        assert commit_of(project / "sub") == clean, "that is elsewhere"
        git(project, "add", ".")
    assert commit_of(project) == dirty, "the index differs"
    git(project, "reset", "-q", "--hard")
    (project / "new.py").touch()
    assert commit_of(project) == dirty
    (project / ".git" / "info" / "exclude").write_text("new.py\n")
    assert commit_of(project) == clean
    (project / "train.py").unlink()
    assert commit_of(project) == dirty


@contextmanager
def changed(path: Path, text: str) -> Iterator[None]:
    before = path.read_text()
    path.write_text(text)
    yield
    path.write_text(before)


def test_windows_line_ends_and_modes_that_a_disk_does_not_keep(tmp_path: Path) -> None:
    """Settings of the repository that say how files lie on the disk count."""
    project = make(tmp_path / "project")
    git(project, "config", "core.autocrlf", "true")
    git(project, "config", "core.filemode", "false")
    (project / "train.py").unlink()
    git(project, "checkout", "-q", "--", ".")
    assert (project / "train.py").read_bytes().endswith(b"\r\n")
    os.utime(project / "train.py")
    (project / "notes.txt").chmod(0o755)
    assert commit_of(project) == (git(project, "rev-parse", "HEAD"), False)


def test_a_linked_worktree_and_another_hash(tmp_path: Path) -> None:
    project = make(tmp_path / "project")
    git(project, "worktree", "add", "-q", str(tmp_path / "beside"))
    (tmp_path / "sha256").mkdir()
    git(tmp_path / "sha256", "init", "-q", "--object-format=sha256")
    for folder in (tmp_path / "beside", make(tmp_path / "sha256")):
        assert commit_of(folder) == (git(folder, "rev-parse", "HEAD"), False)
        (folder / "train.py").write_text("other\n")
        assert commit_of(folder)[1]


def test_a_submodule_that_differs_makes_the_project_differ(tmp_path: Path) -> None:
    sub = where_submodule(tmp_path / "project")
    assert commit_of(tmp_path / "project")[1] is False
    (sub / "train.py").write_text("other\n")
    assert commit_of(tmp_path / "project")[1] is True


def test_somebody_elses_repository_is_refused_in_gits_own_words(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root to give a folder away")
    project = make(tmp_path / "project")
    for path in (project, *project.rglob("*")):
        os.chown(path, 65534, 65534)
    with pytest.raises(UsageError, match="git cannot read this repository: detected dubious ownership"):
        project_files(project)


def test_repositories_that_lead_into_each_other_come_to_an_end(tmp_path: Path) -> None:
    """An index that names the repository it belongs to, behind a link to the folder above."""
    project = make(tmp_path / "project")
    (project / "sub").mkdir()
    (project / "sub" / ".git").write_text("gitdir: ../.git\n")
    (project / "sub" / "x").symlink_to("..")
    git(project, "update-index", "--add", "--cacheinfo", f"160000,{git(project, 'rev-parse', 'HEAD')},x/sub")
    git(project, "update-index", "--add", "--cacheinfo", f"160000,{git(project, 'rev-parse', 'HEAD')},sub")
    assert "train.py" in project_files(project).paths
    assert commit_of(project)[1]
