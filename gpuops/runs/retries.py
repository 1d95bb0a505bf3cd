"""`--retries`: a job whose machines were preempted goes on with others, within the limits of the whole job; one that
failed on machines that stay is started again there (`find_own_failure`).

`find_ended_machine` tells a machine that ended before its run from what a user did wrong; `find_preemption` reads from
a run's outcome what was lost; `run_with_retries` makes the next attempt. `RetryState` is what the attempts share.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuops.core.context import Context
from gpuops.core.errors import ConnectionLost, GpuopsError, Interrupted, MachineGone, NodeError
from gpuops.core.format import span
from gpuops.core.polling import Poller
from gpuops.core.provider import is_rented
from gpuops.core.run_models import Verdict, VerdictOutcome
from gpuops.ledger.rows import ClusterState
from gpuops.ledger.store import ClusterRow, RunRow
from gpuops.nodes.session import ClusterSession
from gpuops.offers import lease_limits
from gpuops.offers.lease_limits import MIN_LEASE_S, LeaseLimits
from gpuops.offers.price_approval import PriceApproval
from gpuops.runs import receipt
from gpuops.runs.finish import RunOutcome
from gpuops.runs.logs.events import first_event_time
from gpuops.runs.outcome.failure_cause import final_words
from gpuops.runs.outcome.node_report import NodeReport, ReasonKind
from gpuops.sync.merged_outputs import list_outputs

ENDED_MACHINE_TIMEOUT_S = 30.0
"""How long a provider may take to say of a machine that has stopped answering that it has ended."""
ENDED_MACHINE_POLL_INTERVAL_S = 3.0


def find_ended_machine(ctx: Context, session: ClusterSession, error: NodeError) -> MachineGone | None:
    """The machine behind an error, where the provider says that it ended and no command of ours ended it."""
    timeout_s = ENDED_MACHINE_TIMEOUT_S if isinstance(error, ConnectionLost) else 0.0
    for _ in Poller.every(ctx.clock, ENDED_MACHINE_POLL_INTERVAL_S, ctx.clock.monotonic() + timeout_s):
        if ctx.ledger.cluster(session.row.id).state is not ClusterState.UP:
            return None  # another command ends it
        ended = _find_replaceable_machine(ctx, session)
        if ended or ctx.signals.count:
            return ended
    return None


def have_machines_failed(ctx: Context, session: ClusterSession, reports: Iterable[NodeReport]) -> bool:
    """Whether a rented machine has ended under its run by nobody's wish, as its provider says, and before its lease.
    Asked before nodes are told to end."""
    lease_end = ctx.ledger.cluster(session.row.id).lease.end
    is_over = lease_end is not None and lease_end - ctx.clock.now() < MIN_LEASE_S
    if is_over or not is_rented(ctx.provisioner_of(session.row)):
        return False
    ended = any(report.kind == ReasonKind.ENDED for report in reports)
    return ended and find_ended_machine(ctx, session, NodeError("a machine has ended")) is not None


def _find_replaceable_machine(ctx: Context, session: ClusterSession) -> MachineGone | None:
    provider = ctx.provisioner_of(session.row)
    for index, machine in enumerate(session.machines):
        try:
            now = provider.describe(machine)
        except GpuopsError:
            continue  # a provider that does not answer says nothing about its machine
        if now.status.is_replaceable:
            why = f": {now.why_ended}" if now.why_ended else ""
            say = f"{machine.name} ended before its run began{why}"
            per_hour = sum(one.per_hour for one in session.machines)
            return MachineGone(say, "try again, or look at the provider's console", index, session.row.id, per_hour)
    return None


@dataclass(frozen=True)
class Preemption:
    """A run whose machines were preempted, with all its results home; or machines that ended before there was a run."""

    run: str
    cluster: str
    place: str
    """Where its machines were; empty where its provider does not say."""
    node: int | None
    say: str
    """Its verdict, or how its machines ended."""
    step: int | None = None
    """The last step that it is known to have done."""
    saved: int | None = None
    """The step of its newest snapshot."""
    noticed: float | None = None
    """When the node got its provider's notice, or had ended (UTC seconds, this computer's clock)."""
    warned: bool = True
    """Whether there was a notice."""
    resumable: bool = False
    """Whether something that it saved is home."""
    started: bool = True
    """Whether there was a run; `run` is empty where there was none."""
    provider: str = ""
    reclaimed: bool = True
    """Whether its machines were taken back; otherwise they failed, or their time was over."""

    @property
    def steps_lost(self) -> int | None:
        return None if self.step is None else max(0, self.step - (self.saved or 0))

    def sentence(self) -> str:
        """`node1 was reclaimed at step 120`."""
        if not (self.started and self.reclaimed):
            return self.say
        who = "its machines were" if self.node is None else f"node{self.node} was"
        return f"{who} reclaimed" + ("" if self.step is None else f" at step {self.step}")


@dataclass
class Loss:
    """A preemption whose machines are gone."""

    preemption: Preemption
    cost: float
    """What its cluster has cost, in $."""
    gap_s: float | None = None
    """Seconds from the notice, or without one from the end, to the first new step; None: not known yet."""

    @property
    def document(self) -> dict[str, Any]:
        """As in `run.json` and `--json`."""
        fields = dataclasses.asdict(self.preemption)
        return {**fields, "steps_lost": self.preemption.steps_lost, "cost": self.cost, "gap_s": self.gap_s}


@dataclass
class RetryState:
    """What the attempts of one job share."""

    retries: int = 0
    approval: PriceApproval = field(default_factory=PriceApproval)
    losses: list[Loss] = field(default_factory=list)
    resume: str | None = None
    """The last run that left something to resume from."""
    restarts: int = 0
    """How often a run that failed by itself was started again."""
    until: float | None = None
    """Until when the job may go on, once machines of it were lost (UTC seconds)."""

    @property
    def spent(self) -> float:
        """What the preempted clusters have cost, in $."""
        return sum(loss.cost for loss in self.losses)

    @property
    def documents(self) -> list[dict[str, Any]]:
        """The losses as in `run.json` and `--json` (key `retries`)."""
        return [loss.document for loss in self.losses]

    @property
    def lost_by(self) -> list[str]:
        """The providers that lost machines, the latest last."""
        return [*dict.fromkeys(loss.preemption.provider for loss in reversed(self.losses))][::-1]

    @property
    def used(self) -> int:
        """How many retries were made."""
        return len(self.losses) + self.restarts

    @property
    def left(self) -> int:
        """How many retries are left."""
        return self.retries - self.used

    def add(self, loss: Preemption, cost: float) -> None:
        """Note a preemption whose machines are gone."""
        self.losses.append(Loss(loss, cost))
        if loss.place:
            self.approval.avoided = [*(place for place in self.approval.avoided if place != loss.place), loss.place]
        if loss.resumable:
            self.resume = loss.run
        self.approval.settled, self.approval.until = True, None  # the job's own end counts, which a person may extend

    def announce(self, loss: Preemption) -> str:
        place = f"elsewhere than {loss.place}" if loss.place else "anew"
        return f"{loss.sentence()}; retry {self.used} of {self.retries}: looking for machines {place}"

    def resumed(self, first_step: float | None) -> bool:
        """Note when the run after the last preemptions did its first step (UTC seconds). Returns whether a gap became
        known by that."""
        if first_step is None:
            return False
        is_new = False
        for loss in self.losses:  # several where machines ended again before a first step
            if loss.gap_s is None and loss.preemption.noticed is not None:
                loss.gap_s = max(0.0, first_step - loss.preemption.noticed)
                is_new = True
        return is_new


def find_preemption(
    row: RunRow, cluster: ClusterRow, end: RunOutcome, *, granted: bool = False, failed: bool = False
) -> Preemption | None:
    """The preemption that ended this run; None where there was none, and while some of its results are not home: a
    retry would start without them. `granted`: its machines were granted for a time (`GrantsMachines`), and a failure of
    theirs, or the end of that time, counts as well. `failed`: as by `have_machines_failed`, which counts, too."""
    reclaimed = end.verdict.outcome is VerdictOutcome.PREEMPTED
    lost = (granted and _was_ended_by_machines(end.verdict)) or (failed and end.verdict.outcome is VerdictOutcome.LOST)
    if not (reclaimed or lost) or not end.may_destroy or end.left_in_bucket:
        return None
    resumable = bool(list_outputs(end.home))
    noticed = first_event_time(
        row,
        lambda event: (
            event.event == "notice" and event.reason is not None and event.reason.kind == ReasonKind.PREEMPTED
        ),
    )
    return Preemption(
        run=row.name,
        cluster=cluster.name,
        place=cluster.place,
        node=end.verdict.node,
        say=end.verdict.say,
        step=end.progress.get("step"),
        saved=end.progress.get("saved") if resumable else None,
        noticed=end.ended_at if noticed is None else noticed,
        warned=noticed is not None,
        resumable=resumable,
        provider=cluster.provider,
        reclaimed=reclaimed,
    )


def _was_ended_by_machines(verdict: Verdict) -> bool:
    """Whether a node was lost, or its lease was over, which ends shortly before the machines do."""
    return verdict.outcome in (VerdictOutcome.LOST, VerdictOutcome.STOPPED) and verdict.exit_code == NodeError.exit_code


@dataclass(frozen=True)
class OwnFailure:
    """A run that failed by itself, on machines that are still there, with all its results home."""

    run: str
    say: str
    """Its verdict."""
    resumable: bool
    """Whether it left something to resume from."""
    why: str = ""
    """What the program said of it, on a line; its other last words are in its log."""

    def announce(self, restart: int, restarts: int, cluster: str) -> str:
        how = f"from what {self.run} left" if self.resumable else "from the beginning: it left nothing to resume from"
        said = f": {self.why}" if self.why else ""
        return f"{self.say}{said}; retry {restart} of {restarts} on {cluster}, {how}"


def find_own_failure(row: RunRow, end: RunOutcome) -> OwnFailure | None:
    """The failure that ended a run by itself; None where anything else did, and while some of its results are not
    home: a retry would start without them."""
    if end.verdict.outcome is not VerdictOutcome.FAILED or not end.may_destroy or end.left_in_bucket:
        return None
    return OwnFailure(row.name, end.verdict.say, bool(list_outputs(end.home)), final_words(end.verdict.tail))


def preemption_before_run(cluster: ClusterRow, error: MachineGone, now: float) -> Preemption:
    """The preemption of machines that ended before there was a run. `now`: when that was noticed (UTC seconds)."""
    return Preemption(
        "",
        cluster.name,
        cluster.place,
        error.node,
        error.message,
        noticed=now,
        warned=False,
        started=False,
        provider=cluster.provider,
    )


def final_cost(row: ClusterRow, per_hour: float) -> float:
    """What a cluster that is gone has cost, in $, at the higher of the offered price and its machines' own, with what
    its command had spent before on machines that were given back."""
    rate = max(per_hour, row.offered_per_hour)
    return row.spent_before + lease_limits.money_spent(rate, row.created, row.ended or row.created)


def remaining_limits(
    wish: LeaseLimits, row: ClusterRow, spent: float, now: float, *, granted: bool = False
) -> tuple[LeaseLimits, str]:
    """The job's limits after the cluster `row`, and, where they are too small for another machine, why. What is
    granted for a time (`GrantsMachines`) is granted again for the same."""
    if granted:
        return wish, ""
    until = _job_end(wish, row)
    if until is not None and until - now < MIN_LEASE_S:
        least = span(MIN_LEASE_S)
        return wish, f"the job may go on for less than {least}: --max-hours counts from its first machines"
    limits, why = lease_limits.limits_after(wish, spent, row.offered_per_hour)
    return (wish, why) if why else (dataclasses.replace(limits, until=until), "")


def _job_end(wish: LeaseLimits, row: ClusterRow) -> float | None:
    """Until when the job may go on: as was wished, or as a person has extended it since. An earlier end is that of
    these machines alone: their offer ended by itself, or the balance at their provider."""
    wished = lease_limits.new_lease(wish, rented=True, per_hour=0.0, now=row.ready or row.created).hard_end
    return max((end for end in (wished, row.lease.hard_end) if end is not None), default=None)


@dataclass
class JobOutcome:
    """The end of a job: its exit code, and what is printed last."""

    exit_code: int
    document: Mapping[str, Any]
    last: Sequence[str] = ()
    loss: Preemption | None = None
    """The machines were preempted, and may be replaced."""
    gone: ClusterRow | None = None
    """Their cluster, once nothing of it is left."""
    cost: float = 0.0
    """What that cluster has cost, in $."""
    error: MachineGone | None = None
    """Where they ended before there was a run."""
    finished: int | None = None
    """The run's number in the ledger, where its machines hold nothing of it any more."""
    record_again: Callable[[], None] | None = None
    """As in `RunOutcome`."""
    taken: bool = False
    """Another command has ended the run, to end its cluster."""
    failure: OwnFailure | None = None
    """The run failed by itself, and may be started again where it ran."""


Attempt = Callable[[LeaseLimits, str | None], JobOutcome]
"""One run on one cluster, within limits, resuming from a run."""


def run_with_retries(ctx: Context, chain: RetryState, wish: LeaseLimits, attempt: Attempt) -> JobOutcome:
    """The outcome of the last attempt. Raises GpuopsError where there never was a run."""
    outcome = _attempt_once(ctx, chain, wish, attempt, JobOutcome(0, {}))
    while outcome.loss is not None:
        outcome = _retry(ctx, chain, wish, attempt, outcome, outcome.loss)
    return outcome


def _attempt_once(
    ctx: Context, chain: RetryState, wish: LeaseLimits, attempt: Attempt, before: JobOutcome
) -> JobOutcome:
    """An attempt. Machines that ended before there was a run count as preempted once nothing of them is left."""
    try:
        return attempt(wish, chain.resume)
    except MachineGone as error:
        row = None if error.cluster is None else ctx.ledger.cluster(error.cluster)
        if not chain.retries or ctx.signals.count or row is None or row.state is not ClusterState.GONE:
            raise
        loss = preemption_before_run(row, error, ctx.clock.now())
        cost = final_cost(row, error.per_hour)
        return JobOutcome(error.exit_code, before.document, before.last, loss, row, cost, error)


def _retry(
    ctx: Context, chain: RetryState, wish: LeaseLimits, attempt: Attempt, before: JobOutcome, loss: Preemption
) -> JobOutcome:
    """The next attempt of a job whose machines were preempted. Where there may be none, `before` stands."""
    assert before.gone is not None
    spent, granted = chain.spent + before.cost, ctx.provisioner_of(before.gone).grants_machines
    wish = dataclasses.replace(wish, until=chain.until)
    rest, why = remaining_limits(wish, before.gone, spent, ctx.clock.now(), granted=granted)
    chain.until = rest.until
    if chain.left <= 0:
        why = f"--retries {chain.retries} is used up"
    if why or ctx.signals.count:
        last = [*before.last, *([f"not tried again: {why}"] if why else [])]
        before = dataclasses.replace(before, last=last, loss=None)
        return _failed_outcome(ctx, before, chain, before.error, spent) if before.error else before
    ctx.signals.forward()
    chain.add(loss, before.cost)
    ctx.out.say(chain.announce(loss))
    try:
        return _attempt_once(ctx, chain, rest, attempt, before)
    except GpuopsError as error:
        return _failed_outcome(ctx, before, chain, error, chain.spent + chain.approval.spent_before)
    except Interrupted:
        if chain.resume:
            ctx.out.say(f"what {chain.resume} saved is home: --resume {chain.resume} goes on from it")
        raise


def _failed_outcome(
    ctx: Context, before: JobOutcome, chain: RetryState, error: GpuopsError, spent: float
) -> JobOutcome:
    """The outcome of a job that got no other machines, or lost them again. Raises `error` where it never had a run: it
    has no receipt then, so what its machines have cost (`spent`, in $) is printed here."""
    if not before.document:
        ctx.out.say(receipt.format_cost_without_run(spent))
        error.message = "; ".join([error.message, *before.last])
        raise error
    go_on = f"go on from what is home: --resume {chain.resume}" if chain.resume else ""
    hint = "; ".join(filter(None, (error.hint, go_on)))
    shown = {"say": error.message, "hint": hint}
    document = {**before.document, "retries": chain.documents, "error": shown, "exit_code": error.exit_code}
    last = [*before.last, f"error: {error.message}\nhint: {hint}"]
    return JobOutcome(error.exit_code, document, last)
