"""Mode `agent`: serves agent.sock and supervises runs. Started by the watchdog; ends soon after it."""

from __future__ import annotations

import os
import signal
import threading
import time
from functools import partial
from typing import Sequence

from gpuops.agent import processes, run_files
from gpuops.agent.daemon import image_variables
from gpuops.agent.daemon.start_mode import start_mode
from gpuops.agent.daemon.watchdog import Wake, record_process
from gpuops.agent.node import Node, log, parse_node
from gpuops.agent.result_storage import end_after_upload, sink
from gpuops.agent.rpc.server import Server
from gpuops.agent.run import preemption_notices, run_verbs
from gpuops.agent.run.result import settle_lost_runs
from gpuops.agent.run_documents import Outcome, Reason, StopMode
from gpuops.agent.workers import WORKERS

PARENT_CHECK_INTERVAL_S = 2.0
"""Time between two checks that the watchdog lives, for kernels that do not signal its end."""
WATCHDOG_DIED = signal.SIGUSR2
UNWATCHED_LIMIT_S = 90.0
"""Time for a run to end and its results to be stored while nothing keeps the lease: the next agent stores the rest."""


def main(_mode: str, arguments: Sequence[str]) -> int:
    """`--node DIR --watchdog PID`: serve until that watchdog ends."""
    node, rest = parse_node(arguments)
    watchdog = int(rest[rest.index("--watchdog") + 1])
    os.chdir(node.dir)
    processes.become_subreaper()
    wake = Wake([WATCHDOG_DIED, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD])
    processes.die_with_parent(WATCHDOG_DIED)
    record_process(node, "agent.json")
    image_variables.adopt(node)
    settle_lost_runs(node)
    sink.announce_resume()
    WORKERS.start(partial(finish_sinks, node), "sink")
    WORKERS.start(Server(node).serve, "server")
    while os.getppid() == watchdog:
        wake.wait(PARENT_CHECK_INTERVAL_S)
        collect_children()
    close_orphaned(node)
    return 0


def collect_children() -> None:
    """A launcher that has ended is looked at now, and not at its supervisor's next check."""
    if processes.reap_orphans():
        run_verbs.look_at_run()


def finish_sinks(node: Node) -> None:
    """Finish what a killed agent left to do for runs that have ended: store their results, end the node early."""
    done = threading.Event()
    try:
        for name in node.runs()[-1:]:
            spec = run_files.read_spec(node, name)
            if spec is not None:
                sink.start_heartbeat(node, spec, done)
        preemption_notices.watch_notices(node, done, hurry)
    finally:
        sink.resume_storing(node)
    done.set()
    for name in node.runs()[-1:]:
        end_after_upload.start_watch(node, name)


def hurry(notice: preemption_notices.Notice) -> None:
    """Store results before the provider takes the machine back."""
    if notice.kind == "reclaim":
        sink.set_deadline(time.time() + preemption_notices.remaining_s(notice.at, time.time()))


def close_orphaned(node: Node) -> None:
    """The watchdog was killed, and no run may go on without one: end the run, start another watchdog, exit."""
    log("the watchdog is gone; ending what is on and starting another")
    reason = Reason("watchdog", "gpuops' watchdog on this node was killed while the run was on")
    run_verbs.end_runs(reason, StopMode.NOW, Outcome.LOST, UNWATCHED_LIMIT_S)
    processes.end_all(processes.helper_processes)
    while os.path.exists("node.json") and not os.path.exists("ended.json"):
        try:
            start_mode(node, "watchdog")
            break
        except OSError as error:  # the memory or process limit that killed the last one, perhaps
            log(f"the watchdog cannot be started, and is tried again: {error}")
        time.sleep(PARENT_CHECK_INTERVAL_S)
    os._exit(0)  # threads that serve clients have nothing left to do
