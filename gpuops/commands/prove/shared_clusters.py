"""Clusters that several scenarios act on: the first scenario that needs one makes it; a failure is not retried."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar, cast

from gpuops.clusters.creation import bring_up
from gpuops.clusters.teardown import destroy_cluster
from gpuops.commands.prove.fault_injection import (
    Announcement,
    AnswerLosingProvisioner,
    ContractBroken,
    NotRunnable,
    RecordingJournal,
)
from gpuops.commands.prove.sandbox import ATTEMPTS_MAX, Closeable, Sandbox
from gpuops.core.errors import NoCapacity, RateLimited, Unknown
from gpuops.core.models import Intent, Offer, Resource
from gpuops.core.provider import Provisioner
from gpuops.ledger.store import ClusterRow, LedgerJournal
from gpuops.nodes.session import ClusterSession
from gpuops.offers.billing_account import payer_record
from gpuops.offers.lease_limits import LeaseLimits
from provisioners.checked_provisioner import CheckedProvisioner

LEASE_HOURS_MAX = 2.0
"""Hours of the lease of a node that answered: it ends even if the proof is killed."""
BOOT_DEADLINE_S = 20.0
"""Seconds until the boot deadline that is sent with machines that gpuops never logs in to. The ledger's is later, so
that only the machines can end themselves."""

T = TypeVar("T", bound=Closeable)


@dataclass
class CreatedCluster:
    """A cluster as the provisioner's `create` returned it; gpuops has not logged in to its nodes."""

    row: ClusterRow
    offer: Offer
    intent: Intent
    spy: RecordingJournal
    resources: list[Resource]

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class AdoptedCluster:
    """A cluster whose `create` answer was lost, found by its mark and brought up by gpuops."""

    session: ClusterSession
    lost: list[Resource]
    """The resources that the lost answer named."""
    boot_s: float

    @property
    def row(self) -> ClusterRow:
        return self.session.row

    def close(self) -> None:
        self.session.close()


@dataclass
class FailedCluster:
    """A shared cluster that could not be made."""

    error: BaseException

    def close(self) -> None:
        """Nothing is open."""


class SharedCluster(Generic[T]):
    """A cluster that scenarios share, made once and kept in `Sandbox.shared` by its name."""

    def __init__(self, name: str, make: Callable[[Sandbox], T]) -> None:
        self.name = name
        self._make = make

    def __call__(self, sandbox: Sandbox) -> T:
        """The cluster. A failure to make it is raised to the first scenario that asks; later ones get NotRunnable."""
        if self.name not in sandbox.shared:
            if sandbox.balance_before is None:
                sandbox.balance_before = sandbox.core.balance()
            try:
                sandbox.shared[self.name] = self._make(sandbox)
            except BaseException as error:
                sandbox.shared[self.name] = FailedCluster(error)
                raise
        if isinstance(sandbox.shared[self.name], FailedCluster):
            raise NotRunnable("what it acts on could not be made")
        return cast(T, sandbox.shared[self.name])


def _make(sandbox: Sandbox, part: str, boot_s: float | None = None) -> CreatedCluster:
    row = sandbox.record_cluster(part)
    full = NoCapacity("none of its offers could be had", "try again later")
    for offer in sandbox.list_offers():
        intent = sandbox.make_intent(row)
        if boot_s is not None:
            intent = dataclasses.replace(intent, boot_deadline=sandbox.ctx.clock.now() + boot_s)
        sandbox.ctx.ledger.set_cluster(row.id, offer=dataclasses.asdict(offer) | payer_record(row.payer))
        spy = RecordingJournal(LedgerJournal(sandbox.ctx.ledger, row.id))
        sandbox.start_bill(row.name, offer.per_hour)
        try:
            made = _create_all(sandbox, row, offer, intent, spy)
        except NoCapacity as error:
            full = error
            sandbox.ctx.ledger.mark_refused(row.id)
            destroy_cluster(sandbox.ctx, sandbox.core, row)
            sandbox.ctx.ledger.mark_cleared(row.id)
            continue
        return CreatedCluster(row, offer, intent, spy, made)
    raise full


def _create_all(
    sandbox: Sandbox, row: ClusterRow, offer: Offer, intent: Intent, spy: RecordingJournal
) -> list[Resource]:
    """What `create` makes; it is called again where machines are made one at a time and it was too soon for the next.
    Raises RateLimited where several calls make nothing more."""
    clock, wait_s = sandbox.ctx.clock, sandbox.core.launches_apart_s
    made: list[Resource] = []
    in_vain = 0
    while True:
        try:
            return sandbox.create(offer, dataclasses.replace(intent, made=tuple(made)), spy)
        except RateLimited:
            told = [line for line in spy.lines if isinstance(line, Resource)]
            in_vain = 0 if len(told) > len(made) else in_vain + 1
            if wait_s <= 0 or in_vain == ATTEMPTS_MAX:
                raise
            made = told
            if spy.lines and isinstance(spy.lines[-1], Announcement):  # of what was refused
                spy.lines.pop()
            sandbox.ctx.ledger.mark_refused(row.id)
            clock.pause(wait_s, clock.monotonic() + wait_s)


def _adopt(sandbox: Sandbox) -> AdoptedCluster:
    clock = sandbox.ctx.clock
    name, began = sandbox.cluster_name("b"), clock.monotonic()
    hours = min(LEASE_HOURS_MAX, sandbox.affordable_s() / 3600)
    request = dataclasses.replace(sandbox.request, timeout_min=min(sandbox.request.timeout_min, hours * 60))
    with _lossy(sandbox) as lossy:
        sandbox.start_bill(name, sandbox.list_offers()[0].per_hour)
        try:
            session = bring_up(sandbox.ctx, request, name=name, ephemeral=True, wish=LeaseLimits(max_hours=hours))
        except Unknown as error:
            raise ContractBroken(
                f"the answer of create was lost, and what it made is not found by its mark: {error.message}"
            ) from error
        finally:
            if not [row for row in sandbox.ctx.ledger.clusters() if row.name == name]:
                sandbox.end_cluster(name)
    return AdoptedCluster(session, lossy.lost, clock.monotonic() - began)


@contextmanager
def _lossy(sandbox: Sandbox) -> Iterator[AnswerLosingProvisioner]:
    """Within this block gpuops uses a provisioner whose first `create` never answers."""
    name, core = sandbox.request.provider, sandbox.core
    lossy = AnswerLosingProvisioner(core.inner)
    sandbox.ctx.provisioners[name] = CheckedProvisioner(cast(Provisioner, lossy))
    try:
        yield lossy
    finally:
        sandbox.ctx.provisioners[name] = core


made = SharedCluster("made", partial(_make, part="a"))
adopted = SharedCluster("adopted", _adopt)
unattended = SharedCluster("unattended", partial(_make, part="d", boot_s=BOOT_DEADLINE_S))
