"""Mode `agent`: serves agent.sock and supervises runs; started by the watchdog, gone soon after it."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Sequence

from gpuops.agent import image_environment, processes
from gpuops.agent.daemon.init import start_watchdog
from gpuops.agent.daemon.watchdog import Wake, note_self
from gpuops.agent.node import Node, log, node_of, read_json
from gpuops.agent.retain import early_end, sink
from gpuops.agent.rpc.server import Server
from gpuops.agent.run import preemption, registry
from gpuops.agent.run.result import settle

LOOK_S = 2.0
"""How often the parent is looked at, where the kernel does not tell of its end."""
WATCHDOG_DIED = signal.SIGUSR2


def main(_mode: str, arguments: Sequence[str]) -> int:
    node, rest = node_of(arguments)
    watchdog = int(rest[rest.index("--watchdog") + 1])
    os.chdir(node.dir)
    processes.become_subreaper()
    wake = Wake([WATCHDOG_DIED, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD])
    processes.die_with_parent(WATCHDOG_DIED)
    note_self(node, "agent.json")
    image_environment.adopt(node)
    settle(node)
    sink.begins()
    threading.Thread(target=finish_sinks, args=(node,), name="sink", daemon=True).start()
    threading.Thread(target=Server(node).serve, name="server", daemon=True).start()
    while os.getppid() == watchdog:
        wake.wait(LOOK_S)
        processes.reap()
    orphaned(node)
    return 0


def finish_sinks(node: Node) -> None:
    """What the agent before this one had left to do for runs that have ended."""
    kept = threading.Event()
    try:
        for name in node.runs()[-1:]:
            sink.beat(node, read_json(os.path.join(node.run(name), "spec.json")) or {"run": name}, kept)
        preemption.watch(node, kept, hurried)
    finally:
        sink.resume(node)
    kept.set()
    for name in node.runs()[-1:]:
        early_end.watch(node, name)


def hurried(notice: preemption.Notice) -> None:
    if notice.kind == "reclaim":
        sink.goes(time.time() + preemption.left_s(notice.at, time.time()))


def orphaned(node: Node) -> None:
    """The watchdog was killed: nothing may go on without one. End the run, start another watchdog, leave."""
    log("the watchdog is gone; ending what is on and starting another")
    reason = {"kind": "watchdog", "say": "gpuops' watchdog on this node was killed while the run was on"}
    registry.close(reason, "now", "lost")
    processes.end_all(processes.helpers)
    if os.path.exists("node.json") and not os.path.exists("ended.json"):
        start_watchdog(node)
    os._exit(0)  # threads that serve clients have nothing left to say
