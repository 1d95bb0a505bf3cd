"""Questions to git that run no program a repository's configuration names.

Another person may have written `.git/config`: an archive holds one, a nested clone has one. There are two ways to ask:

- Commands that only read names (`rev-parse`, `ls-files`, `check-ignore`, `config`) may run a file monitor, and programs
  that fetch objects left out of a partial clone. Both are switched off.
- A comparison with the commit runs filters of any name. So it runs in an empty repository of gpuops that borrows index
  and objects, and takes over the settings named in `COPIED_SETTINGS` alone.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuops.core.errors import UsageError

GIT_TIMEOUT_S = 600.0
"""How long git may read a large repository on a slow disk."""
NO_PROGRAMS = ("-c", "core.fsmonitor=", "-c", f"core.hooksPath={os.devnull}")
"""An empty monitor means none to every version of git; before 2.36 the word `false` names a program."""
REPOSITORY_VARIABLES = {
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_PREFIX",
    "GIT_OBJECT_DIRECTORY",
    "GIT_COMMON_DIR",
}
"""Variables that point git at another repository; git sets them for a hook, which may run gpuops."""
COPIED_SETTINGS = "autocrlf|checkstat|eol|filemode|ignorecase|precomposeunicode|symlinks|trustctime"
"""Settings in `core` on how files lie on this disk; none of them names a program or a path."""


def git(folder: Path, *command: str) -> str | None:
    """The output of a command that reads names; None when it fails. Raises UsageError for an unreadable repository."""
    done = _run(folder, command, {})
    if done is None:
        return None
    if done.returncode == 128 and command[0] == "rev-parse" and _has_repository(folder):
        words = os.fsdecode(done.stderr).strip().splitlines() or ["no reason given"]
        say = f"git cannot read this repository: {words[0].removeprefix('fatal: ')}"
        raise UsageError(say, "make `git status` work here first")
    return os.fsdecode(done.stdout) if done.returncode == 0 else None


def _run(
    folder: Path, command: Sequence[str], more: Mapping[str, str], options: Sequence[str] = ()
) -> subprocess.CompletedProcess[bytes] | None:
    """The finished command; None without git, or for a folder that cannot be entered. Raises UsageError after
    `GIT_TIMEOUT_S`."""
    kept = {name: value for name, value in os.environ.items() if name not in REPOSITORY_VARIABLES}
    # No object is fetched: a variable forbids it to newer versions, and an empty list of protocols to all others.
    ours = {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none"}
    try:
        return subprocess.run(
            ["git", *NO_PROGRAMS, *options, *command],
            cwd=folder,
            env={**kept, **ours, **more},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIT_TIMEOUT_S,
        )
    except (FileNotFoundError, PermissionError):
        return None
    except subprocess.TimeoutExpired:
        raise UsageError(f"git does not answer in {folder}", "make `git status` work here first") from None


def _has_repository(folder: Path) -> bool:
    here = folder.resolve()
    return any((above / ".git").exists() for above in (here, *here.parents))


def commit_of(folder: Path) -> tuple[str | None, bool]:
    """The commit that is checked out and whether this folder differs from it; (None, False) without git.

    An unanswered question counts as a difference.
    """
    commit = (git(folder, "rev-parse", "--verify", "--quiet", "HEAD") or "").strip() or None
    if commit is None:
        return None, False
    new = git(folder, "ls-files", "--others", "--exclude-standard", "--directory", "--no-empty-directory")
    return commit, new != "" or _has_changed(folder, commit) or any(commit_of(one)[1] for one in _submodules(folder))


def _submodules(folder: Path) -> list[Path]:
    """The submodules that are checked out below this folder."""
    listed = (git(folder, "ls-files", "--stage", "-z") or "").split("\0")
    paths = [line.partition("\t")[2] for line in listed if line.startswith("160000 ")]
    return [folder / path for path in paths if lies_here(folder, path) and (folder / path / ".git").exists()]


def lies_here(folder: Path, path: str) -> bool:
    """Whether a path exists without a link on the way: git does not look behind links either."""
    straight = os.path.join(os.path.realpath(folder), *path.split("/"))
    return os.path.normcase(os.path.realpath(folder / path)) == os.path.normcase(straight)


def _has_changed(folder: Path, commit: str) -> bool:
    """Whether a tracked file below the folder is not as the commit has it, in the index or on the disk.

    No filter runs: a file that a filter made is compared by its times and size, which the index has.
    """
    top = git(folder, "rev-parse", "--show-toplevel")
    index, objects = (git(folder, "rev-parse", "--git-path", name) for name in ("index", "objects"))
    if top is None or index is None or objects is None:
        return True
    listed = git(folder, "config", "--null", "--get-regexp", rf"^core\.({COPIED_SETTINGS})$") or ""
    options = [word for pair in listed.split("\0") if pair for word in ("-c", pair.replace("\n", "=", 1))]
    with tempfile.TemporaryDirectory(prefix="gpuops-git-") as empty:
        _make_empty(Path(empty), commit)
        borrowed = {
            "GIT_DIR": empty,
            "GIT_WORK_TREE": _line(top),
            "GIT_INDEX_FILE": os.path.abspath(folder / _line(index)),
            "GIT_OBJECT_DIRECTORY": os.path.abspath(folder / _line(objects)),
        }
        no_configuration = {
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_NOSYSTEM": "1",
            "HOME": empty,
            "XDG_CONFIG_HOME": empty,
        }
        status = ("status", "--porcelain", "--untracked-files=no", "--ignore-submodules=dirty", "--no-renames")
        done = _run(folder, (*status, "--", "."), {**borrowed, **no_configuration}, options)
    return done is None or done.returncode != 0 or bool(done.stdout)


def _line(said: str) -> str:
    return said.removesuffix("\n")


def _make_empty(place: Path, commit: str) -> None:
    """Write the files that make a folder a repository with that commit checked out."""
    (place / "refs").mkdir()
    (place / "HEAD").write_text(f"{commit}\n")
    kind = "[extensions]\nobjectformat = sha256\n" if len(commit) == 64 else ""
    (place / "config").write_text(f"[core]\nrepositoryformatversion = {int(bool(kind))}\n{kind}")
