"""`--retries`: machines that were taken back are replaced, elsewhere first, and the run goes on from what came home.

One job, one limit: the hours that have passed and the money that was spent count for all its machines together.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuops.core.errors import MachineGone
from gpuops.core.output import money, span
from gpuops.ledger.store import ClusterRow, RunRow
from gpuops.offers import lease as leases
from gpuops.offers.approval import Bargain, LeaseWish
from gpuops.offers.lease import LEAST_S
from gpuops.runs.finish import Conclusion
from gpuops.sync import RunHome
from gpuops.sync.restore import outputs

RECLAIMED = "reclaimed"
"""The verdict's outcome where the provider took machines back."""


@dataclass(frozen=True)
class Loss:
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
class Chain:
    """The runs of one job, one after another."""

    retries: int = 0
    bargain: Bargain = field(default_factory=Bargain)
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

    def add(self, loss: Loss, cost: float) -> None:
        """One more was taken back, and its machines are gone."""
        self.losses.append({**dataclasses.asdict(loss), "steps_lost": loss.steps_lost, "cost": cost, "gap_s": None})
        if loss.place:
            self.bargain.avoided = [*(one for one in self.bargain.avoided if one != loss.place), loss.place]
        if loss.resumable:
            self.resume = loss.run
        self.bargain.settled = True

    def announce(self, loss: Loss) -> str:
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


def loss_of(row: RunRow, cluster: ClusterRow, end: Conclusion) -> Loss | None:
    """What is to be replaced, if this run ended so that something is; None also while some of its results are not
    home."""
    if end.verdict.outcome != RECLAIMED or end.unsaved or end.unfetched:
        return None
    resumable = bool(outputs(end.home))
    far = end.document.get("progress") or {}
    heard = first_event(
        row, lambda event: event["event"] == "notice" and (event.get("reason") or {}).get("kind") == "reclaim"
    )
    return Loss(
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


def unready(cluster: ClusterRow, error: MachineGone, now: float) -> Loss:
    """Machines that went before there was a run. `now`: when they were found gone."""
    return Loss("", cluster.name, place_of(cluster), error.node, error.say, noticed=now, warned=False, started=False)


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


def cost(row: ClusterRow, per_hour: float) -> float:
    """What a cluster that is gone has cost, in $, at the dearer of what was offered and what its machines said."""
    offered = sum(float(price["per_hour"]) for price in row.offer.get("prices") or ())
    return leases.spent(max(per_hour, offered), row.created, row.ended or row.created)


def within(wish: LeaseWish, row: ClusterRow, spent: float, now: float) -> tuple[LeaseWish, str]:
    """What is left of the job's limits after the cluster `row`, or why no machine is worth renting any more."""
    until = row.lease.hard_end
    least = span(LEAST_S)
    if until is not None and until - now < LEAST_S:
        return wish, f"the job may go on for less than {least}: --max-hours counts from its first machines"
    if wish.max_cost is None:
        return dataclasses.replace(wish, until=until), ""
    rest = wish.max_cost - spent
    offered = sum(float(price["per_hour"]) for price in row.offer.get("prices") or ())
    if rest * 3600 < LEAST_S * offered:
        return wish, f"{money(spent)} of --max-cost {money(wish.max_cost)} are spent: less than {least} are left"
    return dataclasses.replace(wish, until=until, max_cost=rest), ""
