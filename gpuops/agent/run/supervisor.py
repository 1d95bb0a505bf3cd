"""The life of one run on this node: from its first process until none is left and result.json says how it ended.

One thread starts the launcher and then checks, a few times each second, everything that the run's processes show.
Stops are requested by a person, the end of the lease, a preemption or another node (run.stopping decides which counts).
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
import traceback
from typing import Any, BinaryIO, Collection, Mapping

from gpuops.agent import processes, run_files
from gpuops.agent.lease import read_clocks
from gpuops.agent.machine_resources import boot_id
from gpuops.agent.node import Node, log, open_append, program_argv, write_json
from gpuops.agent.peers import link, result_handover
from gpuops.agent.peers.events import RunEnded, SnapshotRequested, StopRequested, parse_event
from gpuops.agent.result_storage import end_after_upload, sink
from gpuops.agent.run import launcher, preemption, snapshot_request
from gpuops.agent.run.joined_ranks import Sampler
from gpuops.agent.run.result import RunEnd, decide_outcome, first_failure, result_document
from gpuops.agent.run.stopping import StopAction, StopPlan, StopRequest
from gpuops.agent.run_documents import LaunchSpec, MachineShare, Outcome, RankRecord, Reason, StopMode

SUPERVISION_INTERVAL_S = 0.2
PROGRESS_CHECK_INTERVAL_S = 1.0
"""Time between two checks for the run's first step."""
TOUCH_INTERVAL_S = 15.0
"""Time between two signs of use of a live run."""
GANG_STOP_DELAY_S = 3.0
"""Time for the ranks here to exit by themselves after another node's failure: the failing rank may be one of ours that
is slow to exit, and only its exit code shows that."""
TORCHRUN_EXIT_LIMIT_S = 5.0
"""Time that torchrun may take to exit by itself after one of its ranks failed."""
NEVER = float("inf")


class Supervisor:
    """Supervises one run. `begin` starts it; `stop_everywhere`, `preempt` and `receive` may be called by any thread.

    `launched` is set when the launcher runs or could not be started (`failure`), `done` with result.json.
    """

    def __init__(self, node: Node, spec: LaunchSpec, secrets: Mapping[str, str]) -> None:
        self._node = node
        self._spec = spec
        self._secrets = secrets
        self.name = spec.run
        self.node_index = spec.node
        self.folder = node.run(spec.run)
        self._marker = run_files.run_marker(node, spec)
        self._process: subprocess.Popen[bytes] | None = None
        share = spec.here or MachineShare(spec.nodes, spec.world)
        self._sampler = Sampler(spec.master.port, share.nodes, share.ranks) if spec.master else None
        self._wake = threading.Event()
        self._stop = StopPlan(spec.grace_s)
        self._has_failed_rank = False
        self._touched_at = 0.0
        self._joined: set[int] = set()
        self._ending_since = NEVER
        """When this node began to end the run's processes (UTC seconds)."""
        self._acted_at = NEVER
        """When the first step of a stop was taken (UTC seconds)."""
        self._started = time.time()
        self._output_times = run_files.OutputTimes(self.folder)
        self._has_told_end = False
        self.link: link.Link | None = None
        self._handover: result_handover.Handover | None = None
        self._snapshots = snapshot_request.SnapshotRequests(node, spec, self._record, read_clocks)
        self.launched = threading.Event()
        self.failure: str | None = None
        """Why the launcher could not be started."""
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
            self._handover = result_handover.Handover(self._node, self._spec, self.link, self.done, self._record)
            self.link.start()
        sink.start_heartbeat(self._node, self._spec, self.done)
        preemption.watch_notices(self._node, self.done, self.preempt)
        threading.Thread(target=self._run, name="run " + self.name, daemon=True).start()

    def _run(self) -> None:
        try:
            self._launch_and_watch()
        except Exception as error:
            log(f"the supervision of {self.name} failed\n{traceback.format_exc()}")
            reason = Reason("agent", f"the agent met a bug: {type(error).__name__}: {error}")
            self._finish(Outcome.LOST, reason)
        finally:
            self.launched.set()
            sink.store_results(self._node, self.name)
            self.done.set()
            if self._handover is not None:
                self._handover.begin()
            end_after_upload.start_watch(self._node, self.name)

    def _launch_and_watch(self) -> None:
        live = {"run": self.name, "started": self._started, "boot_id": boot_id()}
        write_json(self._node.path("live.json"), live)
        try:
            self._process = self._launch()
        except OSError as error:
            self.failure = f"cannot start {(error.filename or self._spec.argv[0])}: {error.strerror}"
            self._finish(Outcome.FAILED, Reason("start", self.failure))
            return
        self._record("started", pid=self._process.pid)
        self.launched.set()
        if self._sampler:
            self._sampler.begin()
        while self._process.poll() is None and self._supervise():
            self._wake.wait(SUPERVISION_INTERVAL_S)
            self._wake.clear()
        if self._sampler:
            self._sampler.end()
        records = run_files.read_records(self.folder).values()
        self._finish(*self._decide(self._process.returncode, records))

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
                cwd=self._node.tree(self._spec.tree),
                env=launcher.launch_environment(os.environ, self._spec, self._secrets, tokens, marker),
            )

    def _open(self, name: str) -> BinaryIO:
        return open_append(os.path.join(self.folder, name))

    def _decide(self, returncode: int | None, records: Collection[RankRecord]) -> tuple[Outcome, Reason]:
        return decide_outcome(self._spec.kind, returncode, records, self._stop.first, self._acted_at)

    # While it lives.

    def _supervise(self) -> bool:
        """Check everything once; False when it is time to kill."""
        processes.reap_orphans()
        now = time.monotonic()
        if now - self._touched_at >= TOUCH_INTERVAL_S:
            self._node.touch()
            self._touched_at = now
        self._output_times.check()
        self._check_first_step(now)
        records = run_files.read_records(self.folder)
        self._check_joined(records.values())
        self._check_failure(records.values(), now)
        reason = self._snapshots.due()
        if reason is not None:
            self._request_snapshot(reason)
        return self._take_stop_steps(now)

    def _check_joined(self, records: Collection[RankRecord]) -> None:
        if self._sampler is None:
            return
        joined = self._sampler.watch({record.rank: record.pid for record in records if record.pid and not record.ended})
        for rank in sorted(joined - self._joined):
            self._record("joined", rank=rank)
        self._joined = joined

    def _check_failure(self, records: Collection[RankRecord], now: float) -> None:
        """Tell the other nodes of a failed rank at once; torchrun gets TORCHRUN_EXIT_LIMIT_S to exit by itself."""
        if self._has_failed_rank or first_failure(records, self._acted_at) is None:
            return
        self._has_failed_rank = True
        outcome, reason = self._decide(None, records)
        self._record("failed", reason=reason.document())
        self._tell_end(outcome, reason)
        self._stop.end_after(TORCHRUN_EXIT_LIMIT_S, now)

    def _check_first_step(self, now: float) -> None:
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
            self._record("stepped", step=step)

    def _take_stop_steps(self, now: float) -> bool:
        """Take the steps of a stop that are due; False for the last, SIGKILL."""
        for action in self._stop.take_due(now):
            self._acted_at = min(self._acted_at, time.time())
            if action == StopAction.KILL:
                return False
            self._signal(action)
        return True

    def _signal(self, action: StopAction) -> None:
        pids = processes.run_processes([self._marker]) - self._wrapper_pids()
        self._record(action.value, processes=len(pids))
        if action == StopAction.TERM:
            processes.send_signal(pids, signal.SIGTERM)
            return
        with self._open("stop"):
            pass  # the file's existence is the message
        handlers = (pid for pid in pids if processes.handles_signal(pid, signal.SIGUSR1))
        processes.send_signal(handlers, signal.SIGUSR1)

    def _request_snapshot(self, reason: Reason) -> None:
        """Ask for a snapshot on all nodes: rank 0, which usually writes it, may be on another one."""
        goes_on = self._stop.first is None and self._ending_since == NEVER
        if goes_on and self._snapshots.ask(reason) and self.link is not None:
            self.link.send_event(SnapshotRequested(self.node_index, time.time(), reason).document())

    # Requests to end it.

    def stop_everywhere(self, mode: StopMode, reason: Reason, outcome: Outcome = Outcome.STOPPED) -> None:
        """Stop the run here and on the other nodes: for a person, the lease or the agent."""
        self._request_stop(StopRequest(reason, mode, outcome, overrides=mode == StopMode.NOW))
        if self.link is not None:
            self.link.send_event(StopRequested(self.node_index, reason.say, mode).document())

    def preempt(self, notice: preemption.Notice) -> None:
        """Stop the run everywhere before this machine is taken back; where it only may be, ask for a snapshot."""
        reason = preemption.notice_reason(notice, self.node_index)
        self._record("notice", reason=reason.document())
        if notice.kind != "reclaim":
            self._request_snapshot(reason)
            return
        self.preempted = reason.say
        within_s, left_s = (
            preemption.stop_within_s(notice.at, time.time()),
            preemption.remaining_s(notice.at, time.time()),
        )
        sink.set_deadline(time.time() + left_s)
        if self._handover is not None:
            self._handover.note(self.node_index, left_s)
        self._request_stop(StopRequest(reason, within_s=within_s))
        if self.link is not None:
            event = StopRequested(self.node_index, reason.say, StopMode.GRACEFUL, reason, within_s, left_s)
            self.link.send_event(event.document())

    def receive(self, message: Mapping[str, Any]) -> None:
        """Act on an event of another node. Raises an exception for a message that cannot be parsed."""
        event = parse_event(message)
        if isinstance(event, SnapshotRequested):
            self._snapshots.receive(event)
        elif isinstance(event, StopRequested):
            reason = (event.reason or Reason("gang", event.why))._replace(sender=event.node)
            if self._handover is not None and reason.node is not None and event.left_s is not None:
                self._handover.note(reason.node, event.left_s)
            overrides = event.how == StopMode.NOW
            self._request_stop(StopRequest(reason, event.how, overrides=overrides, within_s=event.within_s))
        elif isinstance(event, RunEnded) and event.outcome != Outcome.DONE:
            say = f"node{event.node}: {event.reason.say or event.outcome.value}"
            reason = Reason("gang", say, sender=event.node)
            self._request_stop(StopRequest(reason, StopMode.NOW, delay_s=GANG_STOP_DELAY_S))

    def _request_stop(self, request: StopRequest) -> None:
        if self._stop.add(request, time.monotonic()):
            self._record("stopping", how=request.mode, reason=request.reason.document())
            self._wake.set()

    # Its end.

    def _finish(self, outcome: Outcome, reason: Reason) -> None:
        """End every process of the run, then write its result."""
        self._ending_since = time.time()
        self._stop.close()
        self._tell_end(outcome, reason)
        is_killed = self._process is not None and self._process.returncode is None
        left = processes.end_all(
            lambda: processes.run_processes([self._marker]),
            term_grace_s=0.0 if is_killed else processes.TERM_GRACE_S,
            recorders=self._wrapper_pids,
        )
        if self._process is not None and left == 0:
            self._process.wait()
        self._output_times.check(last=True)
        self._record("ended", outcome=outcome, left=left, reason=reason.document())
        returncode = self._process.returncode if self._process else None
        stopped_at = min(self._ending_since, self._acted_at)
        end = RunEnd(outcome, reason, self._started, returncode, stopped_at, left)
        has_joined = self._sampler.joined if self._sampler else lambda _rank: None
        self.result = result_document(self._spec, self.folder, end, has_joined)
        try:
            write_json(os.path.join(self.folder, "result.json"), self.result)
            self._node.touch()  # before: without `live.json` the idle end counts, and the last sign of use may be old
            os.unlink(self._node.path("live.json"))
        except OSError as error:
            log(f"the result of {self.name} is only in memory: {error}")
        self._node.touch()

    def _tell_end(self, outcome: Outcome, reason: Reason) -> None:
        """Tell the other nodes, once, how the run ended here."""
        if self.link is not None and not self._has_told_end:
            self._has_told_end = True
            self.link.send_event(RunEnded(self.node_index, outcome, reason).document())
            self.link.close()

    def _wrapper_pids(self) -> set[int]:
        """The living rank wrappers, which record how the ranks ended."""
        records = run_files.read_records(self.folder).values()
        return {record.wrapper for record in records if record.wrapper and record.ended is None}

    def _record(self, kind: str, **data: Any) -> None:
        run_files.record_event(self.folder, kind, **data)
