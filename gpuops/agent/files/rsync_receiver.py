"""Mode `rsync-receive`: this node's rsync stages the files of a push, as the mode `receive` does.

The client's rsync composes the arguments of the one here. They are taken only where each is known; the folders are
ours. At most one rsync writes a tree's incoming files: it and its children hold a lock file, which says whom to end.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from typing import IO, BinaryIO, Sequence, cast

from gpuops.agent.files.incoming import Incoming, tree_lock
from gpuops.agent.node import TOUCH_INTERVAL_S, Node, Refusal, parse_options
from gpuops.agent.wire_format import BLOCK_BYTES, Whole

VERSION_BYTES = 4096
VERSION_LIMIT_S = 5
HEAD_WORDS = 4
"""`--tree T --push P`; all behind them are rsync's."""
KNOWN = re.compile(
    r"-[tIR]{1,3}e(\.|\d{1,3}\.\d{1,3})[A-Za-z]*|--timeout=\d{1,4}|--no-implied-dirs|--compress-choice=zstd|--compress-level=\d"
    r"|--inplace|--partial-dir|\.gpuops-partial"
)
"""What rsync 3.1 to 3.5 composes of the options that gpuops gives it. The letters behind `e` are what it can do. An
older gpuops has parts put in a folder of that name, and sends those files again."""
TARGET = [".", "files"]
"""How the client names the folder; ours is put in its place."""
END_S = 5.0
POLL_S = 0.02


def find_version() -> str:
    """What this node's rsync says of itself; empty without one."""
    program = shutil.which("rsync")
    if program is None:
        return ""
    try:
        done = subprocess.run(
            [program, "--version"], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=VERSION_LIMIT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout[:VERSION_BYTES].decode("ascii", "replace")


def receive_by_rsync(node: Node, arguments: list[str], stdin: BinaryIO, stdout: BinaryIO) -> int:  # noqa: ARG001
    """Mode, `--tree T --push P --server …`: rsync's conversation on stdin and stdout. Returns rsync's exit code.

    Each byte that comes is a sign of use. Raises Refusal(`superseded`, `usage`, `no-rsync`, `busy`), and OSError.
    """
    flags, words = parse_options(arguments[:HEAD_WORDS]), arguments[HEAD_WORDS:]
    tree = flags["tree"]
    incoming = Incoming(node, tree, flags["push"])
    with tree_lock(node, tree):
        incoming.load()
        end_rsync(node, tree)
        child = _start(node, tree, _command(words, node.tree(tree)), incoming.files)
    threading.Thread(target=_pump, args=(node, stdin.fileno(), cast("IO[bytes]", child.stdin)), daemon=True).start()
    code = child.wait()
    if code:
        with tree_lock(node, tree):
            incoming.load()  # it may be a newer push that has ended it
    return code if code >= 0 else 128 - code


def _command(words: Sequence[str], tree: str) -> list[str]:
    """The command line, made of what the client's rsync asks for. Raises Refusal(`usage`) for anything unknown."""
    options = list(words[1:-2])
    if list(words[:1]) != ["--server"] or list(words[-2:]) != TARGET or not all(map(KNOWN.fullmatch, options)):
        raise Refusal("usage", "rsync asks for something unknown", "push without rsync")
    # `--copy-dest`: what did not change of a file is taken from its older version
    older = [f"--copy-dest={tree}"] if os.path.isdir(tree) else []
    return ["rsync", "--server", *options, *older, ".", "."]


def _start(node: Node, tree: str, command: list[str], folder: str) -> subprocess.Popen[bytes]:
    """rsync, as holder of the lock. It is in a group with this process, which outlives the group's polite end."""
    signal.signal(signal.SIGTERM, lambda *_: None)  # not SIG_IGN, which rsync would inherit
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    env = {name: value for name, value in os.environ.items() if not name.startswith("RSYNC_")}
    with _open_lock(node, tree) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lock.truncate()
        lock.write(str(os.getpid()))
        lock.flush()
        try:
            return subprocess.Popen(
                command, stdin=subprocess.PIPE, bufsize=0, cwd=folder, env={**env, "LC_ALL": "C"},
                pass_fds=[lock.fileno()],
            )  # fmt: skip
        except OSError as error:
            raise Refusal("no-rsync", f"rsync does not start ({error.strerror})", "push without rsync") from error


def _open_lock(node: Node, tree: str) -> IO[str]:
    path = node.path("trees", tree + ".rsync")
    return open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+")


def end_rsync(node: Node, tree: str) -> None:
    """End an rsync that still writes the tree's incoming files.

    Under `tree_lock`. Raises Refusal(`busy`) where it does not end.
    """
    with _open_lock(node, tree) as lock:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            if _is_free(lock, 0):
                return
            with contextlib.suppress(OSError, ValueError):
                os.killpg(int(lock.read(20)), sign)
            lock.seek(0)
            if _is_free(lock, END_S):
                return
    raise Refusal("busy", "an earlier push's rsync does not end", "wait for the disk of this node, then push again")


def _is_free(lock: IO[str], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_S)
        else:
            return True


def _pump(node: Node, source: int, target: IO[bytes]) -> None:
    """Hand rsync what comes. Not through the buffer of stdin: this thread may be waiting when the process ends."""
    touched = float("-inf")
    with contextlib.suppress(OSError), target:  # rsync has ended
        while True:
            block = os.read(source, BLOCK_BYTES)
            if not block:
                return
            if time.monotonic() - touched >= TOUCH_INTERVAL_S:
                node.touch()
                touched = time.monotonic()
            Whole(target).write(block)
