"""Following a run: one mirror of logs per node, which reconnects after any number of cuts, until every node has ended.

`Follower` holds the mirrors; `make_follower` makes one for a run of the ledger, which asks the provider about machines.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpuops.core.context import Context
from gpuops.core.errors import ConnectionLost, GpuopsError, MalformedAnswer, NodeError, NodeRefused
from gpuops.core.format import span
from gpuops.core.models import Resource
from gpuops.core.polling import Clock
from gpuops.core.provider import Provisioner
from gpuops.ledger.store import ClusterRow, RunRow
from gpuops.nodes.session import ClusterSession, end_reason, readmit_this_computer, virtual_node_ended
from gpuops.runs.outcome.node_report import NodeReport, ReasonKind, lost_report, parse_report
from gpuops.runs.spec import request_of
from gpuops.sync.download import mirror
from gpuops.sync.run_folder import RunHome

OnBytes = Callable[[int, str, int, bytes], None]

UNREACHABLE_TIMEOUT_S = 3600.0
"""How long to reconnect to an unreachable node while nothing else says that the run is over."""
LAST_NODE_TIMEOUT_S = 30.0
"""The same once every other node has ended."""
BLAMED_NODE_TIMEOUT_S = 10.0
"""The same where the others report that they were stopped because of that node."""
RECONNECT_INTERVAL_S = 0.5
SLOW_RECONNECT_INTERVAL_S = 5.0
"""The interval once a node has been unreachable for that long."""
GATHER_INTERVAL_S = 0.02
"""How long bytes that arrive together are gathered, to be shown together; it also limits how often logs are read."""
REMINDER_INTERVAL_S = 60.0
"""How often the user is reminded that a node does not answer."""
ADMISSION_INTERVAL_S = 60.0
"""How often a provider is asked to let this computer in while a node does not answer."""
NONSENSE_ANSWERS_MAX = 3
"""How often a node may answer nonsense before its report is given up."""
FINAL_REFUSALS = ("ended", "no-node", "no-run")
"""Kinds of refusal that a retry does not change; any other may come from a node that is still starting."""


class Follower:
    """Threads that bring every byte of a run's logs home and wait for each node's report.

    `nodes` is how many of the cluster's nodes the run uses. `gone(i)` is called when node i is unreachable: True means
    that its provider says it no longer exists; `how_ended(i)` then returns what else it says (`say`, `reclaimed`).
    `admit` is called when a node stays unreachable: this computer may have another address by now, which the
    provider's firewall does not know. No method raises.
    """

    def __init__(
        self,
        live: ClusterSession,
        run: str,
        home: RunHome,
        nodes: int,
        *,
        on_bytes: OnBytes,
        say: Callable[[str], None],
        clock: Clock,
        gone: Callable[[int], bool],
        how_ended: Callable[[int], Mapping[str, Any]] = lambda _: {},
        admit: Callable[[], object] = lambda: None,
    ) -> None:
        self.live = live
        self.run = run
        self.home = home
        self.reports: dict[int, NodeReport] = {}
        self._nodes = nodes
        self._on_bytes = on_bytes
        self._say = say
        self._clock = clock
        self._gone = gone
        self._how_ended = how_ended
        self._admit = admit
        self._quit = threading.Event()
        self._changed = threading.Condition()
        self._news = False
        """Whether bytes have come since the last `watch`."""
        self._ended_at = 0.0
        """When the last report of a node came (monotonic)."""
        self._unreachable: dict[int, float] = {}
        """Since when a node cannot be followed (monotonic)."""
        self._reminded: dict[int, float] = {}
        """When the user was last told so (monotonic)."""
        self._nonsense: dict[int, int] = {}
        """How often a node has answered nonsense."""
        self._threads = [
            threading.Thread(target=self._follow, args=(index,), daemon=True, name=f"follow node{index}")
            for index in range(nodes)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def quit(self) -> None:
        """Stop following; the run goes on. The threads end with their connections."""
        self._quit.set()

    def wait(self, timeout: float) -> bool:
        """Whether every node has ended, after at most `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self.has_ended, timeout)

    def watch(self, timeout: float) -> bool:
        """As `wait`, but returns earlier when bytes have come."""
        with self._changed:
            self._changed.wait_for(lambda: self._news or self.has_ended, timeout)
            news, self._news = self._news, False
        if news:
            self._clock.sleep(GATHER_INTERVAL_S)
        return self.has_ended

    @property
    def has_ended(self) -> bool:
        """Whether every node has a report."""
        return len(self.reports) == self._nodes

    def _hear(self, index: int, stream: str, offset: int, data: bytes) -> None:
        self._on_bytes(index, stream, offset, data)
        with self._changed:
            self._news = True
            self._changed.notify_all()

    def abandon(self) -> None:
        """Report as lost the nodes that are unreachable now."""
        for index in list(self._unreachable):
            self._ended(index, lost_report(index, f"node{index} could not be reached", ReasonKind.UNREACHABLE))

    def _follow(self, index: int) -> None:
        try:
            self._seek(index)
        except Exception as error:  # without a report the run would be followed for ever
            say = f"following node{index} failed: {type(error).__name__}: {error}"
            self._ended(index, lost_report(index, say, ReasonKind.UNREACHABLE))

    def _seek(self, index: int) -> None:
        while not (self._quit.is_set() or index in self.reports):
            try:
                result = mirror(self.live.clients[index], self.run, index, self.home, True, self._hear)
                if result is not None:
                    self._answers(index)
                    return self._ended(index, parse_report(index, result))
                # The stream ended without the run having ended: look again.
                trouble: GpuopsError = NodeError(f"node{index} stopped talking")
            except GpuopsError as error:
                trouble = error
            if self._quit.is_set():
                return None
            since = self._unreachable.setdefault(index, self._clock.monotonic())
            if report := self._given_up(index, since, trouble) or self._reconnect(index, since, trouble):
                return self._ended(index, report)
        return None

    def _given_up(self, index: int, since: float, trouble: GpuopsError) -> NodeReport | None:
        if final := self._final(index, trouble):
            return final
        now = self._clock.monotonic()
        away = now - since
        others_ended = len(self.reports) == self._nodes - 1 and self._nodes > 1
        if away > 2 * RECONNECT_INTERVAL_S and self._gone(index):
            return self._over(index, f"node{index} ended without a word")
        patience = BLAMED_NODE_TIMEOUT_S if self._is_condemned(index) else LAST_NODE_TIMEOUT_S
        if away > UNREACHABLE_TIMEOUT_S or (others_ended and now - max(since, self._ended_at) > patience):
            return lost_report(
                index, f"node{index} could not be reached for {span(away)}: {trouble.say}", ReasonKind.UNREACHABLE
            )
        return None

    def _is_condemned(self, index: int) -> bool:
        reasons = [report.reason for report in list(self.reports.values())]
        return any(reason.kind == ReasonKind.GANG and reason.origin == index for reason in reasons)

    def _final(self, index: int, trouble: GpuopsError) -> NodeReport | None:
        """The report of a node whose agent will never give one. A machine that lives is called unreachable: its
        disk may still hold results."""
        if isinstance(trouble, MalformedAnswer):
            self._nonsense[index] = self._nonsense.get(index, 0) + 1
            return (
                lost_report(index, trouble.say, ReasonKind.NONSENSE)
                if self._nonsense[index] >= NONSENSE_ANSWERS_MAX
                else None
            )
        if not isinstance(trouble, NodeRefused) or trouble.kind not in FINAL_REFUSALS:
            return None
        if trouble.kind == "no-run":
            return lost_report(index, trouble.say, ReasonKind.NEVER_STARTED)
        if not self._gone(index):
            return lost_report(index, trouble.say, ReasonKind.UNREACHABLE)
        return self._over(index, f"node{index} ended without a word" if trouble.kind == "no-node" else trouble.say)

    def _over(self, index: int, say: str) -> NodeReport:
        """The report of a node whose machine has ended; its provider's words replace ours."""
        ending = self._how_ended(index)
        if ending:
            self._say(f"node{index} is gone: {ending['say']}")
        return lost_report(index, say, ReasonKind.ENDED, ending)

    def _reconnect(self, index: int, since: float, trouble: GpuopsError) -> NodeReport | None:
        """Wait, and reconnect. Returns a report where the node answers that its run has ended without one."""
        away = self._clock.monotonic() - since
        self._remind(index, away, trouble)
        self._quit.wait(RECONNECT_INTERVAL_S if away < SLOW_RECONNECT_INTERVAL_S else SLOW_RECONNECT_INTERVAL_S)
        if not isinstance(trouble, NodeError):
            return None  # the node is well: the trouble is on this computer
        try:
            self.live.reconnect(index).call("ping")
        except GpuopsError as error:
            return self._final(index, error)
        if isinstance(trouble, ConnectionLost):
            self._answers(index)
        return None

    def _remind(self, index: int, away: float, trouble: GpuopsError) -> None:
        now = self._clock.monotonic()
        if (
            away > SLOW_RECONNECT_INTERVAL_S
            and now - self._reminded.get(index, -REMINDER_INTERVAL_S) >= REMINDER_INTERVAL_S
        ):
            self._reminded[index] = now
            if isinstance(trouble, ConnectionLost):
                self._admit()
            self._say(
                f"node{index} does not answer; the run goes on without this computer, trying again"
                if isinstance(trouble, NodeError)
                else f"node{index} cannot be followed: {trouble.say}; trying again"
            )

    def _answers(self, index: int) -> None:
        self._unreachable.pop(index, None)
        if self._reminded.pop(index, None) is not None:
            self._say(f"node{index} answers again")

    def _ended(self, index: int, report: NodeReport) -> None:
        with self._changed:
            if index not in self.reports:
                self.reports[index] = report
                self._ended_at = self._clock.monotonic()
            self._unreachable.pop(index, None)
            self._changed.notify_all()


def make_follower(
    ctx: Context, live: ClusterSession, row: RunRow, on_bytes: OnBytes, say: Callable[[str], None]
) -> Follower:
    """A Follower of a run of the ledger, which asks the cluster's provider about nodes that do not answer."""
    provider = ctx.provisioner_of(live.row)

    def gone(index: int) -> bool:
        machine = live.machines[index]
        try:
            return provider.describe(machine).status.has_ended or virtual_node_ended(live.row, machine, index)
        except GpuopsError:
            return False  # a provider that does not answer says nothing about its machine

    return Follower(
        live,
        row.name,
        RunHome(row.home),
        request_of(row).nodes,
        on_bytes=on_bytes,
        say=say,
        clock=ctx.clock,
        gone=gone,
        how_ended=lambda index: _how_ended(provider, live.machines[index]),
        admit=_Admission(ctx, live.row, ctx.ledger.resources(live.row.id)),
    )


def _how_ended(provider: Provisioner, machine: Resource) -> Mapping[str, Any]:
    try:
        return end_reason(provider.describe(machine))
    except GpuopsError:
        return {}


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
