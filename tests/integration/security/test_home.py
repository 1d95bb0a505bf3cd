"""A folder of gpuops' own that another user may change, and programs that were planted in it."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuops.core import home as own_folder
from gpuops.core import platform
from gpuops.core.errors import UsageError
from gpuops.core.platform import System
from gpuops.nodes import bootstrap
from tests.conftest import NOBODY, Shell, open_folder

MINE = os.geteuid()
as_root = pytest.mark.skipif(MINE != 0, reason="gives files away: needs root")


@pytest.fixture
def room() -> Iterator[Path]:
    """A folder in one like /tmp; what lies in it may be given any mode."""
    with open_folder() as place:
        (place / "user").mkdir(mode=0o755)
        yield place / "user"


def refused(home: Path) -> tuple[str, str]:
    with pytest.raises(UsageError) as caught:
        own_folder.home({"GPUOPS_HOME": str(home)})
    return caught.value.message, caught.value.hint


def accepted(home: Path) -> bool:
    return own_folder.home({"GPUOPS_HOME": str(home)}) == home


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o707, 0o770, 0o775, 0o722])
def test_a_folder_that_others_may_write_is_refused(room: Path, mode: int) -> None:
    home = room / "home"
    home.mkdir()
    home.chmod(mode)
    say, hint = refused(home)
    assert say == f"another user may change what lies in gpuops' folder {home}"
    assert hint == f"see that it is yours and nothing in it is another's, then: chmod 700 {home}"
    home.chmod(0o700)
    assert accepted(home)


@pytest.mark.parametrize("mode", [0o700, 0o750, 0o755])
def test_a_folder_that_others_may_read_is_the_users_choice(room: Path, mode: int) -> None:
    home = room / "home"
    home.mkdir()
    home.chmod(mode)
    assert accepted(home)


@as_root
def test_a_folder_of_somebody_else_is_refused(room: Path) -> None:
    home = room / "home"
    home.mkdir(mode=0o700)
    os.chown(home, NOBODY, -1)
    assert refused(home)[0] == f"another user may change what lies in gpuops' folder {home}"


@pytest.mark.parametrize("way", ["made", "there", "linked from", "linked to"])
def test_a_folder_above_that_others_may_write_is_refused(room: Path, way: str) -> None:
    """Who may write there may put another folder in its place."""
    place = room / "open"
    place.mkdir()
    place.chmod(0o777)
    home = place / "deep" / "home"
    if way == "there":
        home.mkdir(parents=True, mode=0o700)
    elif way == "linked from":
        (room / "real").mkdir(mode=0o700)
        home.parent.mkdir()
        home.symlink_to(room / "real")
    elif way == "linked to":
        home.mkdir(parents=True, mode=0o700)
        (room / "link").symlink_to(home)
        home = room / "link"
    say, hint = refused(home)
    assert say == f"another user may replace gpuops' folder {home}: others may write to {place}"
    assert hint == f"chmod go-w {place}, or set GPUOPS_HOME to a folder elsewhere"
    place.chmod(0o1777)
    assert accepted(home), "as in /tmp"


@as_root
@pytest.mark.parametrize(
    ("uid", "gid", "accounts", "expected"),
    [
        (1000, 1000, {1000: ("alice", ())}, True),
        (1000, 1000, {1000: ("alice", ("alice",))}, True),
        (1000, 1000, {1000: ("alice", ("bob",))}, False),
        (1000, 100, {100: ("users", ())}, False),
        (1000, 1000, {}, True),
        (1000, 2000, {}, False),
        (1000, 0, {}, True),
        (0, 0, {0: ("root", ())}, True),
    ],
    ids=["a group of one's own", "its own member", "with another member", "a group of all", "a container without names",
         "a group without a name", "root's group in a container", "root"],
)  # fmt: skip
def test_a_group_of_ones_own_locks_nobody_out(
    room: Path, monkeypatch: pytest.MonkeyPatch, uid: int, gid: int, accounts: dict[int, Any], expected: bool
) -> None:
    """HOME is 0775 where the umask is 002 and each user has a group, as on Debian and Fedora."""
    import grp
    import pwd

    def group(number: int) -> Any:
        name, members = accounts[number]
        return SimpleNamespace(gr_name=name, gr_mem=list(members))

    monkeypatch.setattr(grp, "getgrgid", group)
    monkeypatch.setattr(pwd, "getpwuid", lambda number: SimpleNamespace(pw_name={0: "root"}.get(number, "alice")))
    room.chmod(0o775)
    os.chown(room, uid, gid)
    home = room / ".gpuops"
    home.mkdir(mode=0o700)
    assert (System("linux").open_to_others(home) is None) is expected


def test_windows_has_access_lists(room: Path) -> None:
    room.chmod(0o777)
    assert System("windows").open_to_others(room) is None
    assert System("macos").open_to_others(room) == room


def test_a_group_is_asked_for_only_where_it_may_write(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory service may be slow, or away."""
    monkeypatch.delattr(platform, "_is_of_one")
    room.chmod(0o755)
    (room / "home").mkdir(mode=0o700)
    assert System("linux").open_to_others(room / "home") is None


# Over the command line.


EVIL = """
import os, sys
open(os.environ["GPUOPS_HOME"] + "/planted-ran", "w").close()
sys.exit(1)
"""


def planted(path: Path) -> None:
    """A program in the place of the agent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("__main__.py", EVIL)


@pytest.fixture
def agent(tmp_path: Path) -> str:
    return bootstrap.build_agent(tmp_path / "elsewhere")[0].name


def test_what_was_planted_in_an_open_folder_does_not_run(shell: Shell, agent: str) -> None:
    shell.home.mkdir(exist_ok=True)
    shell.home.chmod(0o777)
    planted(shell.home / "cache" / agent)
    planted(shell.home / "local" / "agent" / agent)
    done = shell.run("run", "--", "true")
    assert done.returncode == 2, done.stderr
    assert done.stderr == (
        f"error: another user may change what lies in gpuops' folder {shell.home}\n"
        f"hint: see that it is yours and nothing in it is another's, then: chmod 700 {shell.home}\n"
    )
    assert not (shell.home / "planted-ran").exists()


@pytest.mark.parametrize("where", ["cache", "local/agent"])
def test_an_agent_with_other_bytes_is_replaced_before_it_runs(shell: Shell, agent: str, where: str) -> None:
    shell.home.mkdir(mode=0o700, exist_ok=True)
    shell.home.chmod(0o700)
    planted(shell.home / where / agent)
    done = shell.run("run", "--", "true")
    assert done.returncode == 0, done.stderr
    assert not (shell.home / "planted-ran").exists()


@pytest.mark.parametrize("damage", [lambda path: path.write_bytes(b""), lambda path: path.write_bytes(b"PK" * 1000)])
def test_an_artefact_with_other_bytes_is_written_again(tmp_path: Path, damage: Callable[[Path], Any]) -> None:
    path, _ = bootstrap.build_agent(tmp_path)
    whole = path.read_bytes()
    damage(path)
    assert bootstrap.build_agent(tmp_path)[0].read_bytes() == whole
