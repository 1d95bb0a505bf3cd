"""`gpuops doctor` on hosts: over a real sshd, with and without a cluster there, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import Shell, until
from tests.integration.transport.ssh.conftest import MakeSshd
from tests.ports import free_port
from tests.sshd import Sshd

TALKS = "echo welcome\n"


def naming(*servers: Sshd) -> list[str]:
    hosts = [word for server in servers for word in ("--host", f"{server.user}@127.0.0.1:{server.port}")]
    return [*hosts, "--identity", str(servers[0].identity)]


def place_of(server: Sshd) -> str:
    return f"{server.user}@127.0.0.1:{server.port}"


def examined(shell: Shell, *words: str, code: int = 0) -> list[dict[str, Any]]:
    done = shell.run("doctor", *words, "--json")
    assert done.returncode == code, done.stdout + done.stderr
    found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    return found


def in_home(server: Sshd) -> set[str]:
    return {path.name for path in server.home.iterdir()}


def in_memory() -> set[Path]:
    """What is of ours in the memory of this machine, on which all hosts are."""
    return set(Path("/dev/shm").glob("gpuops.*"))


def test_hosts_are_examined_before_anything_is_made_on_them(shell: Shell, sshd: MakeSshd) -> None:
    server, other = sshd(bashrc=TALKS), sshd()
    (other.folder / "authorized_keys").write_text((server.folder / "authorized_keys").read_text())
    before = in_memory()
    found = examined(shell, "ssh", *naming(server, other), "--accept-new")
    assert {place_of(server), place_of(other)} <= {one["where"] for one in found}
    assert [one["where"] for one in found if one["what"] == "shell-talks"] == [place_of(server)]
    assert not [one for one in found if one["level"] == "error"]
    assert in_home(server) == in_home(other) == {".bashrc"}
    until(lambda: in_memory() <= before, "nothing is left in memory, by other tests neither")
    assert server.logins() == 1


def test_a_key_that_nobody_vouches_for_is_not_accepted(shell: Shell, sshd: MakeSshd) -> None:
    server = sshd()
    found = examined(shell, "ssh", *naming(server), code=3)
    assert [(one["level"], one["where"]) for one in found if one["what"] == "setup"] == [("error", "ssh")]
    assert "--accept-new" in next(one["hint"] for one in found if one["what"] == "setup")
    assert server.logins() == 0


def test_a_host_that_is_away_does_not_hide_the_others(shell: Shell, sshd: MakeSshd) -> None:
    server = sshd()
    away = f"{server.user}@127.0.0.1:{free_port()}"
    found = examined(shell, "ssh", *naming(server), "--host", away, "--accept-new", code=3)
    assert place_of(server) in {one["where"] for one in found}
    assert away in next(one["say"] for one in found if one["what"] == "setup")


def agents(server: Sshd) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if any(word.startswith(f"{server.home}/.gpuops-") for word in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def all_dead(server: Sshd) -> bool:
    """Kills whoever lives: one that has lost the other may have started a new one."""
    found = agents(server)
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.kill()
    return not found


@pytest.fixture
def up(shell: Shell, sshd: MakeSshd) -> Sshd:
    server = sshd()
    done = shell.run("up", "ssh", "--name", "lab", *naming(server), "--accept-new")
    assert done.returncode == 0, done.stderr
    return server


def test_a_cluster_is_examined_though_its_agent_is_dead(shell: Shell, up: Sshd) -> None:
    before = in_memory()
    until(lambda: all_dead(up), "the agent's end")
    found = examined(shell, "lab")
    assert [one["where"] for one in found if one["level"] == "ok"] == ["node0"]
    assert not agents(up)
    assert place_of(up) in {one["where"] for one in examined(shell, "ssh")}, "the book knows it"
    up.stop()
    found = examined(shell, "--cluster", "lab", code=4)
    assert [(one["what"], one["where"]) for one in found] == [("unreached", "node0")]
    up.start()
    assert shell.run("down", "lab", "--force").returncode == 0
    assert in_home(up) == {".bashrc"}
    until(lambda: in_memory() <= before, "nothing is left in memory")
