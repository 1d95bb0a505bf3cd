"""The line that makes plain `ssh` know the nodes: it counts where nothing above it can change what it means."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuops.commands import ssh as ssh_command

OURS = "Host gpuops-lab-0\n  HostName 10.0.0.5\n  ForwardAgent no\n"
NEEDED = ", once ~/.ssh/config begins with the line: Include "


class User:
    """Somebody with a configuration of their own, and a cluster `lab`."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.folder = home / ".gpuops" / "ssh"
        self.folder.mkdir(parents=True)
        (self.folder / "lab.conf").write_text(OURS)
        (home / ".ssh").mkdir()
        self.config = home / ".ssh" / "config"

    def told(self, config: str) -> str:
        """What is left to do, after the names of the hosts."""
        self.config.write_text(config.replace("OURS", f"{self.folder}/*.conf"))
        machine: Any = SimpleNamespace(data={"connection": "ssh"})
        world: Any = SimpleNamespace(home=self.home / ".gpuops")
        row: Any = SimpleNamespace(name="lab")
        first, second = ssh_command.host_name_lines(world, row, [machine])
        assert first == "log in: gpuops ssh lab"
        return second.removeprefix("plain ssh and VS Code: gpuops-lab-0")

    def ssh(self) -> dict[str, str]:
        """What `ssh` makes of it."""
        argv = ["ssh", "-G", "-F", str(self.config), "gpuops-lab-0"]
        said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
        return dict(line.partition(" ")[::2] for line in said.splitlines())

    def works(self) -> bool:
        found = self.ssh()
        return (found["hostname"], found["forwardagent"]) == ("10.0.0.5", "no")


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> User:
    monkeypatch.setenv("HOME", str(tmp_path))
    return User(tmp_path)


needs_ssh = pytest.mark.skipif(not shutil.which("ssh"), reason="needs the system's ssh")


@needs_ssh
@pytest.mark.parametrize(
    "config",
    [
        "Include OURS\nHost *\n  ForwardAgent yes\n",
        "# mine\n\n  include OURS\nForwardAgent yes\n",
        'INCLUDE "OURS"\n',
        "Include=OURS\n",
        'Include = "OURS"\n',
        "Include OURS /nowhere\nHost x\n",
    ],
    ids=["first", "comments and case", "quoted", "equals", "equals and quoted", "before another file"],
)
def test_it_counts_where_it_is_the_first_line(user: User, config: str) -> None:
    assert user.told(config) == ""
    assert user.works()


@pytest.mark.parametrize(
    "config", ["Include ~/.gpuops/ssh/*.conf\n", "Include ../.gpuops/ssh/*.conf\n", "Include ~/.gpuops/ssh/lab.conf\n"]
)
def test_paths_may_be_written_as_ssh_takes_them(user: User, config: str) -> None:
    """(`ssh` itself asks the system for the home, not HOME: it cannot be shown here.)"""
    assert user.told(config) == ""


@needs_ssh
@pytest.mark.parametrize(
    ("config", "above"),
    [
        ("Host *\n  ForwardAgent yes\nInclude OURS\n", "Host *"),
        ("Host *\n  ForwardAgent yes\n\n  # the nodes\n  Include OURS\n", "Host *"),
        ("Host work\n  User me\nInclude OURS\n", "Host work"),
        ("Match all\n  ForwardAgent yes\nInclude OURS\n", "Match all"),
        ("ForwardAgent yes\nInclude OURS\n", "ForwardAgent yes"),
        ("host=*\nForwardAgent=yes\nInclude OURS\n", "host=*"),
    ],
    ids=["every host", "indented", "another host", "match", "a setting for all", "with equals"],
)
def test_below_other_lines_it_is_said_that_these_count_as_well(user: User, config: str, above: str) -> None:
    said = user.told(config)
    assert said == (
        f", once the line Include {user.folder}/*.conf is the first in ~/.ssh/config: "
        f"what stands above it ({above}) counts there too"
    )
    assert not user.works(), "it would be said for nothing"


def nested(user: User) -> str:
    (user.home / "more").write_text(f"Include {user.folder}/*.conf\n")
    return f"Host *\n  ForwardAgent yes\nInclude {user.home}/more\n"


@pytest.mark.parametrize(
    "config",
    [
        lambda _user: "",
        lambda _user: "# Include OURS\n",
        lambda _user: "Host x\n  # Include OURS\n",
        lambda _user: "SetEnv X=OURS\n",
        lambda _user: "IncludeOURS\n",
        lambda _user: "Include /elsewhere OURS\n",
        lambda _user: "Include ~nobody-of-that-name/*.conf\nInclude\nInclude \"\n",
        lambda _user: "Include /elsewhere/*.conf\n",
        nested,
    ],
    ids=["nothing", "a comment", "a comment below", "another keyword", "no keyword", "after another file", "nonsense",
         "another folder", "in an included file"],
)  # fmt: skip
def test_elsewhere_it_is_not_there(user: User, config: Callable[[User], str]) -> None:
    assert user.told(config(user)) == f"{NEEDED}{user.folder}/*.conf"


def test_without_a_configuration(user: User) -> None:
    assert ssh_command._read_user_config() == ""
    user.config.write_bytes(b"\xff\xfe")
    assert ssh_command._read_user_config() == "\ufffd\ufffd"
