"""What is sent lies where it seems to: links that lead out of a project, or out of its data, are not followed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuops.core.errors import UsageError
from gpuops.nodes.environment import read_requirements
from gpuops.sync.project_files import project_files
from gpuops.sync.scan import scan, scan_data
from tests.conftest import Shell
from tests.sshd import Sshd, can_serve, serving

CANARY = "canary-of-the-user"


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A folder of the user's, beside the project."""
    folder = tmp_path / "private"
    folder.mkdir()
    (folder / "config.json").write_text(CANARY)
    return folder


@pytest.fixture
def server() -> Iterator[Sshd]:
    if why := can_serve():
        pytest.skip(why)
    with serving() as one:
        yield one


def up(shell: Shell, server: Sshd) -> None:
    shell.env["HOME"] = str(shell.folder.parent)
    host = ("--host", f"{server.user}@127.0.0.1:{server.port}", "--identity", str(server.identity), "--accept-new")
    done = shell.run("up", "ssh", "--name", "lab", *host)
    assert done.returncode == 0, done.stderr


def arrived(server: Sshd) -> list[Path]:
    files = [path for path in server.home.rglob("*") if path.is_file()]
    assert files
    return [path for path in files if CANARY.encode() in path.read_bytes()]


LED = [
    ("data", "f.json leads to {private}/config.json; d leads to {private}"),
    ("itself", "itself leads to {private}"),
]


@pytest.mark.parametrize(("data", "say"), LED)
def test_links_in_the_data_lead_nowhere_else(shell: Shell, private: Path, server: Sshd, data: str, say: str) -> None:
    """A folder, a file, and the data themselves; then with the user's word for it, which is told."""
    shell.write("data/x", "x")
    (shell.folder / "data" / "d").symlink_to("../../private")
    (shell.folder / "data" / "f.json").symlink_to("../../private/config.json")
    (shell.folder / "itself").symlink_to("../private")
    up(shell, server)
    words = ("run", "--cluster", "lab", "--data", data)
    command = ("--", "sh", "-c", "cat data/d/* itself/* 2>/dev/null; true")
    refused = [f"error: links in the data lead out of it: {say.format(private=private)}",
               f"hint: if it shall be sent, too: --send-anyway {private}"]  # fmt: skip
    for more in ((), ("--dry-run",)):
        done = shell.run(*words, *more, *command)
        assert (done.returncode, done.stderr.splitlines()[-2:]) == (2, refused), done.stderr
    assert arrived(server) == []
    done = shell.run(*words, "--send-anyway", str(private), *command)
    assert (done.returncode, CANARY in done.stdout) == (0, True), done.stderr
    assert any(line.startswith("data: ") and str(private) in line for line in done.stderr.splitlines())
    assert arrived(server)
    assert shell.run("down", "lab").returncode == 0


def sent(data: Path, *allow: str, project: Path | None = None) -> list[str]:
    return [file.path for file in scan_data(data, data.parent / "cache", allow, project).files]


def test_links_within_are_followed_and_one_to_the_data_may_be_named(tmp_path: Path, private: Path) -> None:
    data = tmp_path / "set"
    (data / "a").mkdir(parents=True)
    (data / "a" / "x").write_text("x")
    (data / "b").symlink_to("a")
    (data / "y").symlink_to("a/x")
    (tmp_path / "name").symlink_to("set")
    assert sorted(sent(data)) == ["set/a/x", "set/b/x", "set/y"]
    assert sorted(sent(tmp_path / "name")) == ["name/a/x", "name/b/x", "name/y"]
    (data / "far").symlink_to(private)
    assert "set/far/config.json" in sent(data, str(private))
    assert "set/far/config.json" in sent(data, str(tmp_path / "name" / ".." / "private"))
    for word in ("far", "*", "set/far", "private", str(private / "other"), f"{private}2"):
        with pytest.raises(UsageError, match="far leads to"):
            sent(data, word)
    (data / "far").unlink()
    (data / "hop").symlink_to("a/../../private/config.json")
    with pytest.raises(UsageError, match="hop leads to"):
        sent(data)


def test_keys_behind_an_allowed_link_stay(tmp_path: Path, private: Path) -> None:
    """The word is for the place, and not for what looks like a secret there."""
    (private / ".env").write_text("KEY=hush\n")
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "far").symlink_to(private)
    assert sent(tmp_path / "set", str(private)) == ["set/far/config.json"]


def test_a_projects_own_git_is_no_data(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("[remote]\n")
    (tmp_path / "data").symlink_to(".git")
    with pytest.raises(UsageError, match="data leads to"):
        sent(tmp_path / "data", project=tmp_path)


def test_what_has_no_end_is_not_read(shell: Shell) -> None:
    """Pipes and devices, in the data, as the data, and where lists of a project are looked for."""
    shell.write("data/x", "x")
    os.mkfifo(shell.folder / "data" / "pipe")
    os.mkfifo(shell.folder / "pipe")
    os.mkfifo(shell.folder / ".gpuopsignore")
    os.mkfifo(shell.folder / ".gitignore")
    os.mkfifo(shell.folder / "requirements.txt")
    for name in ("gpuops.toml", ".env", "pyproject.toml"):
        (shell.folder / name).symlink_to("/dev/zero")
    assert sent(shell.folder / "data") == ["data/x"]
    assert shell.run("push", "--dry-run").returncode == 0
    done = shell.run("run", "--data", "pipe", "--", "true")
    assert (done.returncode, done.stderr.splitlines()) == (
        2, ["error: --data pipe is neither a file nor a folder", "hint: name what the run reads"])  # fmt: skip
    done = shell.run("run", "--", "true")
    assert done.returncode == 0, done.stderr
    done = shell.run("train", "single", "pipe")
    assert done.returncode == 2


@pytest.mark.parametrize("in_git", [True, False])
def test_a_folder_that_is_a_link_is_sent_as_a_link(tmp_path: Path, in_git: bool) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "d").symlink_to("../private")
    (project / "train.py").symlink_to("../private/config.json")
    if in_git:
        subprocess.run(["git", "init", "-q"], cwd=project, check=True)
        subprocess.run(["git", "add", "."], cwd=project, check=True)
    files = scan(project, tmp_path / "home" / "cache").files
    assert [(file.path, file.link, file.size) for file in files] == [
        ("d", "../private", 0), ("train.py", "../private/config.json", 0)]  # fmt: skip


def test_an_index_that_names_files_behind_a_link(tmp_path: Path) -> None:
    """What git would never check out stands in the `.git` of an archive all the same."""
    project = tmp_path / "project"
    project.mkdir()
    for command in (("init", "-q"), ("update-index", "--add", "--cacheinfo", f"100644,{'1' * 40},d/config.json")):
        subprocess.run(["git", *command], cwd=project, check=True)
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "config.json").write_text(CANARY)
    (project / "d").symlink_to("../private")
    assert project_files(project).paths == ["d"]


@pytest.mark.parametrize("name", ["requirements.txt", "pyproject.toml"])
def test_requirements_are_the_projects_own(tmp_path: Path, name: str) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "private").write_text(CANARY)
    (project / name).symlink_to("../private")
    with pytest.raises(UsageError, match=f"{name} is a link that leads out of the project"):
        read_requirements(project)
