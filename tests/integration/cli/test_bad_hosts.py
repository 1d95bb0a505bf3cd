"""Hosts that cannot be reached, logged in to or used, and hosts that lie: what `up ssh` says of each.

A row is a real server on a loopback port, or what stands in its place, and further words. What could have been lost:
nothing is left on the host, and the book of hosts is as it was.
"""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpuops.transport.ssh import Target
from provisioners.ssh.hosts import HostBook, KnownHost
from tests.conftest import Shell
from tests.desk import Desk
from tests.integration.cli.heard import spoken
from tests.integration.cli.renter import deaf_port
from tests.sshd import Sshd, can_serve, make_key, serving

HOST_HINT = "check that the host is up and that its SSH server listens there"
NEW = ("--accept-new",)
PYTHON = "/usr/bin/python3"


@dataclass(frozen=True)
class Row:
    what: str
    say: str
    hint: str
    code: int = 3
    words: tuple[str, ...] = NEW
    key: Callable[[Sshd], Path] = lambda server: server.identity
    mounts: str = ""
    options: tuple[tuple[str, str], ...] = ()
    bashrc: str = ""


def locked(server: Sshd) -> Path:
    make_key(server.folder / "locked", "a secret")
    return server.folder / "locked"


def stranger(server: Sshd) -> Path:
    make_key(server.folder / "stranger")
    return server.folder / "stranger"


def public(server: Sshd) -> Path:
    path = server.folder / "half"
    path.write_text(server.identity.with_name("id.pub").read_text())
    return path


def garbage(server: Sshd) -> Path:
    path = server.folder / "garbage"
    path.write_bytes(b"\0no key")
    return path


def fake(name: str, text: str) -> str:
    """Shell lines that put a program over one of this machine's."""
    return f"printf '%s' '{text}' >{name}; chmod 755 {name}; mount --bind {name} $(readlink -f {PYTHON})"


LIAR = (
    '#!/bin/sh\ncase "$*" in *version_info*) printf "3 11\\npython /usr/bin/python3\\n" ;; '
    '*) echo "{\\"nodes\\": 7, \\"watchdog\\": []}" ;; esac\n'
)
TWO_GPUS = '#!/bin/sh\nprintf "GPU 0: a\\nGPU 1: b\\n"\n'
ROWS = [
    Row("an unknown host", "{host} is an unknown host, its key is SHA256:.*", ".* then add --accept-new",
        words=()),
    Row("a key that the host does not know", "permission denied for {host}; the keys that were tried: .*stranger.*",
        "pass --identity KEY .*", key=stranger),
    Row("a key behind a passphrase", "{host}: the key .*locked is protected by a passphrase, and no agent holds it",
        "run `ssh-add .*locked`, then try again", key=locked),
    Row("the public half under another name", "permission denied for {host}.*", "pass --identity KEY .*", key=public),
    Row("a key that is none", "permission denied for {host}.*", "pass --identity KEY .*", key=garbage),
    Row("an account that runs nothing", "{host} .*This account is currently not available.*", ".*",
        options=(("ForceCommand", "echo This account is currently not available."),)),
    Row("no python", "{host} has no Python 3.8 or later", "install python3 on {host}",
        mounts=f"mount --bind /dev/null $(readlink -f {PYTHON})"),
    Row("python 3.6 alone", r"{host} has no Python 3.8 or later \(/usr/bin/python3 is Python 3.6\)",
        "install python3 on {host}", mounts=fake("old", "#!/bin/sh\necho 3 6\n")),
    Row("a home that cannot be written", "the home folder .*/home of {host} cannot be written",
        "log in as another user", mounts="mount --bind home home; mount -o remount,bind,ro home"),
    Row("a full disk", "{host} has [0-9] MB of free disk, at least 50 MB are needed", "free some space under .* there",
        mounts="mount -t tmpfs -o size=1m tmpfs home"),
    Row("4 GPUs where 2 are", "--gpus 4 was asked for, {host} has 2", "ask for --gpus 2 or fewer",
        words=(*NEW, "--gpus", "4"),
        mounts=f"mkdir bin; printf '%s' '{TWO_GPUS}' >bin/nvidia-smi; chmod 755 bin/*\n"
        "mount --bind bin /usr/local/bin"),
    Row("a host under two names", "{host} and .*localhost:{port} are one machine", "name it once; .*", 2,
        words=(*NEW, "--host", "{user}@localhost:{port}")),
    Row("a python that says what it likes", ".* may still be there: {host} gave no answer but .*",
        "give up what cannot be ended: gpuops down lie --force", 5,
        words=(*NEW, "--name", "lie", "--timeout", "0.2"), mounts=fake("liar", LIAR)),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _nobodys_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No agent, and no known_hosts, of whoever runs this."""
    if why := can_serve():
        pytest.skip(why)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def filled(text: str, server: Sshd, *, pattern: bool = True) -> str:
    host = f"{server.user}@127.0.0.1:{server.port}"
    text = text.replace("{host}", re.escape(host) if pattern else host)
    return text.replace("{port}", str(server.port)).replace("{user}", server.user)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_one_sentence_one_thing_to_do_and_nothing_left(desk: Desk, row: Row) -> None:
    if row.mounts and os.geteuid() != 0:
        pytest.skip("needs root to change what a host has")
    with serving(dict(row.options), row.bashrc, row.mounts) as server:
        words = [filled(word, server, pattern=False) for word in row.words]
        host = ("--host", f"{server.user}@127.0.0.1:{server.port}", "--identity", str(row.key(server)))
        said = desk.type("up", "ssh", *host, *words)
        expect(said.err, filled(row.say, server), filled(row.hint, server))
        assert (said.code, said.out) == (row.code, ""), said
        assert row.code == 5 or not list(server.home.glob(".gpuops-*"))
    if row.code == 5:  # what may still be there is the guard's until somebody gives it up
        assert desk.type("down", "lie", "--force").code == 0
    assert not list(desk.home.glob("bug-*"))


def expect(err: str, say: str, hint: str) -> None:
    lines = [line for line in err.splitlines() if line.startswith(("error: ", "hint: "))]
    assert len(lines) == 2, err
    assert re.fullmatch(f"error: {say}", lines[0]), err
    assert re.fullmatch(f"hint: {hint}", lines[1]), err
    assert err.endswith("\n".join(lines) + "\n")
    assert "Traceback" not in err


@contextmanager
def answering(words: bytes) -> Iterator[int]:
    """A port behind which somebody says this and no more."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection, suppress(OSError):  # who asked may have heard enough
                    connection.sendall(words)

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def test_what_is_no_ssh_server(desk: Desk) -> None:
    with answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        said = desk.type("up", "ssh", "--host", f"me@127.0.0.1:{port}", *NEW)
    expect(said.err, f"me@127.0.0.1:{port} .*", ".+")
    assert said.code == 3, said


@pytest.mark.parametrize(
    ("host", "say", "hint"),
    [
        ("me@127.0.0.1:{closed}", "me@127.0.0.1:.* refuses connections on this port", HOST_HINT),
        ("me@nowhere.invalid", "me@nowhere.invalid: this name is not known to any name server",
         "check how it is spelt"),
    ],
)  # fmt: skip
def test_what_is_not_there(desk: Desk, host: str, say: str, hint: str) -> None:
    with deaf_port() as closed:
        said = desk.type("up", "ssh", "--host", host.format(closed=closed), *NEW)
    expect(said.err, say, hint)
    assert said.code == 3


def test_a_host_whose_key_is_another_than_when_it_was_met(desk: Desk) -> None:
    """Not even --accept-new lets it pass; `reap --forget` is the user's word that it was set up anew."""
    book = HostBook(desk.home / "ssh" / "hosts.json")
    with serving() as server:
        name = f"{server.user}@127.0.0.1:{server.port}"
        met = Target("127.0.0.1", server.port, server.user, host_keys=(make_key(server.folder / "earlier"),))
        book.record(name, KnownHost(met, "/nowhere", "python3"))
        words = ("up", "ssh", "--host", name, "--identity", str(server.identity), *NEW, "--dry-run")
        said = desk.type(*words)
        expect(said.err, f"the host key of {re.escape(name)} is not the one that is known: .*",
               f"if the host was set up anew: gpuops reap --forget {re.escape(name)}, then try again")  # fmt: skip
        assert said.code == 3
        assert desk.type("reap", "--forget", name).code == 0
        assert desk.type(*words).code == 0


def test_one_host_that_is_away_hides_no_other(shell: Shell) -> None:
    """`reap` ends what answers, names who does not, and ends with 5 until that one answers or is forgotten; `ssh` to it
    says so in our words; a port that is taken is named."""
    with serving() as here, serving() as away:
        for cluster, server in (("lab", here), ("far", away)):
            up = shell.run("up", "ssh", "--name", cluster, "--host", f"{server.user}@127.0.0.1:{server.port}",
                           "--identity", str(server.identity), *NEW)  # fmt: skip
            assert up.returncode == 0, up.stderr
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            occupied = shell.run("forward", "lab", port)
        expect(occupied.stderr, f"port {port} of this computer cannot be had: Address already in use",
               "name another: --local 6007")  # fmt: skip
        assert occupied.returncode == 2
        passed = shell.run("ssh", "lab", "--", "sh", "-c", "exit 255")
        assert (passed.returncode, spoken(passed.stderr)) == (255, [])
        away.stop()
        name = f"{away.user}@127.0.0.1:{away.port}"
        gone = shell.run("ssh", "far", "--", "true")
        expect(gone.stderr, f"{re.escape(name)} refuses connections on this port", HOST_HINT)
        assert gone.returncode == 4
        (shell.home / "ledger.db").unlink()
        cloud = shell.run("status", "--cloud")
        assert [line.split()[1] for line in cloud.stdout.splitlines()[1:-1]] == ["ssh"]
        assert f"note: not all of ssh could be asked: {name} refuses connections" in cloud.stderr
        reaped = shell.run("reap", "--yes")
        assert reaped.returncode == 5, reaped.stderr
        assert f"gone for good? gpuops reap --forget {name}; then: gpuops reap\n" in reaped.stderr
        assert not list(here.home.glob(".gpuops-*"))
        assert shell.run("reap", "--forget", name).returncode == 0
        assert shell.run("reap").stdout == "nothing left over\n"
