"""Mode `checkup`: raw facts about the place it runs on, as one JSON document. It judges nothing and changes nothing.

Each probe runs in a thread of its own with a time limit, and may fail alone: a driver or a file system that hangs
costs only its own facts. Files are read below `--root`, so that a test can show it another machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from typing import Any, Callable, Mapping, Sequence

from gpuops.agent.checkup import gpu, host
from gpuops.agent.checkup.site import PROGRAM_LIMIT_S, Site
from gpuops.agent.node import Node

PROBE_MARGIN_S = 5.0
"""How much longer than one program a probe may take."""

Probe = Callable[[], Any]


def main(_mode: str, arguments: Sequence[str]) -> int:
    """Print `{"schema": 1, …}`; the functions of `gpu` and `host` describe its parts."""
    options = _options(arguments)
    begun = time.time()
    site = Site(options.root, os.environ, options.limit)
    facts, failed = gather(probes(site, options), options.limit + PROBE_MARGIN_S)
    document = {"schema": 1, "begun": begun, **facts, "failed": failed, "ended": time.time()}
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()
    os._exit(0)  # a probe that still hangs must not keep the process


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="checkup", add_help=False, allow_abbrev=False)
    parser.add_argument("--node", help="the node's folder, where this is one")
    parser.add_argument("--python", default="", help="judge this Python alone")
    parser.add_argument("--first", action="append", default=[], help="a Python to look at before the usual ones")
    parser.add_argument("--login", action="store_true", help="this place is reached by logging in")
    parser.add_argument("--root", default="/")
    parser.add_argument("--limit", type=float, default=PROGRAM_LIMIT_S)
    return parser.parse_args(arguments)


def probes(site: Site, options: argparse.Namespace) -> dict[str, Probe]:
    """All probes, by the name of their part of the document."""
    node = Node(options.node) if options.node else None
    return {
        "machine": lambda: host.describe_machine(site),
        "pythons": lambda: host.find_pythons(site, options.python, options.first, node),
        "nvidia": lambda: gpu.describe_nvidia(site),
        "nvcc": lambda: gpu.find_nvcc_version(site),
        "disks": lambda: host.describe_disks(site, node),
        "limits": host.read_limits,
        "name": host.resolve_own_name,
        "scheduler": lambda: host.find_scheduler(site),
        "logind": lambda: host.describe_logind(site),
        "login": lambda: host.probe_login_shell(site) if options.login else None,
        "variables": lambda: host.describe_variables(site.environ),
        "infiniband": lambda: site.names("/sys/class/infiniband"),
        "misspelt": lambda: host.find_misspelt_key_files(site.home),
        "busy": lambda: host.find_live_run(node),
    }


def gather(wanted: Mapping[str, Probe], limit_s: float) -> tuple[dict[str, Any], dict[str, str]]:
    """The results of the probes by name, and the reasons of those that failed or took longer than `limit_s`."""
    results: dict[str, Any] = {}
    failed: dict[str, str] = {}

    def run(name: str, probe: Probe) -> None:
        try:
            results[name] = probe()
        except Exception as error:  # whatever a strange machine does to one probe, the others go on
            failed[name] = f"{type(error).__name__}: {error}"

    threads = {name: threading.Thread(target=run, args=(name, probe), daemon=True) for name, probe in wanted.items()}
    for thread in threads.values():
        thread.start()
    deadline = time.monotonic() + limit_s
    for name, thread in threads.items():
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            failed[name] = f"no answer within {limit_s:.0f} s"
    return {name: results[name] for name in wanted if name in results}, dict(failed)
