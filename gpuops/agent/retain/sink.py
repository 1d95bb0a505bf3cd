"""Results kept where they outlive this machine (`sink` in the launch spec): in a bucket (see `bucket`), or in a
folder, of a network volume as a rule.

    <folder>/.of-<id>              whose folder this is
    <folder>/node<i>/logs/         the run's streams, by name
    <folder>/node<i>/out/          what the run made
    <folder>/node<i>/result.json   how it ended here
    <folder>/node<i>/safe.json     written last: all of it is there, and was read back

What is known of it lies in `runs/<run>/sink.json`, for whoever asks (verb `run`) and for the agent's successor.
"""

from __future__ import annotations

import errno
import os
import threading
import time
import traceback
from typing import Any, Callable, Mapping

from gpuops.agent import run_files
from gpuops.agent.files.folder import raw
from gpuops.agent.node import Node, Refusal, log, read_json, write_json
from gpuops.agent.retain import bucket, hold, run_contents
from gpuops.agent.retain.safe_copy import copied
from gpuops.agent.retain.upload import NEVER

STATE = "sink.json"
SAFE = "safe.json"
ALIVE = "run.json"
"""Touched every BEAT_S while the run is on here, or what it left is not safe: the other nodes see it."""
BEAT_S = 60.0
TELL_S = 2.0
"""How often a copy says how far it has got, in seconds; it is a sign of use, too."""
FULL = (errno.ENOSPC, errno.EDQUOT)

_LOCK = threading.Lock()
"""Held while a run's results are copied: the next run may change them."""
_seen_to = threading.Event()
_seen_to.set()
"""Not set while what the agent before this one has left undone is seen to."""
_goes_at = NEVER
_known: dict[str, dict[str, Any]] = {}
"""By the run's folder, what could not be written down: this machine's own disk may be full."""


def claim(node: Node, spec: Mapping[str, Any], urls: Mapping[str, Any] | None = None) -> None:
    """Before a run starts: its place is there, is its own, and can be written to. Raises Refusal(`sink`).

    A folder that holds another run's results, or somebody's files, is left alone: then it is one beside it. `urls`:
    what a bucket may be written to with.
    """
    sink = spec.get("sink")
    if not sink:
        return
    if bucket.is_one(spec):
        _note(node.run(spec["run"]), {"state": "claimed", "folder": bucket.claim(node, spec, urls or {})})
        return
    mark = f".of-{sink['id']}"
    try:
        folder = next(path for path in (sink["folder"], f"{sink['folder']}-{sink['id']}") if _is_ours(path, mark))
        ours = os.path.join(folder, f"node{spec['node']}")
        os.makedirs(ours, exist_ok=True)
        if os.path.exists(os.path.join(ours, SAFE)):
            os.unlink(os.path.join(ours, SAFE))  # of an earlier attempt
        write_json(os.path.join(ours, ALIVE), {"run": spec["run"], "node": spec["node"], "nodes": spec["nodes"]})
    except (OSError, StopIteration) as error:
        why = getattr(error, "strerror", None) or "others' files lie there"
        say = f"{sink['folder']} cannot keep this run's results: {why}"
        raise Refusal("sink", say, "see to the volume, or leave out --sink") from error
    _note(node.run(spec["run"]), {"state": "claimed", "folder": folder})


def _is_ours(folder: str, mark: str) -> bool:
    """Whether a folder is this run's: it is there with our mark, or is made now. Raises OSError, also where no volume
    is. Who makes it is its owner; a run's first node does so before the others are started."""
    try:
        os.mkdir(os.path.dirname(folder))  # and never what that lies in: it would be a volume that is not there
    except FileExistsError:
        pass
    try:
        os.mkdir(folder)
    except FileExistsError:
        return os.path.exists(os.path.join(folder, mark))
    with open(os.path.join(folder, mark), "w", encoding="ascii"):
        return True


def known(node: Node, name: str) -> dict[str, Any] | None:
    """What is known of a run's results in their folder: `state` (claimed, copying, safe, failed), `folder`, …"""
    folder = node.run(name)
    found: dict[str, Any] | None = _known.get(folder) or read_json(os.path.join(folder, STATE))
    return found


def goes(at: float) -> None:
    """This machine is not there after that (UTC seconds): what is being sent to a bucket is closed before."""
    global _goes_at
    _goes_at = min(_goes_at, at)


def keep(node: Node, name: str) -> None:
    """Copy what a run that has ended left, once; whatever comes of it is noted. Never raises."""
    try:
        folder = node.run(name)
        spec, state = read_json(os.path.join(folder, "spec.json")) or {}, known(node, name)
        result = run_files.result(folder) or {}
        if not spec.get("sink") or not state or state["state"] not in ("claimed", "copying"):
            return
        if (result.get("reason") or {}).get("kind") == "start":
            return  # it never began
        with _LOCK:
            _keep(node, folder, spec, state["folder"], lambda: min(bucket.deadline(spec, result), _goes_at))
    except Exception:
        log(f"what {name} left could not be kept\n{traceback.format_exc()}")


def _keep(node: Node, folder: str, spec: Mapping[str, Any], sink: str, deadline: Callable[[], float]) -> None:
    try:
        if bucket.is_one(spec):
            files, size, changed = _sent(node, spec, folder, sink, deadline)
        else:
            (files, size), changed = _Copy(node, spec, folder, sink).all(), []
    except Exception as error:
        why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        log(f"what {spec['run']} left could not be kept\n{traceback.format_exc()}")
        _note(folder, {"state": "failed", "folder": sink, "why": why})
        _event(folder, "unsafe", sink=sink, why=why)
        return
    more = {"changed": changed} if changed else {}
    _note(folder, {"state": "safe", "folder": sink, "at": time.time(), "files": files, "bytes": size, **more})
    _event(folder, "safe", sink=sink, files=files, bytes=size, **more)
    hold.settled(folder)
    if bucket.is_one(spec):
        bucket.used(folder)


def _sent(
    node: Node, spec: Mapping[str, Any], folder: str, sink: str, deadline: Callable[[], float]
) -> tuple[int, int, list[str]]:
    """Files, bytes, and those that changed while they were sent. Raises OSError where not all of it is there."""
    found = bucket.send(node, spec, folder, deadline, lambda total: Teller(node, folder, sink, total))
    if found.missing and found.missing == len(found.unread):
        raise OSError(errno.EACCES, f"{_some(found.missing)} cannot be read: {', '.join(found.unread[:3])}")
    if found.missing:
        why = f"only {_some(found.files)} could be sent before this machine is taken, and {found.missing} not"
        raise OSError(errno.ETIMEDOUT, why)
    return found.files, found.size, found.changed


def begins() -> None:
    """This agent has just started: from now on `wait` is for `resume` as well."""
    _seen_to.clear()


def resume(node: Node) -> None:
    """What an agent that died has left undone."""
    try:
        for name in node.runs():
            if run_files.result(node.run(name)) is not None:
                keep(node, name)
    finally:
        _seen_to.set()


def beat(node: Node, spec: Mapping[str, Any], done: threading.Event) -> None:
    """Tell the other nodes that this one goes on: until `done`, and where its results could not be kept until somebody
    has them. In a thread of its own, since a volume or a network may hang."""
    state = known(node, spec["run"]) or {}
    path = os.path.join(state.get("folder") or "", f"node{spec.get('node')}", ALIVE)

    def tell() -> None:
        while not done.is_set() or is_unsafe(node, spec["run"]):
            try:
                if bucket.is_one(spec):
                    bucket.tell(node, spec, known(node, spec["run"]) or {})
                else:
                    os.utime(path)
            except OSError as error:
                log(f"the other nodes cannot be told that this one goes on: {error}")
            time.sleep(BEAT_S)

    if spec.get("sink") and state.get("folder"):
        threading.Thread(target=tell, name="beat " + spec["run"], daemon=True).start()


def is_unsafe(node: Node, name: str) -> bool:
    """Whether what a run left is here and nowhere else, though it was to be kept."""
    at_home = os.path.exists(os.path.join(node.run(name), hold.HOME))
    return not at_home and (known(node, name) or {}).get("state") == "failed"


def wait() -> None:
    """Until nothing is being copied."""
    _seen_to.wait()
    with _LOCK:
        pass


class Teller:
    """Says how far what is kept has got: `__call__` with bytes that are done."""

    def __init__(self, node: Node, folder: str, sink: str, total: int) -> None:
        self._node = node
        self._folder = folder
        self._sink = sink
        self._total = total
        self._done = 0
        self._told = 0.0

    def __call__(self, size: int) -> None:
        self._done += size
        if time.monotonic() - self._told >= TELL_S:
            self._told = time.monotonic()
            self._node.touch()
            state = {"state": "copying", "folder": self._sink, "at": time.time(), "done": self._done}
            _note(self._folder, {**state, "total": self._total})


class _Copy:
    """One run's files on their way into a folder."""

    def __init__(self, node: Node, spec: Mapping[str, Any], folder: str, sink: str) -> None:
        self._node = node
        self._spec = spec
        self._folder = folder
        self._sink = sink
        self._target = os.fsencode(os.path.join(sink, f"node{spec['node']}"))

    def all(self) -> tuple[int, int]:
        """Copy everything; how many files and bytes. One that fails keeps no other away: then raises OSError."""
        items = list(run_contents.listing(self._node, self._spec, self._folder))
        tell = Teller(self._node, self._folder, self._sink, sum(item.size for item in items))
        rows: list[list[Any]] = []
        failed: list[OSError] = []
        for item in items:
            try:
                found = copied(item.source, os.path.join(self._target, raw(item.name)), tell)
            except OSError as error:
                failed.append(error)
                if error.errno in FULL:
                    break
                continue
            if found is not None:
                rows.append([item.name, *found])
        if failed:
            raise OSError(failed[0].errno, f"{failed[0].strerror or failed[0]}, {_some(len(failed))}")
        document = {"schema": 1, "run": self._spec["run"], "node": self._spec["node"], "at": time.time()}
        write_json(os.path.join(os.fsdecode(self._target), SAFE), {**document, "files": rows}, 0o644)
        return len(rows), sum(row[1] for row in rows)


def _some(count: int) -> str:
    return f"{count} file" + "s" * (count != 1)


def _note(folder: str, state: dict[str, Any]) -> None:
    try:
        write_json(os.path.join(folder, STATE), state)
        _known.pop(folder, None)
    except OSError as error:
        _known[folder] = state
        log(f"{state} is only in memory: {error}")


def _event(folder: str, kind: str, **data: Any) -> None:
    try:
        run_files.event(folder, kind, **data)
    except OSError as error:
        log(f"{kind} {data} could not be noted: {error}")
