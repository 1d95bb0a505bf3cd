"""What a scenario acts on: a provisioner without its safety net, clusters of its own, a count of the money."""

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
from gpuops.clusters.orphans import note_rented
from gpuops.clusters.teardown import POLL_S, POLL_SLOW_S, belonging, see_off, tear_down
from gpuops.commands.prove.faults import Broken
from gpuops.core.context import Context
from gpuops.core.errors import GpuopsError, Interrupted, ProviderError, RateLimited, StillBilling, Unknown, UsageError
from gpuops.core.format import money
from gpuops.core.models import Intent, Journal, Lease, Offer, Problem, Request, Resource
from gpuops.core.provider import Provisioner, is_rented
from gpuops.ledger.store import ClusterRow
from gpuops.nodes import bootstrap
from gpuops.offers.approval import BOOT_MARGIN_S
from gpuops.offers.payer import noted, payer
from provisioners import registry
from provisioners.checked import CALL_S, Checked, Overdue, in_time

LOOK_S = 60.0
"""How long `describe` and `destroy` may take: one look, one wish, and no waiting."""
TRIES = 4
"""How often is asked anew where the provider is busy, or silent."""
ANSWERS: dict[str, type] = {"preflight": Problem, "offers": Offer, "list_owned": Resource}
MAY_BLAME_THE_USER = ("preflight", "offers")

T = TypeVar("T")


@dataclass
class Bill:
    """What one cluster costs by our own count."""

    per_hour: float
    began: float
    ended: float | None = None

    def dollars(self, now: float) -> float:
        return self.per_hour * ((now if self.ended is None else self.ended) - self.began) / 3600


@dataclass
class Bench:
    """One provisioner under proof. Its clusters are called `<prefix>-<part>`; `close` ends them all."""

    ctx: Context
    request: Request
    """`max_price` holds for everything that is created."""
    prefix: str = field(default_factory=lambda: f"prove-{uuid.uuid4().hex[:4]}")
    spend: float = math.inf
    """$ that the whole proof may cost."""
    look_s: float = LOOK_S
    patience_s: float = 180.0
    """How long a node may take to end itself once its lease is over."""
    bills: dict[str, Bill] = field(default_factory=dict)
    stands: dict[str, Any] = field(default_factory=dict)
    """What scenarios share: see `stands.py`."""
    balance_before: float | None = None

    @property
    def core(self) -> Checked:
        """The provisioner as gpuops uses it."""
        return cast(Checked, self.ctx.provisioner(self.request.provider))

    @property
    def raw(self) -> Provisioner:
        """As its author wrote it."""
        return self.core.inner

    @property
    def rented(self) -> bool:
        return is_rented(self.core)

    @property
    def found_by_name(self) -> bool:
        """Whether another process finds this provisioner, so that it can be killed over it."""
        return self.request.provider in registry.names()

    # -- asking ---------------------------------------------------------------------------------

    def ask(self, call: str, *arguments: Any) -> Any:
        """One call but `create`. Raises Broken where it hangs, or raises or returns what the contract does not know."""
        limit_s = self.look_s if call in ("describe", "destroy") else CALL_S
        for attempt in range(TRIES):
            try:
                return in_time(lambda: self._typed(call, arguments), limit_s, f"{call} under proof")
            except Overdue:
                raise Broken(f"{call} has not returned within {limit_s:g} s: it must ask once and never wait") from None
            except (RateLimited, Unknown) as error:
                if attempt == TRIES - 1:
                    raise
                wait_s = (error.retry_after if isinstance(error, RateLimited) else None) or POLL_SLOW_S
                self.ctx.clock.pause(wait_s, self.ctx.clock.monotonic() + wait_s)
        raise AssertionError("the last try returns or raises")

    def _typed(self, call: str, arguments: Sequence[Any]) -> Any:
        answer = _in_our_words(call, lambda: getattr(self.raw, call)(*arguments))
        if call in ANSWERS:
            answer = _in_our_words(call, lambda: list(answer))
            for one in answer:
                check_noun(call, one, ANSWERS[call])
        elif call == "describe":
            check_noun(call, answer, Resource)
        return answer

    def listed(self, regions: Sequence[str] = ()) -> list[Resource]:
        """All that the provider shows with our mark."""
        found: list[Resource] = self.ask("list_owned", self.ctx.owner, list(regions))
        return found

    def of(self, row: ClusterRow) -> list[Resource]:
        """What is listed of one cluster, in node order."""
        return belonging(self.listed(), self.ctx.owner, row.name)

    def there(self) -> set[tuple[str, str]]:
        """Everything of ours that no other command has made meanwhile."""
        listed, owner = self.listed(), self.ctx.owner
        theirs = [row.name for row in self.ctx.ledger.clusters() if not row.name.startswith(self.prefix)]
        strange = [one for name in theirs for one in belonging(listed, owner, name)]
        return {(one.kind, one.id) for one in listed} - {(one.kind, one.id) for one in strange}

    def offers(self, request: Request | None = None) -> list[Offer]:
        """What may be taken, cheapest first."""
        most = self.request.max_price
        found: list[Offer] = self.ask("offers", request or self.request)
        fit = [offer for offer in found if most is None or offer.per_hour <= most]
        return sorted(fit, key=lambda offer: offer.per_hour)

    def within(self, seconds: float, look: Callable[[], T]) -> T:
        """What a look shows once it is true, or after so many seconds."""
        clock = self.ctx.clock
        deadline = clock.monotonic() + seconds
        pause = POLL_S
        while not (value := look()) and clock.monotonic() < deadline:
            clock.pause(pause, deadline)
            pause = min(pause * 1.3, POLL_SLOW_S)
        return value

    # -- making and ending ----------------------------------------------------------------------

    def intend(self, part: str) -> ClusterRow:
        """A cluster in the ledger, with a guard that undoes it should we die."""
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
        self.ctx.ledger.set_cluster(row.id, offer=noted(payer(self.ctx, self.request)))
        self.ctx.ensure_guard()
        if self.rented:
            note_rented(self.ctx.home, self.request.provider)
        return self.ctx.ledger.cluster(row.id)

    def name(self, part: str) -> str:
        return f"{self.prefix}-{part}"

    def intent(self, row: ClusterRow) -> Intent:
        agent, _ = bootstrap.build(self.ctx.home / "cache")
        return Intent(self.ctx.owner, row.name, f"{row.token}-{uuid.uuid4().hex[:8]}", row.boot_deadline, agent)

    def create(self, offer: Offer, intent: Intent, journal: Journal) -> list[Resource]:
        """The provisioner's own `create`. Raises Broken for what is none of our errors."""
        with self.ctx.signals.shielded():  # what a provider has done must be in the ledger first
            return _in_our_words("create", lambda: list(self.raw.create(offer, intent, journal)))

    def began(self, name: str, per_hour: float) -> None:
        """From now on a cluster costs money."""
        self.bills.setdefault(name, Bill(per_hour, self.ctx.clock.monotonic()))

    def spent(self) -> float:
        """$ so far, by our own count."""
        return sum(bill.dollars(self.ctx.clock.monotonic()) for bill in self.bills.values())

    def afford_s(self) -> float:
        """For how many seconds the money lasts, at least one minute's."""
        per_hour = self.request.max_price if self.rented else None
        return max(60.0, (self.spend - self.spent()) / per_hour * 3600) if per_hour else math.inf

    def end(self, name: str) -> None:
        """As `gpuops down` ends a cluster: until nothing of it is listed. Raises StillBilling."""
        rows = [row for row in self.ctx.ledger.clusters() if row.name == name]
        for row in rows:
            tear_down(self.ctx, row.id, "it was made for a proof")
            if self.ctx.ledger.left(row.id):
                self.within(self.core.gone_s, partial(self._seen_off, row))
        bill = self.bills.get(name)
        if bill is not None and bill.ended is None:
            bill.ended = self.ctx.clock.monotonic()

    def cleared(self, row: ClusterRow) -> bool:
        """Whether nothing of a cluster is listed any more, asked for again and again for as long as that may take."""

        def asked_again() -> bool:
            self.ask("destroy", self.of(row))
            return not self.of(row)

        return self.within(self.core.gone_s, asked_again)

    def _seen_off(self, row: ClusterRow) -> bool:
        try:
            return not see_off(self.ctx, row)
        except ProviderError:
            return False  # it is asked again

    def close(self) -> None:
        """End whatever is left of every scenario. Raises StillBilling when all were tried."""
        failed = []
        for stand in self.stands.values():
            stand.close()
        for row in [row for row in self.ctx.ledger.clusters() if row.name.startswith(f"{self.prefix}-")]:
            try:
                self.end(row.name)
            except StillBilling as error:
                failed.append(error)
        if failed:
            raise StillBilling("; ".join(error.say for error in failed), failed[0].hint)

    def left(self) -> list[str]:
        """The marks of what is still listed of this proof."""
        return sorted(one.name for one in self._strays())

    def sweep(self, doubt_s: float) -> list[str]:
        """The marks of what is left although all was ended: looked for so long, and ended once more as `reap` does."""
        if self.within(doubt_s, self.left):
            try:
                orphans.end(self.ctx, [orphans.Stray(self.request.provider, one) for one in self._strays()])
            except StillBilling:
                pass  # it is named by the look that follows
        return self.left()

    def _strays(self) -> list[Resource]:
        ours = f"gpuops-{self.ctx.owner}-{self.prefix}-"
        return [one for one in self.core.list_owned(self.ctx.owner, []) if one.name.startswith(ours)]


def dollars(amount: float) -> str:
    """Money where tenths of a cent count."""
    return money(amount) if amount >= 10 else f"${amount:.4f}"


def check_noun(call: str, one: Any, kind: type) -> None:
    """Raises Broken for what is not the contract's noun, or cannot be written into the ledger."""
    if not isinstance(one, kind):
        raise Broken(f"{call} gives {type(one).__name__} where {kind.__name__} is promised")
    try:
        json.dumps(dataclasses.asdict(one))  # type: ignore[call-overload]
    except (TypeError, ValueError) as error:
        raise Broken(f"what {call} gives cannot be written into the ledger: {error}") from None


def _in_our_words(call: str, work: Callable[[], T]) -> T:
    """What a call returns. Raises Broken for an exception that the contract does not know."""
    try:
        return work()
    except (ProviderError, Interrupted, Broken):
        raise
    except Exception as error:
        if isinstance(error, UsageError) and call in MAY_BLAME_THE_USER:
            raise
        ours = "no ProviderError" if isinstance(error, GpuopsError) else "none of gpuops.core.errors"
        raise Broken(f"{call} raised {type(error).__name__}, {ours}: {error}") from error
