"""What a cluster may cost and how long it may live: the wish, the agreement, and the money there is."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from gpuops import lease as leases
from gpuops import offering
from gpuops.errors import UsageError
from gpuops.funds import PATIENCE_S
from gpuops.ledger import ClusterRow
from gpuops.models import Lease, Offer, Payer, Request
from gpuops.output import money
from gpuops.search import Search
from gpuops.world import World

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


@dataclass
class Bargain:
    """What was agreed to once, for all machines that one command rents, one after another."""

    first: float = 0.0
    """$/h of what was put first in the beginning: what `--yes` bears is measured by it."""
    agreed: float = 0.0
    """$/h that somebody has agreed to."""
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
        world: World,
        request: Request,
        wish: LeaseWish,
        rented: bool,
        search: Search,
        bargain: Bargain | None = None,
    ) -> None:
        self._world = world
        self._request = request
        self._wish = dataclasses.asdict(wish)
        self._rented = rented
        self._search = search
        self._bargain = bargain or Bargain()
        self._bargain.agreed = max(self._bargain.agreed, search.agreed or 0.0)
        self._told: set[str] = set()

    def agree(self, first: Offer) -> None:
        """The one question before money is spent, with what is known of the money there is. Raises UsageError."""
        self.foresee(first)
        if not self._bargain.settled:
            self._bargain.first = first.per_hour
            self.take(first)

    def foresee(self, first: Offer) -> None:
        """Say how long the money lasts, where that is known already and shorter than one would think."""
        funds = self._search.asked.told(0.0)
        if funds is not None and funds.balance is not None:
            now = self._world.clock.now()
            shortened = leases.within(self._made(first.per_hour, now), funds, first.per_hour, now)[1]
            self._tell(leases.doubt(funds, first.per_hour) or shortened)

    def take(self, offer: Offer) -> None:
        """An offer is about to be tried; one that costs more than was agreed to is asked about. Raises UsageError."""
        if offer.per_hour > self._bargain.agreed:
            if not self._bargain.settled:
                _confirm(self._world, offer, self._replacing() + offering.paid(self.payer(offer)))
            self._bargain.agreed = offer.per_hour

    def payer(self, offer: Offer) -> Payer | None:
        """Who pays for it; nobody for what is free."""
        return self._search.payer(offer) if self._rented else None

    def _replacing(self) -> str:
        """What is agreed to besides the offer."""
        most = offering.ceiling(self._bargain.first, yes=True, max_price=self._request.max_price)
        most = most if self._request.max_price is None else self._request.max_price
        return f" (and up to {money(most)}/h for what replaces it)" if self._bargain.replaces else ""

    def too_dear(self, offer: Offer) -> str:
        """Why an offer is not even asked about; empty where it may be tried. Nobody sits beside a long wait."""
        if self._world.yes or self._bargain.settled:
            first = self._bargain.first
            most = offering.ceiling(first, yes=True, max_price=self._request.max_price)
            return offering.too_dear(offer, first) if offer.per_hour > most else ""
        if self._search.rounds and offer.per_hour > self._bargain.agreed:
            return f"{offer.say} costs {money(offer.per_hour)}/h, and {money(self._bargain.agreed)}/h was agreed to"
        return ""

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


def _confirm(world: World, offer: Offer, besides: str) -> None:
    """One question before money is spent, where somebody can answer it; with --yes what it asks is said. Raises
    UsageError."""
    if not offer.per_hour:
        return
    what = f"{offer.say}, {money(offer.per_hour)}/h{besides}"
    if world.yes:
        world.out.say(what)
        return
    if not world.out.interactive:
        raise UsageError("this costs money, and nobody is there to be asked", "say --yes")
    if not world.out.confirm(f"{what}: go?"):
        raise UsageError("not confirmed: nothing was created", "say --yes to skip the question")
