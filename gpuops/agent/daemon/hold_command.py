"""Mode `hold`: the node is one machine of a batch job, whose share of the job lives as long as this process does.

A batch system ends what a job's own process has left behind, and starts that process on each machine of the job. So
this process stays in the foreground: it ends when the watchdog does, which ends the job with its last machine, and the
watchdog ends with it. The batch system signals this process before it takes the machine back:
that becomes a preemption notice, and the node ends once its run has stopped.

The folders are made on the login node, before the job is submitted (`--prepare`); all machines share that home. What a
network file system is bad at, the socket and the lock, lies in a folder of this machine (`local`).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from typing import Any, Sequence

from gpuops.agent import processes
from gpuops.agent.daemon.init_command import prepare_node, refuse_foreign
from gpuops.agent.daemon.main import UNWATCHED_LIMIT_S
from gpuops.agent.daemon.start_mode import start_mode
from gpuops.agent.daemon.watchdog import Wake, record_process
from gpuops.agent.lease_clock import is_run_live
from gpuops.agent.node import HOLDER, LOCAL, Node, Refusal, log, parse_options, read_json, remove_file, write_json
from gpuops.agent.rpc.connect import is_watched
from gpuops.agent.run.preemption_notices import NOTICE_FILE
from gpuops.agent.run_files import run_markers

INDEX_VARIABLES = ("SLURM_NODEID",)
"""Where a batch system tells a job's process on which of its machines it is, from 0 on."""
NAME_VARIABLES = ("SLURMD_NODENAME",)
CHECK_INTERVAL_S = 1.0
WALLTIME_WARNING_S = 60.0
"""How long a job still has when SIGUSR1 comes."""
KILL_WAIT_S = 30.0
"""How long it has after SIGTERM, where node.json does not say."""
FAREWELL_S = 1.0
"""Time for clients to hear how the run ended that such a signal has stopped."""


def main(_mode: str, arguments: Sequence[str]) -> int:
    """`--cluster DIR --job TOKEN`: hold this machine's node of that cluster, which was made for that job; `--index I`
    where the batch system does not tell which it is. With `--prepare`: make the folders of `{"nodes": [settings…]}` on
    stdin, and print how many they are. Raises Refusal(`no-node`, `foreign`, `ended`)."""
    options = parse_options([word for word in arguments if word != "--prepare"])
    if "--prepare" in arguments:
        return _prepare(options["cluster"])
    told = [os.environ[name] for name in INDEX_VARIABLES if name in os.environ]
    index = options.get("index") or next(iter(told), "")
    node = Node(os.path.join(options["cluster"], f"n{index}"))
    settings = node.settings_document()
    if not settings:
        raise Refusal("no-node", f"{node.dir} is not there: this machine has another home folder than the login node")
    cluster, held = settings.get("cluster"), settings.get("held")
    if settings.get("token") != f"{options.get('job')}-{index}":  # one that was given up, and began late
        raise Refusal("foreign", f"this job is not the one that this node of {cluster} was made for")
    if held:  # the job was submitted twice, or is begun again
        raise Refusal("foreign", f"this node of {cluster} is held by {held} already")
    with _Holder(node, settings) as holder:
        holder.hold()
    return 0


def _prepare(cluster: str) -> int:
    nodes = json.loads(sys.stdin.read())["nodes"]
    for settings in nodes:
        node = Node(os.path.join(cluster, f"n{settings['index']}"))
        os.makedirs(node.dir, mode=0o700, exist_ok=True)
        refuse_foreign(node.settings_document(), settings)
        write_json(node.path("node.json"), settings)
    print(json.dumps({"prepared": len(nodes)}), flush=True)
    return 0


class _Holder:
    """Of one node, on its machine."""

    def __init__(self, node: Node, settings: dict[str, Any]) -> None:
        self._node = node
        self._job = settings.get("job") or {}
        self._settings = settings
        self._local = tempfile.mkdtemp(prefix="gpuops-")

    def __enter__(self) -> _Holder:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._local, ignore_errors=True)

    def hold(self) -> None:
        """Raises Refusal(`ended`)."""
        self._take()
        wake = Wake([signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP])
        record_process(self._node, HOLDER)
        if self._job.get("apart"):
            _start_apart(self._node)  # first: a subreaper would become its parent
        processes.become_subreaper()
        watchdog = None if self._job.get("apart") else start_mode(self._node, "watchdog")
        watched_at, noticed, quiet_at = time.monotonic() + UNWATCHED_LIMIT_S, False, 0.0
        while True:
            received = wake.wait(CHECK_INTERVAL_S)
            if watchdog:
                watchdog.poll()
            processes.reap_orphans()
            now = time.monotonic()
            if not noticed and received & {signal.SIGTERM, signal.SIGUSR1}:
                noticed = True
                self._notify(WALLTIME_WARNING_S if signal.SIGUSR1 in received else self._kill_wait_s)
                quiet_at = now - FAREWELL_S  # without a run nobody has to hear of its end
            if noticed and is_run_live():
                quiet_at = now
            if is_watched(self._node):
                watched_at = now
            has_ended = os.path.exists("ended.json") or not os.path.exists("node.json")
            if not is_watched(self._node) and (has_ended or now - watched_at > UNWATCHED_LIMIT_S):
                break
            if noticed and now - quiet_at >= FAREWELL_S:
                break
        self._finish(noticed)

    def _take(self) -> None:
        """Make the node this machine's."""
        os.chdir(self._node.dir)
        remove_file(LOCAL)
        os.symlink(self._local, LOCAL)
        host = next((os.environ[name] for name in NAME_VARIABLES if name in os.environ), os.uname().nodename)
        # Last: a node that is held answers soon, and has the GPUs that it tells.
        lease = {"boot_in": self._job.get("boot_in"), "ends_in": self._job.get("ends_in")}
        prepare_node(self._node, self._settings, lease)
        gpus = granted_gpus(os.environ.get("CUDA_VISIBLE_DEVICES"), self._job.get("gpus"))
        write_json(self._node.path("node.json"), {**self._settings, "gpus": gpus, "held": host})

    @property
    def _kill_wait_s(self) -> float:
        return float(self._job.get("kill_wait_s") or KILL_WAIT_S)

    def _notify(self, left_s: float) -> None:
        """Tell the agent that the machine is taken back in `left_s` seconds."""
        log(f"the batch system takes this machine back in {left_s:.0f} s")
        notice = {"by": str(self._job.get("by") or "its batch system"), "at": time.time() + left_s}
        with suppress(OSError):  # a full disk: the run is ended without a snapshot
            write_json(os.path.join(LOCAL, NOTICE_FILE), notice)

    def _finish(self, noticed: bool) -> None:
        """End every process of the node, and say why it ended."""
        if noticed and not os.path.exists("ended.json") and os.path.exists("node.json"):
            with suppress(OSError):
                write_json("ended.json", {"at": time.time(), "why": "the batch system took its machine back"})
        watchdog = read_json("watchdog.json")
        if is_watched(self._node):
            processes.send_signal([watchdog["pid"]], signal.SIGTERM)
            deadline = time.monotonic() + processes.TERM_GRACE_S
            while is_watched(self._node) and time.monotonic() < deadline:
                time.sleep(0.05)
                processes.reap_orphans()
        processes.end_all(lambda: processes.descendant_processes(run_markers(self._node)))


def _start_apart(node: Node) -> None:
    """Start the watchdog as nobody's descendant, where the batch system signals all of this process's: a script would
    end before the notice reaches its agent. The watchdog ends by itself where this process does."""
    child = os.fork()
    if child == 0:
        start_mode(node, "watchdog")
        os._exit(0)
    os.waitpid(child, 0)


def granted_gpus(visible: str | None, untold: int | None = None) -> list[str] | None:
    """The GPUs that a job has on this machine, by `CUDA_VISIBLE_DEVICES`; None where it does not tell by their indices:
    then they are all that can be seen. `untold`: how many are the job's where no variable says which."""
    if visible is None and untold:
        return [str(index) for index in range(untold)]
    indices = [word.strip() for word in (visible or "").split(",")]
    return indices if all(index.isdigit() for index in indices) else None
