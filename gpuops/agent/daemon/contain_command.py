"""Mode `contain`: the first program of a container that is a node. The container ends with it, and so does all within.

`init`, which a client starts inside, makes the node's folder; this process starts the watchdog then, hands signals on
to it, collects what is orphaned in the container, and ends when the watchdog does, however that came. Who was to start
the node and never came (a laptop that was shut) leaves no container either.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Sequence

from gpuops.agent import processes
from gpuops.agent.daemon.start_mode import start_mode
from gpuops.agent.daemon.watchdog import Wake
from gpuops.agent.node import Node, parse_node

INIT_LIMIT_S = 300.0
"""Time in which a client must make the node."""
POLL_INTERVAL_S = 0.1
ENDS = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def main(_mode: str, arguments: Sequence[str]) -> int:
    """`--node DIR`: wait for the node to be made, then watch until it ends. 1 where nobody makes it."""
    node, _ = parse_node(arguments)
    wake = Wake([signal.SIGCHLD, *ENDS])
    deadline = time.monotonic() + INIT_LIMIT_S
    while not _is_made(node):
        if time.monotonic() > deadline or ENDS & wake.wait(POLL_INTERVAL_S):
            return 1
        processes.reap_orphans()
    watchdog = start_mode(node, "watchdog")
    while watchdog.poll() is None:
        if ENDS & wake.wait(POLL_INTERVAL_S * 10):
            processes.send_signal([watchdog.pid], signal.SIGTERM)
        processes.reap_orphans()
    return 0


def _is_made(node: Node) -> bool:
    return all(os.path.exists(node.path(name)) for name in ("node.json", "lease.json"))
