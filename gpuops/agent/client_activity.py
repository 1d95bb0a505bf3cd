"""Who is there: clients connected to this agent, and people at work on this machine.

A client counts while its conversation with the agent lasts, and is heard with each of its requests.

A person at work has a shell by SSH, or an editor connected to its server here. An editor's server runs on for hours
after its window was closed and must not keep a rented machine alive, so only what ends with the person's connection
counts:

- a login of sshd that has a terminal (`sshd: alice@pts/0`, since OpenSSH 9.8 `sshd-session: alice@pts/0`);
- an editor's program that descends from a login without a terminal (`alice@notty`), and ends with it;
- a connection to a port on which an editor's server listens, while any login is open;
- on a machine of a batch job, whatever of the job has a terminal.

gpuops' own connections are logins without a terminal and do not count. When a laptop falls asleep, sshd learns of it
from TCP: within 15 minutes where data was on its way, else within about two hours. Linux only.
"""

from __future__ import annotations

import os
import re
import threading
import time
from contextlib import contextmanager
from typing import Iterable, Iterator, Mapping

from gpuops.agent.node import HOLDER, Node
from gpuops.agent.process_table import descendants, list_processes
from gpuops.agent.sockets import ESTABLISHED, LISTEN, Connection, list_connections, socket_inodes

_LOCK = threading.Lock()
_connected = 0
_heard = float("-inf")


@contextmanager
def connected() -> Iterator[None]:
    """Count a client for the length of one conversation."""
    global _connected
    with _LOCK:
        _connected += 1
    try:
        yield
    finally:
        with _LOCK:
            _connected -= 1


def count_clients() -> int:
    """How many clients are connected."""
    return _connected


def note_heard() -> None:
    """Note that a client has sent a request or received an answer."""
    global _heard
    _heard = time.monotonic()


def silent_for_s() -> float:
    """Seconds since any client was heard."""
    return time.monotonic() - _heard


JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID")
"""By which the programs of a batch job know it."""
WORK_CHECK_INTERVAL_S = 30.0
"""Time between two searches for people at work: each reads the command line of every process."""
LOGIN = re.compile(rb"sshd(?:-session)?: [^ ]+@([^ @]+)")
"""The title of the process that serves one login; the group: its terminals, or `notty`."""
TERMINAL = re.compile(rb"(?:pts/|tty)\w+")
EDITORS = (
    b"/.vscode-server", b"/.vscode-remote", b"/.cursor-server", b"/.windsurf-server", b"/.vscodium-server",
    b"/.positron-server", b"/.zed_server", b"/JetBrains/RemoteDev",
)  # fmt: skip
"""Folders of editors' programs on a remote machine, as their command lines contain them."""


class WorkSchedule:
    """When to search for people at work. The last result holds until the next search."""

    def __init__(self) -> None:
        self._next = 0.0

    def is_due(self, mono: float, limit_s: float) -> bool:
        """Whether to search now (`mono`: monotonic seconds): at least four times within `limit_s`."""
        if mono < self._next:
            return False
        self._next = mono + min(WORK_CHECK_INTERVAL_S, limit_s / 4)
        return True


def is_person_at_work(node: Node) -> bool:
    """Whether a person is at work on a machine that ends with its node: on others a shell outlives the node anyway."""
    if os.path.exists(node.path(HOLDER)):
        return is_person_in_job()
    return bool(node.settings().end) and is_person_logged_in()


def is_person_in_job() -> bool:
    """Whether a program of the batch job that this process belongs to has a terminal. Others may be at work on the
    machine, and no login shows who is in a step of Slurm's."""
    job = {os.fsencode(f"{name}={os.environ[name]}") for name in JOB_VARIABLES if name in os.environ}
    for pid in list_processes():
        try:
            with open(f"/proc/{pid}/stat", "rb") as stat:
                terminal = stat.read().rpartition(b")")[2].split()[4]
            if terminal != b"0":
                with open(f"/proc/{pid}/environ", "rb") as environ:
                    if not job.isdisjoint(environ.read().split(b"\0")):
                        return True
        except OSError:
            pass  # ended meanwhile, or somebody else's
    return False


def is_person_logged_in() -> bool:
    """Whether a person is at work on this machine. Reads each process's command line, and rarely more."""
    titles = command_lines()
    logins = dict(login_terminals(titles))
    if any(logins.values()):
        return True
    editors = {pid for pid, title in titles.items() if is_editor(title)}
    if not logins or not editors:
        return False
    held = set().union(*(socket_inodes(pid) for pid in editors))
    return bool(editors & descendants(list_processes(), logins)) or has_connection(held, list_connections() or [])


def login_terminals(titles: Mapping[int, bytes]) -> Iterable[tuple[int, bool]]:
    """The processes that serve logins, and whether each login has a terminal."""
    for pid, title in titles.items():
        match = LOGIN.fullmatch(title.rstrip(b"\0 "))
        if match:
            yield pid, any(TERMINAL.fullmatch(name) for name in match[1].split(b","))


def is_editor(title: bytes) -> bool:
    return any(mark in title for mark in EDITORS)


def has_connection(inodes: set[str], rows: Iterable[Connection]) -> bool:
    """Whether there is a connection to a port on which one of these sockets listens.

    Connections that an editor's programs opened themselves, to servers elsewhere, do not count.
    """
    known = list(rows)
    served = {row.port for row in known if row.state == LISTEN and row.inode in inodes}
    return any(row.state == ESTABLISHED and row.port in served for row in known)


def command_lines() -> dict[int, bytes]:
    """Every process's command line, by number; none without `/proc`."""
    lines = {}
    try:
        names = os.listdir("/proc")
    except OSError:
        return {}
    for name in names:
        if name.isdigit():
            try:
                with open("/proc/" + name + "/cmdline", "rb") as file:
                    lines[int(name)] = file.read(4096)
            except OSError:
                pass  # ended meanwhile
    return lines
