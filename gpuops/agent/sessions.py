"""Whether a person is at work on this machine: a shell by SSH, or an editor that is connected to its server here.

Told by what ends with the person's connection, and not with their programs: an editor's server stays for hours
after its window was closed, and must not keep a rented machine alive. So these count:

- a login of sshd that has a terminal (`sshd: alice@pts/0`, since OpenSSH 9.8 `sshd-session: alice@pts/0`);
- an editor's program that descends from a login without one (`alice@notty`), which ends with it;
- an editor's server that somebody is connected to, at a port that it listens on, while any login is open.

Our own connections are logins without a terminal, and count for nothing. Of a laptop that fell asleep, sshd learns
by TCP: within a quarter of an hour where something was under way, else within two hours or so. Linux only.
"""

from __future__ import annotations

import os
import re
from typing import Iterable, Mapping, NamedTuple

from gpuops.agent.node import Node
from gpuops.agent.processes import descendants, table
from gpuops.agent.run.rendezvous import ESTABLISHED, LISTEN, sockets

LOOK_S = 30.0
"""How often is looked, at most, in seconds."""
LOGIN = re.compile(rb"sshd(?:-session)?: [^ ]+@([^ @]+)")
"""The title of the process that serves one login; the group: its terminals, or `notty`."""
TERMINAL = re.compile(rb"(?:pts/|tty)\w+")
EDITORS = (
    b"/.vscode-server", b"/.vscode-remote", b"/.cursor-server", b"/.windsurf-server", b"/.vscodium-server",
    b"/.positron-server", b"/.zed_server", b"/JetBrains/RemoteDev",
)  # fmt: skip
"""What the command lines of editors' programs on a remote machine have in them: the folders they lie in."""


class Connection(NamedTuple):
    """One line of `/proc/net/tcp`: the port at this end, its state, the socket's inode."""

    port: int
    state: str
    inode: str


class Look:
    """Looks now and then; what was seen last holds until the next look."""

    def __init__(self) -> None:
        self._next = 0.0

    def due(self, mono: float, limit_s: float) -> bool:
        """Whether to look now (`mono`: monotonic seconds), so that nobody is overlooked for as long as `limit_s`."""
        if mono < self._next:
            return False
        self._next = mono + min(LOOK_S, limit_s / 4)
        return True


def at_work(node: Node) -> bool:
    """Whether a person is at work on this machine, where it ends with its node: elsewhere their shell stays anyway."""
    return bool(node.settings().get("end")) and open_here()


def open_here() -> bool:
    """Whether anybody is at work on this machine. Reads each process's command line, and seldom more."""
    titles = command_lines()
    logins = dict(terminals(titles))
    if any(logins.values()):
        return True
    editors = {pid for pid, title in titles.items() if is_editor(title)}
    if not logins or not editors:
        return False
    return bool(editors & descendants(table(), logins)) or is_used(
        set().union(*(sockets(pid) for pid in editors)), connections()
    )


def terminals(titles: Mapping[int, bytes]) -> Iterable[tuple[int, bool]]:
    """The processes that serve logins, and whether theirs has a terminal."""
    for pid, title in titles.items():
        match = LOGIN.fullmatch(title.rstrip(b"\0 "))
        if match:
            yield pid, any(TERMINAL.fullmatch(name) for name in match[1].split(b","))


def is_editor(title: bytes) -> bool:
    return any(mark in title for mark in EDITORS)


def is_used(held: set[str], seen: Iterable[Connection]) -> bool:
    """Whether somebody is connected to a port that one of these sockets (by inode) listens on.

    What an editor's programs have connected to themselves, somewhere in the world, is nobody at work here.
    """
    known = list(seen)
    served = {one.port for one in known if one.state == LISTEN and one.inode in held}
    return any(one.state == ESTABLISHED and one.port in served for one in known)


def parse(lines: Iterable[str]) -> Iterable[Connection]:
    """The connections in a `/proc/net/tcp`."""
    for line in lines:
        fields = line.split()
        if len(fields) >= 10 and fields[0].endswith(":"):
            yield Connection(int(fields[1].rpartition(":")[2], 16), fields[3], fields[9])


def connections() -> list[Connection]:
    found: list[Connection] = []
    for name in ("tcp", "tcp6"):
        try:
            with open("/proc/net/" + name) as file:
                found += parse(file)
        except OSError:
            pass  # no IPv6, or no Linux
    return found


def command_lines() -> dict[int, bytes]:
    """Every process's, by number; none where there is no `/proc`."""
    found = {}
    for name in _entries("/proc"):
        if name.isdigit():
            try:
                with open("/proc/" + name + "/cmdline", "rb") as file:
                    found[int(name)] = file.read(4096)
            except OSError:
                pass  # gone meanwhile
    return found


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []
