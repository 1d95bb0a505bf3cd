"""The user's side: programs, keys, the key agent, gpuops' own folder, and what a Windows computer is told."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from gpuops.commands.doctor.checks_computer import computer_findings
from gpuops.commands.doctor.report import Finding
from gpuops.core.platform import System
from gpuops.transport.ssh import private_keys
from tests.conftest import open_folder, without_root
from tests.sshd import can_serve, make_key

LINUX, WINDOWS = System("linux"), System("windows")


class Computer:
    """A user's home with a `.ssh`, and programs that are there."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        (self.home / ".ssh").mkdir(parents=True)
        self.programs = {"ssh": "/usr/bin/ssh", "rsync": "/usr/bin/rsync", "git": "/usr/bin/git"}
        self.env = {"PATH": "/usr/bin:/bin"}
        self.bin = folder

    def key(self, name: str = "id_ed25519", passphrase: str = "") -> Path:
        path = self.home / ".ssh" / name
        make_key(path, passphrase)
        return path

    def agent(self, script: str) -> None:
        path = self.bin / "ssh-add"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        self.programs["ssh-add"] = str(path)
        self.env["SSH_AUTH_SOCK"] = "/none/agent"

    def examine(self, system: System = LINUX, own: Path | None = None, *, needs_key: bool = True) -> list[Finding]:
        gpuops = own or self.home / ".gpuops"
        find = self.programs.get
        return list(computer_findings(gpuops, self.env, self.home, system, find, needs_key=needs_key))


@pytest.fixture
def computer(tmp_path: Path) -> Computer:
    if why := can_serve():
        pytest.skip(why)
    return Computer(tmp_path)


def only(found: Sequence[Finding]) -> Finding:
    assert len(found) == 1, found
    return found[0]


def test_with_a_key_and_the_programs_there_is_nothing_to_say(computer: Computer) -> None:
    computer.key()
    assert computer.examine() == []


@pytest.mark.parametrize(("program", "level"), [("ssh", "warning"), ("rsync", "note"), ("git", "note")])
def test_a_program_that_is_missing(computer: Computer, program: str, level: str) -> None:
    computer.key()
    del computer.programs[program]
    found = only(computer.examine())
    assert (found.level, found.what) == (level, program)


@pytest.mark.parametrize(
    ("version", "level", "what", "said"),
    [("3.2.7", "warning", "rsync-flaw", "CVE-2024-12084"), ("3.3.0", "warning", "rsync-flaw", "rsync 3.3.0"),
     ("2.6.9", "note", "rsync", "older than rsync 3.1.3")],
)  # fmt: skip
def test_an_rsync_that_had_better_be_another(
    computer: Computer, version: str, level: str, what: str, said: str
) -> None:
    computer.key()
    program = computer.bin / "rsync"
    program.write_text(f"#!/bin/sh\necho 'rsync  version {version}  protocol version 31'\n")
    program.chmod(0o755)
    computer.programs["rsync"] = str(program)
    found = only(computer.examine())
    assert (found.level, found.what) == (level, what)
    assert said in found.say


def test_without_any_key(computer: Computer) -> None:
    assert only(computer.examine()).what == "key-none"
    assert computer.examine(needs_key=False) == [], "of what is rented gpuops has a key of its own"
    computer.agent("echo ssh-ed25519 QUFBQQ== a@b")
    assert computer.examine() == []


def open_to_all(one: Computer) -> None:
    one.key().chmod(0o644)


def locked(one: Computer) -> None:
    one.key(passphrase="secret")


def locked_and_another_held(one: Computer) -> None:
    locked(one)
    one.agent("echo ssh-ed25519 QUFBQQ== a@b")


def config_open_to_all(one: Computer) -> None:
    one.key()
    config = one.home / ".ssh" / "config"
    config.write_text("")
    config.chmod(0o666)


def agent_gone(one: Computer) -> None:
    one.key()
    one.agent("exit 2")


@pytest.mark.parametrize(
    ("ailment", "what", "hint"),
    [
        (open_to_all, "key-open", "chmod 600"),
        (locked, "key-locked", "ssh-add"),
        (locked_and_another_held, "key-locked", "ssh-add"),
        (config_open_to_all, "ssh-config", "chmod 600"),
        (agent_gone, "key-agent", "ssh-agent"),
    ],
)
def test_what_is_wrong_with_a_key(
    computer: Computer, ailment: Callable[[Computer], None], what: str, hint: str
) -> None:
    ailment(computer)
    found = only(computer.examine())
    assert found.what == what
    assert hint in found.hint


def test_a_locked_key_that_the_agent_holds_is_well(computer: Computer) -> None:
    path = computer.key(passphrase="secret")
    computer.agent(f"echo ssh-ed25519 {base64.b64encode(private_keys.public_blob(str(path))).decode()} a@b")
    assert computer.examine() == []


def test_a_key_agent_that_hangs_is_given_up(computer: Computer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuops.commands.doctor.checks_computer.KEY_AGENT_TIMEOUT_S", 0.3)
    computer.key()
    computer.agent("exec sleep 60")
    assert only(computer.examine()).what == "key-agent"


def test_a_ssh_folder_or_a_key_that_cannot_be_read() -> None:
    if why := can_serve():
        pytest.skip(why)
    with open_folder() as folder:
        one = Computer(folder)
        for path in (one.home, one.home / ".ssh"):
            path.chmod(0o755)
        one.key().chmod(0)
        with without_root():
            assert only(one.examine(own=folder)).what == "key-unreadable"
        (one.home / ".ssh").chmod(0)
        with without_root():
            assert only(one.examine(own=folder)).what == "ssh-folder"
        (one.home / ".ssh").chmod(0o700)


def test_a_folder_of_ours_that_cannot_be(computer: Computer) -> None:
    computer.key()
    (computer.home / "file").write_text("")
    found = only(computer.examine(own=computer.home / "file" / "gpuops"))
    assert (found.level, found.what) == ("error", "own-folder")


def test_on_windows_the_modes_of_files_say_nothing_and_local_nodes_are_explained(computer: Computer) -> None:
    computer.key().chmod(0o644)
    found = only(computer.examine(WINDOWS))
    assert (found.level, found.what) == ("note", "local-nodes")
    assert "Linux or macOS" in found.say
