"""The sink (`sink` in the launch spec): stores results where they outlive this machine.

A sink is a bucket (see `bucket_sink`) or a folder, usually of a network volume:

    <folder>/.of-<id>              marks the run that the folder belongs to
    <folder>/node<i>/logs/         the run's streams, by name
    <folder>/node<i>/out/          what the run made
    <folder>/node<i>/result.json   how it ended here
    <folder>/node<i>/safe.json     written last: everything is stored, and was read back

The state is in `runs/<run>/sink.json`, for clients (verb `run`) and for a restarted agent.
"""

from __future__ import annotations

import errno
import math
import os
import threading
import time
import traceback
from typing import Any, Mapping

from gpuops.agent import run_files
from gpuops.agent.files.folder import FULL_DISK_ERRORS, path_bytes
from gpuops.agent.node import Node, Refusal, log, read_json, remove_file, write_json
from gpuops.agent.result_storage import wait_for_download
from gpuops.agent.result_storage.verified_copy import copy_verified
from gpuops.agent.run_documents import LaunchSpec, Reason, SinkPhase, SinkSpec, SinkState
from gpuops.agent.workers import WORKERS

STATE = "sink.json"
SAFE = "safe.json"
ALIVE = "run.json"
"""Touched while the run is on here, or its results are not safe: shows the other nodes that this one goes on."""
ALIVE_INTERVAL_S = 60.0
PROGRESS_INTERVAL_S = 2.0
"""Time between two records of a copy's progress, which are signs of use, too."""

_LOCK = threading.Lock()
"""Held while a run's results are stored: the next run may change the files."""
_resumed = threading.Event()
_resumed.set()
"""Not set while `resume_storing` finishes what a killed agent left undone."""
_machine_ends = math.inf
"""When this machine ends, as far as is known (UTC seconds)."""
_unwritten_states: dict[str, SinkState] = {}
"""States that could not be written, by the run's folder: this machine's own disk may be full."""


def claim_place(node: Node, spec: LaunchSpec, urls: Mapping[str, Any] | None = None) -> None:
    """Before a run starts: check that its place exists, is its own, and can be written to. Raises Refusal(`sink`).

    Where the folder has another run's results, or somebody's files, a folder beside it is used. `urls`: presigned URLs
    of a bucket.
    """
    if spec.sink is None:
        return
    if spec.uses_bucket:
        # Here, since the client that it sends with takes 0.1 s to load, and most nodes never send anything.
        from gpuops.agent.result_storage import bucket_sink

        folder = bucket_sink.claim_bucket(node, spec, urls or {})
    else:
        # Loaded before the run: at its end the program's own file may be gone from this machine (`_Copy.run`).
        from gpuops.agent.result_storage import stored_files  # noqa: F401

        folder = _claim_folder(spec, spec.sink)
    _record_state(node.run(spec.run), SinkState(SinkPhase.CLAIMED, folder))


def _claim_folder(spec: LaunchSpec, sink: SinkSpec) -> str:
    """The folder that this run stores its results in, with a subfolder for this node. Raises Refusal(`sink`)."""
    mark = f".of-{sink.id}"
    try:
        folder = next(path for path in (sink.folder, f"{sink.folder}-{sink.id}") if _is_ours(path, mark))
        node_folder = os.path.join(folder, f"node{spec.node}")
        os.makedirs(node_folder, exist_ok=True)
        remove_file(os.path.join(node_folder, SAFE))  # of an earlier attempt
        write_json(os.path.join(node_folder, ALIVE), {"run": spec.run, "node": spec.node, "nodes": spec.nodes})
    except (OSError, StopIteration) as error:
        why = getattr(error, "strerror", None) or "others' files lie there"
        say = f"{sink.folder} cannot keep this run's results: {why}"
        raise Refusal("sink", say, "see to the volume, or leave out --sink") from error
    return folder


def _is_ours(folder: str, mark: str) -> bool:
    """Whether a folder is this run's: it has our mark, or did not exist and is made now.

    The run that makes it owns it; a run's first node does so before the others are started. Raises OSError, also where
    the volume is missing.
    """
    try:
        os.mkdir(os.path.dirname(folder))  # and none above it: that would hide that the volume is missing
    except FileExistsError:
        pass
    try:
        os.mkdir(folder)
    except FileExistsError:
        return os.path.exists(os.path.join(folder, mark))
    with open(os.path.join(folder, mark), "w", encoding="ascii"):
        return True


def read_state(node: Node, name: str) -> SinkState | None:
    """How far a run's results are stored; None for a run without a sink."""
    folder = node.run(name)
    state = _unwritten_states.get(folder)
    if state is not None:
        return state
    document = read_json(os.path.join(folder, STATE))
    return SinkState.parse(document) if document else None


def set_deadline(at: float) -> None:
    """This machine ends at that time (UTC seconds), or before: an upload to a bucket is closed before it."""
    global _machine_ends
    _machine_ends = min(_machine_ends, at)


def store_results(node: Node, name: str) -> None:
    """Store the results of a run that has ended, once, and record whether that succeeded. Never raises."""
    try:
        folder = node.run(name)
        spec, state, reason = run_files.read_spec(node, name), read_state(node, name), run_files.read_end_reason(folder)
        if not (spec and spec.sink and state and state.state in (SinkPhase.CLAIMED, SinkPhase.COPYING)):
            return
        if reason is not None and reason.kind == "start":
            return  # the run never started
        with _LOCK:
            _store(node, folder, spec, state.folder or "", reason)
    except Exception:
        log(f"the results of {name} could not be stored\n{traceback.format_exc()}")


def _store(node: Node, folder: str, spec: LaunchSpec, sink: str, reason: Reason | None) -> None:
    """Store the results in `folder`, the run's own, and record how that ended. `sink`: its place there."""
    try:
        if spec.uses_bucket:
            files, size, changed = _upload(node, spec, folder, sink, reason)
        else:
            (files, size), changed = _Copy(node, spec, folder, sink).run(), []
    except Exception as error:
        why = getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
        log(f"the results of {spec.run} could not be stored\n{traceback.format_exc()}")
        _record_state(folder, SinkState(SinkPhase.FAILED, sink, why=why))
        run_files.record_event(folder, "unsafe", sink=sink, why=why)
        return
    state = SinkState(SinkPhase.SAFE, sink, at=time.time(), files=files, bytes=size, changed=changed or None)
    _record_state(folder, state)
    more = {"changed": changed} if changed else {}
    run_files.record_event(folder, "safe", sink=sink, files=files, bytes=size, **more)
    wait_for_download.record_download(folder)
    if spec.uses_bucket:
        from gpuops.agent.result_storage import bucket_sink

        bucket_sink.finish_upload(folder)


def _upload(node: Node, spec: LaunchSpec, folder: str, sink: str, reason: Reason | None) -> tuple[int, int, list[str]]:
    """How many files and bytes were sent, and the names of files that changed meanwhile. Raises OSError if some are
    missing in the bucket."""
    from gpuops.agent.result_storage import bucket_sink

    machine_ends = bucket_sink.machine_deadline(spec, reason) if reason else math.inf
    stored = bucket_sink.upload_results(
        node,
        spec,
        folder,
        lambda: min(machine_ends, _machine_ends),
        lambda total: Progress(node, folder, sink, total),
    )
    if stored.missing and stored.missing == len(stored.unread):
        raise OSError(errno.EACCES, f"{_count_files(stored.missing)} cannot be read: {', '.join(stored.unread[:3])}")
    if stored.missing:
        why = f"only {_count_files(stored.files)} could be sent before this machine is taken, and {stored.missing} not"
        raise OSError(errno.ETIMEDOUT, why)
    return stored.files, stored.size, stored.changed


def announce_resume() -> None:
    """Call before `resume_storing` is started in a thread: from now on `wait_until_stored` waits for it as well."""
    _resumed.clear()


def resume_storing(node: Node) -> None:
    """Store the results that a killed agent did not store."""
    try:
        for name in node.runs():
            if run_files.read_result(node.run(name)) is not None:
                store_results(node, name)
    finally:
        _resumed.set()


def start_heartbeat(node: Node, spec: LaunchSpec, done: threading.Event) -> None:
    """Show the other nodes that this one goes on: until `done` and, if its results could not be stored, until a client
    has downloaded them. In a thread, since a volume or a network may hang."""
    claimed = read_state(node, spec.run)
    if spec.sink is None or claimed is None or not claimed.folder:
        return
    path = os.path.join(claimed.folder, f"node{spec.node}", ALIVE)

    def beat() -> None:
        while not done.is_set() or is_unsafe(node, spec.run):
            try:
                if spec.uses_bucket:
                    from gpuops.agent.result_storage import bucket_sink

                    bucket_sink.write_state(node, spec, read_state(node, spec.run) or claimed)
                else:
                    os.utime(path)
            except OSError as error:
                log(f"the other nodes cannot see that this one goes on: {error}")
            time.sleep(ALIVE_INTERVAL_S)

    WORKERS.start(beat, "beat " + spec.run)


def is_unsafe(node: Node, name: str) -> bool:
    """Whether a run's results exist only here, since storing them failed."""
    state = read_state(node, name)
    is_failed = state is not None and state.state == SinkPhase.FAILED
    return is_failed and not wait_for_download.is_downloaded(node.run(name))


def wait_until_stored() -> None:
    """Wait until no results are being stored."""
    _resumed.wait()
    with _LOCK:
        pass


class Progress:
    """Records how far the storing of results is; call it with a number of bytes that are done."""

    def __init__(self, node: Node, folder: str, sink: str, total: int) -> None:
        self._node = node
        self._folder = folder
        self._sink = sink
        self._total = total
        self._done = 0
        self._recorded = 0.0

    def __call__(self, size: int) -> None:
        self._done += size
        if time.monotonic() - self._recorded >= PROGRESS_INTERVAL_S:
            self._recorded = time.monotonic()
            self._node.touch()
            state = SinkState(SinkPhase.COPYING, self._sink, at=time.time(), done=self._done, total=self._total)
            _record_state(self._folder, state)


class _Copy:
    """Copies one run's files into a folder."""

    def __init__(self, node: Node, spec: LaunchSpec, folder: str, sink: str) -> None:
        self._node = node
        self._spec = spec
        self._folder = folder
        self._sink = sink
        self._target = os.fsencode(os.path.join(sink, f"node{spec.node}"))

    def run(self) -> tuple[int, int]:
        """Copy everything. Returns how many files and bytes; raises OSError at the end if some failed."""
        from gpuops.agent.result_storage import stored_files

        items = list(stored_files.list_items(self._node, self._spec, self._folder))
        progress = Progress(self._node, self._folder, self._sink, sum(item.size for item in items))
        rows: list[list[Any]] = []
        failed: list[OSError] = []
        for item in items:
            try:
                copied = copy_verified(item.source, os.path.join(self._target, path_bytes(item.name)), progress)
            except OSError as error:
                failed.append(error)
                if error.errno in FULL_DISK_ERRORS:
                    break
                continue
            if copied is not None:
                rows.append([item.name, *copied])
        if failed:
            raise OSError(failed[0].errno, f"{failed[0].strerror or failed[0]}, {_count_files(len(failed))}")
        document = {"schema": 1, "run": self._spec.run, "node": self._spec.node, "at": time.time()}
        write_json(os.path.join(os.fsdecode(self._target), SAFE), {**document, "files": rows}, 0o644)
        return len(rows), sum(row[1] for row in rows)


def _count_files(count: int) -> str:
    return f"{count} file" + "s" * (count != 1)


def _record_state(folder: str, state: SinkState) -> None:
    """Write the state; in memory where the disk is full."""
    try:
        write_json(os.path.join(folder, STATE), state.document())
        _unwritten_states.pop(folder, None)
    except OSError as error:
        _unwritten_states[folder] = state
        log(f"the sink's state '{state.state.value}' is only in memory: {error}")
