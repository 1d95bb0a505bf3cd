"""Log in to many hosts and run a program on each, with nothing open before: gpuops, plain paramiko, plain ssh."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks.hosts import together
from benchmarks.measure import Options, Skip, Table, Work, alternate, compared, run, seconds
from gpuops.transport import ssh
from gpuops.transport.ssh.pool import Pool
from tests.sshd import Sshd, can_serve

HOSTS = 32
PORT = 22_100
GOAL_S = 0.4
NOTES = (
    "All at once, every host key verified, `true` run to its end, by a process that has loaded its libraries.",
    "Client and servers share this machine: what 32 servers take of its cores is in every row.",
)


def tables(options: Options) -> Iterator[Table]:
    if reason := can_serve():
        raise Skip(reason)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpuops-b")))
        servers = []
        for index in range(2 if options.tiny else HOSTS):
            # An address of its own for each: what is limited per address is limited as on hosts of their own.
            servers.append(Sshd(folder / str(index), {"ListenAddress": f"{_address(index)}:{PORT}"}, port=PORT))
            stack.callback(servers[-1].stop)
        works: dict[str, Work] = {
            "gpuops": partial(_gpuops, servers, folder),
            "paramiko, a thread per host": partial(_paramiko, servers),
            "ssh, a process per host": _ssh(servers, folder, ()),
            "ssh, told to use curve25519": _ssh(servers, folder, ("-o", "KexAlgorithms=curve25519-sha256")),
        }
        taken = alternate(works, options.times(7))
    ours = taken["gpuops"]
    rows = [[name, *seconds(one), "" if one is ours else compared(ours, one)] for name, one in taken.items()]
    yield Table(
        f"Connect and exec on {len(servers)} hosts",
        (f"by (goal {GOAL_S} s)", "median, s", "least, s", "gpuops in it"),
        rows,
        NOTES,
    )


def _address(index: int) -> str:
    return f"127.0.77.{index + 1}"


def _gpuops(servers: list[Sshd], folder: Path) -> None:
    pool = Pool()

    def one(index: int) -> None:
        target = servers[index].target(host=_address(index))
        connection = ssh.connect(target, f"node{index}", folder, pool)
        channel = connection.open(["true"])
        assert channel.wait(30) == 0
        connection.close()

    try:
        together([partial(one, index) for index in range(len(servers))])
    finally:
        pool.close()


def _paramiko(servers: list[Sshd]) -> None:
    import paramiko

    def one(index: int) -> None:
        server = servers[index]
        with paramiko.SSHClient() as client:
            kind, key = server.host_key.split()[:2]
            name = f"[{_address(index)}]:{server.port}"
            client.get_host_keys().add(name, kind, paramiko.Ed25519Key(data=_decoded(key)))
            client.connect(
                _address(index), server.port, server.user, key_filename=str(server.identity),
                look_for_keys=False, allow_agent=False,
            )  # fmt: skip
            _, out, _ = client.exec_command("true")
            assert out.channel.recv_exit_status() == 0

    together([partial(one, index) for index in range(len(servers))])


def _decoded(key: str) -> bytes:
    import base64

    return base64.b64decode(key)


def _ssh(servers: list[Sshd], folder: Path, more: tuple[str, ...]) -> Work:
    known = folder / "known_hosts"
    known.write_text("".join(f"[{_address(index)}]:{one.port} {one.host_key}\n" for index, one in enumerate(servers)))
    commands = [
        [
            "ssh", "-F", "/dev/null", "-p", server.port, "-i", server.identity, "-o", "IdentitiesOnly=yes",
            "-o", "BatchMode=yes", "-o", f"UserKnownHostsFile={known}", *more,
            f"{server.user}@{_address(index)}", "true",
        ]
        for index, server in enumerate(servers)
    ]  # fmt: skip
    return lambda: together([partial(run, command) for command in commands])
