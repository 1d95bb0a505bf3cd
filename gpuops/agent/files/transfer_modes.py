"""Modes `receive`, `rsync-receive`, `send`, `restore`, `left`: programs of their own, so that gigabytes never pass
through the agent."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import BinaryIO, Callable, List, Sequence

from gpuops.agent.files.earlier_outputs import restore
from gpuops.agent.files.folder import FULL_DISK_ERRORS, disk_full
from gpuops.agent.files.output_files import left
from gpuops.agent.files.push_steps import receive
from gpuops.agent.files.rsync_receiver import receive_by_rsync
from gpuops.agent.files.tar_streams import send
from gpuops.agent.node import TOUCH_INTERVAL_S, Node, Refusal, parse_node

Work = Callable[[Node, List[str], BinaryIO, BinaryIO], int]
"""A mode's function: its node, its other arguments, stdin and stdout; the exit code."""


def main(mode: str, arguments: Sequence[str]) -> int:
    """Run the mode's function. Raises as `run` does."""
    work = {"receive": receive, "rsync-receive": receive_by_rsync, "send": send, "restore": restore, "left": left}[mode]
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
