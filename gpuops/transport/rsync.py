"""Files to a node by rsync, over the login that there is.

The rsync of this computer gets a remote shell of ours (`rsync_relay`), which hands both ends of its conversation to
this process; they are joined to a program that is opened on the node as every other (`Connection.open`). So rsync
needs no login of its own, whatever the connection is. It only ever sends: what comes from a node is written by gpuops.

Needs rsync 3.1 at both ends: earlier ones do not keep a file's time in nanoseconds, nor tell their progress.
"""

from __future__ import annotations

import array
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import BinaryIO, cast

from gpuops.agent.wire_format import Whole
from gpuops.core.errors import ConnectionLost, NodeError, NodeRefused
from gpuops.core.format import one_line
from gpuops.core.platform import HERE
from gpuops.core.processes import end_apart, start_apart
from gpuops.transport import rsync_relay
from gpuops.transport.connection import Channel, Connection

MIN_VERSION = (3, 1)
PARTIAL = ".gpuops-partial"
"""The folder, beside a file, where the part of it that came stays after a cut. The agent knows the name."""
SILENCE_S = 60
"""After so many seconds without a byte rsync gives up; it sends signs of life while it computes."""
END_S = 10.0
BLOCK_BYTES = 1 << 18
MAX_SHOWN_CHARS = 200
FULL_DISK = "No space left on device", "Disk quota exceeded"
CUT = {10, 12, 20, 30, 35, 255}
"""Exit codes of a connection that ended or was silent: rsync(1), EXIT VALUES. 255 is the remote shell's."""
NOT_STARTED = (126, 127)
"""Exit codes of the node's shell where it cannot start a program."""
MEANINGS = {
    1: "was called in a way that it does not know",
    2: "speaks another protocol than the node's",
    3: "could not use the files or folders that it was given",
    4: "does not know what was asked of it",
    5: "could not begin the conversation",
    11: "could not read or write a file",
    13: "reports an error in its diagnostics",
    14: "could not start a process",
    22: "had too little memory",
    23: "could not send every file",
    24: "missed files that were removed meanwhile",
    25: "stopped at its limit of deletions",
}


@dataclass(frozen=True)
class Rsync:
    """An rsync that can be used."""

    program: str
    version: str
    has_zstd: bool


class RsyncFailed(Exception):
    """rsync failed for another reason than the connection or a full disk: another way may work."""


def parse_version(program: str, text: str) -> Rsync | None:
    """What `rsync --version` says; None for one that is too old, or another program of that name."""
    found = re.match(r"rsync +version +v?((\d+)\.(\d+)[^\s]*)", text)
    if not found or (int(found[2]), int(found[3])) < MIN_VERSION:
        return None
    return Rsync(program, found[1], re.search(r"^Compress list:\s+[^\n]*\bzstd\b", text, re.MULTILINE) is not None)


@cache
def local_rsync() -> Rsync | None:
    """The rsync of this computer; None where there is none to use."""
    program = None if HERE.windows else shutil.which("rsync")
    if program is None:
        return None
    try:
        done = subprocess.run([program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=END_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(program, done.stdout.decode(errors="replace"))


@dataclass(frozen=True)
class Upload:
    """What one rsync sends to one node, and how."""

    folder: str
    paths: Sequence[str]
    """Relative to `folder`, with `/`; links among them are followed."""
    staging: str
    """The folder on the node that gets them, under their paths."""
    tree: str
    """The folder on the node whose older versions spare the bytes that did not change."""
    compresses: bool = False
    """With zstd, which both ends must know."""

    def argv(self, here: Rsync, there: Rsync) -> list[str]:
        """The command line. Paths come by stdin; what the node is to do travels in the conversation (`-s`)."""
        words = [
            here.program,
            "-s",
            "-ptIL",
            "--from0",
            "--files-from=-",
            "--no-implied-dirs",
            f"--timeout={SILENCE_S}",
        ]
        words += [
            f"--partial-dir={PARTIAL}",
            f"--copy-dest={self.tree}",
            "--info=progress2,flist0",
            "--no-human-readable",
        ]
        words += ["--compress", "--compress-choice=zstd", "--compress-level=1"] if self.compresses else []
        return [*words, f"--rsync-path={there.program}", f"{self.folder}/", f"node:{self.staging}/"]


def send(
    connection: Connection,
    here: Rsync,
    there: Rsync,
    upload: Upload,
    on_bytes: Callable[[int], None],
    on_wire: Callable[[int], None],
) -> None:
    """Send files. A file that changes meanwhile, or goes, is the caller's to find.

    `on_bytes` is called with what came by of the files' bytes, `on_wire` with what of it is about to be sent: it may
    hold the transfer back.

    Raises ConnectionLost, NodeRefused where the node's disk is full, RsyncFailed.
    """
    with _start(here, there, upload) as (process, owner):
        feeder = threading.Thread(target=_feed, args=(process, upload.paths), daemon=True)
        feeder.start()
        channel = _open(connection, owner, on_wire)
        try:
            words = _read_progress(process, on_bytes)
            code = process.wait()
            if code and channel:
                _refuse_crash(channel)
                words = f"{channel.errors()}\n{words}"
        finally:
            if channel:
                channel.close()
    if code:
        raise _explain(connection.label, code, words)


@contextmanager
def _start(here: Rsync, there: Rsync, upload: Upload) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """The rsync of this computer, and the socket that its remote shell answers on."""
    ours, theirs = socket.socketpair()
    relay = f'"{sys.executable}" -I -S "{rsync_relay.__file__}"'
    own = {name: value for name, value in os.environ.items() if not name.startswith("RSYNC_")}
    env = {**own, "LC_ALL": "C", "RSYNC_RSH": relay, rsync_relay.OWNER: str(theirs.fileno())}
    with ours:
        with theirs:
            process = start_apart(
                upload.argv(here, there), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env=env, pass_fds=[theirs.fileno()],
            )  # fmt: skip
        try:
            yield process, ours
        finally:
            if process.poll() is None:
                end_apart(process)
            process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                with suppress(OSError):
                    cast(BinaryIO, stream).close()


def _feed(process: subprocess.Popen[bytes], paths: Sequence[str]) -> None:
    """Give rsync the list of files. `./` keeps a name that begins with `-` or `#` a name."""
    stdin = cast(BinaryIO, process.stdin)
    with suppress(OSError):  # it ended: its exit code says why
        for path in paths:
            stdin.write(b"./" + path.encode(errors="surrogateescape") + b"\0")
        stdin.close()


def _open(connection: Connection, owner: socket.socket, on_wire: Callable[[int], None]) -> Channel | None:
    """The program on the node, joined to rsync's ends; None where rsync ended without asking for one.

    Raises ConnectionLost, RsyncFailed.
    """
    ends = array.array("i")
    message, ancillary, _, _ = owner.recvmsg(1 << 16, socket.CMSG_SPACE(2 * ends.itemsize))
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            ends.frombytes(data[: len(data) - len(data) % ends.itemsize])
    if len(ends) != 2:
        return None
    to_node, from_node = ends
    try:
        channel = connection.open([os.fsdecode(word) for word in message.split(b"\0")])
    except BaseException as error:
        os.close(to_node)
        os.close(from_node)
        if isinstance(error, NodeError) and not isinstance(error, ConnectionLost):
            raise RsyncFailed(f"rsync does not work on the node ({error.message})") from error
        raise
    for work, *arguments in ((_pump_to_node, to_node, channel, on_wire), (_pump_from_node, channel, from_node, owner)):
        threading.Thread(target=work, args=arguments, daemon=True, name=f"{connection.label} rsync").start()
    return channel


def _pump_to_node(source: int, channel: Channel, on_wire: Callable[[int], None]) -> None:
    stream = Whole(channel.stdin)
    with suppress(OSError, ValueError):  # the node's end has closed: rsync sees it at the other pump
        while data := os.read(source, BLOCK_BYTES):
            on_wire(len(data))
            stream.write(data)
            channel.stdin.flush()
    os.close(source)  # rsync's next write fails
    with suppress(OSError, ValueError):
        channel.stdin.close()


def _pump_from_node(channel: Channel, target: int, owner: socket.socket) -> None:
    with suppress(OSError, ValueError):
        while data := channel.stdout.read(BLOCK_BYTES):
            view = memoryview(data)
            while view:
                view = view[os.write(target, view) :]
    os.close(target)
    code = 255
    with suppress(OSError, TimeoutError, ConnectionLost):
        code = channel.wait(END_S)
    with suppress(OSError):
        owner.send(bytes([code & 255]))


def _read_progress(process: subprocess.Popen[bytes], on_bytes: Callable[[int], None]) -> str:
    """Report the bytes that rsync says it has sent, until it ends. Returns what it wrote to stderr, the last 64 KiB."""
    errors: list[bytes] = []

    def collect() -> None:
        for line in cast(BinaryIO, process.stderr):
            errors.append(line)
            del errors[:-500]

    reader = threading.Thread(target=collect, daemon=True)
    reader.start()
    stdout, rest, done = cast(BinaryIO, process.stdout), b"", 0
    while chunk := os.read(stdout.fileno(), 1 << 16):
        *lines, rest = re.split(rb"[\r\n]", rest + chunk)
        for line in lines:
            if (found := re.match(rb"\s*(\d+)\s+\d+%", line)) and int(found[1]) > done:
                on_bytes(int(found[1]) - done)
                done = int(found[1])
    reader.join(END_S)
    return b"".join(errors).decode(errors="replace")


def _refuse_crash(channel: Channel) -> None:
    """Raises RsyncFailed where the node's rsync did not start, or was killed: rsync here sees only that it is gone."""
    with suppress(OSError, TimeoutError, ConnectionLost):
        code = channel.wait(END_S)
        if code in NOT_STARTED or code < 0 or 128 < code < 255:
            words = one_line(channel.errors().strip() or f"exit code {code}", MAX_SHOWN_CHARS)
            raise RsyncFailed(f"rsync does not work on the node ({words})")


def _explain(label: str, code: int, words: str) -> NodeError | RsyncFailed:
    """What an exit code of rsync means here, with its own first line on it."""
    lines = [line.strip() for line in words.splitlines() if line.strip() and not line.startswith("rsync error:")]
    first = one_line(lines[0] if lines else "no reason given", MAX_SHOWN_CHARS)
    if any(sign in words for sign in FULL_DISK):
        return NodeRefused(f"{label}: the disk is full", "take a node with a larger disk, or send less", "disk")
    if code in CUT:
        return ConnectionLost(
            f"the transfer with {label} was cut ({first})", "try again: what arrived is not sent again"
        )
    return RsyncFailed(f"rsync {MEANINGS.get(code, f'ended with {code}')} ({first})")
