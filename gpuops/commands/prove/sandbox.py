"""Where scenarios run: the bare provisioner, clusters whose names begin with one prefix, and a count of the money."""

from __future__ import annotations

import dataclasses
import json
import math
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from gpuops.clusters import orphans
from gpuops.clusters.home_files import record_rented
from gpuops.clusters.leftovers import clear_leftovers_once
from gpuops.clusters.owned_resources import select_by_tag
from gpuops.clusters.teardown import POLL_S, POLL_SLOW_S, tear_down
from gpuops.commands.prove.fault_injection import ContractBroken
from gpuops.core.context import Context
from gpuops.core.errors import (
    GpuopsError,
    Interrupted,
    NoCapacity,
    ProviderError,
    RateLimited,
    StillBilling,
    Unknown,
    UsageError,
)
from gpuops.core.format import money
from gpuops.core.models import Intent, Journal, Lease, Offer, Problem, Request, Resource
from gpuops.core.polling import Poller
from gpuops.core.provider import Provisioner, is_rented
from gpuops.ledger.store import ClusterRow
from gpuops.nodes import bootstrap
from gpuops.offers.billing_account import find_payer, payer_record
from gpuops.offers.lease_limits import BOOT_MARGIN_S
from provisioners import checked_provisioner, registry
from provisioners.checked_provisioner import CallTimeout, CheckedProvisioner, call_with_timeout

CALL_TIMEOUT_S = 60.0
"""How long one call of `describe` or `destroy` may take: the contract has it send one request and never wait."""
POLL_FACTOR = 1.3
"""By how much the pause between two looks at the provider grows, from POLL_S to POLL_SLOW_S."""
ATTEMPTS_MAX = 4
"""Attempts at one call while the provider limits its rate or its answer is unknown."""
ANSWER_TYPES: dict[str, type] = {"preflight": Problem, "offers": Offer, "list_owned": Resource}
MAY_BLAME_THE_USER = ("preflight", "offers")

T = TypeVar("T")


class Closeable(Protocol):
    def close(self) -> None: ...


@dataclass
class Bill:
    """What one cluster costs by our own count: dollars per hour, and seconds of the monotonic clock."""

    per_hour: float
    began: float
    ended: float | None = None

    def dollars(self, now: float) -> float:
        return self.per_hour * ((now if self.ended is None else self.ended) - self.began) / 3600


@dataclass
class Sandbox:
    """One provisioner under test. Its clusters are named `<prefix>-<part>`; `close` ends them all."""

    ctx: Context
    request: Request
    """`max_price` holds for everything that is created."""
    prefix: str = field(default_factory=lambda: f"prove-{uuid.uuid4().hex[:4]}")
    spend: float = math.inf
    """Dollars that the whole proof may cost."""
    call_timeout_s: float = CALL_TIMEOUT_S
    patience_s: float = 180.0
    """Seconds that a node may take to end itself once its lease is over."""
    bills: dict[str, Bill] = field(default_factory=dict)
    shared: dict[str, Closeable] = field(default_factory=dict)
    """Clusters that several scenarios use, by name (`shared_clusters`)."""
    balance_before: float | None = None

    @property
    def core(self) -> CheckedProvisioner:
        """The provisioner as gpuops uses it."""
        return cast(CheckedProvisioner, self.ctx.provisioner(self.request.provider))

    @property
    def raw(self) -> Provisioner:
        """The provisioner as its author wrote it, without gpuops' checks around it."""
        return self.core.inner

    @property
    def rented(self) -> bool:
        return is_rented(self.core)

    @property
    def found_by_name(self) -> bool:
        """Whether another process can load this provisioner by its name, so that it can be killed while creating."""
        return self.request.provider in registry.provider_names()

    # -- asking ---------------------------------------------------------------------------------

    def ask(self, call: str, *arguments: Any) -> Any:
        """Make one call other than `create`. Raises ContractBroken where it hangs, or raises or returns what the
        contract does not allow."""
        limit_s = self.call_timeout_s if call in ("describe", "destroy") else checked_provisioner.CALL_TIMEOUT_S
        poller = Poller.every(self.ctx.clock, POLL_SLOW_S)
        for attempt, _ in enumerate(poller, 1):
            try:
                return call_with_timeout(lambda: self.ask_once(call, *arguments), limit_s, f"{call} under proof")
            except CallTimeout:
                raise ContractBroken(
                    f"{call} has not returned within {limit_s:g} s: it must ask once and never wait"
                ) from None
            except (RateLimited, Unknown) as error:
                if attempt == ATTEMPTS_MAX:
                    raise
                poller.retry_after(error.retry_after if isinstance(error, RateLimited) else None)
        raise AssertionError("the last attempt returns or raises")

    def ask_once(self, call: str, *arguments: Any) -> Any:
        """As `ask`, without its limit of time and its further attempts."""
        answer = _call_under_contract(call, lambda: getattr(self.raw, call)(*arguments))
        if call in ANSWER_TYPES:
            answer = _call_under_contract(call, lambda: list(answer))
            for item in answer:
                check_answer(call, item, ANSWER_TYPES[call])
        elif call == "describe":
            check_answer(call, answer, Resource)
        return answer

    def list_resources(self, regions: Sequence[str] = ()) -> list[Resource]:
        """Every resource that the provider lists with our tag."""
        resources: list[Resource] = self.ask("list_owned", self.ctx.owner, list(regions))
        return resources

    def list_cluster_resources(self, row: ClusterRow) -> list[Resource]:
        """The listed resources of one cluster, in node order."""
        return select_by_tag(self.list_resources(), self.ctx.owner, row.name)

    def list_resource_keys(self) -> set[tuple[str, str]]:
        """Kind and id of the listed resources with our tag, without those of clusters that other commands made."""
        listed, owner = self.list_resources(), self.ctx.owner
        others = [row.name for row in self.ctx.ledger.clusters() if not row.name.startswith(self.prefix)]
        foreign = [resource for name in others for resource in select_by_tag(listed, owner, name)]
        return {(resource.kind, resource.id) for resource in listed} - {(one.kind, one.id) for one in foreign}

    def list_offers(self) -> list[Offer]:
        """Offers within the price limit, cheapest first. Raises NoCapacity where there is none."""
        limit = self.request.max_price
        offers: list[Offer] = self.ask("offers", self.request)
        affordable = [offer for offer in offers if limit is None or offer.per_hour <= limit]
        if not affordable:
            raise NoCapacity("nothing is offered at the price of the announced machines any more", "try again later")
        return sorted(affordable, key=lambda offer: offer.per_hour)

    def poll_until(self, seconds: float, check: Callable[[], T]) -> T:
        """Poll until `check` returns something true, at most for so many seconds. Returns its last answer."""
        clock = self.ctx.clock
        poller = Poller(clock, clock.monotonic() + seconds, POLL_S, POLL_SLOW_S, POLL_FACTOR)
        for _ in poller:
            if value := check():
                break
        return value

    # -- making and ending ----------------------------------------------------------------------

    def record_cluster(self, part: str) -> ClusterRow:
        """Record a cluster in the ledger; the guard ends it if this process dies."""
        now = self.ctx.clock.now()
        row = self.ctx.ledger.intend(
            provider=self.request.provider,
            name=self.cluster_name(part),
            folder=self.ctx.folder,
            ephemeral=True,
            token=uuid.uuid4().hex,
            request=dataclasses.asdict(self.request),
            boot_deadline=now + min(self.request.timeout_min * 60 + BOOT_MARGIN_S, self.affordable_s()),
            lease=Lease(),
            owner_process=self.ctx.me,
            now=now,
        )
        self.ctx.ledger.set_cluster(row.id, offer=payer_record(find_payer(self.ctx, self.request)))
        self.ctx.ensure_guard(row)
        if self.rented:
            record_rented(self.ctx.home, self.request.provider)
        return self.ctx.ledger.cluster(row.id)

    def cluster_name(self, part: str) -> str:
        return f"{self.prefix}-{part}"

    def make_intent(self, row: ClusterRow) -> Intent:
        agent, _ = bootstrap.build_agent(self.ctx.home / "cache")
        return Intent(self.ctx.owner, row.name, f"{row.token}-{uuid.uuid4().hex[:8]}", row.boot_deadline, agent)

    def create(self, offer: Offer, intent: Intent, journal: Journal) -> list[Resource]:
        """Call the bare provisioner's `create`. Raises ContractBroken for an exception outside gpuops.core.errors."""
        with self.ctx.signals.shielded():  # what a provider has done must be in the ledger first
            return _call_under_contract("create", lambda: list(self.raw.create(offer, intent, journal)))

    def create_first(self, offer: Offer, intent: Intent, journal: Journal) -> list[Resource]:
        """`create` where nothing is made yet. While it comes too soon after another cluster's launch, it is called
        again (`launches_apart_s`)."""
        wait_s = self.core.launches_apart_s
        for _ in range(ATTEMPTS_MAX - 1 if wait_s > 0 else 0):
            try:
                return self.create(offer, intent, journal)
            except RateLimited:
                self.ctx.clock.pause(wait_s, self.ctx.clock.monotonic() + wait_s)
        return self.create(offer, intent, journal)

    def start_bill(self, name: str, per_hour: float) -> None:
        """Start counting what a cluster costs."""
        self.bills.setdefault(name, Bill(per_hour, self.ctx.clock.monotonic()))

    def dollars_spent(self) -> float:
        """Dollars so far, by our own count."""
        return sum(bill.dollars(self.ctx.clock.monotonic()) for bill in self.bills.values())

    def affordable_s(self) -> float:
        """Seconds for which the money lasts, at least 60; infinite where nothing is billed."""
        per_hour = self.request.max_price if self.rented else None
        return max(60.0, (self.spend - self.dollars_spent()) / per_hour * 3600) if per_hour else math.inf

    def end_cluster(self, name: str) -> None:
        """End a cluster as `gpuops down` does, until nothing of it is listed. Raises StillBilling."""
        rows = [row for row in self.ctx.ledger.clusters() if row.name == name]
        for row in rows:
            tear_down(self.ctx, row.id, "it was made for a proof")
            if self.ctx.ledger.list_leftovers(row.id):
                self.poll_until(self.core.gone_s, partial(self._is_cleared, row))
        bill = self.bills.get(name)
        if bill is not None and bill.ended is None:
            bill.ended = self.ctx.clock.monotonic()

    def destroy_until_gone(self, row: ClusterRow) -> bool:
        """Ask for a cluster's end until nothing of it is listed; False where that takes longer than `gone_s`."""

        def destroy() -> bool:
            self.ask("destroy", self.list_cluster_resources(row))
            return not self.list_cluster_resources(row)

        return self.poll_until(self.core.gone_s, destroy)

    def _is_cleared(self, row: ClusterRow) -> bool:
        try:
            return not clear_leftovers_once(self.ctx, row)
        except ProviderError:
            return False  # `poll_until` asks once more

    def close(self) -> None:
        """End every cluster of this proof. Raises StillBilling, after all were tried, for those that are left."""
        failed = []
        for cluster in self.shared.values():
            cluster.close()
        for row in [row for row in self.ctx.ledger.clusters() if row.name.startswith(f"{self.prefix}-")]:
            try:
                self.end_cluster(row.name)
            except StillBilling as error:
                failed.append(error)
        if failed:
            raise StillBilling("; ".join(error.message for error in failed), failed[0].hint)

    def list_remaining_tags(self) -> list[str]:
        """Tags that are still listed of this proof."""
        return sorted(orphan.name for orphan in self._orphans())

    def end_orphans(self, doubt_s: float) -> list[str]:
        """Look for `doubt_s` seconds for orphans of this proof and end them as `reap` does. Returns the tags of those
        that remain."""
        if self.poll_until(doubt_s, self.list_remaining_tags):
            try:
                orphans.destroy_orphans(
                    self.ctx, [orphans.Orphan(self.request.provider, resource) for resource in self._orphans()]
                )
            except StillBilling:
                pass  # the returned tags name it
        return self.list_remaining_tags()

    def _orphans(self) -> list[Resource]:
        ours = f"gpuops-{self.ctx.owner}-{self.prefix}-"
        return [resource for resource in self.core.list_owned(self.ctx.owner, []) if resource.name.startswith(ours)]


def dollars(amount: float) -> str:
    """Dollars, to a hundredth of a cent below $10."""
    return money(amount) if amount >= 10 else f"${amount:.4f}"


def check_answer(call: str, answer: Any, kind: type) -> None:
    """Raises ContractBroken where `answer` has another type, or cannot be written into the ledger."""
    if not isinstance(answer, kind):
        raise ContractBroken(f"{call} gives {type(answer).__name__} where {kind.__name__} is promised")
    try:
        json.dumps(dataclasses.asdict(answer))  # type: ignore[call-overload]
    except (TypeError, ValueError) as error:
        raise ContractBroken(f"what {call} gives cannot be written into the ledger: {error}") from None


def _call_under_contract(call: str, work: Callable[[], T]) -> T:
    """What a call returns. Raises ContractBroken for an exception that the contract does not allow."""
    try:
        return work()
    except (ProviderError, Interrupted, ContractBroken):
        raise
    except Exception as error:
        if isinstance(error, UsageError) and call in MAY_BLAME_THE_USER:
            raise
        ours = "no ProviderError" if isinstance(error, GpuopsError) else "none of gpuops.core.errors"
        raise ContractBroken(f"{call} raised {type(error).__name__}, {ours}: {error}") from error
