"""Files to a node by rsync, over the login that there is.

The rsync of this computer gets a remote shell of ours (`rsync_relay`), which hands both ends of its conversation to
this process; they are joined to the agent's mode `rsync-receive` (`rsync_joint`). So rsync needs no login of its own,
whatever the connection is. It only ever sends: what comes from a node is written by gpuops.

Needs rsync 3.1.3 at both ends: earlier ones do not keep a file's time in nanoseconds, do not tell their progress, or
have faults in what is used here.
"""

from __future__ import annotations

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
from functools import cache, partial
from typing import BinaryIO, cast

from gpuops.core.errors import ConnectionLost, NodeError, NodeRefused
from gpuops.core.format import one_line, span
from gpuops.core.platform import HERE
from gpuops.core.processes import end_apart, start_apart
from gpuops.transport import rsync_joint, rsync_relay
from gpuops.transport.connection import Channel

MIN_VERSION = (3, 1, 3)
FLAWED = (3, 2, 7), (3, 4, 0)
"""From the first to before the second, what is sent to can write beyond a buffer of the sender: CVE-2024-12084."""
MENDED_PROTOCOL = 32
"""The mending raised the protocol's number, to be told by it: also in systems that keep the version."""
VERSION = re.compile(r"rsync {1,4}version {1,4}v?((\d{1,4})\.(\d{1,4})(?:\.(\d{1,4}))?)(?!\d)")
PROTOCOL = re.compile(r"protocol version (\d{1,4})")
PARTIAL = ".gpuops-partial"
"""The folder, beside a file, where the part of it that came stays after a cut: of agents that know nothing else."""
TIMEOUT_S = 60
"""After so many seconds without a byte rsync gives up. Its signs of life count as bytes."""
SILENCE_S = 180.0
"""How long a transfer may not move: signs of life do not count."""
DISK_BYTES_PER_S = 50e6
"""A node with a slow disk reads a large file's older version at this speed, and takes nothing meanwhile."""
END_S = 10.0
MAX_SHOWN_CHARS = 200
MAX_LINE_BYTES = 4096
MAX_ERROR_BYTES = 1 << 16
PROGRESS = re.compile(rb"\s{0,80}(\d{1,19})\s{1,80}\d{1,3}%")
FULL_DISK = "No space left on device", "Disk quota exceeded"
LOST = 255
"""Exit code of a program whose connection ended."""
OTHER_WAY = {"usage", "no-rsync"}
"""Refusals of the mode `rsync-receive` after which a stream may work."""
MEANINGS = {
    1: "was called in a way that it does not know",
    2: "speaks another protocol than the node's",
    3: "could not use the files or folders that it was given",
    4: "does not know what was asked of it",
    5: "could not begin the conversation",
    10: "was cut off",
    11: "could not read or write a file",
    12: "was cut off",
    13: "reports an error in its diagnostics",
    14: "could not start a process",
    20: "was ended",
    22: "had too little memory",
    23: "could not send every file",
    24: "missed files that were removed meanwhile",
    25: "stopped at its limit of deletions",
    30: "heard nothing for too long",
    35: "heard nothing for too long",
}
"""Of rsync's exit codes: rsync(1), EXIT VALUES."""


@dataclass(frozen=True)
class Rsync:
    """An rsync that can be used."""

    program: str
    version: str
    has_zstd: bool
    is_flawed: bool = False
    """Whether it has CVE-2024-12084, as far as its version tells."""


class RsyncFailed(Exception):
    """rsync failed, and not for the connection or a full disk: another way may work."""


def parse_version(program: str, text: str) -> Rsync | None:
    """What `rsync --version` says; None for one that is too old, or another program of that name."""
    found = VERSION.match(text)
    if not found:
        return None
    version = int(found[2]), int(found[3]), int(found[4] or 0)
    if version < MIN_VERSION:
        return None
    ways = text.partition("Compress list:")[2].strip().partition("\n")[0].split()
    protocol = PROTOCOL.search(text.partition("\n")[0])
    is_mended = protocol is not None and int(protocol[1]) >= MENDED_PROTOCOL
    return Rsync(program, found[1], "zstd" in ways, FLAWED[0] <= version < FLAWED[1] and not is_mended)


@cache
def local_rsync() -> Rsync | None:
    """The rsync of this computer; None where there is none to use, or one that a node could harm it through."""
    program = None if HERE.windows else shutil.which("rsync")
    found = ask_version(program) if program else None
    return found if found and not found.is_flawed else None


def ask_version(program: str) -> Rsync | None:
    """What a program of this computer says of itself; None for one that cannot be used."""
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
    largest: int = 0
    """Bytes of the largest file."""
    compresses: bool = False
    """With zstd, which both ends must know."""
    inplace: bool = False
    """Whether a file is written where it stays, instead of renamed once it is whole: its time then tells that it is."""

    def argv(self, here: Rsync) -> list[str]:
        """The command line. Paths come by stdin. What the node's rsync is to do stands in the command that this one
        composes (`--no-s`), so that the agent can look at it; the agent knows which folder is meant by `files`."""
        words = [
            here.program, "--no-s", "-tIL", "--from0", "--files-from=-", "--no-implied-dirs",
            f"--timeout={TIMEOUT_S}", "--info=progress2,flist0", "--no-human-readable",
            "--inplace" if self.inplace else f"--partial-dir={PARTIAL}",
        ]  # fmt: skip
        words += ["--compress", "--compress-choice=zstd", "--compress-level=1"] if self.compresses else []
        return [*words, f"{self.folder}/", "node:files"]


def send(
    label: str,
    open_there: Callable[..., Channel],
    here: Rsync,
    upload: Upload,
    on_bytes: Callable[[int], None],
    on_wire: Callable[[int], None],
    silence_s: float = SILENCE_S,
) -> None:
    """Send files. A file that changes meanwhile, or goes, is the caller's to find.

    `open_there` starts the node's end with rsync's arguments. `on_bytes` is called with what came by of the files'
    bytes, `on_wire` with what of it is about to be sent: it may hold the transfer back.

    Raises ConnectionLost, NodeRefused where the node's disk is full or another push has begun, RsyncFailed.
    """
    limit_s = silence_s + upload.largest / DISK_BYTES_PER_S
    with _start(here, upload) as (process, owner), rsync_joint.watching(limit_s, partial(end_apart, process)) as watch:
        threading.Thread(target=_feed, args=(process, upload.paths), daemon=True).start()
        asked = rsync_joint.take_ends(owner)
        if asked is None:
            raise _without_node(process, watch)
        try:
            channel = open_there(*asked.arguments)
        except BaseException as error:
            asked.close()
            if isinstance(error, NodeError) and not isinstance(error, ConnectionLost):
                raise RsyncFailed(f"rsync does not work on the node ({error.message})") from error
            raise
        watch.also_close(channel)
        try:
            rsync_joint.join(asked, channel, owner, on_wire, watch)
            words = _read_progress(process, on_bytes, watch)
            code = process.wait()
            watch.close()
            if watch.silent:
                raise ConnectionLost(
                    f"the transfer with {label} has not moved for {span(limit_s)}",
                    "check the node and the network, then try again: what arrived is not sent again",
                )
            if code:
                raise _explain(label, channel, code, words)
        finally:
            channel.close()


@contextmanager
def _start(here: Rsync, upload: Upload) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """The rsync of this computer, and the socket that its remote shell answers on. Raises RsyncFailed."""
    ours, theirs = socket.socketpair()
    relay = f'"{sys.executable}" -I -S "{rsync_relay.__file__}"'
    own = {name: value for name, value in os.environ.items() if not name.startswith("RSYNC_")}
    env = {**own, "LC_ALL": "C", "RSYNC_RSH": relay, rsync_relay.OWNER: str(theirs.fileno())}
    with ours:
        with theirs:
            try:
                process = start_apart(
                    upload.argv(here), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                    env=env, pass_fds=[theirs.fileno()],
                )  # fmt: skip
            except OSError as error:
                raise RsyncFailed(f"rsync does not start ({error.strerror or error})") from error
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
    with suppress(OSError, ValueError):  # it ended, and `_start` may have closed the pipe: its exit code says why
        try:
            for path in paths:
                stdin.write(b"./" + path.encode(errors="surrogateescape") + b"\0")
        finally:
            stdin.close()


def _read_progress(process: subprocess.Popen[bytes], on_bytes: Callable[[int], None], watch: rsync_joint.Watch) -> str:
    """Report the bytes that rsync says it has sent, until it ends. Returns the end of what it wrote to stderr."""
    errors = bytearray()

    def collect() -> None:
        with suppress(OSError, ValueError):
            while chunk := os.read(cast(BinaryIO, process.stderr).fileno(), 1 << 16):
                errors.extend(chunk)
                del errors[:-MAX_ERROR_BYTES]

    reader = threading.Thread(target=collect, daemon=True)
    reader.start()
    stdout, rest, done = cast(BinaryIO, process.stdout), b"", 0
    while chunk := os.read(stdout.fileno(), 1 << 16):
        *lines, rest = re.split(rb"[\r\n]", rest + chunk)
        rest = rest[-MAX_LINE_BYTES:]
        for line in lines:
            if (found := PROGRESS.match(line)) and (sent := int(found[1]) - done) > 0:
                on_bytes(sent)
                watch.moved(sent)
                done += sent
    reader.join(END_S)
    return errors.decode(errors="replace")


def _without_node(process: subprocess.Popen[bytes], watch: rsync_joint.Watch) -> RsyncFailed:
    """Why an rsync has not asked for a program on the node, or in a way that is not understood."""
    try:
        code: int | None = process.wait(END_S)
    except subprocess.TimeoutExpired:
        code = None
        end_apart(process)
    return _failed(code, _read_progress(process, lambda _: None, watch))


def _explain(label: str, channel: Channel, code: int, words: str) -> NodeError | RsyncFailed:
    """What an exit code of the rsync here means, by what the node's end says of itself."""
    from gpuops.transport import validation

    there = LOST
    with suppress(OSError, TimeoutError, ConnectionLost):
        there = channel.wait(END_S)
    said = channel.errors().strip()
    refusal = validation.parse_refusal_line(label, (said.splitlines() or [""])[-1]) if there else None
    if refusal and refusal.kind not in OTHER_WAY:
        return refusal
    if any(sign in words + said for sign in FULL_DISK):
        return NodeRefused(f"{label}: the disk is full", "take a node with a larger disk, or send less", "disk")
    if there == LOST:
        reason = _first_line(said) or _first_line(words) or "no reason given"
        return ConnectionLost(
            f"the transfer with {label} was cut ({reason})", "try again: what arrived is not sent again"
        )
    if there in (126, 127) or there < 0 or there > 128:
        return RsyncFailed(f"rsync does not work on the node ({_first_line(said) or f'exit code {there}'})")
    return _failed(code, refusal.message if refusal else f"{words}\n{said}")


def _failed(code: int | None, words: str) -> RsyncFailed:
    meaning = "does not ask for the node" if code is None else MEANINGS.get(code, f"ended with {code}")
    return RsyncFailed(f"rsync {meaning} ({_first_line(words) or 'no reason given'})")


def _first_line(words: str) -> str:
    lines = [line.strip() for line in words.splitlines() if line.strip() and not line.startswith("rsync error:")]
    return one_line(lines[0], MAX_SHOWN_CHARS) if lines else ""
