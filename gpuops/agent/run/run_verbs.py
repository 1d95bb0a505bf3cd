"""The verbs about runs, and the only record of which run is on: at most one on each node."""

from __future__ import annotations

import os
import shutil
import threading
import time
from typing import Any

from gpuops.agent import client_activity, run_files
from gpuops.agent.files import earlier_outputs, inventory, output_files
from gpuops.agent.node import Emit, Node, Refusal, remove_file, write_json
from gpuops.agent.peers import link, result_handover
from gpuops.agent.result_storage import sink
from gpuops.agent.run.supervisor import Supervisor
from gpuops.agent.run_documents import LaunchSpec, Outcome, Reason, StopMode

FAREWELL_POLL_INTERVAL_S = 0.2
ATTEMPT_FILES = (
    "home.json", sink.STATE, "stop", "agent_error.json", run_files.PROGRESS_FILE, run_files.SNAPSHOT_FILE,
    run_files.HANDED_FILE,
)  # fmt: skip
"""Files of an earlier attempt that are removed before the next, beside its result and the ranks' records."""
START_HINT = "check that it is there and may be executed (chmod +x); a shell line needs: -- bash -c '…'"

_LOCK = threading.Lock()
_latest: Supervisor | None = None
"""The last run that was started here, also after its end."""
_leaving: str | None = None
"""Why no run may start any more, in words."""


def live_run() -> Supervisor | None:
    """The run that is on; None without one."""
    with _LOCK:
        return _latest if _latest is not None and not _latest.done.is_set() else None


def live_run_name() -> str | None:
    supervisor = live_run()
    return supervisor.name if supervisor is not None else None


def look_at_run() -> None:
    """Let the run that is on be looked at now."""
    supervisor = live_run()
    if supervisor is not None:
        supervisor.look()


def await_end(name: str, limit_s: float) -> None:
    """Wait for the result of a run that is on here, for `limit_s` at most; for so long in any other case."""
    supervisor = live_run()
    if supervisor is not None and supervisor.name == name:
        supervisor.ended.wait(limit_s)
    else:
        time.sleep(limit_s)


def run_state(node: Node, name: str) -> str:
    """`running`, `ended` or `unknown`."""
    if run_result(node, name) is not None:
        return "ended"
    return "running" if live_run_name() == name else "unknown"


def run_result(node: Node, name: str) -> dict[str, Any] | None:
    """How a run ended; None while it has not ended."""
    supervisor = _latest
    if supervisor is not None and supervisor.name == name and supervisor.result is not None:
        return supervisor.result
    return run_files.read_result(node.run(name))


def start(node: Node, args: dict[str, Any], _emit: Emit) -> dict[str, Any]:
    """Verb: start a run; answers once its launcher runs.

    Raises Refusal: `busy`, `no-tree`, `run-exists`, `ending`, `gang`, `sink`, `cannot-start`.
    """
    spec = LaunchSpec.parse(args["spec"])
    supervisor = Supervisor(node, spec, args.get("secrets") or {})
    _reserve_node(supervisor)
    try:
        supervisor.link = _open_link(spec, args.get("gang_secret") or "", supervisor)
        _prepare_folder(node, spec, args["spec"], args.get("urls"))
        supervisor.start()
    except BaseException:
        if supervisor.link is not None:
            supervisor.link.release_port()
        supervisor.done.set()  # the node is free for the next run
        raise
    supervisor.launched.wait()
    if supervisor.launch_error is not None:
        raise Refusal("cannot-start", supervisor.launch_error, START_HINT)
    return {}


def _reserve_node(supervisor: Supervisor) -> None:
    """Make this run the one that is on. Raises Refusal(`ending`, `busy`)."""
    global _latest
    before = live_run()
    if before is not None and before.result is not None:
        before.done.wait()  # it has its result; its supervisor is about to finish
    with _LOCK:
        leaving = _leaving or (_latest.preemption_reason if _latest is not None else None)
        if leaving is not None:
            raise Refusal("ending", f"this node is ending: {leaving}", "start a new one")
        if _latest is not None and not _latest.done.is_set():
            say = f"this node is busy with the run '{_latest.name}'"
            raise Refusal("busy", say, "wait for it, stop it with `gpuops stop`, or add --queue", run=_latest.name)
        _latest = supervisor


def _prepare_folder(node: Node, spec: LaunchSpec, document: dict[str, Any], urls: dict[str, Any] | None) -> None:
    """Make the run's folder, with all files that its first process needs.

    `document`: the spec as it was sent, for spec.json; `urls`: see result_storage.bucket_sink.
    """
    tree = node.tree(spec.tree)
    if not os.path.isdir(tree):
        raise Refusal("no-tree", f"the tree '{spec.tree}' was never pushed to this node", "push it first")
    folder = node.run(spec.run)
    if spec.data:
        _link_data(node.data(spec.data), os.path.join(tree, "data", spec.data))
    if os.path.exists(folder):
        _clear_attempt(node, folder, spec)
        sink.claim_place(node, spec, urls)
        write_json(os.path.join(folder, "spec.json"), document)
        return
    for path in (folder, os.path.join(folder, "ranks")):
        os.mkdir(path, 0o700)
    try:
        sink.wait_until_stored()
        sink.claim_place(node, spec, urls)
        write_json(os.path.join(folder, inventory.FILE), output_files.take_inventory(node, spec.tree, spec.outs))
        # Last: a folder without it holds a run that never began.
        write_json(os.path.join(folder, "spec.json"), document)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _link_data(shared: str, place: str) -> None:
    """Link a program's `data/NAME` to the folder of all nodes of this root: downloads are shared, and no results."""
    for folder in (shared, os.path.dirname(place)):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    if not os.path.lexists(place):
        os.symlink(shared, place)


def _clear_attempt(node: Node, folder: str, spec: LaunchSpec) -> None:
    """Remove an earlier, ended attempt's files except logs and inventory. Raises Refusal(`run-exists`)."""
    before = run_files.read_spec(node, spec.run)
    if run_files.read_result(folder) is None or (before.attempt if before else 1) >= spec.attempt:
        raise Refusal("run-exists", f"a run '{spec.run}' was started on this node before", "choose another name")
    run_files.remove_result(folder)
    for path in (*(os.path.join(folder, name) for name in ATTEMPT_FILES), *run_files.list_record_files(folder)):
        remove_file(path)


def _open_link(spec: LaunchSpec, secret: str, supervisor: Supervisor) -> link.Link | None:
    """This node's end of the gang link; None for a run of one node. Raises Refusal(`gang`)."""
    if spec.gang is None or spec.nodes < 2:
        return None
    kind = link.Head if spec.node == 0 else link.Member
    try:
        return kind(spec.node, spec.nodes, spec.gang, secret, supervisor.handle_peer_event)
    except OSError as error:
        say = f"cannot listen on {spec.gang.address} port {spec.gang.port} for the other nodes: {error.strerror}"
        raise Refusal("gang", say, "start again: another port is chosen") from error


def run(node: Node, args: dict[str, Any], _emit: Emit) -> dict[str, Any]:
    """Verb: a run's state, its result once it has ended, the state of its sink, and files handed over to this node."""
    name = args["run"]
    handed, stored = result_handover.handed_files(node.run(name)), sink.read_state(node, name)
    return {
        "state": run_state(node, name),
        "result": run_result(node, name),
        "sink": stored.document() if stored else None,
        "handed": handed,
    }


def discard(node: Node, args: dict[str, Any], _emit: Emit) -> dict[str, Any]:
    """Verb: remove `files` ([path, size, mtime_ns]) of a tree that the client has, unless they have changed."""
    sink.wait_until_stored()  # it may be reading them
    return {"removed": earlier_outputs.remove_unchanged(node, args["tree"], args["files"])}


def stop(node: Node, args: dict[str, Any], _emit: Emit) -> dict[str, Any]:
    """Verb: begin to stop a run here and on the other nodes. A run that has ended is left alone."""
    name, mode = args["run"], StopMode(args.get("how") or StopMode.GRACEFUL)
    supervisor = live_run()
    if supervisor is not None and supervisor.name == name:
        kind = "lease" if args.get("kind") == "lease" else "stop"
        supervisor.stop_everywhere(mode, Reason(kind, args.get("why") or "it was stopped"))
    elif run_state(node, name) == "unknown":
        raise run_files.unknown_run(name)
    return {}


def leave(_node: Node, args: dict[str, Any], _emit: Emit) -> dict[str, Any]:
    """Verb of the watchdog: no more runs start; answers when the present one was stopped and has its result.

    `farewell_s`: how long connected clients may take to download the results of a run stopped by this; `within_s`: how
    long the watchdog waits for the answer.
    """
    if args.get("within_s"):
        sink.set_deadline(time.time() + args["within_s"])
    was_stopped = end_runs(Reason(args["kind"], args["say"]), StopMode(args["how"]))
    deadline = time.monotonic() + (args.get("farewell_s") or 0.0)
    # The watchdog counts as one client.
    while was_stopped and client_activity.count_clients() > 1 and time.monotonic() < deadline:
        time.sleep(FAREWELL_POLL_INTERVAL_S)
    sink.wait_until_stored()  # for results of runs before, which a killed agent left unfinished
    return {}


def end_runs(reason: Reason, mode: StopMode, outcome: Outcome = Outcome.STOPPED, limit_s: float | None = None) -> bool:
    """Let no run start any more; stop the present one and wait, for `limit_s` at most, until it has its result and
    that is stored. Returns whether there was one."""
    global _leaving
    with _LOCK:
        _leaving = _leaving or reason.say
    supervisor = live_run()
    if supervisor is not None:
        supervisor.stop_everywhere(mode, reason, outcome)
        supervisor.done.wait(limit_s)
    return supervisor is not None
