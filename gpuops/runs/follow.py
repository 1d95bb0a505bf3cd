"""Follows a run until every node has ended: a thread per node copies its logs and waits for its report.

A thread reconnects after any number of cuts. A node that stays unreachable, whose machine has ended or that answers
nonsense gets a report of its loss, so that following a run always ends. `Follower` holds the threads; `make_follower`
makes one for a run of the ledger and asks the cluster's provider about machines.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from gpuops.agent.workers import WORKERS
from gpuops.core.context import Context
from gpuops.core.errors import (
    FINAL_REFUSALS,
    ConnectionLost,
    GpuopsError,
    MalformedAnswer,
    NoAnswer,
    NodeError,
    NodeRefused,
    RefusalKind,
)
from gpuops.core.format import span
from gpuops.core.models import MachineEnd, Resource
from gpuops.core.polling import Clock
from gpuops.core.provider import Provisioner
from gpuops.ledger.store import ClusterRow, RunRow
from gpuops.nodes.has_ended import node_has_ended
from gpuops.nodes.session import ClusterSession, readmit_this_computer
from gpuops.runs.launch_spec import request_of, session_of
from gpuops.runs.outcome.node_report import NodeReport, ReasonKind, lost_report, parse_report
from gpuops.sync.log_mirror import STREAM_SILENCE_S, OnBytes, mirror
from gpuops.sync.run_folder import RunHome

UNREACHABLE_TIMEOUT_S = 3600.0
"""How long to reconnect to an unreachable node while other nodes are still running."""
LAST_NODE_TIMEOUT_S = 30.0
"""How long to reconnect to the only node without a report, counted from the last report of another."""
BLAMED_NODE_TIMEOUT_S = 10.0
"""The same where another node reports that it was stopped because that one failed."""
RECONNECT_INTERVAL_S = 0.5
SLOW_RECONNECT_INTERVAL_S = 5.0
"""The interval once a node has been unreachable for that long."""
GATHER_INTERVAL_S = 0.02
"""How long bytes that arrive together are gathered, to be shown together; it also limits how often logs are read."""
REMINDER_INTERVAL_S = 60.0
"""Time between two messages to the user that a node does not answer."""
ADMISSION_INTERVAL_S = 60.0
"""Shortest time between two requests to a provider to let this computer through its firewall."""
MAX_MALFORMED_RESPONSES = 3
"""How many malformed responses of a node end the wait for its report. They are counted over the whole run, and a good
response does not reset the count: a gpuops agent never sends one, and a hostile node could alternate them for ever."""
ANSWERING_STREAM_S = 2 * STREAM_SILENCE_S
"""A stream that lasted longer has brought messages: without any, it ends after STREAM_SILENCE_S."""


class Follower:
    """Threads that copy every byte of a run's logs to this computer and wait for each node's report.

    `node_count` is how many of the cluster's nodes the run uses. `machine_has_ended(i)` is called when node i is
    unreachable: True means that its provider reports the machine as ended; `termination_details(i)` then returns what
    else the provider reports. `admit_this_computer` is called when a node stays unreachable: this
    computer may have a new address, which the provider's firewall does not know. No method raises.
    """

    def __init__(
        self,
        session: ClusterSession,
        run: str,
        home: RunHome,
        node_count: int,
        *,
        on_bytes: OnBytes,
        say: Callable[[str], None],
        clock: Clock,
        machine_has_ended: Callable[[int], bool],
        termination_details: Callable[[int], MachineEnd | None] = lambda _: None,
        admit_this_computer: Callable[[], object] = lambda: None,
    ) -> None:
        self.session = session
        self.run = run
        self.home = home
        self.reports: dict[int, NodeReport] = {}
        self.node_count = node_count
        self._on_bytes = on_bytes
        self._say = say
        self._clock = clock
        self._machine_has_ended = machine_has_ended
        self._termination_details = termination_details
        self._admit_this_computer = admit_this_computer
        self._quit = threading.Event()
        self._changed = threading.Condition()
        self._has_new_bytes = False
        """Whether log bytes have arrived since the last `watch`."""
        self._last_report_at = 0.0
        """When the last report was stored (monotonic seconds)."""
        self._unreachable_since: dict[int, float] = {}
        """For each node that cannot be followed: since when (monotonic seconds)."""
        self._notified_at: dict[int, float] = {}
        """When the user was last notified that a node is unreachable (monotonic seconds)."""
        self._malformed_responses: Counter[int] = Counter()
        """How many malformed responses each node has sent."""

    def start(self) -> None:
        """Follow each node in a thread."""
        for index in range(self.node_count):
            WORKERS.start(partial(self._run_node_thread, index), f"follow node{index}")

    def quit(self) -> None:
        """Stop following; the run goes on. The threads end with their connections."""
        self._quit.set()

    def waits_for(self, index: int) -> bool:
        """Whether a node's report is still to come."""
        return not (self._quit.is_set() or index in self.reports)

    def wait(self, timeout: float) -> bool:
        """Whether every node has ended, after at most `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self.has_ended, timeout)

    def watch(self, timeout: float) -> bool:
        """As `wait`, but returns as soon as log bytes arrive."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_new_bytes or self.has_ended, timeout)
            has_new_bytes, self._has_new_bytes = self._has_new_bytes, False
        if has_new_bytes:
            self._clock.sleep(GATHER_INTERVAL_S)
        return self.has_ended

    @property
    def has_ended(self) -> bool:
        """Whether every node has a report."""
        return len(self.reports) == self.node_count

    @property
    def is_cut_off(self) -> bool:
        """Whether a node cannot be followed now."""
        return bool(self._unreachable_since)

    def _receive_log_bytes(self, index: int, stream: str, offset: int, data: bytes) -> None:
        self._on_bytes(index, stream, offset, data)
        self._mark_reachable(index)
        with self._changed:
            self._has_new_bytes = True
            self._changed.notify_all()

    def abandon(self) -> None:
        """Report as lost the nodes that are unreachable now."""
        for index in list(self._unreachable_since):
            self._store_report(index, lost_report(index, f"node{index} could not be reached", ReasonKind.UNREACHABLE))

    def _run_node_thread(self, index: int) -> None:
        try:
            self._follow_until_ended(index)
        except Exception as error:  # without a report the run would be followed for ever
            say = f"following node{index} failed: {type(error).__name__}: {error}"
            self._store_report(index, lost_report(index, say, ReasonKind.UNREACHABLE))

    def _follow_until_ended(self, index: int) -> None:
        """Mirror the node's logs, and reconnect after each error, until a report is stored or `quit` is called."""
        while self.waits_for(index):
            attempt_start = self._clock.monotonic()
            try:
                result = mirror(self.session.clients[index], self.run, index, self.home, True, self._receive_log_bytes)
                if result is not None:
                    self._mark_reachable(index)
                    return self._store_report(index, parse_report(index, result))
                error: GpuopsError = NodeError(f"node{index} stopped talking")  # the run has not ended: follow on
            except GpuopsError as mirror_error:
                error = mirror_error
            if self._quit.is_set():
                return None
            if self._clock.monotonic() - attempt_start > ANSWERING_STREAM_S:
                self._mark_reachable(index)
            since = self._unreachable_since.setdefault(index, self._clock.monotonic())
            self._count_malformed(index, error)
            if report := self._report_if_lost(index, since, error) or self._reconnect(index, since, error):
                return self._store_report(index, report)
        return None

    def _count_malformed(self, index: int, error: GpuopsError) -> None:
        """Called exactly once for each error, whether the logs' stream or a reconnection raised it."""
        if isinstance(error, MalformedAnswer):
            self._malformed_responses[index] += 1

    def _report_if_lost(self, index: int, since: float, error: GpuopsError) -> NodeReport | None:
        """The report of a node that is lost or unreachable for too long; None while it is worth a reconnection."""
        if report := self._report_if_final(index, error):
            return report
        now = self._clock.monotonic()
        unreachable_s = now - since
        is_last = len(self.reports) == self.node_count - 1 > 0 and isinstance(error, NodeError)
        if unreachable_s > 2 * RECONNECT_INTERVAL_S and self._machine_has_ended(index):
            return self._terminated_machine_report(index, f"node{index} ended without a word")
        timeout_s = BLAMED_NODE_TIMEOUT_S if self._is_blamed_by_peers(index) else LAST_NODE_TIMEOUT_S
        last_node_wait_s = now - max(since, self._last_report_at)
        if unreachable_s > UNREACHABLE_TIMEOUT_S or (is_last and last_node_wait_s > timeout_s):
            done = "reached" if isinstance(error, NodeError) else "followed"
            say = f"node{index} could not be {done} for {span(unreachable_s)}: {error.message}"
            return lost_report(index, say, ReasonKind.UNREACHABLE)
        return None

    def _is_blamed_by_peers(self, index: int) -> bool:
        """Whether another node reports that it was stopped because node `index` failed."""
        reasons = [report.reason for report in list(self.reports.values())]
        return any(reason.kind == ReasonKind.GANG and reason.origin == index for reason in reasons)

    def _report_if_final(self, index: int, error: GpuopsError) -> NodeReport | None:
        """The report of a node whose agent will never give one; None where a retry may help.

        A node whose machine has not ended is reported as unreachable: its disk may still hold results.
        """
        if isinstance(error, MalformedAnswer):
            is_final = self._malformed_responses[index] >= MAX_MALFORMED_RESPONSES
            return lost_report(index, error.message, ReasonKind.NONSENSE) if is_final else None
        if not isinstance(error, NodeRefused) or error.kind not in FINAL_REFUSALS:
            return None
        if error.kind == RefusalKind.NO_RUN:
            return lost_report(index, error.message, ReasonKind.NEVER_STARTED)
        if not self._machine_has_ended(index):
            return lost_report(index, error.message, ReasonKind.UNREACHABLE)
        say = f"node{index} ended without a word" if error.kind == RefusalKind.NO_NODE else error.message
        return self._terminated_machine_report(index, say)

    def _terminated_machine_report(self, index: int, say: str) -> NodeReport:
        """The report of a node whose machine has ended. The provider's sentence replaces `say`, and the user sees it
        at once."""
        details = self._termination_details(index)
        if details:
            self._say(f"node{index} is gone: {details.say}")
        return lost_report(index, say, ReasonKind.ENDED, details)

    def _reconnect(self, index: int, since: float, error: GpuopsError) -> NodeReport | None:
        """Wait for the interval and reconnect. Returns a report where the node's answer to that is final."""
        unreachable_s = self._clock.monotonic() - since
        silent_s = error.silent_s if isinstance(error, NoAnswer) else 0.0  # it was waited for already
        self._notify_unreachable(index, unreachable_s + silent_s, error)
        is_recent = unreachable_s < SLOW_RECONNECT_INTERVAL_S
        self._quit.wait(RECONNECT_INTERVAL_S if is_recent else SLOW_RECONNECT_INTERVAL_S)
        if not isinstance(error, NodeError):
            return None  # the error is this computer's: the connection is good
        try:
            self.session.reconnect(index).call("ping")
        except GpuopsError as reconnect_error:
            self._count_malformed(index, reconnect_error)
            return self._report_if_final(index, reconnect_error)
        if isinstance(error, ConnectionLost):
            self._mark_reachable(index)
        return None

    def _notify_unreachable(self, index: int, unreachable_s: float, error: GpuopsError) -> None:
        """Tell the user, at most once in REMINDER_INTERVAL_S, that a node cannot be followed."""
        now = self._clock.monotonic()
        is_due = now - self._notified_at.get(index, -REMINDER_INTERVAL_S) >= REMINDER_INTERVAL_S
        if unreachable_s <= SLOW_RECONNECT_INTERVAL_S or not is_due:
            return
        self._notified_at[index] = now
        if isinstance(error, ConnectionLost):
            self._admit_this_computer()
        self._say(
            f"node{index} does not answer; the run goes on without this computer, trying again"
            if isinstance(error, NodeError)
            else f"node{index} cannot be followed: {error.message}; trying again"
        )

    def _mark_reachable(self, index: int) -> None:
        self._unreachable_since.pop(index, None)
        if self._notified_at.pop(index, None) is not None:
            self._say(f"node{index} answers again")

    def _store_report(self, index: int, report: NodeReport) -> None:
        """Keep the first report of a node; a later one is ignored."""
        with self._changed:
            if index not in self.reports:
                self.reports[index] = report
                self._last_report_at = self._clock.monotonic()
            self._unreachable_since.pop(index, None)
            self._changed.notify_all()


def make_follower(
    ctx: Context, session: ClusterSession, row: RunRow, on_bytes: OnBytes, say: Callable[[str], None]
) -> Follower:
    """A Follower of a run of the ledger, which asks the cluster's provider about nodes that do not answer."""
    provider, session = ctx.provisioner_of(session.row), session_of(session, row)

    def machine_has_ended(index: int) -> bool:
        try:
            return node_has_ended(provider, session.row, session.machines[index], session.number(index))
        except GpuopsError:
            return False  # a provider that does not answer says nothing about its machine

    return Follower(
        session,
        row.name,
        RunHome(row.home),
        request_of(row).nodes,
        on_bytes=on_bytes,
        say=say,
        clock=ctx.clock,
        machine_has_ended=machine_has_ended,
        termination_details=lambda index: _termination_details(provider, session.machines[index]),
        admit_this_computer=_Admission(ctx, session.row, ctx.ledger.resources(session.row.id)),
    )


def _termination_details(provider: Provisioner, machine: Resource) -> MachineEnd | None:
    try:
        return provider.describe(machine).end
    except GpuopsError:
        return None


class _Admission:
    """Threads of several nodes find out at the same time that this computer's address has changed: one of them asks
    the provider to admit the new one, at most once in `ADMISSION_INTERVAL_S`."""

    def __init__(self, ctx: Context, row: ClusterRow, resources: Sequence[Resource]) -> None:
        self._ctx, self._row = ctx, row
        self._resources = resources  # read beforehand: a ledger belongs to one thread
        self._lock = threading.Lock()
        self._asked_at: float | None = None

    def __call__(self) -> None:
        with self._lock:
            now = self._ctx.clock.monotonic()
            if self._asked_at is None or now - self._asked_at > ADMISSION_INTERVAL_S:
                readmit_this_computer(self._ctx, self._row, self._resources)
                self._asked_at = self._ctx.clock.monotonic()
