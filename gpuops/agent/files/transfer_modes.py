"""Modes `receive`, `rsync-receive`, `send`, `restore`, `left`: programs of their own, so that gigabytes never pass
through the agent."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
from typing import BinaryIO, Callable, List, Sequence

from gpuops.agent.files.folder import FULL_DISK_ERRORS, disk_full
from gpuops.agent.node import TOUCH_INTERVAL_S, Node, Refusal, parse_node

Work = Callable[[Node, List[str], BinaryIO, BinaryIO], int]
"""A mode's function: its node, its other arguments, stdin and stdout; the exit code."""

WORKS = {
    "receive": "push_steps:receive",
    "rsync-receive": "rsync_receiver:receive_by_rsync",
    "send": "tar_streams:send",
    "restore": "earlier_outputs:restore",
    "left": "output_files:left",
}
"""Module and function of each mode: a program imports its own alone."""


def main(mode: str, arguments: Sequence[str]) -> int:
    """Run the mode's function. Raises as `run` does."""
    module, function = WORKS[mode].split(":")
    work: Work = getattr(importlib.import_module("gpuops.agent.files." + module), function)
    return run(work, arguments, touches=mode == "rsync-receive")


def run(work: Work, arguments: Sequence[str], *, touches: bool = False) -> int:
    """Run a transfer, which is a sign of use while it lasts. `touches`: it says so itself, since rsync's own signs of
    life are none of use. Raises Refusal(`no-node`, `disk`)."""
    node, rest = parse_node(arguments)
    if not os.path.isdir(node.dir):
        raise Refusal("no-node", f"there is no node in {node.dir}", "it was removed, or never started")
    if not touches:
        threading.Thread(target=_touch, args=(node,), daemon=True).start()
    try:
        return work(node, rest, sys.stdin.buffer, sys.stdout.buffer)
    except OSError as error:
        if error.errno in FULL_DISK_ERRORS:
            raise disk_full() from error
        raise


def _touch(node: Node) -> None:
    while True:
        node.touch()
        time.sleep(TOUCH_INTERVAL_S)
