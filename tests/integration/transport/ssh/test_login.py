"""Logging in to a real sshd, by both kinds of login: whom it trusts, what breaks, how many at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import paramiko
import psutil
import pytest

from gpuops.core.errors import ConnectionLost, NodeError
from gpuops.nodes import bootstrap
from gpuops.transport.ssh import Denied, HostKeyChanged, fingerprint, paramiko_transport, scan_host_key
from gpuops.transport.ssh.kept_handshakes import KeptHandshakes
from gpuops.transport.ssh.limits import Gate, Limits
from gpuops.transport.ssh.pool import Pool
from gpuops.transport.ssh.proxy import Wire
from tests.conftest import HANG_S, until
from tests.integration.transport.ssh.conftest import KINDS, Connect, MakeSshd, of_kind
from tests.integration.transport.ssh.programs import feed, read_all, run
from tests.sshd import Sshd, make_key

both = pytest.mark.parametrize("kind", KINDS)


@both
def test_one_login_serves_many_programs_and_connections(sshd: MakeSshd, connected: Connect, kind: str) -> None:
    server = sshd()
    nodes = [connected(server.target(), kind) for _ in range(3)]
    for node in (*nodes, *nodes):
        assert run(node, ["echo", "hi"])[1] == b"hi\n"
    assert server.logins() == 1


@both
def test_the_pinned_key_decides_which_of_its_keys_a_server_shows(sshd: MakeSshd, connected: Connect, kind: str) -> None:
    server = sshd()
    more = make_key(server.folder / "more_key", kind="rsa")
    server.stop()
    with (server.folder / "sshd_config").open("a") as config:
        config.write(f"HostKey {server.folder / 'more_key'}\n")
    (server.folder / "log").unlink()
    server.start()
    assert run(connected(server.target(host_keys=(more,)), kind), ["echo", "in"])[1] == b"in\n"
    assert scan_host_key(server.target(), prefer=("ssh-rsa",)) == (more,)
    assert scan_host_key(server.target(), prefer=(server.host_key,)) == (server.host_key,)


def connections(server: Sshd) -> int:
    return server.log().count("Connection from ")


@both
def test_a_login_by_paramiko_goes_on_where_the_host_has_shown_its_key(
    sshd: MakeSshd, connected: Connect, kind: str
) -> None:
    server = sshd({"LogLevel": "VERBOSE"})
    assert scan_host_key(of_kind(server.target(), kind)) == (server.host_key,)
    assert run(connected(server.target(), kind), ["echo", "in"])[1] == b"in\n"
    assert connections(server) == (1 if kind == "paramiko" else 2)


def test_a_server_that_waits_for_no_login_is_asked_anew(sshd: MakeSshd, connected: Connect) -> None:
    server = sshd({"LogLevel": "VERBOSE"})
    scan_host_key(server.target())
    until(lambda: connections(server) == 1, "the server has written of it")
    server.cut()
    assert run(connected(server.target()), ["echo", "in"])[1] == b"in\n"
    assert connections(server) == 2


def test_a_host_that_has_shown_another_of_its_keys_is_asked_for_the_pinned_one(
    sshd: MakeSshd, connected: Connect
) -> None:
    server = sshd()
    more = make_key(server.folder / "more_key", kind="rsa")
    server.stop()
    with (server.folder / "sshd_config").open("a") as config:
        config.write(f"HostKey {server.folder / 'more_key'}\n")
    (server.folder / "log").unlink()
    server.start()
    assert scan_host_key(server.target(), prefer=("ssh-rsa",)) == (more,)
    assert run(connected(server.target()), ["echo", "in"])[1] == b"in\n"


def test_a_connection_on_which_nobody_logs_in_is_closed(sshd: MakeSshd, monkeypatch: pytest.MonkeyPatch) -> None:
    server = sshd()
    ended: list[object] = []

    def end(wire: Wire, transport: paramiko.Transport) -> None:
        paramiko_transport.end_transport(wire, transport)
        ended.append(transport)

    monkeypatch.setattr(paramiko_transport, "_KEPT", KeptHandshakes(end, keep_s=0.05))
    scan_host_key(server.target())
    until(lambda: ended, "it is closed")
    first = KeptHandshakes(end)
    monkeypatch.setattr(paramiko_transport, "_KEPT", first)
    scan_host_key(server.target())
    scan_host_key(server.target())
    assert len(ended) == 2, "one is kept for each address"
    kept = first.take(server.target().address)
    assert kept is not None
    assert first.take(server.target().address) is None
    end(*kept)


@both
def test_another_host_key_is_refused(sshd: MakeSshd, connected: Connect, kind: str, tmp_path: Path) -> None:
    """Somebody in between, or a host set up anew: no key is shown, no program sent."""
    server = sshd({"LogLevel": "VERBOSE"})
    known = make_key(tmp_path / "known")
    with pytest.raises(HostKeyChanged) as caught:
        connected(server.target(host_keys=(known,)), kind).open(["true"])
    assert fingerprint(known) in caught.value.message
    assert fingerprint(server.host_key) in caught.value.message
    assert "Accepted" not in server.log()
    assert "publickey" not in server.log()


@both
def test_a_key_of_another_type_is_refused_too(sshd: MakeSshd, connected: Connect, kind: str, tmp_path: Path) -> None:
    server = sshd({"LogLevel": "VERBOSE"})
    with pytest.raises(HostKeyChanged, match="has changed"):
        connected(server.target(host_keys=(make_key(tmp_path / "known", kind="ecdsa"),)), kind).open(["true"])
    assert "publickey" not in server.log()


@both
def test_no_pinned_key_no_login(sshd: MakeSshd, connected: Connect, kind: str) -> None:
    server = sshd()
    with pytest.raises(NodeError, match="no host key of"):
        connected(server.target(host_keys=()), kind).open(["true"])
    assert "Connection" not in server.log()


@pytest.mark.parametrize("algorithm", ["rsa", "ecdsa"])
def test_keys_of_other_kinds(sshd: MakeSshd, connected: Connect, algorithm: str, tmp_path: Path) -> None:
    server = sshd()
    with (server.folder / "authorized_keys").open("a") as keys:
        keys.write(make_key(tmp_path / "key", kind=algorithm) + "\n")
    assert run(connected(server.target(identities=(str(tmp_path / "key"),))), ["echo", "in"])[1] == b"in\n"


@both
def test_many_programs_that_cannot_log_in_try_once(
    sshd: MakeSshd, connected: Connect, kind: str, tmp_path: Path
) -> None:
    """A server counts failed logins, and bans."""
    server = sshd({"LogLevel": "VERBOSE"})
    make_key(tmp_path / "stranger")
    node = connected(server.target(identities=(str(tmp_path / "stranger"),)), kind)
    begin = threading.Barrier(6)

    def fail(_: int) -> None:
        begin.wait()
        with pytest.raises(Denied):
            node.open(["true"])

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(fail, range(6)))
    assert server.log().count("Connection from") < 6


@both
def test_a_wrong_key(sshd: MakeSshd, connected: Connect, kind: str, tmp_path: Path) -> None:
    server = sshd({"LogLevel": "VERBOSE"})
    make_key(tmp_path / "stranger")
    node = connected(server.target(identities=(str(tmp_path / "stranger"),)), kind)
    with pytest.raises(Denied, match="permission denied") as caught:
        node.open(["true"])
    assert str(tmp_path / "stranger") in caught.value.message
    assert f"{server.user}@127.0.0.1" in caught.value.message
    assert "--identity" in caught.value.hint
    assert server.log().count("Connection from") == 1  # a refusal is never tried again


@both
def test_an_encrypted_key_takes_an_agent_and_is_never_asked_for(
    sshd: MakeSshd, connected: Connect, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = sshd()
    locked = tmp_path / "locked"
    with (server.folder / "authorized_keys").open("a") as keys:
        keys.write(make_key(locked, "a secret") + "\n")
    target = server.target(identities=(str(locked),))
    with pytest.raises(Denied, match="protected by a passphrase") as caught:
        connected(target, kind).open(["true"])
    assert caught.value.hint.startswith(f"run `ssh-add {locked}`")
    with agent(monkeypatch):
        shutil.copy(locked, tmp_path / "open")
        os.chmod(tmp_path / "open", 0o600)
        change = ["ssh-keygen", "-q", "-p", "-P", "a secret", "-N", "", "-f", str(tmp_path / "open")]
        subprocess.run(change, check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["ssh-add", "-q", str(tmp_path / "open")], check=True)
        assert run(connected(target, kind, Pool(Limits(), Gate())), ["echo", "in"])[1] == b"in\n"


@both
def test_a_program_never_sees_the_agent(
    sshd: MakeSshd, connected: Connect, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor the environment of this computer."""
    server = sshd({"AcceptEnv": "*"})
    monkeypatch.setenv("LC_GPUOPS", "canary")
    monkeypatch.setenv("GPUOPS_CANARY", "canary")
    with agent(monkeypatch):
        out = run(connected(server.target(), kind), ["env"])[1].decode()
    assert "SSH_CONNECTION" in out
    assert "canary" not in out
    assert "SSH_AUTH_SOCK" not in out


@contextmanager
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A key agent of the test's own."""
    if shutil.which("ssh-agent") is None:
        pytest.skip("needs ssh-agent")
    process = subprocess.Popen(["ssh-agent", "-D"], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    line = process.stdout.readline()
    monkeypatch.setenv("SSH_AUTH_SOCK", line.partition("=")[2].partition(";")[0])
    try:
        yield
    finally:
        monkeypatch.delenv("SSH_AUTH_SOCK")
        process.terminate()
        process.wait()
        process.stdout.close()


@both
def test_a_cut_in_mid_stream(sshd: MakeSshd, connected: Connect, kind: str) -> None:
    server = sshd()
    node = connected(server.target(), kind)
    channel = node.open(["sh", "-c", "echo ready; cat"])
    assert channel.stdout.read(100) == b"ready\n"
    feed(channel, bytes(50 << 20))
    seen = len(channel.stdout.read(65536))
    server.cut()
    seen += len(read_all(channel))
    assert seen < 50 << 20
    assert channel.wait(60) == 255
    assert channel.errors().strip()
    assert run(node, ["echo", "again"])[1] == b"again\n"
    assert server.logins() == 2
    channel.close()


@both
def test_a_server_that_hangs_is_noticed(sshd: MakeSshd, connected: Connect, kind: str) -> None:
    """Its kernel still answers, so only a question that takes an answer tells."""
    server = sshd()
    quick = Pool(Limits(ping_s=1, silence_s=4, idle_s=5), Gate())
    node = connected(server.target(), kind, quick)
    channel = node.open(["sh", "-c", "echo ready; cat"])
    assert channel.stdout.read(100) == b"ready\n"
    server.pause()
    assert read_all(channel) == b""  # the guard against a hang is the test's own time limit
    assert channel.wait(60) == 255
    server.resume()
    assert run(node, ["echo", "again"])[1] == b"again\n"


@both
def test_a_host_that_is_gone_says_so(sshd: MakeSshd, connected: Connect, kind: str) -> None:
    server = sshd()
    node = connected(server.target(), kind)
    assert run(node, ["true"])[0] == 0
    server.stop()
    with pytest.raises(ConnectionLost, match="refuses connections"):
        node.open(["true"])


@both
def test_24_hosts_behind_one_busy_server(sshd: MakeSshd, room: Path, kind: str) -> None:
    """sshd turns away at random from the tenth login on (MaxStartups 10:30:100)."""
    server = sshd()
    gate = Gate()
    pools = [Pool(Limits(), gate) for _ in range(24)]
    folders = [room / str(number) for number in range(24)]

    def one(number: int) -> bytes:
        from gpuops.transport.ssh.connection import connect

        target = replace(server.target(), system=kind == "openssh")
        return run(connect(target, "node", folders[number], pools[number]), ["echo", "in"])[1]

    try:
        with ThreadPoolExecutor(24) as threads:
            assert list(threads.map(one, range(24))) == [b"in\n"] * 24
        assert server.logins() == 24
    finally:
        from gpuops.transport.ssh.openssh import end_master

        for pool in pools:
            pool.close()
        for path in room.glob("*/cm/*"):
            end_master(path)


@both
def test_a_server_with_few_sessions_per_login(sshd: MakeSshd, connected: Connect, kind: str) -> None:
    server = sshd({"MaxSessions": 4})
    node = connected(server.target(), kind)
    channels = [node.open(["cat"]) for _ in range(10)]
    for number, channel in enumerate(channels):
        channel.stdin.write(b"%d" % number)
        assert channel.stdout.read(10) == b"%d" % number
        channel.close()


@both
@pytest.mark.parametrize(
    ("bashrc", "noise_s", "words"),
    [
        ("echo go away; exit 1\n", HANG_S, "go away"),
        ("while :; do echo talk talk talk talk talk talk talk; done\n", HANG_S, "does not stop talking"),
        ("exec cat >/dev/null\n", 3, "has not started a program within 3 s"),
    ],
)
def test_a_shell_that_never_starts_the_program(
    sshd: MakeSshd, connected: Connect, kind: str, bashrc: str, noise_s: float, words: str
) -> None:
    server = sshd(bashrc=bashrc)
    node = connected(server.target(), kind, Pool(Limits(noise_s=noise_s), Gate()))
    if run_by_bash():
        with pytest.raises(ConnectionLost, match=words):
            node.open(["true"], b"early " * 40_000)


def test_a_shell_that_reads_before_the_program_keeps_no_agent_away(
    sshd: MakeSshd, connected: Connect, tmp_path: Path
) -> None:
    """What is sent before the program is known to run may be read by a start-up file: then it is sent once more."""
    node = connected(sshd(bashrc="timeout 1 cat >/dev/null\n").target(), "paramiko")
    agent, _ = bootstrap.build_agent(tmp_path / "cache")
    assert Path(bootstrap.install_agent(node, str(tmp_path / "root"), agent)).read_bytes() == agent.read_bytes()


def run_by_bash() -> bool:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_shell.endswith("bash")


@both
def test_noise_before_a_program_is_not_the_programs(sshd: MakeSshd, connected: Connect, kind: str) -> None:
    server = sshd(bashrc='head -c 300000 /dev/zero | tr "\\0" x; printf "%s" "$BASH_EXECUTION_STRING"\n')
    assert run(connected(server.target(), kind), ["printf", "a\\0b"])[1] == b"a\0b"


def test_generated_files_are_private(sshd: MakeSshd, connected: Connect, room: Path) -> None:
    assert run(connected(sshd().target(), "openssh"), ["true"])[0] == 0
    for path in room.rglob("*"):
        mode = path.lstat().st_mode & 0o777
        assert mode == (0o700 if path.is_dir() else 0o600), path


def test_a_master_ends_by_itself(
    sshd: MakeSshd, connected: Connect, room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpuops.transport.ssh import openssh

    monkeypatch.setattr(openssh, "MASTER_IDLE_S", 1)
    assert run(connected(sshd().target(), "openssh"), ["true"])[0] == 0
    until(lambda: not list((room / "cm").iterdir()), "no master is left")


def test_several_processes_share_a_master(sshd: MakeSshd, connected: Connect) -> None:
    """A security key is touched once, not once per command."""
    server = sshd()
    first = connected(server.target(), "openssh", Pool(Limits(), Gate()))
    second = connected(server.target(), "openssh", Pool(Limits(), Gate()))
    assert run(first, ["true"])[0] == run(second, ["true"])[0] == 0
    assert server.logins() == 1


def test_a_folder_too_deep_for_a_socket(sshd: MakeSshd, tmp_path: Path, pool: Pool) -> None:
    from gpuops.core.errors import UsageError
    from gpuops.transport.ssh.connection import connect

    node = connect(replace(sshd().target(), system=True), "node0", tmp_path / ("deep" * 30), pool)
    with pytest.raises(UsageError, match="too long a name"):
        node.open(["true"])


def test_closing_kills_what_does_not_read(sshd: MakeSshd, connected: Connect) -> None:
    """sshd passes the signal on for users who are not root; root's programs are left to the end of their streams."""
    length = 100_000 + os.getpid()
    channel = connected(sshd().target()).open(["sleep", str(length)])
    channel.close()
    sleeping = [one for one in psutil.process_iter() if _command_line(one) == ["sleep", str(length)]]
    if os.geteuid() == 0:
        for one in sleeping:
            with suppress(psutil.NoSuchProcess):
                one.kill()
    else:
        until(lambda: not any(one.is_running() for one in sleeping), "it is gone")


def _command_line(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def test_the_end_of_this_process_waits_for_nobody(sshd: MakeSshd, room: Path) -> None:
    server = sshd()
    code = (
        "import json, sys\nfrom pathlib import Path\nfrom gpuops.transport import ssh\n"
        "target = ssh.Target.from_document(json.loads(sys.argv[1]))\n"
        "node = ssh.connect(target, 'node0', Path(sys.argv[2]))\n"
        "channel = node.open(['sh', '-c', 'echo up; cat'])\nprint(channel.stdout.read(3))\n"
    )
    import json
    import sys

    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(server.target().document()), str(room)],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "b'up\\n'\n", "")
    assert time.monotonic() - begin < HANG_S
