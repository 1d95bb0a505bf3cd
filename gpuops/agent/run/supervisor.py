"""The life of one run on this node: from its first process until none is left and result.json says how it ended.

One thread starts the launcher and looks at everything a few times each second. Stops come from a person, the lease,
a preemption or another node; the first reason stays. A stop climbs steps: stop file and SIGUSR1, SIGTERM, SIGKILL.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
import traceback
from typing import Any, BinaryIO, Mapping

from gpuops.agent import processes, run_files
from gpuops.agent.gang import handover, link
from gpuops.agent.lease import read_clocks
from gpuops.agent.machine import boot_id
from gpuops.agent.node import Node, log, open_append, program_argv, write_json
from gpuops.agent.processes import handles_signal
from gpuops.agent.retain import end_once_stored, sink
from gpuops.agent.run import launcher, preemption, snapshot_request
from gpuops.agent.run.joined_ranks import Sampler
from gpuops.agent.run.result import (
    Step,
    Stop,
    decide_outcome,
    first_failure,
    result_document,
    shorten_steps,
    stop_steps,
)

SUPERVISION_INTERVAL_S = 0.2
PROGRESS_CHECK_INTERVAL_S = 1.0
"""Time between two looks for a run's first step."""
TOUCH_INTERVAL_S = 15.0
"""Time between two signs of use of a live run."""
GANG_STOP_DELAY_S = 3.0
"""Time for the ranks here to exit by themselves after another node's failure: the failing rank may be one of ours that
is slow to exit, and only its exit code shows that."""
TORCHRUN_EXIT_LIMIT_S = 5.0
"""Time that torchrun may take to exit by itself after one of its ranks failed."""


class Supervisor:
    """`launched` is set when the launcher runs or could not be started (`failure`), `done` with result.json."""

    def __init__(self, node: Node, spec: Mapping[str, Any], secrets: Mapping[str, str]) -> None:
        self._node = node
        self._spec = spec
        self._secrets = secrets
        self.name: str = spec["run"]
        self.folder = node.run(spec["run"])
        self._marker = run_files.run_marker(node, spec)
        self._process: subprocess.Popen[bytes] | None = None
        here = spec.get("here") or {"nodes": spec["nodes"], "ranks": spec["world"]}
        self._sampler = Sampler(spec["master"]["port"], here["nodes"], here["ranks"]) if spec.get("master") else None
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stop: Stop | None = None
        self._how = ""
        self._steps: list[Step] = []
        self._steps_from = 0.0
        self._rank_failed = 0.0
        self._touched = 0.0
        self._joined: set[int] = set()
        self._clearing = float("inf")
        """When this node began to end the run's processes (UTC seconds)."""
        self._acted = float("inf")
        """When the first step of a stop was taken (UTC seconds)."""
        self._started = time.time()
        self._times = run_files.OutputTimes(self.folder)
        self._has_told_end = False
        self.node_index: int = spec["node"]
        self.link: link.Link | None = None
        self._handover: handover.Handover | None = None
        self._snapshots = snapshot_request.SnapshotRequests(node, spec, self._event, read_clocks)
        self.launched = threading.Event()
        self.failure: str | None = None
        self.preempted: str | None = None
        """Why the provider takes this machine back, in words."""
        self._has_stepped = False
        self._next_progress_check = 0.0
        self._first_step: float | None = None
        """The step that the run continues from, once it has reported one."""
        self.done = threading.Event()
        self.result: dict[str, Any] | None = None
        """The document of result.json; kept in memory since the disk may be full."""

    def begin(self) -> None:
        """Start the launcher, in a thread of this run's own."""
        if self.link is not None:
            self._handover = handover.Handover(self._node, self._spec, self.link, self.done, self._event)
            self.link.begin()
        sink.start_heartbeat(self._node, self._spec, self.done)
        preemption.watch_notices(self._node, self.done, self.notice)
        threading.Thread(target=self._run, name="run " + self.name, daemon=True).start()

    def _run(self) -> None:
        try:
            self._live()
        except Exception as error:
            log(f"the supervision of {self.name} failed\n{traceback.format_exc()}")
            reason = {"kind": "agent", "say": f"the agent met a bug: {type(error).__name__}: {error}"}
            self._finish("lost", reason)
        finally:
            self.launched.set()
            sink.store_results(self._node, self.name)
            self.done.set()
            if self._handover is not None:
                self._handover.begin()
            end_once_stored.start_watch(self._node, self.name)

    def _live(self) -> None:
        live = {"run": self.name, "started": self._started, "boot_id": boot_id()}
        write_json(self._node.path("live.json"), live)
        try:
            self._process = self._launch()
        except OSError as error:
            self.failure = f"cannot start {(error.filename or self._spec['argv'][0])}: {error.strerror}"
            self._finish("failed", {"kind": "start", "say": self.failure})
            return
        self._event("started", pid=self._process.pid)
        self.launched.set()
        if self._sampler:
            self._sampler.begin()
        while self._process.poll() is None and self._supervise():
            self._wake.wait(SUPERVISION_INTERVAL_S)
            self._wake.clear()
        if self._sampler:
            self._sampler.end()
        code, records = self._process.returncode, self._records().values()
        self._finish(*decide_outcome(self._spec["kind"], code, records, self._stop, self._acted))

    def _launch(self) -> subprocess.Popen[bytes]:
        tokens = launcher.token_values(program_argv(), self.folder)
        marker = {
            "GPUOPS_RUN": self._marker.run,
            "GPUOPS_STOP_FILE": self._marker.stop_file,
            "GPUOPS_SNAPSHOT_FILE": os.path.join(self.folder, run_files.SNAPSHOT),
            "GPUOPS_PROGRESS": os.path.join(self.folder, run_files.PROGRESS),
            "GPUOPS_NODE": str(self.node_index),
        }
        with self._open("launcher.out") as out, self._open("launcher.err") as errors:
            return processes.start_child(
                launcher.launch_command(self._spec, tokens),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                cwd=self._node.tree(self._spec["tree"]),
                env=launcher.launch_environment(os.environ, self._spec, self._secrets, tokens, marker),
            )

    def _open(self, name: str) -> BinaryIO:
        return open_append(os.path.join(self.folder, name))

    # While it lives.

    def _supervise(self) -> bool:
        """Look at everything once; False when it is time to kill."""
        processes.reap_orphans()
        now = time.monotonic()
        if now - self._touched >= TOUCH_INTERVAL_S:
            self._node.touch()
            self._touched = now
        self._times.check()
        self._notice_step(now)
        records = self._records()
        self._notice_joined(records)
        self._notice_failure(records, now)
        due = self._snapshots.due()
        if due is not None:
            self._request_snapshot(due)
        return self._climb(now)

    def _notice_joined(self, records: Mapping[int, Mapping[str, Any]]) -> None:
        if self._sampler is None:
            return
        living = {rank: record["pid"] for rank, record in records.items() if record["pid"] and record["ended"] is None}
        joined = self._sampler.watch(living)
        for rank in sorted(joined - self._joined):
            self._event("joined", rank=rank)
        self._joined = joined

    def _notice_failure(self, records: Mapping[int, Mapping[str, Any]], now: float) -> None:
        """Tell the other nodes of a failed rank at once; torchrun gets TORCHRUN_EXIT_LIMIT_S to exit by itself."""
        if self._rank_failed or first_failure(records.values(), self._acted) is None:
            return
        self._rank_failed = now
        outcome, reason = decide_outcome(self._spec["kind"], None, records.values(), self._stop, self._acted)
        self._event("failed", reason=reason)
        self._tell_end(outcome, reason)
        with self._lock:
            if not self._steps:
                self._steps, self._steps_from = stop_steps("now", 0.0), now + TORCHRUN_EXIT_LIMIT_S

    def _notice_step(self, now: float) -> None:
        """Record, once, that the run's program has passed the step it began at: after a resume that is news."""
        if self._has_stepped or now < self._next_progress_check:
            return
        self._next_progress_check = now + PROGRESS_CHECK_INTERVAL_S
        progress = run_files.read_progress(self.folder) or {}
        step = progress.get("step")
        if step is None:
            return
        if self._first_step is None:
            self._first_step = step if progress.get("saved") == step else step - 1
        if step > self._first_step:
            self._has_stepped = True
            self._event("stepped", step=step)

    def _climb(self, now: float) -> bool:
        """Take the steps of a stop that are due; False for the last, SIGKILL."""
        with self._lock:
            due = [step for step in self._steps if now >= self._steps_from + step.after_s]
            self._steps = self._steps[len(due) :]
        for step in due:
            self._acted = min(self._acted, time.time())
            if step.do == "kill":
                return False
            self._step(step.do)
        return True

    def _step(self, do: str) -> None:
        pids = processes.run_processes([self._marker]) - self._wrappers()
        self._event(do, processes=len(pids))
        if do == "term":
            processes.send_signal(pids, signal.SIGTERM)
            return
        with self._open("stop"):
            pass  # the file's existence is the message
        processes.send_signal((pid for pid in pids if handles_signal(pid, signal.SIGUSR1)), signal.SIGUSR1)

    def _request_snapshot(self, reason: Mapping[str, Any]) -> None:
        """Ask for a snapshot on all nodes: rank 0, which usually writes it, may be on another one."""
        is_on = self._stop is None and self._clearing == float("inf")
        if is_on and self._snapshots.ask(reason) and self.link is not None:
            self.link.tell({"event": "snapshot", "node": self.node_index, "at": time.time(), "reason": reason})

    # Requests to end it.

    def stop_everywhere(self, how: str, reason: Mapping[str, Any], outcome: str = "stopped") -> None:
        """Stop the run here and on the other nodes: for a person, the lease or the agent."""
        self._request_stop(how, reason, outcome, hurry=how == "now")
        if self.link is not None:
            self.link.tell({"event": "stop", "node": self.node_index, "why": reason["say"], "how": how})

    def notice(self, notice: preemption.Notice) -> None:
        """Stop the run everywhere before this machine is taken back; where it only may be, ask for a snapshot."""
        reason = preemption.notice_reason(notice, self.node_index)
        self._event("notice", reason=reason)
        if notice.kind != "reclaim":
            self._request_snapshot(reason)
            return
        self.preempted = reason["say"]
        within_s, left_s = (
            preemption.stop_within_s(notice.at, time.time()),
            preemption.remaining_s(notice.at, time.time()),
        )
        sink.set_deadline(time.time() + left_s)
        if self._handover is not None:
            self._handover.note(self.node_index, left_s)
        self._request_stop("graceful", reason, "stopped", hurry=False, within_s=within_s)
        if self.link is not None:
            event = {"event": "stop", "node": self.node_index, "why": reason["say"], "how": "graceful"}
            self.link.tell({**event, "reason": reason, "within_s": within_s, "left_s": left_s})

    def receive(self, event: Mapping[str, Any]) -> None:
        """Act on an event of another node."""
        origin = event.get("node")
        if event.get("event") == "snapshot":
            self._snapshots.receive(event)
        elif event.get("event") == "stop":
            reason = {"kind": "gang", "say": event["why"], **(event.get("reason") or {}), "from": origin}
            how, within_s = event["how"], event.get("within_s")
            if reason["kind"] == "reclaim" and self._handover is not None:
                self._handover.note(reason["node"], event["left_s"])
            self._request_stop(how, reason, "stopped", hurry=how == "now", within_s=within_s)
        elif event.get("event") == "ended" and event["outcome"] != "done":
            say = f"node{origin}: {event['reason'].get('say', event['outcome'])}"
            reason = {"kind": "gang", "from": origin, "say": say}
            self._request_stop("now", reason, "stopped", hurry=False, delay_s=GANG_STOP_DELAY_S)

    def _request_stop(
        self,
        how: str,
        reason: Mapping[str, Any],
        outcome: str,
        hurry: bool,
        delay_s: float = 0.0,
        within_s: float | None = None,
    ) -> None:
        """Begin a stop; the first reason stays. A stop that has begun is shortened only by a person's `now` (`hurry`)
        and by a preemption (`within_s`)."""
        with self._lock:
            if self._clearing < float("inf"):
                return  # the run is ending already
            if self._stop is None:
                self._stop = Stop(outcome, reason)
            elif within_s is not None:
                self._steps = shorten_steps(self._steps, time.monotonic() - self._steps_from + within_s)
                return
            elif not hurry or self._how == "now":
                return
            self._how = how if not delay_s else "soon"
            self._steps = stop_steps(how, self._spec.get("grace_s", 10.0), within_s)
            self._steps_from = time.monotonic() + delay_s
            self._event("stopping", how=how, reason=reason)
        self._wake.set()

    # Its end.

    def _finish(self, outcome: str, reason: Mapping[str, Any]) -> None:
        """End every process of the run, then write its result."""
        with self._lock:
            self._clearing = time.time()
        self._tell_end(outcome, reason)
        is_killed = self._process is not None and self._process.returncode is None
        left = processes.end_all(
            lambda: processes.run_processes([self._marker]),
            term_grace_s=0.0 if is_killed else processes.TERM_GRACE_S,
            recorders=self._wrappers,
        )
        if self._process is not None and left == 0:
            self._process.wait()
        self._times.check(last=True)
        self._event("ended", outcome=outcome, left=left, reason=reason)
        self.result = self._result(outcome, reason, left)
        try:
            write_json(os.path.join(self.folder, "result.json"), self.result)
            self._node.touch()  # before: without `live.json` the idle end counts, and the last sign of use may be old
            os.unlink(self._node.path("live.json"))
        except OSError as error:
            log(f"the result of {self.name} is only in memory: {error}")
        self._node.touch()

    def _tell_end(self, outcome: str, reason: Mapping[str, Any]) -> None:
        """Tell the other nodes, once, how the run ended here."""
        if self.link is not None and not self._has_told_end:
            self._has_told_end = True
            event = {"event": "ended", "node": self.node_index, "outcome": outcome, "reason": dict(reason)}
            self.link.tell(event)
            self.link.close()

    def _wrappers(self) -> set[int]:
        """Process numbers of the living rank wrappers, which record how the ranks ended."""
        return {record["wrapper"] for record in self._records().values() if record["ended"] is None}

    def _records(self) -> dict[int, dict[str, Any]]:
        return run_files.read_records(self.folder)

    def _event(self, kind: str, **data: Any) -> None:
        run_files.record_event(self.folder, kind, **data)

    def _result(self, outcome: str, reason: Mapping[str, Any], left: int) -> dict[str, Any]:
        stopped = min(self._clearing, self._acted)
        joined = self._sampler.joined if self._sampler else lambda _rank: None
        returncode = self._process.returncode if self._process else None
        return result_document(
            self._spec, self.folder, outcome, reason, self._started, returncode, stopped, joined, left
        )
