"""The verbs about runs, and the one place that knows which run is on: at most one per node."""

from __future__ import annotations

import os
import shutil
import threading
import time
from typing import Any

from gpuops.agent import presence, run_files
from gpuops.agent.files import outputs
from gpuops.agent.gang import handover, link
from gpuops.agent.node import Node, Refusal, read_json, write_json
from gpuops.agent.retain import sink
from gpuops.agent.run.supervisor import Supervisor

LOOK_S = 0.2
OF_AN_ATTEMPT = (
    "result.json", "home.json", sink.STATE, "stop", "agent_error.json", run_files.PROGRESS, run_files.SNAPSHOT,
    handover.STATE,
)  # fmt: skip
"""Files of a run that a further attempt begins without; the ranks' records are the others."""

_LOCK = threading.Lock()
_live: Supervisor | None = None
_leaving: str | None = None
"""Why no run may start any more."""

START_HINT = "check that it is there and may be executed (chmod +x); a shell line needs: -- bash -c '…'"


def live() -> Supervisor | None:
    """The run that is on, if there is one."""
    with _LOCK:
        return _live if _live is not None and not _live.done.is_set() else None


def live_name() -> str | None:
    now = live()
    return now.name if now is not None else None


def state(node: Node, name: str) -> str:
    """`running`, `ended` or `unknown`."""
    if result(node, name) is not None:
        return "ended"
    return "running" if live_name() == name else "unknown"


def result(node: Node, name: str) -> dict[str, Any] | None:
    """How a run ended; None while it has not."""
    latest = _live
    if latest is not None and latest.name == name and latest.result is not None:
        return latest.result
    return run_files.result(node.run(name))


def start(node: Node, args: dict[str, Any], _emit: Any) -> dict[str, Any]:
    """Verb: start a run; answers once its launcher runs.

    Raises Refusal: `busy`, `no-tree`, `run-exists`, `ending`, `gang`, `cannot-start`.
    """
    spec = args["spec"]
    supervisor = Supervisor(node, spec, args.get("secrets") or {})
    _claim(supervisor)
    try:
        supervisor.link = _link(spec, args.get("gang_secret") or "", supervisor)
        _prepare(node, spec, args.get("urls"))
    except BaseException:
        if supervisor.link is not None:
            supervisor.link.drop()
        supervisor.done.set()  # the node is free again
        raise
    supervisor.begin()
    supervisor.launched.wait()
    if supervisor.failure is not None:
        raise Refusal(
            "cannot-start",
            supervisor.failure,
            START_HINT,
        )
    return {}


def _claim(supervisor: Supervisor) -> None:
    global _live
    before = live()
    if before is not None and before.result is not None:
        before.done.wait()  # it has its result: only its supervisor's last lines are missing
    with _LOCK:
        leaving = _leaving or (_live.taken_back if _live is not None else None)
        if leaving is not None:
            raise Refusal("ending", f"this node is ending: {leaving}", "start a new one")
        if _live is not None and not _live.done.is_set():
            say = f"this node is busy with the run '{_live.name}'"
            raise Refusal("busy", say, "wait for it, stop it with `gpuops stop`, or add --queue", run=_live.name)
        _live = supervisor


def _prepare(node: Node, spec: dict[str, Any], urls: dict[str, Any] | None) -> None:
    """The run's folder, with all that must be known before its first process. `urls`: see `bucket`."""
    tree = node.tree(spec["tree"])
    if not os.path.isdir(tree):
        raise Refusal("no-tree", f"the tree '{spec['tree']}' was never pushed to this node", "push it first")
    folder = node.run(spec["run"])
    if spec.get("data"):
        _link_data(node.data(spec["data"]), os.path.join(tree, "data", spec["data"]))
    if os.path.exists(folder):
        _make_way(folder, spec)
        sink.claim(node, spec, urls)
        write_json(os.path.join(folder, "spec.json"), spec)
        return
    for path in (folder, os.path.join(folder, "ranks")):
        os.mkdir(path, 0o700)
    try:
        sink.wait()
        sink.claim(node, spec, urls)
        # Before the spec: a folder without one is known to hold a run that never began.
        write_json(
            os.path.join(folder, "inventory.json"), outputs.inventory(node, spec["tree"], spec.get("outs") or [])
        )
        write_json(os.path.join(folder, "spec.json"), spec)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _link_data(kept: str, place: str) -> None:
    """What a program downloads to its `data/NAME` is kept for all nodes of this root, and is none of its results."""
    for folder in (kept, os.path.dirname(place)):
        os.makedirs(folder, mode=0o700, exist_ok=True)
    if not os.path.lexists(place):
        os.symlink(kept, place)


def _make_way(folder: str, spec: dict[str, Any]) -> None:
    """Clear what says how an earlier attempt ended; its logs and its inventory stay the run's. Raises Refusal."""
    before = read_json(os.path.join(folder, "spec.json")) or {}
    if run_files.result(folder) is None or before.get("attempt", 1) >= spec.get("attempt", 1):
        raise Refusal("run-exists", f"a run '{spec['run']}' was started on this node before", "choose another name")
    for path in (*(os.path.join(folder, name) for name in OF_AN_ATTEMPT), *run_files.record_files(folder)):
        if os.path.exists(path):
            os.unlink(path)


def _link(spec: dict[str, Any], secret: str, supervisor: Supervisor) -> link.Link | None:
    if not spec.get("gang") or spec["nodes"] < 2:
        return None
    address, port = spec["gang"]["address"], spec["gang"]["port"]
    kind = link.Head if spec["node"] == 0 else link.Member
    try:
        return kind(spec["node"], spec["nodes"], (address, port), secret, supervisor.hear)
    except OSError as error:
        say = f"cannot listen on {address} port {port} for the other nodes: {error.strerror}"
        raise Refusal("gang", say, "start again: another port is chosen") from error


def run(node: Node, args: dict[str, Any], _emit: Any) -> dict[str, Any]:
    """Verb: a run's state, its result once it has ended, where else its results are kept, and whose it holds."""
    name = args["run"]
    handed = handover.handed(node.run(name))
    return {"state": state(node, name), "result": result(node, name), "sink": sink.known(node, name), "handed": handed}


def stop(node: Node, args: dict[str, Any], _emit: Any) -> dict[str, Any]:
    """Verb: begin to stop a run here and on the other nodes. One that has ended is left alone."""
    name, how = args["run"], args.get("how") or "graceful"
    now = live()
    if now is not None and now.name == name:
        kind = "lease" if args.get("kind") == "lease" else "stop"
        now.stop_everywhere(how, {"kind": kind, "say": args.get("why") or "it was stopped"})
    elif state(node, name) == "unknown":
        raise Refusal("no-run", f"no run '{name}' was started on this node", "`gpuops runs` lists them")
    return {}


def leave(_node: Node, args: dict[str, Any], _emit: Any) -> dict[str, Any]:
    """Verb of the watchdog: no more runs; the present one is stopped and has its result when this answers.

    `farewell_s`: how long those who are connected may take to fetch what such a run has left; `within_s`: how long it
    is waited for this answer.
    """
    if args.get("within_s"):
        sink.goes(time.time() + args["within_s"])
    stopped = close({"kind": args["kind"], "say": args["say"]}, args["how"], "stopped")
    deadline = time.monotonic() + (args.get("farewell_s") or 0.0)
    while stopped and presence.count() > 1 and time.monotonic() < deadline:  # the watchdog itself is one
        time.sleep(LOOK_S)
    sink.wait()  # for what an agent before this one had left
    return {}


def close(reason: dict[str, Any], how: str, outcome: str) -> bool:
    """Let no run start any more; stop the present one and wait for its result. Whether there was one."""
    global _leaving
    with _LOCK:
        _leaving = _leaving or reason["say"]
    now = live()
    if now is not None:
        now.stop_everywhere(how, reason, outcome)
        now.done.wait()
    return now is not None
