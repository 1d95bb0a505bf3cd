"""One run on this node, from its first process until none is left and result.json says how it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
import traceback
from typing import Any, Mapping

from gpuops.agent import processes, run_files
from gpuops.agent.gang import handover, link
from gpuops.agent.lease import boot_id, read_clocks
from gpuops.agent.node import Node, log, program, write_json
from gpuops.agent.processes import catches
from gpuops.agent.retain import early_end, sink
from gpuops.agent.run import launcher, preemption, snapshot_request
from gpuops.agent.run.log_times import Times
from gpuops.agent.run.rendezvous import Sampler
from gpuops.agent.run.result import Step, Stop, decide, first_failure, hastened, ladder, result

STEP_LOOK_S = 1.0
"""How often is looked for a run's first step."""
LOOK_S = 0.2
TOUCH_S = 15.0
GANG_S = 3.0
"""How long the ranks here may take to end by themselves after another node's failure, in seconds: who was
the culprit is told by how each rank ended, and it may be one of ours that is slow to leave."""
FAILED_S = 5.0
"""How long torchrun may take to end by itself after one of its ranks failed, in seconds."""


class Supervisor:
    """`launched` is set when the launcher runs or could not be started (`failure`), `done` with result.json."""

    def __init__(self, node: Node, spec: Mapping[str, Any], secrets: Mapping[str, str]) -> None:
        self._node = node
        self._spec = spec
        self._secrets = secrets
        self.name: str = spec["run"]
        self.folder = node.run(spec["run"])
        self._marker = run_files.marker(node, spec)
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
        self._acted = float("inf")
        """When the first step of a stop was taken (UTC seconds)."""
        self._started = time.time()
        self._times = Times(self.folder)
        self._told = False
        self.node_index: int = spec["node"]
        self.link: link.Link | None = None
        self._handover: handover.Handover | None = None
        self._saving = snapshot_request.Saving(node, spec, self._event, read_clocks)
        self.launched = threading.Event()
        self.failure: str | None = None
        self.taken_back: str | None = None
        """That this machine's provider takes it back, in words."""
        self._stepped = False
        self._step_look = 0.0
        self._began_at: float | None = None
        """The step that the run goes on from, once it has told of one."""
        self.done = threading.Event()
        self.result: dict[str, Any] | None = None
        """What result.json says; here too, since the disk may be full."""

    def begin(self) -> None:
        """Start the launcher, in a thread of this run's own."""
        if self.link is not None:
            self._handover = handover.Handover(self._node, self._spec, self.link, self.done, self._event)
            self.link.begin()
        sink.beat(self._node, self._spec, self.done)
        preemption.watch(self._node, self.done, self.notice)
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
            sink.keep(self._node, self.name)
            self.done.set()
            if self._handover is not None:
                self._handover.begin()
            early_end.watch(self._node, self.name)

    def _live(self) -> None:
        noted = {"run": self.name, "started": self._started, "boot_id": boot_id()}
        write_json(self._node.path("live.json"), noted)
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
        while self._process.poll() is None and self._keep_on():
            self._wake.wait(LOOK_S)
            self._wake.clear()
        if self._sampler:
            self._sampler.end()
        code, records = self._process.returncode, self._records().values()
        self._finish(*decide(self._spec["kind"], code, records, self._stop, self._acted))

    def _launch(self) -> subprocess.Popen[bytes]:
        tokens = launcher.tokens(program(), self.folder)
        marker = {
            "GPUOPS_RUN": self._marker.run,
            "GPUOPS_STOP_FILE": self._marker.stop_file,
            "GPUOPS_SNAPSHOT_FILE": os.path.join(self.folder, run_files.SNAPSHOT),
            "GPUOPS_PROGRESS": os.path.join(self.folder, run_files.PROGRESS),
            "GPUOPS_NODE": str(self.node_index),
        }
        with self._open("launcher.out") as out, self._open("launcher.err") as errors:
            return processes.start(
                launcher.command(self._spec, tokens),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                cwd=self._node.tree(self._spec["tree"]),
                env=launcher.environment(os.environ, self._spec, self._secrets, tokens, marker),
            )

    def _open(self, name: str) -> Any:
        path = os.path.join(self.folder, name)
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")

    # What happens while it lives.

    def _keep_on(self) -> bool:
        """One look at everything; False when the time has come to kill."""
        processes.reap()
        now = time.monotonic()
        if now - self._touched >= TOUCH_S:
            self._node.touch()
            self._touched = now
        self._times.look()
        self._notice_step(now)
        records = self._records()
        self._notice_joined(records)
        self._notice_failure(records, now)
        due = self._saving.due()
        if due is not None:
            self._want_snapshot(due)
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
        """A failed rank is told to the other nodes at once; torchrun gets a moment to end by itself."""
        if self._rank_failed or first_failure(records.values(), self._acted) is None:
            return
        self._rank_failed = now
        outcome, reason = decide(self._spec["kind"], None, records.values(), self._stop, self._acted)
        self._event("failed", reason=reason)
        self._tell(outcome, reason)
        with self._lock:
            if not self._steps:
                self._steps, self._steps_from = ladder("now", 0.0), now + FAILED_S

    def _notice_step(self, now: float) -> None:
        """Note once when the run's own program has got further than where it began: after a resume that is news."""
        if self._stepped or now < self._step_look:
            return
        self._step_look = now + STEP_LOOK_S
        told = run_files.progress(self.folder) or {}
        step = told.get("step")
        if step is None:
            return
        if self._began_at is None:
            self._began_at = step if told.get("saved") == step else step - 1
        if step > self._began_at:
            self._stepped = True
            self._event("stepped", step=step)

    def _climb(self, now: float) -> bool:
        """Take the steps of a stop that are due; False for the last."""
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
        found = processes.of_run([self._marker]) - self._wrappers()
        self._event(do, processes=len(found))
        if do == "term":
            processes.send(found, signal.SIGTERM)
            return
        with self._open("stop"):
            pass  # its being there is the message
        processes.send((pid for pid in found if catches(pid, signal.SIGUSR1)), signal.SIGUSR1)

    def _want_snapshot(self, reason: Mapping[str, Any]) -> None:
        """The run saves a snapshot and goes on, on all nodes: rank 0, which mostly writes it, may be on another one."""
        if self._stop is None and self._clearing == float("inf") and self._saving.ask(reason) and self.link is not None:
            self.link.tell({"event": "snapshot", "node": self.node_index, "at": time.time(), "reason": reason})

    # Who may end it.

    def stop_everywhere(self, how: str, reason: Mapping[str, Any], outcome: str = "stopped") -> None:
        """A person, the lease or the agent wants it to end, here and on the other nodes."""
        self._request(how, reason, outcome, hurry=how == "now")
        if self.link is not None:
            self.link.tell({"event": "stop", "node": self.node_index, "why": reason["say"], "how": how})

    def notice(self, notice: preemption.Notice) -> None:
        """This machine's provider takes it back: the run stops everywhere before that. That it may: it saves."""
        reason = preemption.reason(notice, self.node_index)
        self._event("notice", reason=reason)
        if notice.kind != "reclaim":
            self._want_snapshot(reason)
            return
        self.taken_back = reason["say"]
        within_s, left_s = preemption.within_s(notice.at, time.time()), preemption.left_s(notice.at, time.time())
        sink.goes(time.time() + left_s)
        if self._handover is not None:
            self._handover.note(self.node_index, left_s)
        self._request("graceful", reason, "stopped", hurry=False, within_s=within_s)
        if self.link is not None:
            event = {"event": "stop", "node": self.node_index, "why": reason["say"], "how": "graceful"}
            self.link.tell({**event, "reason": reason, "within_s": within_s, "left_s": left_s})

    def hear(self, event: Mapping[str, Any]) -> None:
        """What another node says."""
        origin = event.get("node")
        if event.get("event") == "snapshot":
            self._saving.hear(event)
        elif event.get("event") == "stop":
            reason = {"kind": "gang", "say": event["why"], **(event.get("reason") or {}), "from": origin}
            how, within_s = event["how"], event.get("within_s")
            if reason["kind"] == "reclaim" and self._handover is not None:
                self._handover.note(reason["node"], event["left_s"])
            self._request(how, reason, "stopped", hurry=how == "now", within_s=within_s)
        elif event.get("event") == "ended" and event["outcome"] != "done":
            say = f"node{origin}: {event['reason'].get('say', event['outcome'])}"
            self._request("now", {"kind": "gang", "from": origin, "say": say}, "stopped", hurry=False, delay_s=GANG_S)

    def _request(
        self,
        how: str,
        reason: Mapping[str, Any],
        outcome: str,
        hurry: bool,
        delay_s: float = 0.0,
        within_s: float | None = None,
    ) -> None:
        """Begin a stop; the first reason stays. One that has begun is shortened only by a person's `now`, and where
        there is no more time for it (`within_s`)."""
        with self._lock:
            if self._clearing < float("inf"):
                return  # it is over already
            if self._stop is None:
                self._stop = Stop(outcome, reason)
            elif within_s is not None:
                self._steps = hastened(self._steps, time.monotonic() - self._steps_from + within_s)
                return
            elif not hurry or self._how == "now":
                return
            self._how = how if not delay_s else "soon"
            self._steps = ladder(how, self._spec.get("grace_s", 10.0), within_s)
            self._steps_from = time.monotonic() + delay_s
            self._event("stopping", how=how, reason=reason)
        self._wake.set()

    # How it ends.

    def _finish(self, outcome: str, reason: Mapping[str, Any]) -> None:
        with self._lock:
            self._clearing = time.time()
        self._tell(outcome, reason)
        killed = self._process is not None and self._process.returncode is None
        left = processes.end_all(
            lambda: processes.of_run([self._marker]),
            polite_s=0.0 if killed else processes.POLITE_S,
            last=self._wrappers,
        )
        if self._process is not None and left == 0:
            self._process.wait()
        self._times.look(last=True)
        self._event("ended", outcome=outcome, left=left, reason=reason)
        self.result = self._result(outcome, reason, left)
        try:
            write_json(os.path.join(self.folder, "result.json"), self.result)
            self._node.touch()  # first: without `live.json` the idle end counts, and the last sign of use may be old
            os.unlink(self._node.path("live.json"))
        except OSError as error:
            log(f"the result of {self.name} is only in memory: {error}")
        self._node.touch()

    def _tell(self, outcome: str, reason: Mapping[str, Any]) -> None:
        if self.link is not None and not self._told:
            self._told = True
            event = {"event": "ended", "node": self.node_index, "outcome": outcome, "reason": dict(reason)}
            self.link.tell(event)
            self.link.close()

    def _wrappers(self) -> set[int]:
        return {record["wrapper"] for record in self._records().values() if record["ended"] is None}

    def _records(self) -> dict[int, dict[str, Any]]:
        return run_files.records(self.folder)

    def _event(self, kind: str, **data: Any) -> None:
        try:
            run_files.event(self.folder, kind, **data)
        except OSError as error:
            log(f"{self.name}: {kind} {data} could not be noted: {error}")  # a full disk must not keep a run alive

    def _result(self, outcome: str, reason: Mapping[str, Any], left: int) -> dict[str, Any]:
        stopped = min(self._clearing, self._acted)
        joined = self._sampler.joined if self._sampler else lambda _rank: None
        returncode = self._process.returncode if self._process else None
        return result(self._spec, self.folder, outcome, reason, self._started, returncode, stopped, joined, left)
