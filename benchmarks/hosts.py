"""Hosts to go to, and a user who goes there with gpuops and with plain ssh.

Several hosts are the whole hosts of tests/system/lab (Linux, root); one host is an sshd on loopback, as the current
user.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.measure import HANG_S, Failed, Skip, environment, gpuops, run
from tests.sshd import Sshd, can_serve
from tests.system.lab.available import why_no_lab
from tests.system.lab.hosts import Lab

LEAVE_S = 10.0
MEMORY = Path("/dev/shm")
"""Where hosts have their disks, those of a lab, too. ext4 makes files ten times as slowly for minutes after many were
removed, and that would meet whoever comes next."""


@dataclass(frozen=True)
class Place:
    """Where a host is reached, and what a user's files lie under there."""

    user: str
    address: str
    port: int

    @property
    def login(self) -> str:
        return f"{self.user}@{self.address}"


@dataclass
class Desk:
    """A home, a project, and hosts whose keys are known."""

    home: Path
    project: Path
    places: Sequence[Place] = ()
    identity: Path = Path()
    known_hosts: Path = Path()
    enter: Sequence[str] = ()
    """What stands before a command that is to reach the hosts."""
    interface: str = "lo"
    """Of the hosts, towards each other."""

    @property
    def env(self) -> dict[str, str]:
        return environment(self.home)

    @property
    def hosts(self) -> list[str]:
        """The options of `up ssh` that name them."""
        return self.named(None)

    def named(self, count: int | None) -> list[str]:
        """The options of `up ssh` for the first `count` of them; None: for all."""
        named = [word for one in self.places[:count] for word in ("--host", f"{one.login}:{one.port}")]
        return [*named, "--identity", str(self.identity), "--accept-new"]

    def ssh(self, index: int) -> list[str]:
        """The system's ssh to a host; what is to run there follows."""
        one = self.places[index]
        return [*self.ssh_words(one.port), one.login]

    def ssh_words(self, port: int) -> list[str]:
        return [
            "ssh", "-F", "/dev/null", "-p", str(port), "-i", str(self.identity), "-o", "IdentitiesOnly=yes",
            "-o", "BatchMode=yes", "-o", f"UserKnownHostsFile={self.known_hosts}", "-o", "LogLevel=ERROR",
        ]  # fmt: skip

    def rsync(self, index: int, source: Path, target: str, *more: str) -> list[str]:
        """A folder to a host, by the system's ssh with `more` options."""
        one = self.places[index]
        shell = " ".join([*self.ssh_words(one.port), *more])
        return ["rsync", "-a", "--delete", "-e", shell, f"{source}/", f"{one.login}:{target}/"]

    def type(self, *words: object) -> str:
        """A gpuops command, to its end. Raises Failed."""
        return self.do(gpuops(*words))

    def do(self, argv: Sequence[str]) -> str:
        return run([*self.enter, *argv], cwd=self.project, env=self.env)

    def until_line(self, argv: Sequence[str], mark: str) -> tuple[float, str]:
        """Seconds until a line with `mark` is on the terminal, and the line; the command is waited for."""
        began = time.perf_counter()
        process = subprocess.Popen(
            [*self.enter, *argv],
            cwd=self.project,
            env=self.env,
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        limit = threading.Timer(HANG_S, process.kill)
        limit.start()
        assert process.stdout
        seen: list[str] = []
        found = 0.0
        try:
            for line in process.stdout:
                if mark in line and not found:
                    found = time.perf_counter() - began
                    seen.insert(0, line)
                seen.append(line)
            code = process.wait()
        finally:
            limit.cancel()
            process.kill()
            process.wait()
        if code or not found:
            raise Failed(f"`{' '.join(argv[:6])}` ended with {code}: {' '.join(''.join(seen[-6:]).split())}")
        return found, seen[0]


@contextmanager
def desk(count: int) -> Iterator[Desk]:
    """A desk with so many hosts, none perhaps; all of it is gone at the end. Raises Skip."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(_folder()))
        (folder / "project").mkdir()
        one = (_lab if count > 1 else _sshd)(stack, folder, count) if count else Desk(folder / "h", folder / "project")
        stack.callback(_leave, one)
        yield one


def _folder(place: Path | None = None) -> tempfile.TemporaryDirectory[str]:
    # What was interrupted may write a last file while the folder is being removed.
    return tempfile.TemporaryDirectory(prefix="gpuops-b", dir=place, ignore_cleanup_errors=True)


def _lab(stack: ExitStack, folder: Path, count: int) -> Desk:
    if reason := why_no_lab():
        raise Skip(f"{count} hosts: {reason}")
    lab = stack.enter_context(Lab(folder / "lab"))
    hosts = [lab.host(f"host{index}") for index in range(count)]
    places = [Place("root", host.address, host.port) for host in hosts]
    return Desk(folder / "h", folder / "project", places, lab.identity, lab.known_hosts, lab.enter, "eth0")


def _sshd(stack: ExitStack, folder: Path, _count: int) -> Desk:
    if reason := can_serve():
        raise Skip(reason)
    disk = stack.enter_context(_folder(MEMORY if MEMORY.is_dir() else None))
    server = Sshd(Path(disk))
    stack.callback(server.stop)
    known = folder / "known_hosts"
    known.write_text(f"[127.0.0.1]:{server.port} {server.host_key}\n")
    return Desk(
        folder / "h", folder / "project", [Place(server.user, "127.0.0.1", server.port)], server.identity, known
    )


def _leave(one: Desk) -> None:
    """End what gpuops has brought up, whatever state it was left in."""
    if (one.home / "ledger.db").exists():
        subprocess.run(
            [*one.enter, *gpuops("down", "--all", "--force")],
            cwd=one.project,
            env=one.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=HANG_S,
        )
    for process in psutil.process_iter(["cmdline"]):
        if str(one.home) in (process.info["cmdline"] or ()):  # its guard, which leaves when it sees that all is gone
            try:
                process.wait(LEAVE_S)
            except psutil.TimeoutExpired:
                process.kill()


def together(works: Sequence[Callable[[], object]]) -> None:
    """All at once, each in a thread; the first failure is raised at the end."""
    failures: list[BaseException] = []

    def one(work: Callable[[], object]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=one, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def make_tree(folder: Path, files: int, size: int, folders: int = 100) -> None:
    """So many files of random bytes."""
    for index in range(files):
        path = folder / f"d{index % folders}" / f"f{index}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(size))
