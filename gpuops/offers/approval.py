"""What a cluster may cost and how long it may live: the wish, the agreement, and the money there is."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpuops.core.context import Context
from gpuops.core.errors import Rejected, UsageError
from gpuops.core.format import money
from gpuops.core.models import Lease, Offer, Payer, Request
from gpuops.ledger.store import ClusterRow
from gpuops.offers import lease as leases
from gpuops.offers import table
from gpuops.offers.search import PATIENCE_S, Search

ROUNDING = 0.01
"""By how much two prices may differ, as a part of them."""
BOOT_MARGIN_S = 600.0
"""What the boot lease adds to `--timeout`."""


@dataclass(frozen=True)
class LeaseWish:
    """The flags that shape a lease; None: the provider's default."""

    max_hours: float | None = None
    max_cost: float | None = None
    idle_min: float | None = None
    until: float | None = None
    """Absolute UTC end of a job whose earlier machines were taken back; hours begin anew with each cluster."""


def within(wish: LeaseWish, offer: Offer) -> LeaseWish:
    """A wish for what ends by itself (`Offer.data["ends"]`): no lease is longer."""
    ends = offer.data.get("ends")
    return wish if ends is None else dataclasses.replace(wish, until=min(ends, wish.until or ends))


@dataclass
class Bargain:
    """What was agreed to once, for all machines that one command rents, one after another."""

    first: float = 0.0
    """$/h of what was put first in the beginning: what is borne without another question is measured by it."""
    agreed: float = 0.0
    """$/h that somebody has agreed to: the dearest that the one question spoke of."""
    avoided: list[str] = field(default_factory=list)
    """Places (`Offer.data["place"]`) where machines were taken back, the last one last."""
    settled: bool = False
    """Nobody is asked any more: these machines replace others."""
    replaces: bool = False
    """Machines that are taken back will be replaced (`--retries`): who agrees, agrees to that as well."""


class Terms:
    """What was agreed to: at which price machines are taken, how long they may boot, and until when they live."""

    def __init__(
        self,
        ctx: Context,
        request: Request,
        wish: LeaseWish,
        rented: bool,
        search: Search,
        bargain: Bargain | None = None,
    ) -> None:
        self._world = ctx
        self._request = request
        self._wish = dataclasses.asdict(wish)
        self._rented = rented
        self._search = search
        self._bargain = bargain or Bargain()
        self._bargain.agreed = max(self._bargain.agreed, search.agreed or 0.0)
        self._told: set[str] = set()

    def agree(self, offers: Sequence[Offer]) -> None:
        """The one question before money is spent: for the first, and for what may come in its place. Raises
        UsageError."""
        first = offers[0]
        self.foresee(first)
        if self._bargain.settled:
            return
        self._bargain.first = first.per_hour
        if first.per_hour > self._bargain.agreed:
            dearest = max(offer.per_hour for offer in offers if offer.per_hour <= self._ceiling())
            _confirm(self._world, first, self._besides(dearest) + table.paid(self.payer(first)))
            self._bargain.agreed = dearest

    def foresee(self, first: Offer) -> None:
        """Say how long the money lasts, where that is known already and shorter than one would think."""
        funds = self._search.asked.told(0.0)
        if funds is not None and funds.balance is not None:
            now = self._world.clock.now()
            shortened = leases.within(self._made(first.per_hour, now), funds, first.per_hour, now)[1]
            self._tell(leases.doubt(funds, first.per_hour) or shortened)

    def payer(self, offer: Offer) -> Payer | None:
        """Who pays for it; nobody for what is free."""
        return self._search.payer(offer) if self._rented else None

    def _ceiling(self) -> float:
        """$/h of the dearest that anybody is asked about, or that is taken without anybody."""
        return table.ceiling(self._bargain.first, self._request.max_price)

    def _besides(self, dearest: float) -> str:
        """What is agreed to besides the first offer."""
        if self._bargain.replaces:
            return f" (and up to {money(self._ceiling())}/h for what replaces it)"
        dearer = dearest > self._bargain.first
        return f" (or up to {money(dearest)}/h where that cannot be had)" if dearer else ""

    def _borne(self) -> float:
        """$/h that may be spent without another question."""
        named = self._world.yes or self._bargain.settled or self._request.max_price is not None
        return self._ceiling() if named else self._bargain.agreed

    def too_dear(self, offer: Offer) -> str:
        """Why an offer may not be tried; empty where it may. Nobody is asked twice."""
        if offer.per_hour <= self._borne():
            return ""
        if offer.per_hour > self._ceiling():
            return table.too_dear(offer, self._bargain.first)
        return f"{offer.say} costs {money(offer.per_hour)}/h, and {money(self._bargain.agreed)}/h was agreed to"

    def check(self, name: str, offer: Offer, told: float) -> None:
        """What was made costs what was agreed to, as its provider tells it now (`told`, $/h). Raises Rejected: asked
        for again it would cost the same."""
        most = max(self._borne(), offer.per_hour)
        if self._rented and told > most * (1 + ROUNDING):
            raise Rejected(
                f"{name} costs {money(told)}/h, as {offer.provider} tells it now, and {money(most)}/h was agreed to",
                f"where that is worth it: {table.allowing(told)}",
            )

    def announce(self, row: ClusterRow, offer: Offer) -> None:
        """What is tried now, each offer once however often it is tried."""
        price = f", {money(offer.per_hour)}/h" if offer.per_hour else ""
        for line in (f"{row.name}: {offer.say}{price}", *(f"note: {note}" for note in offer.notes)):
            if line not in self._told:
                self._told.add(line)
                self._world.out.say(line)

    def boot_end(self, offer: Offer, now: float) -> float:
        """That of the boot lease: what is not ready yet costs money, too."""
        wished = self._made(offer.per_hour, now)
        longest = now + self._request.timeout_min * 60 + BOOT_MARGIN_S
        return min(end for end in (longest, wished.money_end, self._wish["until"]) if end is not None)

    def lease(self, per_hour: float, now: float, since: float | None = None) -> Lease:
        """That of the cluster, no longer than the balance lasts."""
        lease = self._made(per_hour, now, since)
        funds = self._search.asked.told(0.0 if since is None else PATIENCE_S)
        if funds is None:
            return lease
        lease, shortened = leases.within(lease, funds, per_hour, now)
        if since is not None:
            self._tell(shortened or leases.doubt(funds, per_hour))
        return lease

    def _made(self, per_hour: float, now: float, since: float | None = None) -> Lease:
        return leases.make(rented=self._rented, per_hour=per_hour, now=now, since=since, **self._wish)

    def _tell(self, note: str) -> None:
        if note and note not in self._told:
            self._told.add(note)
            self._world.out.say(f"note: {note}")


def _confirm(ctx: Context, offer: Offer, besides: str) -> None:
    """One question before money is spent, where somebody can answer it; with --yes what it asks is said. Raises
    UsageError."""
    if not offer.per_hour:
        return
    what = f"{offer.say}, {money(offer.per_hour)}/h{besides}"
    if ctx.yes:
        ctx.out.say(what)
        return
    if not ctx.out.interactive:
        raise UsageError("this costs money, and nobody is there to be asked", "say --yes")
    if not ctx.out.confirm(f"{what}: go?"):
        raise UsageError("not confirmed: nothing was created", "say --yes to skip the question")
