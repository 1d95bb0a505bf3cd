"""Where scenarios run: the bare provisioner, clusters whose names begin with one prefix, and a count of the money."""

from __future__ import annotations

import dataclasses
import json
import math
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, cast

from gpuops.clusters import orphans
from gpuops.clusters.orphans import record_rented
from gpuops.clusters.teardown import POLL_S, POLL_SLOW_S, clear_leftovers_once, select_by_tag, tear_down
from gpuops.commands.prove.faults import ContractBroken
from gpuops.core.context import Context
from gpuops.core.errors import GpuopsError, Interrupted, ProviderError, RateLimited, StillBilling, Unknown, UsageError
from gpuops.core.format import money
from gpuops.core.models import Intent, Journal, Lease, Offer, Problem, Request, Resource
from gpuops.core.provider import Provisioner, is_rented
from gpuops.ledger.store import ClusterRow
from gpuops.nodes import bootstrap
from gpuops.offers.billing_account import find_payer, payer_record
from gpuops.offers.terms import BOOT_MARGIN_S
from provisioners import checked, registry
from provisioners.checked import CallTimeout, CheckedProvisioner, call_with_timeout

CALL_TIMEOUT_S = 60.0
"""How long one call of `describe` or `destroy` may take: the contract has it send one request and never wait."""
ATTEMPTS_MAX = 4
"""Attempts at one call while the provider limits its rate or its answer is unknown."""
ANSWER_TYPES: dict[str, type] = {"preflight": Problem, "offers": Offer, "list_owned": Resource}
MAY_BLAME_THE_USER = ("preflight", "offers")

T = TypeVar("T")


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
    shared: dict[str, Any] = field(default_factory=dict)
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
        limit_s = self.call_timeout_s if call in ("describe", "destroy") else checked.CALL_TIMEOUT_S
        for attempt in range(ATTEMPTS_MAX):
            try:
                return call_with_timeout(lambda: self._typed(call, arguments), limit_s, f"{call} under proof")
            except CallTimeout:
                raise ContractBroken(
                    f"{call} has not returned within {limit_s:g} s: it must ask once and never wait"
                ) from None
            except (RateLimited, Unknown) as error:
                if attempt == ATTEMPTS_MAX - 1:
                    raise
                wait_s = (error.retry_after if isinstance(error, RateLimited) else None) or POLL_SLOW_S
                self.ctx.clock.pause(wait_s, self.ctx.clock.monotonic() + wait_s)
        raise AssertionError("the last attempt returns or raises")

    def _typed(self, call: str, arguments: Sequence[Any]) -> Any:
        answer = _call_under_contract(call, lambda: getattr(self.raw, call)(*arguments))
        if call in ANSWER_TYPES:
            answer = _call_under_contract(call, lambda: list(answer))
            for one in answer:
                check_noun(call, one, ANSWER_TYPES[call])
        elif call == "describe":
            check_noun(call, answer, Resource)
        return answer

    def listed(self, regions: Sequence[str] = ()) -> list[Resource]:
        """Every resource that the provider lists with our mark."""
        found: list[Resource] = self.ask("list_owned", self.ctx.owner, list(regions))
        return found

    def of(self, row: ClusterRow) -> list[Resource]:
        """The listed resources of one cluster, in node order."""
        return select_by_tag(self.listed(), self.ctx.owner, row.name)

    def there(self) -> set[tuple[str, str]]:
        """Listed resources with our mark, without those of clusters that other commands made."""
        listed, owner = self.listed(), self.ctx.owner
        theirs = [row.name for row in self.ctx.ledger.clusters() if not row.name.startswith(self.prefix)]
        strange = [one for name in theirs for one in select_by_tag(listed, owner, name)]
        return {(one.kind, one.id) for one in listed} - {(one.kind, one.id) for one in strange}

    def offers(self, request: Request | None = None) -> list[Offer]:
        """Offers within the price limit, cheapest first."""
        most = self.request.max_price
        found: list[Offer] = self.ask("offers", request or self.request)
        fit = [offer for offer in found if most is None or offer.per_hour <= most]
        return sorted(fit, key=lambda offer: offer.per_hour)

    def within(self, seconds: float, look: Callable[[], T]) -> T:
        """Poll until `look` returns something true, at most for so many seconds. Returns its last answer."""
        clock = self.ctx.clock
        deadline = clock.monotonic() + seconds
        pause = POLL_S
        while not (value := look()) and clock.monotonic() < deadline:
            clock.pause(pause, deadline)
            pause = min(pause * 1.3, POLL_SLOW_S)
        return value

    # -- making and ending ----------------------------------------------------------------------

    def intend(self, part: str) -> ClusterRow:
        """Record a cluster in the ledger; the guard ends it if this process dies."""
        now = self.ctx.clock.now()
        row = self.ctx.ledger.intend(
            provider=self.request.provider,
            name=self.name(part),
            folder=self.ctx.folder,
            ephemeral=True,
            token=uuid.uuid4().hex,
            request=dataclasses.asdict(self.request),
            boot_deadline=now + min(self.request.timeout_min * 60 + BOOT_MARGIN_S, self.afford_s()),
            lease=Lease(),
            owner_process=self.ctx.me,
            now=now,
        )
        self.ctx.ledger.set_cluster(row.id, offer=payer_record(find_payer(self.ctx, self.request)))
        self.ctx.ensure_guard(row)
        if self.rented:
            record_rented(self.ctx.home, self.request.provider)
        return self.ctx.ledger.cluster(row.id)

    def name(self, part: str) -> str:
        return f"{self.prefix}-{part}"

    def intent(self, row: ClusterRow) -> Intent:
        agent, _ = bootstrap.build_agent(self.ctx.home / "cache")
        return Intent(self.ctx.owner, row.name, f"{row.token}-{uuid.uuid4().hex[:8]}", row.boot_deadline, agent)

    def create(self, offer: Offer, intent: Intent, journal: Journal) -> list[Resource]:
        """Call the bare provisioner's `create`. Raises ContractBroken for an exception outside gpuops.core.errors."""
        with self.ctx.signals.shielded():  # what a provider has done must be in the ledger first
            return _call_under_contract("create", lambda: list(self.raw.create(offer, intent, journal)))

    def began(self, name: str, per_hour: float) -> None:
        """Start counting what a cluster costs."""
        self.bills.setdefault(name, Bill(per_hour, self.ctx.clock.monotonic()))

    def spent(self) -> float:
        """Dollars so far, by our own count."""
        return sum(bill.dollars(self.ctx.clock.monotonic()) for bill in self.bills.values())

    def afford_s(self) -> float:
        """Seconds for which the money lasts, at least 60; infinite where nothing is billed."""
        per_hour = self.request.max_price if self.rented else None
        return max(60.0, (self.spend - self.spent()) / per_hour * 3600) if per_hour else math.inf

    def end(self, name: str) -> None:
        """End a cluster as `gpuops down` does, until nothing of it is listed. Raises StillBilling."""
        rows = [row for row in self.ctx.ledger.clusters() if row.name == name]
        for row in rows:
            tear_down(self.ctx, row.id, "it was made for a proof")
            if self.ctx.ledger.left(row.id):
                self.within(self.core.gone_s, partial(self._seen_off, row))
        bill = self.bills.get(name)
        if bill is not None and bill.ended is None:
            bill.ended = self.ctx.clock.monotonic()

    def cleared(self, row: ClusterRow) -> bool:
        """Ask for a cluster's end until nothing of it is listed; False where that takes longer than `gone_s`."""

        def ask_again() -> bool:
            self.ask("destroy", self.of(row))
            return not self.of(row)

        return self.within(self.core.gone_s, ask_again)

    def _seen_off(self, row: ClusterRow) -> bool:
        try:
            return not clear_leftovers_once(self.ctx, row)
        except ProviderError:
            return False  # `within` asks again

    def close(self) -> None:
        """End every cluster of this proof. Raises StillBilling, after all were tried, for those that are left."""
        failed = []
        for cluster in self.shared.values():
            cluster.close()
        for row in [row for row in self.ctx.ledger.clusters() if row.name.startswith(f"{self.prefix}-")]:
            try:
                self.end(row.name)
            except StillBilling as error:
                failed.append(error)
        if failed:
            raise StillBilling("; ".join(error.say for error in failed), failed[0].hint)

    def left(self) -> list[str]:
        """Marks that are still listed of this proof."""
        return sorted(one.name for one in self._orphans())

    def sweep(self, doubt_s: float) -> list[str]:
        """Look for `doubt_s` seconds for orphans of this proof and end them as `reap` does. Returns the marks of those
        that are left."""
        if self.within(doubt_s, self.left):
            try:
                orphans.destroy_orphans(
                    self.ctx, [orphans.Orphan(self.request.provider, one) for one in self._orphans()]
                )
            except StillBilling:
                pass  # `left` names it
        return self.left()

    def _orphans(self) -> list[Resource]:
        ours = f"gpuops-{self.ctx.owner}-{self.prefix}-"
        return [one for one in self.core.list_owned(self.ctx.owner, []) if one.name.startswith(ours)]


def dollars(amount: float) -> str:
    """Dollars, to a hundredth of a cent below $10."""
    return money(amount) if amount >= 10 else f"${amount:.4f}"


def check_noun(call: str, one: Any, kind: type) -> None:
    """Raises ContractBroken where `one` has another type, or cannot be written into the ledger."""
    if not isinstance(one, kind):
        raise ContractBroken(f"{call} gives {type(one).__name__} where {kind.__name__} is promised")
    try:
        json.dumps(dataclasses.asdict(one))  # type: ignore[call-overload]
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
