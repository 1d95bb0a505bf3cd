"""The generated files: what they say, that nothing can break out of them, and that `ssh` and rsync work with them."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from gpuops.core.errors import GpuopsError, NodeError, UsageError
from gpuops.transport.ssh import Target, command_line, remove_config, write_config
from tests.conftest import until
from tests.integration.transport.ssh.conftest import Connect, MakeSshd
from tests.integration.transport.ssh.programs import run
from tests.sshd import Sshd

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIP7o4sTEDmj9wsA+cpZyP6ntZAxvDJapXatD7EhwBV1R"
TARGET = Target("10.0.0.5", 2222, "me", ("/keys/id",), True, host_keys=(KEY,))
needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="needs ssh")


def said(config: Path, alias: str) -> dict[str, str]:
    """What `ssh` makes of it."""
    done = subprocess.run(["ssh", "-G", "-F", str(config), alias], check=True, capture_output=True, text=True)
    return dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)


@needs_ssh
def test_ssh_understands_every_line(room: Path) -> None:
    odd = replace(TARGET, host="fe80::1%eth0", identities=("/a key/50% of it",), options=(("IdentityAgent", "none"),))
    config = write_config(room, "lab", [TARGET, odd])
    first = said(config, "gpuops-lab-0")
    assert (first["hostname"], first["port"], first["user"]) == ("10.0.0.5", "2222", "me")
    assert first["identityfile"] == "/keys/id"
    assert first["hostkeyalias"] == "gpuops-lab-0"
    assert first["stricthostkeychecking"] in ("yes", "true")
    assert first["userknownhostsfile"] == str(room / "lab.known_hosts")
    assert first["controlpath"].startswith(str(room / "cm"))
    assert first["forwardagent"] == "no"
    assert first["ciphers"].startswith("aes128-gcm@openssh.com,aes256-gcm@openssh.com,")
    second = said(config, "gpuops-lab-1")
    assert second["hostname"] == "fe80::1%eth0"
    assert second["identityfile"] in ("/a key/50% of it", "/a key/50%% of it")
    assert second["controlpath"] != first["controlpath"]
    assert (room / "lab.known_hosts").read_text() == f"gpuops-lab-0 {KEY}\ngpuops-lab-1 {KEY}\n"


def test_files_are_private_and_nothing_else_lies_there(room: Path) -> None:
    old = os.umask(0)
    try:
        write_config(room / "ssh", "lab", [TARGET])
        write_config(room / "ssh", "lab", [TARGET, TARGET])
    finally:
        os.umask(old)
    assert sorted(path.name for path in (room / "ssh").iterdir()) == ["cm", "lab.conf", "lab.known_hosts"]
    assert (room / "ssh").stat().st_mode & 0o777 == 0o700
    for name in ("lab.conf", "lab.known_hosts"):
        assert (room / "ssh" / name).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "changes",
    [
        {"identities": ('/a"b',)}, {"identities": ("/a\\b",)}, {"identities": ("/${HOME}/k",)},
        {"identities": ("\x1b",)},
        {"host_keys": ("ssh-ed25519 AAAA",)}, {"host_keys": (f"x\n* {KEY}",)}, {"host_keys": ("",)},
    ],
)  # fmt: skip
def test_what_could_break_out_of_a_line_is_refused(room: Path, changes: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises((UsageError, NodeError)):
        write_config(room, "lab", [replace(TARGET, **changes)])  # type: ignore[arg-type]
    assert not (room / "lab.conf").exists()


@pytest.mark.parametrize("name", ["", "../x", "a/b", "A", "a b", "a" * 30, "x\nHost *"])
def test_only_names_of_clusters(room: Path, name: str) -> None:
    with pytest.raises(GpuopsError):
        write_config(room, name, [TARGET])
    with pytest.raises(GpuopsError):
        command_line(room, name, 0)
    remove_config(room, name)


@needs_ssh
def test_command_lines(room: Path) -> None:
    config = write_config(room, "lab", [TARGET])
    ssh = str(shutil.which("ssh"))
    assert command_line(room, "lab", 0) == [ssh, "-F", str(config), "gpuops-lab-0"]
    assert command_line(room, "lab", 1, ["a b", "c'd"]) == [
        ssh, "-F", str(config), "-T", "gpuops-lab-1", "'a b' 'c'\\''d'",
    ]  # fmt: skip
    assert "-t" in command_line(room, "lab", 0, ["top"], tty=True)
    forward = command_line(room, "lab", 0, forwards=["8080:127.0.0.1:80"])
    assert forward[3:5] == ["-L", "8080:127.0.0.1:80"]
    assert "-N" in forward
    for bad in ("-oProxyCommand=id", "80 80", "$(id)"):
        with pytest.raises(UsageError):
            command_line(room, "lab", 0, forwards=[bad])
    with pytest.raises(UsageError, match="no SSH configuration"):
        command_line(room, "other", 0)


def test_without_ssh_there_is_a_sentence(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_config(room, "lab", [TARGET])
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="not installed"):
        command_line(room, "lab", 0)


@needs_ssh
def test_plain_ssh_logs_in_and_down_ends_its_login(shared_sshd: Sshd, room: Path) -> None:
    write_config(room, "lab", [shared_sshd.target()])
    line = command_line(room, "lab", 0, ["printf", "%s", "it's me"])
    # A master keeps the stderr of the `ssh` that started it: nobody may wait for its end.
    done = subprocess.run(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True, timeout=60)
    assert done.stdout.endswith(b"it's me")
    assert list((room / "cm").iterdir())
    remove_config(room, "lab")
    until(lambda: not list((room / "cm").iterdir()), "its login has ended")
    assert [path.name for path in room.iterdir()] == ["cm"]
    remove_config(room, "lab")


@needs_ssh
def test_what_one_cluster_removes_another_still_has(shared_sshd: Sshd, room: Path, connected: Connect) -> None:
    target = replace(shared_sshd.target(), system=True)
    for cluster in ("lab", "other"):
        write_config(room, cluster, [target])
    node = connected(target, "openssh")
    channel = node.open(["cat"])
    remove_config(room, "lab")
    channel.stdin.write(b"still here")
    assert channel.stdout.read(100) == b"still here"
    remove_config(room, "other")
    assert channel.wait(60) == 255
    until(lambda: not [path for path in room.rglob("*") if path.is_file() or path.is_socket()], "nothing is left")
    assert run(node, ["echo", "again"])[1] == b"again\n"


@needs_ssh
def test_plain_ssh_refuses_another_host(shared_sshd: Sshd, room: Path) -> None:
    write_config(room, "lab", [replace(shared_sshd.target(), host_keys=(KEY,))])
    line = command_line(room, "lab", 0, ["true"])
    done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 255
    assert "verification failed" in done.stderr


@pytest.mark.skipif(shutil.which("rsync") is None, reason="needs rsync")
def test_rsync_goes_through_it(sshd: MakeSshd, room: Path, tmp_path: Path) -> None:
    server = sshd()  # one that does not talk: rsync bears no noise
    config = write_config(room, "lab", [server.target()])
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "a file").write_text("content")
    shell = f"ssh -F {config}"
    subprocess.run(
        ["rsync", "-a", "-e", shell, f"{tmp_path}/from/", f"gpuops-lab-0:{tmp_path}/to/"],
        check=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
    )
    assert (tmp_path / "to" / "a file").read_text() == "content"
    remove_config(room, "lab")
