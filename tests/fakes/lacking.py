"""gpuops as far as this machine can play another system: `python lacking.py windows|macos [guard HOME]`.

What that system's Python has not is taken away before the first line of gpuops is imported, and `sys.platform` says
its name. What remains a Linux: files, sockets, and how a process is started. Command lines come as JSON on stdin; one
document is printed: the modules that could not be imported, and of each command line its exit code and what it said.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import json
import os
import pkgutil
import select
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

STRANGERS = "dotenv.parser filelock paramiko pathspec psutil rich.console typer.completion typer.rich_utils"
"""What is not ours comes before anything is taken away: it knows how to live on each system, not on a false one."""

MODULES = {
    "windows": "fcntl grp pty pwd readline resource syslog termios tty",
    "macos": "",
}
NAMES: dict[str, dict[Any, str]] = {
    "windows": {
        os: """
            chown fchmod fchown fork forkpty geteuid getegid getgid getgroups getloadavg getpgid getpgrp getpriority
            getsid getuid killpg lchown mkfifo mknod nice openpty posix_fallocate posix_spawn pread pwrite
            register_at_fork sched_getaffinity sched_setaffinity sendfile setgid setpgid setpriority setsid setuid
            statvfs sysconf tcgetpgrp ttyname uname wait wait3 wait4 waitid waitstatus_to_exitcode WNOHANG O_CLOEXEC
            O_DIRECTORY O_NOCTTY O_NOFOLLOW O_NONBLOCK O_SYNC
        """,
        signal: """
            SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 SIGWINCH alarm
            getitimer pause pthread_kill pthread_sigmask setitimer sigpending sigtimedwait sigwait
        """,
        socket: "AF_UNIX AF_NETLINK SO_REUSEPORT TCP_USER_TIMEOUT",
        select: "poll epoll",
        time: "clock_gettime tzset CLOCK_BOOTTIME",
    },
    "macos": {
        os: "sched_getaffinity sched_setaffinity waitid pidfd_open posix_fadvise getrandom eventfd",
        signal: "SIGPWR SIGSTKFLT SIGPOLL sigtimedwait",
        socket: "AF_NETLINK TCP_USER_TIMEOUT TCP_KEEPIDLE",
        select: "epoll",
        time: "CLOCK_BOOTTIME",
    },
}
sysconfig.get_config_vars()  # from a file that is named for the platform
PLATFORMS = {"windows": "win32", "macos": "darwin"}


def take_away(kind: str) -> None:
    for name in STRANGERS.split():
        importlib.import_module(name)
    for library in (shutil, subprocess):  # they start, end and copy as before
        for module in (os, signal):
            whole = ModuleType(module.__name__)
            vars(whole).update(vars(module))
            setattr(library, module.__name__, whole)
    for name in MODULES[kind].split():
        sys.modules[name] = None  # type: ignore[assignment]
    for module, names in NAMES[kind].items():
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
    sys.platform = PLATFORMS[kind]
    subprocess.Popen = MacPopen if kind == "macos" else WindowsPopen  # type: ignore[misc]
    if kind == "windows":
        signal.SIGBREAK = signal.Signals(21)  # type: ignore[attr-defined]
        console = SimpleNamespace(GetStdHandle=int, GetConsoleMode=lambda *_: 0)
        ctypes.windll = SimpleNamespace(kernel32=console)  # type: ignore[attr-defined]


class MacPopen(subprocess.Popen):  # type: ignore[type-arg]
    """The guard is started on the same system, and its child."""

    def __init__(self, args: Any, **options: Any) -> None:
        if args[1:3] == ["-m", "gpuops.guard.daemon"]:
            args = [sys.executable, __file__, sys.argv[1], "guard", *args[3:]]
        super().__init__(args, **options)


class WindowsPopen(MacPopen):
    """Takes the flags of Windows, which this machine does not know, and refuses to leave a job."""

    def __init__(self, args: Any, creationflags: int = 0, **options: Any) -> None:
        assert not options.get("start_new_session"), "Windows has no sessions"
        if creationflags & 0x01000000:
            raise PermissionError(13, "Access is denied")
        super().__init__(args, start_new_session=bool(creationflags), **options)


def play(
    kind: str, home: Path, folder: Path, *lines: list[str], env: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Have it typed in a process of its own: `{"broken": […], "said": [{"code", "out", "err"}, …]}`."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "GPUOPS_HOME": str(home), "USERNAME": "me", "PYTHONPATH": str(root), **(env or {})}
    done = subprocess.run(
        [sys.executable, __file__, kind], input=json.dumps(lines), cwd=folder, env=environment, capture_output=True,
        text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def broken() -> list[str]:
    """The client's modules that cannot be imported."""
    import gpuops
    import provisioners

    found = []
    for package in (gpuops, provisioners):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name.startswith("gpuops.agent.") or module.name.endswith(".__main__"):
                continue
            try:
                importlib.import_module(module.name)
            except Exception:
                found.append(f"{module.name}: {traceback.format_exc()}")
    return found


def typed(words: list[str]) -> dict[str, Any]:
    """One command line."""
    from gpuops.cli.entry import execute

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = execute(words)
    return {"code": code, "out": out.getvalue(), "err": err.getvalue()}


if __name__ == "__main__":
    take_away(sys.argv[1])
    if sys.argv[2:3] == ["guard"]:
        from gpuops.guard import daemon

        sys.exit(daemon.execute(sys.argv[3:]))
    asked = json.load(sys.stdin)
    print(json.dumps({"broken": broken(), "said": [typed(words) for words in asked]}))
