"""Why a run could not begin: a machine that went before it did is another matter than what a user did wrong."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuops.core.context import Context
from gpuops.core.errors import ConnectionLost, GpuopsError, Interrupted, MachineGone, NodeError
from gpuops.core.format import money, span
from gpuops.ledger.store import ClusterRow, RunRow
from gpuops.nodes.session import ClusterSession
from gpuops.offers import lease as leases
from gpuops.offers.approval import PriceApproval
from gpuops.offers.lease import MIN_LEASE_S, LeaseLimits
from gpuops.runs import receipt
from gpuops.runs.finish import RunOutcome
from gpuops.sync import RunHome
from gpuops.sync.restore import outputs

ENDED_MACHINE_TIMEOUT_S = 30.0
"""So long a provider may take to tell that a machine is gone which does not answer any more."""
ENDED_MACHINE_POLL_INTERVAL_S = 3.0


def find_ended_machine(ctx: Context, live: ClusterSession, error: NodeError) -> MachineGone | None:
    """What stands behind an error, where their provider tells that one of the machines went by nobody's wish."""
    clock = ctx.clock
    deadline = clock.monotonic() + (ENDED_MACHINE_TIMEOUT_S if isinstance(error, ConnectionLost) else 0.0)
    while True:
        if ctx.ledger.cluster(live.row.id).state != "up":
            return None  # another command ends it
        gone = _gone(ctx, live)
        if gone or clock.monotonic() >= deadline or ctx.signals.count:
            return gone
        clock.pause(ENDED_MACHINE_POLL_INTERVAL_S, deadline)


def _gone(ctx: Context, live: ClusterSession) -> MachineGone | None:
    provider = ctx.provisioner_of(live.row)
    for index, machine in enumerate(live.machines):
        try:
            now = provider.describe(machine)
        except GpuopsError:
            continue  # who does not answer says nothing about a machine
        if now.status.is_replaceable:
            why = f": {now.why_ended}" if now.why_ended else ""
            say = f"{machine.name} ended before its run began{why}"
            return MachineGone(say, "try again, or look at the provider's console", index, live.row.id)
    return None


RECLAIMED = "reclaimed"
"""The verdict's outcome where the provider took machines back."""


@dataclass(frozen=True)
class Preemption:
    """A run whose machines were taken back, all it made being home; or machines that went before there was a run."""

    run: str
    cluster: str
    place: str
    """Where its machines were; empty where its provider does not tell."""
    node: int | None
    say: str
    """Its verdict, or how its machines went."""
    step: int | None = None
    """The last one it is known to have done."""
    saved: int | None = None
    """That of its newest snapshot."""
    noticed: float | None = None
    """When the node heard of it, or was gone (UTC seconds, this computer's clock)."""
    warned: bool = True
    """Whether it heard of it."""
    resumable: bool = False
    """Whether something that it saved is home."""
    started: bool = True
    """Whether there was a run: machines may go before there is one; `run` is empty then."""

    @property
    def steps_lost(self) -> int | None:
        return None if self.step is None else max(0, self.step - (self.saved or 0))

    def sentence(self) -> str:
        """`node1 was reclaimed at step 120`."""
        if not self.started:
            return self.say
        who = "its machines were" if self.node is None else f"node{self.node} was"
        return f"{who} reclaimed" + ("" if self.step is None else f" at step {self.step}")


@dataclass
class RetryState:
    """The runs of one job, one after another."""

    retries: int = 0
    approval: PriceApproval = field(default_factory=PriceApproval)
    losses: list[dict[str, Any]] = field(default_factory=list)
    """As `run.json` and `--json` tell them: `Loss`, `steps_lost`, `cost` and, once it is known, `gap_s`, the seconds
    from the notice, or from the end that nobody told of, to the first step after it."""
    resume: str | None = None
    """The last run that left something to go on from."""

    @property
    def spent(self) -> float:
        return sum(float(loss["cost"]) for loss in self.losses)

    @property
    def left(self) -> int:
        return self.retries - len(self.losses)

    def add(self, loss: Preemption, cost: float) -> None:
        """One more was taken back, and its machines are gone."""
        self.losses.append({**dataclasses.asdict(loss), "steps_lost": loss.steps_lost, "cost": cost, "gap_s": None})
        if loss.place:
            self.approval.avoided = [*(one for one in self.approval.avoided if one != loss.place), loss.place]
        if loss.resumable:
            self.resume = loss.run
        self.approval.settled = True

    def announce(self, loss: Preemption) -> str:
        where = f"elsewhere than {loss.place}" if loss.place else "anew"
        return f"{loss.sentence()}; retry {len(self.losses)} of {self.retries}: looking for machines {where}"

    def resumed(self, first_step: float | None) -> bool:
        """When the run after the last losses did its first step (UTC seconds). Returns whether that says anything."""
        waiting = [one for one in self.losses if one["gap_s"] is None and one["noticed"] is not None]
        if first_step is None or not waiting:
            return False
        for loss in waiting:  # more than one where machines went again before a first step
            loss["gap_s"] = max(0.0, first_step - loss["noticed"])
        return True


def preemption_of(row: RunRow, cluster: ClusterRow, end: RunOutcome) -> Preemption | None:
    """What is to be replaced, if this run ended so that something is; None also while some of its results are not
    home."""
    if end.verdict.outcome != RECLAIMED or not end.may_destroy or end.left_in_bucket:
        return None
    resumable = bool(outputs(end.home))
    far = end.document.get("progress") or {}
    heard = first_event(
        row, lambda event: event["event"] == "notice" and (event.get("reason") or {}).get("kind") == "reclaim"
    )
    return Preemption(
        run=row.name,
        cluster=cluster.name,
        place=place_of(cluster),
        node=end.verdict.node,
        say=end.verdict.say,
        step=far.get("step"),
        saved=far.get("saved") if resumable else None,
        noticed=end.document.get("ended") if heard is None else heard,
        warned=heard is not None,
        resumable=resumable,
    )


def preempted_before_run(cluster: ClusterRow, error: MachineGone, now: float) -> Preemption:
    """Machines that went before there was a run. `now`: when they were found gone."""
    return Preemption(
        "", cluster.name, place_of(cluster), error.node, error.say, noticed=now, warned=False, started=False
    )


def place_of(cluster: ClusterRow) -> str:
    return str((cluster.offer.get("data") or {}).get("place") or "")


def first_step(row: RunRow) -> float | None:
    """When a run did its first step that was new, where it tells (UTC seconds on this computer's clock)."""
    return first_event(row, lambda event: event["event"] == "stepped")


def first_event(row: RunRow, wanted: Callable[[Mapping[str, Any]], bool]) -> float | None:
    """When any node of a run noted such an event first, from what is home of it; UTC seconds on our clock."""
    from gpuops.transport import answers

    skews = row.facts.get("skews") or ()
    found = []
    for index in range(int(row.request["nodes"])):
        try:
            lines = RunHome(row.home).lines(index, "events.jsonl")
        except OSError:
            continue
        for line in lines:
            event = answers.event(line)
            if event and wanted(event):
                found.append(event["at"] + (skews[index] if index < len(skews) else 0.0))
    return min(found, default=None)


def final_cost(row: ClusterRow, per_hour: float) -> float:
    """What a cluster that is gone has cost, in $, at the dearer of what was offered and what its machines said."""
    offered = sum(float(price["per_hour"]) for price in row.offer.get("prices") or ())
    return leases.spent(max(per_hour, offered), row.created, row.ended or row.created)


def remaining_limits(wish: LeaseLimits, row: ClusterRow, spent: float, now: float) -> tuple[LeaseLimits, str]:
    """What is left of the job's limits after the cluster `row`, or why no machine is worth renting any more."""
    until = row.lease.hard_end
    least = span(MIN_LEASE_S)
    if until is not None and until - now < MIN_LEASE_S:
        return wish, f"the job may go on for less than {least}: --max-hours counts from its first machines"
    if wish.max_cost is None:
        return dataclasses.replace(wish, until=until), ""
    rest = wish.max_cost - spent
    offered = sum(float(price["per_hour"]) for price in row.offer.get("prices") or ())
    if rest * 3600 < MIN_LEASE_S * offered:
        return wish, f"{money(spent)} of --max-cost {money(wish.max_cost)} are spent: less than {least} are left"
    return dataclasses.replace(wish, until=until, max_cost=rest), ""


@dataclass
class JobOutcome:
    """What a job came to: an exit code, and what is printed last."""

    exit_code: int
    document: Mapping[str, Any]
    last: Sequence[str] = ()
    loss: Preemption | None = None
    """The machines were taken back; what is left of the cluster, and what it has cost in $, once it is gone."""
    gone: ClusterRow | None = None
    cost: float = 0.0
    error: MachineGone | None = None
    """They were taken back before there was a run."""


Attempt = Callable[[LeaseLimits, str | None], JobOutcome]
"""One run on one cluster: within which limits, and which run it goes on from."""


def run_with_retries(ctx: Context, chain: RetryState, wish: LeaseLimits, attempt: Attempt) -> JobOutcome:
    """What the last attempt came to. Raises GpuopsError where there never was a run."""
    outcome = _attempt_once(ctx, chain, wish, attempt, JobOutcome(0, {}))
    while outcome.loss is not None:
        outcome = _retry(ctx, chain, wish, attempt, outcome, outcome.loss)
    return outcome


def _attempt_once(
    ctx: Context, chain: RetryState, wish: LeaseLimits, attempt: Attempt, before: JobOutcome
) -> JobOutcome:
    """An attempt. Machines that went before there was a run are a loss as well, once nothing is left of them."""
    try:
        return attempt(wish, chain.resume)
    except MachineGone as error:
        row = None if error.cluster is None else ctx.ledger.cluster(error.cluster)
        if not chain.retries or ctx.signals.count or row is None or row.state != "gone":
            raise
        loss = preempted_before_run(row, error, ctx.clock.now())
        cost = final_cost(row, 0.0)
        return JobOutcome(error.exit_code, before.document, before.last, loss, row, cost, error)


def _retry(
    ctx: Context, chain: RetryState, wish: LeaseLimits, attempt: Attempt, before: JobOutcome, loss: Preemption
) -> JobOutcome:
    """The next run of a job whose machines were taken back; the verdict stands where there may be none, or is none."""
    assert before.gone is not None
    rest, why = remaining_limits(wish, before.gone, chain.spent + before.cost, ctx.clock.now())
    if chain.left <= 0:
        why = f"--retries {chain.retries} is used up"
    if why or ctx.signals.count:
        last = [*before.last, *([f"not tried again: {why}"] if why else [])]
        before = dataclasses.replace(before, last=last, loss=None)
        return _failed(ctx, before, chain, before.error, chain.spent + before.cost) if before.error else before
    ctx.signals.forward()
    chain.add(loss, before.cost)
    ctx.out.say(chain.announce(loss))
    try:
        return _attempt_once(ctx, chain, rest, attempt, before)
    except GpuopsError as error:
        return _failed(ctx, before, chain, error, chain.spent)
    except Interrupted:
        if chain.resume:
            ctx.out.say(f"what {chain.resume} saved is home: --resume {chain.resume} goes on from it")
        raise


def _failed(ctx: Context, before: JobOutcome, chain: RetryState, error: GpuopsError, spent: float) -> JobOutcome:
    """What a job came to that got no other machines, or lost them again. Raises `error` where it never had a run, and
    so has no receipt: what its machines have cost (`spent`, in $) is said all the same."""
    if not before.document:
        ctx.out.say(receipt.without_run(spent))
        error.say = "; ".join([error.say, *before.last])
        raise error
    found = f"; go on from what is home: --resume {chain.resume}" if chain.resume else ""
    told = {"say": error.say, "hint": error.hint + found}
    document = {**before.document, "retries": chain.losses, "error": told, "exit_code": error.exit_code}
    said = f"error: {error.say}\nhint: {told['hint'].removeprefix('; ')}"
    return JobOutcome(error.exit_code, document, [*before.last, said])
