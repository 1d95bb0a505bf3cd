"""Mode `checkup`: raw facts about the place this runs on, as one JSON document. It judges nothing, and changes nothing.

Each probe runs in a thread of its own and within a limit, and may fail alone: a driver that hangs, or a file
system that does, costs its own facts only. What is asked of files stands under `--root`, so that a test can
show it another machine.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Mapping, NamedTuple, Sequence

from gpuops.agent.node import Node

LIMIT_S = 20.0
"""How long one program may take, in seconds: a driver that wakes up is slow."""
SPARE_S = 5.0
"""How much longer the probe around it may take."""
SEARCH = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/cuda/bin"
"""Where programs are looked for beside the PATH."""


class Ran(NamedTuple):
    """How a program ended; `code` is None where it was not there, or did not end in time (`slow`)."""

    code: int | None
    out: str
    err: str
    slow: bool = False


class Site:
    """The place that is examined: its files, its variables, and running programs there."""

    def __init__(self, root: str, environ: Mapping[str, str], limit_s: float) -> None:
        self.root = root
        self.environ = environ
        self.limit_s = limit_s
        self.home = environ.get("HOME") or os.path.expanduser("~")

    def path(self, path: str) -> str:
        return os.path.join(self.root, path.lstrip("/"))

    def read(self, path: str) -> str:
        """A file's text; empty where it cannot be read."""
        try:
            with open(self.path(path), encoding="utf-8", errors="replace") as file:
                return file.read(1 << 20)
        except OSError:
            return ""

    def names(self, path: str) -> list[str]:
        """What a folder holds, sorted; nothing where it cannot be read."""
        try:
            return sorted(os.listdir(self.path(path)))
        except OSError:
            return []

    def which(self, name: str) -> str | None:
        for folder in (self.environ.get("PATH", os.defpath) + os.pathsep + SEARCH).split(os.pathsep):
            path = os.path.join(folder, name)
            if folder and os.path.isfile(path) and os.access(path, os.X_OK):
                return path
        return None

    def run(self, argv: Sequence[str], limit_s: float | None = None, **popen: Any) -> Ran:
        """Run a program, its output taken. One that the kernel will not even kill is left behind."""
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **popen}
        try:
            process = subprocess.Popen(list(argv), start_new_session=True, cwd="/", **streams)
        except OSError as error:
            return Ran(None, "", error.strerror or str(error))
        try:
            out, err = process.communicate(timeout=self.limit_s if limit_s is None else min(limit_s, self.limit_s))
        except subprocess.TimeoutExpired:
            _kill(process)
            return Ran(None, "", "", slow=True)
        return Ran(process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))


def _kill(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=1.0)
    except (OSError, subprocess.TimeoutExpired):
        pass  # it hangs in the kernel, and so would we


Probe = Callable[[], Any]


def main(_mode: str, arguments: Sequence[str]) -> int:
    """Print `{"schema": 1, …}`; see the functions of `checkgpu` and `checkhost` for its parts."""
    options = _options(arguments)
    begun = time.time()
    site = Site(options.root, os.environ, options.limit)
    found, failed = gather(probes(site, options), options.limit + SPARE_S)
    document = {"schema": 1, "begun": begun, **found, "failed": failed, "ended": time.time()}
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()
    os._exit(0)  # a probe that still hangs must not hold us


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="checkup", add_help=False, allow_abbrev=False)
    parser.add_argument("--node", help="the node's folder, where this is one")
    parser.add_argument("--python", default="", help="judge this Python alone")
    parser.add_argument("--first", action="append", default=[], help="a Python to look at before the usual ones")
    parser.add_argument("--login", action="store_true", help="this place is reached by logging in")
    parser.add_argument("--root", default="/")
    parser.add_argument("--limit", type=float, default=LIMIT_S)
    return parser.parse_args(arguments)


def probes(site: Site, options: argparse.Namespace) -> dict[str, Probe]:
    """What is looked at, by the name of its part in the document."""
    from gpuops.agent.checkup import gpu, host

    node = Node(options.node) if options.node else None
    return {
        "machine": lambda: host.machine(site),
        "pythons": lambda: host.pythons(site, options.python, options.first, node),
        "nvidia": lambda: gpu.nvidia(site),
        "nvcc": lambda: gpu.nvcc(site),
        "disks": lambda: host.disks(site, node),
        "limits": host.limits,
        "name": host.name,
        "scheduler": lambda: host.scheduler(site),
        "logind": lambda: host.logind(site),
        "login": lambda: host.login(site) if options.login else None,
        "variables": lambda: host.variables(site.environ),
        "infiniband": lambda: site.names("/sys/class/infiniband"),
        "misspelt": lambda: host.misspelt(site.home),
        "busy": lambda: host.busy(node),
    }


def gather(wanted: Mapping[str, Probe], limit_s: float) -> tuple[dict[str, Any], dict[str, str]]:
    """What each probe found, and why others found nothing."""
    found: dict[str, Any] = {}
    failed: dict[str, str] = {}

    def one(name: str, probe: Probe) -> None:
        try:
            found[name] = probe()
        except Exception as error:  # whatever a strange machine does to a probe, the others go on
            failed[name] = f"{type(error).__name__}: {error}"

    threads = {name: threading.Thread(target=one, args=pair, daemon=True) for name, *pair in
               ((name, name, probe) for name, probe in wanted.items())}  # fmt: skip
    for thread in threads.values():
        thread.start()
    end = time.monotonic() + limit_s
    for name, thread in threads.items():
        thread.join(max(0.0, end - time.monotonic()))
        if thread.is_alive():
            failed[name] = f"no answer within {limit_s:.0f} s"
    return {name: found[name] for name in wanted if name in found}, dict(failed)
