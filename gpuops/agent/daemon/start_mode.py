"""The start of the watchdog and of the agent, each in a session of its own, without our standard streams.

Where that is safe they are forked: Python and the modules that they share with us have been loaded, which takes longer
than all else that they do to begin. A process with threads would fork with whatever locks these hold, and what macOS
has loaded does not survive a fork: there the program is started anew.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import threading
import traceback
from contextlib import suppress
from typing import Iterable, NoReturn, Sequence

from gpuops.agent import process_table, processes
from gpuops.agent.node import Node, open_append, program_argv

MODULES = {"watchdog": "gpuops.agent.daemon.watchdog", "agent": "gpuops.agent.daemon.main"}
OPEN_FILES = "/proc/self/fd"
STREAMS = 3
ARGUMENTS_FIELD = 48
"""Of /proc/PID/stat: where the command line begins in the process's memory; 0 for those who may not know it."""


def start_mode(node: Node, mode: str, *more: str) -> processes.Child:
    """Start a mode of MODULES as a child in the node's folder, which writes to `<mode>.log`. Raises OSError."""
    arguments = ["--node", node.dir, *more]
    with open_append(node.path(f"{mode}.log")) as log:
        if process_table.PROC and threading.active_count() == 1:
            child = _fork(node, mode, arguments, log.fileno())
            processes.register(child)  # no other thread collects it before
            return child
        return processes.start_child(
            [*program_argv(), mode, *arguments], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=node.dir
        )


def _fork(node: Node, mode: str, arguments: Sequence[str], log: int) -> processes.ForkedChild:
    # Until its handlers are gone, a signal to the child would be told to us, through the pipe of our `Wake`.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        pid = os.fork()
        if not pid:
            _become(node, mode, arguments, log, blocked)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return processes.ForkedChild(pid)


def _become(node: Node, mode: str, arguments: Sequence[str], log: int, mask: Iterable[int]) -> NoReturn:
    """In the child: leave nothing of the parent's that the start of a program would not leave either."""
    code = 1
    try:
        os.setsid()
        os.chdir(node.dir)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for stream, source in enumerate((nothing, log, log)):
            os.dup2(source, stream)
        for fd in map(int, os.listdir(OPEN_FILES)):
            if fd >= STREAMS:
                with suppress(OSError):  # the one that listed them
                    os.close(fd)  # among them the lock of the watchdog, which ends with it alone
        signal.set_wakeup_fd(-1)
        for sign in signal.valid_signals():
            if callable(signal.getsignal(sign)):
                signal.signal(sign, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        processes.forget_children()
        _show_as(node, mode)
        code = importlib.import_module(MODULES[mode]).main(mode, arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)  # also where a full disk takes no traceback: never back into what the parent is


def _show_as(node: Node, mode: str) -> None:
    """What `ps` shows is this mode's command line, as if it had been started anew: the parent's says another mode. The
    kernel shows that from this process's own memory, where there is as much room as the parent's took (proc(5))."""
    with suppress(OSError, ValueError, LookupError):  # a kernel that lets nobody write there, or shows less
        with open("/proc/self/comm", "w") as name:
            name.write(f"gpuops-{mode}")
        with open("/proc/self/cmdline", "rb") as shown:
            room = len(shown.read())
        with open("/proc/self/stat", "rb") as stat:
            begins = int(stat.read().rpartition(b")")[2].split()[ARGUMENTS_FIELD - 3])
        python, _, archive = program_argv()
        words = (os.path.basename(python), archive, mode, "--node", node.dir)  # the room is small
        line = b"".join(os.fsencode(word) + b"\0" for word in words)
        if begins and len(line) <= room:
            with open("/proc/self/mem", "r+b", buffering=0) as memory:
                memory.seek(begins)
                memory.write(line.ljust(room, b"\0"))
