"""Supervises one run on this node: starts its launcher, watches its processes and writes result.json at its end.

One thread checks, a few times each second, the ranks' records, the progress and whether a stop is due. A stop is
requested by a person, the end of the lease, a preemption or another node (run.stopping decides which request counts).
The other nodes are notified of a failed rank, a stop and the end. No process of the run outlives its result, but for
those that SIGKILL cannot end: the result says how many these are.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
import traceback
from typing import Any, BinaryIO, Collection, Mapping

from gpuops.agent import process_table, processes, run_files
from gpuops.agent.lease_clock import note_run_end, read_clocks
from gpuops.agent.machine_resources import boot_id
from gpuops.agent.node import TOUCH_INTERVAL_S, Node, log, open_append, program_argv, write_json
from gpuops.agent.peers import link, result_handover
from gpuops.agent.peers.events import RunEnded, SnapshotRequested, StopRequested, parse_event
from gpuops.agent.result_storage import end_after_upload, sink
from gpuops.agent.run import command_and_environment, preemption_notices, snapshot_request
from gpuops.agent.run.join_watch import JoinAction, JoinWatch
from gpuops.agent.run.joined_ranks import Sampler
from gpuops.agent.run.result import RunEnd, decide_outcome, first_failure, result_document
from gpuops.agent.run.stopping import StopAction, StopPlan, StopRequest
from gpuops.agent.run_documents import LaunchSpec, MachineShare, Outcome, RankRecord, Reason, StopMode
from gpuops.agent.usage.record import UsageRecord
from gpuops.agent.workers import WORKERS

SUPERVISION_INTERVAL_S = 0.2
PROGRESS_CHECK_INTERVAL_S = 1.0
"""Time between two checks for the run's first step."""
GANG_STOP_DELAY_S = 3.0
"""Time for the ranks here to exit by themselves after another node's failure: the failing rank may be one of ours that
is slow to exit, and only its exit code shows that."""
TORCHRUN_EXIT_LIMIT_S = 5.0
"""Time that torchrun may take to exit by itself after one of its ranks failed."""
NEVER = float("inf")


class Supervisor:
    """Supervises one run of this node, in a thread that `start` starts.

    Any thread may call `look`, `stop_everywhere`, `preempt` and `handle_peer_event`. `launched` is set once the
    launcher runs or could not be started (`launch_error`), `ended` once there is a `result`, `done` when it is stored.
    """

    def __init__(self, node: Node, spec: LaunchSpec, secrets: Mapping[str, str]) -> None:
        self._node = node
        self._spec = spec
        self._secrets = secrets
        self.name = spec.run
        self.node_index = spec.node
        self.folder = node.run(spec.run)
        self._marker = run_files.run_marker(node, spec.run, spec.cluster, spec.node)
        self._process: subprocess.Popen[bytes] | None = None
        share = spec.here or MachineShare(spec.nodes, spec.world)
        self._sampler = Sampler(spec.master.port, share.nodes, share.ranks) if spec.master else None
        # Of the head only: where its ranks have not joined, no world can form.
        has_head = self._sampler is not None and spec.node == 0 and spec.world > 1
        self._join_watch = JoinWatch(spec.join_timeout_s) if has_head else None
        self._wake = threading.Event()
        self._stop_plan = StopPlan(spec.grace_s)
        self._has_failed_rank = False
        self._last_touch = 0.0
        self._joined_ranks: set[int] = set()
        self._ending_since_utc = NEVER
        """When `_finish` began to end the run's processes (UTC seconds)."""
        self._first_stop_action_utc = NEVER
        """When the first step of a stop was taken (UTC seconds). A rank that fails later is not the reason."""
        self._started_utc = time.time()
        self._output_times = run_files.OutputTimes(self.folder)
        self._usage = UsageRecord(node, spec)
        self._has_notified_peers = False
        self.link: link.Link | None = None
        """Connects to the run's other nodes; set before `start`, since the link itself calls `handle_peer_event`."""
        self._handover: result_handover.Handover | None = None
        self._snapshots = snapshot_request.SnapshotRequests(node, spec, self._record_event, read_clocks)
        self.launched = threading.Event()
        self.launch_error: str | None = None
        """Why the launcher could not be started, as a sentence; None where it was."""
        self.preemption_reason: str | None = None
        """Why the provider preempts this machine, as a sentence; None while it does not."""
        self._has_progressed = False
        self._next_progress_check = 0.0
        self._resume_step: float | None = None
        """The step that the program started from; None until it reports its progress."""
        self.ended = threading.Event()
        self.done = threading.Event()
        self.result: dict[str, Any] | None = None
        """The document of result.json."""

    def start(self) -> None:
        """Start the thread that starts the launcher and supervises it. Set `link` before, in a run of several nodes."""
        if self.link is not None:
            self._handover = result_handover.Handover(self._node, self._spec, self.link, self.done, self._record_event)
            self.link.start()
        sink.start_heartbeat(self._node, self._spec, self.done)
        preemption_notices.watch_notices(self._node, self.done, self.preempt)
        WORKERS.start(self._run_thread, "run " + self.name)

    def _run_thread(self) -> None:
        try:
            outcome, reason = self._launch_and_watch()
        except Exception as error:
            log(f"the supervision of {self.name} failed\n{traceback.format_exc()}")
            reason = Reason("agent", f"the agent met a bug: {type(error).__name__}: {error}")
            outcome = Outcome.LOST
        try:
            self._finish(outcome, reason)
        finally:
            note_run_end(self._node)  # whatever fails, or the node would have no idle end
            self.launched.set()
            sink.store_results(self._node, self.name)
            self.done.set()
            if self._handover is not None:
                self._handover.begin()
            end_after_upload.start_watch(self._node, self.name)

    def _launch_and_watch(self) -> tuple[Outcome, Reason]:
        """Start the launcher and supervise it to its end. Returns how that came."""
        live_document = {"run": self.name, "started": self._started_utc, "boot_id": boot_id()}
        write_json(self._node.path("live.json"), live_document)
        try:
            self._process = self._launch()
        except OSError as error:
            self.launch_error = f"cannot start {(error.filename or self._spec.argv[0])}: {error.strerror}"
            return Outcome.FAILED, Reason("start", self.launch_error)
        self._record_event("started", pid=self._process.pid)
        self.launched.set()
        self._usage.start()
        if self._sampler:
            self._sampler.start()
        while self._process.poll() is None and self._supervise_once():
            self._wake.wait(SUPERVISION_INTERVAL_S)
            self._wake.clear()
        if self._sampler:
            self._sampler.stop()
        records = run_files.read_records(self.folder).values()
        return self._decide_outcome(self._process.returncode, records)

    def _launch(self) -> subprocess.Popen[bytes]:
        tokens = command_and_environment.token_values(program_argv(), self.folder)
        marker = {
            "GPUOPS_RUN": self._marker.run,
            "GPUOPS_STOP_FILE": self._marker.stop_file,
            "GPUOPS_SNAPSHOT_FILE": os.path.join(self.folder, run_files.SNAPSHOT_FILE),
            "GPUOPS_PROGRESS": os.path.join(self.folder, run_files.PROGRESS_FILE),
            "GPUOPS_NODE": str(self.node_index),
        }
        with self._open_run_file("launcher.out") as out, self._open_run_file("launcher.err") as errors:
            return processes.start_child(
                command_and_environment.build_command(self._spec, tokens),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                cwd=self._node.tree(self._spec.tree),
                env=command_and_environment.build_environment(os.environ, self._spec, self._secrets, tokens, marker),
            )

    def _open_run_file(self, name: str) -> BinaryIO:
        return open_append(os.path.join(self.folder, name))

    def _decide_outcome(self, returncode: int | None, records: Collection[RankRecord]) -> tuple[Outcome, Reason]:
        return decide_outcome(self._spec.kind, returncode, records, self._stop_plan.first, self._first_stop_action_utc)

    # While the run is live.

    def _supervise_once(self) -> bool:
        """Check once everything that the run's processes show. Returns False when it is time to kill them."""
        processes.reap_orphans()
        now = time.monotonic()
        if now - self._last_touch >= TOUCH_INTERVAL_S:
            self._node.touch()
            self._last_touch = now
        self._output_times.check()
        self._usage.check()
        self._check_first_step(now)
        records = run_files.read_records(self.folder)
        self._check_joined(records.values())
        self._check_failure(records.values(), now)
        self._check_unjoined(records.values(), now)
        reason = self._snapshots.due()
        if reason is not None:
            self._request_snapshot(reason)
        return self._take_stop_steps(now)

    def _check_joined(self, records: Collection[RankRecord]) -> None:
        if self._sampler is None:
            return
        joined = self._sampler.watch({record.rank: record.pid for record in records if record.pid and not record.ended})
        for rank in sorted(joined - self._joined_ranks):
            self._record_event("joined", rank=rank)
        self._joined_ranks = joined

    def _check_unjoined(self, records: Collection[RankRecord], now: float) -> None:
        """Remark on a run in which no rank joins the others, and end it where it stands idle for too long."""
        if self._join_watch is None or self._sampler is None or not self._join_watch.is_due(now):
            return
        if self._joined_ranks:
            self._join_watch = None
            return
        living = [record.rank for record in records if record.pid and not record.ended]
        if not living or any(self._sampler.joined(rank) is not False for rank in living):
            return  # not known
        pids = processes.run_processes([self._marker])
        action = self._join_watch.check(
            now, self._output_times.total_bytes, process_table.cpu_seconds(pids), process_table.file_bytes(pids)
        )
        if action == JoinAction.REMARK:
            self._record_event("unjoined")
        elif action == JoinAction.END:
            self._join_watch = None
            minutes = (self._spec.join_timeout_s or 0.0) / 60
            say = f"no rank had joined the others, and nothing was printed or worked on for {minutes:g} min"
            self.stop_everywhere(StopMode.GRACEFUL, Reason("unjoined", say))

    def _check_failure(self, records: Collection[RankRecord], now: float) -> None:
        """Tell the other nodes of a failed rank at once; torchrun gets TORCHRUN_EXIT_LIMIT_S to exit by itself."""
        if self._has_failed_rank or first_failure(records, self._first_stop_action_utc) is None:
            return
        self._has_failed_rank = True
        outcome, reason = self._decide_outcome(None, records)
        self._record_event("failed", reason=reason.document())
        self._notify_peers_of_end(outcome, reason)
        self._stop_plan.end_after(TORCHRUN_EXIT_LIMIT_S, now)

    def _check_first_step(self, now: float) -> None:
        """Record once that the program has passed the step it started from: a resumed run has then progressed."""
        if self._has_progressed or now < self._next_progress_check:
            return
        self._next_progress_check = now + PROGRESS_CHECK_INTERVAL_S
        progress = run_files.read_progress(self.folder) or {}
        step = progress.get("step")
        if step is None:
            return
        if self._resume_step is None:
            self._resume_step = step if progress.get("saved") == step else step - 1
        if step > self._resume_step:
            self._has_progressed = True
            self._record_event("stepped", step=step)

    def _take_stop_steps(self, now: float) -> bool:
        """Take the steps of a stop that are due; False for the last, SIGKILL."""
        for action in self._stop_plan.take_due(now):
            self._first_stop_action_utc = min(self._first_stop_action_utc, time.time())
            if action == StopAction.KILL:
                return False
            self._signal_processes(action)
        return True

    def _signal_processes(self, action: StopAction) -> None:
        pids = processes.run_processes([self._marker]) - self._wrapper_pids()
        self._record_event(action.value, processes=len(pids))
        if action == StopAction.TERM:
            processes.send_signal(pids, signal.SIGTERM)
            return
        try:
            with self._open_run_file("stop"):
                pass  # the file's existence is the message
        except OSError as error:
            log(f"the stop of {self.name} is told by signals only: {error}")  # a full disk must not end it as lost
        handlers = (pid for pid in pids if process_table.handles_signal(pid, signal.SIGUSR1))
        processes.send_signal(handlers, signal.SIGUSR1)

    def _request_snapshot(self, reason: Reason) -> None:
        """Ask for a snapshot on all nodes: rank 0, which usually writes it, may be on another one."""
        goes_on = self._stop_plan.first is None and self._ending_since_utc == NEVER
        if goes_on and self._snapshots.ask(reason) and self.link is not None:
            self.link.send_event(SnapshotRequested(self.node_index, time.time(), reason).document())

    def look(self) -> None:
        """Check now, and not after the interval."""
        self._wake.set()

    # Requests to stop the run.

    def stop_everywhere(self, mode: StopMode, reason: Reason, outcome: Outcome = Outcome.STOPPED) -> None:
        """Stop the run here and on the other nodes: for a person, the lease or the agent."""
        self._request_stop(StopRequest(reason, mode, outcome, overrides=mode == StopMode.NOW))
        if self.link is not None:
            self.link.send_event(StopRequested(self.node_index, reason.say, mode).document())

    def preempt(self, notice: preemption_notices.Notice) -> None:
        """Stop the run everywhere before this machine is taken back; where it only may be, ask for a snapshot."""
        reason = preemption_notices.notice_reason(notice, self.node_index)
        self._record_event("notice", reason=reason.document())
        if notice.kind != "reclaim":
            self._request_snapshot(reason)
            return
        self.preemption_reason = reason.say
        now = time.time()
        within_s = preemption_notices.stop_within_s(notice, now)
        left_s = preemption_notices.remaining_s(notice.at, now)
        sink.set_deadline(now + left_s)
        if self._handover is not None:
            self._handover.note(self.node_index, left_s)
        self._request_stop(StopRequest(reason, within_s=within_s))
        if self.link is not None:
            event = StopRequested(self.node_index, reason.say, StopMode.GRACEFUL, reason, within_s, left_s)
            self.link.send_event(event.document())

    def handle_peer_event(self, message: Mapping[str, Any]) -> None:
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
        if self._stop_plan.add(request, time.monotonic()):
            self._record_event("stopping", how=request.mode, reason=request.reason.document())
            self._wake.set()

    # The end of the run.

    def _finish(self, outcome: Outcome, reason: Reason) -> None:
        """End every process of the run, then write its result."""
        self._ending_since_utc = time.time()
        self._stop_plan.close()
        self._notify_peers_of_end(outcome, reason)
        try:
            remaining_processes: int | None = self._end_processes()
        except Exception:
            log(f"the processes of {self.name} could not be ended\n{traceback.format_exc()}")
            remaining_processes = None
        self._output_times.check(last=True)
        self._usage.close()
        self._record_event("ended", outcome=outcome, left=remaining_processes, reason=reason.document())
        returncode = self._process.returncode if self._process else None
        stopped_at = min(self._ending_since_utc, self._first_stop_action_utc)
        end = RunEnd(outcome, reason, self._started_utc, returncode, stopped_at, remaining_processes)
        has_joined = self._sampler.joined if self._sampler else lambda _rank: None
        self.result = result_document(self._spec, self.folder, end, has_joined)
        run_files.write_result(self.folder, self.result)
        self.ended.set()

    def _end_processes(self) -> int:
        """End every process of the run. Returns how many could not be ended."""
        is_killed = self._process is not None and self._process.returncode is None
        remaining_processes = processes.end_all(
            lambda: processes.run_processes([self._marker]),
            term_grace_s=0.0 if is_killed else processes.TERM_GRACE_S,
            recorders=self._wrapper_pids,
        )
        if self._process is not None and remaining_processes == 0:
            self._process.wait()
        return remaining_processes

    def _notify_peers_of_end(self, outcome: Outcome, reason: Reason) -> None:
        """Tell the other nodes, once, how the run ended here."""
        if self.link is not None and not self._has_notified_peers:
            self._has_notified_peers = True
            self.link.send_event(RunEnded(self.node_index, outcome, reason).document())
            self.link.close()

    def _wrapper_pids(self) -> set[int]:
        """The living rank wrappers, which record how the ranks ended."""
        records = run_files.read_records(self.folder).values()
        return {record.wrapper for record in records if record.wrapper and record.ended is None}

    def _record_event(self, kind: str, **data: Any) -> None:
        run_files.record_event(self.folder, kind, **data)
