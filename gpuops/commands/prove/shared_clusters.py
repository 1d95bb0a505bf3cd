"""What several scenarios act on: made by whichever comes first, once; what failed is not tried again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar, cast

from gpuops.clusters.teardown import clear
from gpuops.clusters.up import bring_up
from gpuops.commands.prove.faults import Broken, Lossy, Missing, Spy
from gpuops.commands.prove.sandbox import Bench
from gpuops.core.errors import NoCapacity, Unknown
from gpuops.core.models import Intent, Offer, Resource
from gpuops.core.provider import Provisioner
from gpuops.ledger.store import ClusterRow, LedgerJournal
from gpuops.nodes.session import ClusterSession
from gpuops.offers.approval import LeaseWish
from provisioners.checked import Checked

MAX_HOURS = 2.0
"""Whatever becomes of a proof, a node that answered ends after so long."""
BOOT_S = 20.0
"""After so long the machines that nobody logs in to have reached their boot deadline, which is not their ledger's."""

T = TypeVar("T")


@dataclass
class Made:
    """A cluster straight from the provisioner's `create`; nobody has spoken to its nodes."""

    row: ClusterRow
    offer: Offer
    intent: Intent
    spy: Spy
    resources: list[Resource]

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class Adopted:
    """A cluster whose creation was never answered, found by its mark and brought to life by the core."""

    live: ClusterSession
    lost: list[Resource]
    """What the answer would have said."""
    boot_s: float

    @property
    def row(self) -> ClusterRow:
        return self.live.row

    def close(self) -> None:
        self.live.close()


@dataclass
class Failed:
    """What could not be made."""

    error: BaseException

    def close(self) -> None:
        """Nothing is open."""


class Stand(Generic[T]):
    """One of the things that scenarios share, by its name on the bench."""

    def __init__(self, name: str, make: Callable[[Bench], T]) -> None:
        self.name = name
        self._make = make

    def __call__(self, bench: Bench) -> T:
        """The thing. Raises what its making raised, to the first who asks, and Missing to everyone after."""
        if self.name not in bench.stands:
            if bench.balance_before is None:
                bench.balance_before = bench.core.balance()
            try:
                bench.stands[self.name] = self._make(bench)
            except BaseException as error:
                bench.stands[self.name] = Failed(error)
                raise
        if isinstance(bench.stands[self.name], Failed):
            raise Missing("what it acts on could not be made")
        return cast(T, bench.stands[self.name])


def _make(bench: Bench, part: str, boot_s: float | None = None) -> Made:
    row = bench.intend(part)
    full = NoCapacity("none of its offers could be had", "try again later")
    for offer in bench.offers():
        intent = bench.intent(row)
        if boot_s is not None:
            intent = dataclasses.replace(intent, boot_deadline=bench.ctx.clock.now() + boot_s)
        bench.ctx.ledger.set_cluster(row.id, offer=dataclasses.asdict(offer) | {"payer": dict(row.payer)})
        spy = Spy(LedgerJournal(bench.ctx.ledger, row.id))
        bench.began(row.name, offer.per_hour)
        try:
            made = bench.create(offer, intent, spy)
        except NoCapacity as error:
            full = error
            bench.ctx.ledger.refused(row.id)
            clear(bench.ctx, bench.core, row)
            bench.ctx.ledger.cleared(row.id)
            continue
        return Made(row, offer, intent, spy, made)
    raise full


def _adopt(bench: Bench) -> Adopted:
    clock = bench.ctx.clock
    name, began = bench.name("b"), clock.monotonic()
    hours = min(MAX_HOURS, bench.afford_s() / 3600)
    request = dataclasses.replace(bench.request, timeout_min=min(bench.request.timeout_min, hours * 60))
    with _lossy(bench) as lossy:
        bench.began(name, next((offer.per_hour for offer in bench.offers()), 0.0))
        try:
            live = bring_up(bench.ctx, request, name=name, ephemeral=True, wish=LeaseWish(max_hours=hours))
        except Unknown as error:
            raise Broken(
                f"the answer of create was lost, and what it made is not found by its mark: {error.say}"
            ) from error
        finally:
            if not [row for row in bench.ctx.ledger.clusters() if row.name == name]:
                bench.end(name)
    return Adopted(live, lossy.lost, clock.monotonic() - began)


@contextmanager
def _lossy(bench: Bench) -> Iterator[Lossy]:
    """While it lasts, the core meets a provisioner whose first `create` is never answered."""
    name, core = bench.request.provider, bench.core
    lossy = Lossy(core.inner)
    bench.ctx.provisioners[name] = Checked(cast(Provisioner, lossy))
    try:
        yield lossy
    finally:
        bench.ctx.provisioners[name] = core


made = Stand("made", partial(_make, part="a"))
adopted = Stand("adopted", _adopt)
unattended = Stand("unattended", partial(_make, part="d", boot_s=BOOT_S))
