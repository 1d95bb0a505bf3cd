"""Modes `receive`, `send`, `restore` and `left`: programs of their own: gigabytes never pass through the agent."""

from __future__ import annotations

import os
import sys
import threading
from typing import Sequence

from gpuops.agent.node import Node, Refusal, node_of

TOUCH_S = 15.0


def main(mode: str, arguments: Sequence[str]) -> int:
    """Exit code of the mode's function. A copy under way is a sign of use."""
    from gpuops.agent.left import left
    from gpuops.agent.restore import restore
    from gpuops.agent.tree import receive, send

    node, rest = node_of(arguments)
    if not os.path.isdir(node.dir):
        raise Refusal("no-node", f"there is no node in {node.dir}", "it was removed, or never started")
    threading.Thread(target=_touch, args=(node,), daemon=True).start()
    work = {"receive": receive, "send": send, "restore": restore, "left": left}[mode]
    return work(node, rest, sys.stdin.buffer, sys.stdout.buffer)


def _touch(node: Node) -> None:
    while True:
        node.touch()
        threading.Event().wait(TOUCH_S)
