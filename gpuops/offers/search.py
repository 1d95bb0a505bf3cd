"""Why offers could not be had: capacity and quota, which get opposite advice, and prices beyond what was agreed to."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence

from gpuops.core.context import Context
from gpuops.core.errors import (
    GpuopsError,
    Interrupted,
    NoCapacity,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Unknown,
    UsageError,
)
from gpuops.core.format import money, span
from gpuops.core.models import Lease, Offer, Payer, Request
from gpuops.core.provider import Provisioner, is_rented
from gpuops.ledger.store import ClusterRow
from gpuops.offers import lease as leases
from gpuops.offers import table
from gpuops.offers.lease import Funds
from gpuops.offers.payer import payer, refuse_dotenv

WAIT_HINT = "try again later, let it be tried for you (--wait 2h), or allow more kinds of machine"


class Refusals:
    """What came of one round of offers, none of which was had in the end."""

    def __init__(self) -> None:
        self._capacity: list[NoCapacity] = []
        self._quota: list[QuotaExceeded] = []
        self._spent: set[str] = set()
        """Quotas that are used up: none of their offers is asked for again in this round."""
        self._passed = 0
        self._dear: tuple[Offer, str] | None = None

    def passes(self, offer: Offer) -> bool:
        """Whether an offer falls under a quota that another was refused for."""
        passed = _quota(offer) in self._spent
        self._passed += passed
        return passed

    def too_dear(self, offer: Offer, why: str) -> None:
        self._dear = self._dear or (offer, why)

    def refused(self, offer: Offer, error: NoCapacity | QuotaExceeded) -> None:
        """One was asked for in vain. Raises the error where nobody says which others its quota counts for."""
        if isinstance(error, NoCapacity):
            self._capacity.append(error)
        elif quota := _quota(offer):
            self._quota.append(error)
            self._spent.add(quota)
        else:
            raise error

    def error(self) -> NoCapacity | QuotaExceeded:
        """All of it in one: QuotaExceeded only where waiting would help nobody."""
        said = {"no capacity": _said(self._capacity), "beyond the quota": _said(self._quota)}
        count = len(self._capacity) + len(self._quota) + self._passed
        short = "; ".join(f"{what}: {why}" for what, why in said.items() if why)
        if self._quota and not self._capacity:
            short = said["beyond the quota"]
        elif not self._quota:
            short = said["no capacity"]
        none = f"none of {count} offers could be had: {short}" if count > 1 else short
        whys = [*([none] if short else []), *([self._dear[1]] if self._dear else [])]
        quota = self._quota[0].hint if self._quota else ""
        if quota and not self._capacity and not self._dear:
            return QuotaExceeded("; ".join(whys), quota)
        allow = _wait(self._capacity)
        if self._dear:
            or_wait = f"; or {allow}" if self._capacity else ""
            allow = f"allow it: {table.allowing(self._dear[0].per_hour)}{or_wait}"
        what = "for what is dearer" if self._dear else "for the capacity"
        return NoCapacity("; ".join(whys), f"{what}: {allow}; for the quota: {quota}" if quota else allow)


def _quota(offer: Offer) -> str:
    return str(offer.data.get("quota") or "")


def _said(errors: list[NoCapacity] | list[QuotaExceeded]) -> str:
    """Each reason once."""
    return "; ".join(dict.fromkeys(error.say for error in errors))


def _wait(errors: list[NoCapacity]) -> str:
    hints: set[str] = {error.hint for error in errors}
    return hints.pop() if len(hints) == 1 else WAIT_HINT


PATIENCE_S = 3.0
"""So long the answer is waited for where everything else is done."""


class Asked:
    """A question to a provider, under way since this was made."""

    def __init__(self, ctx: Context, provisioner: Provisioner) -> None:
        self._at = ctx.clock.now()
        self._funds: Funds | None = None
        self._done = threading.Event()
        ask: Callable[[], Mapping[str, float] | None] | None = getattr(provisioner, "account", None)
        if ask is None or not is_rented(provisioner):
            self._done.set()
        else:
            threading.Thread(target=self._ask, args=(ask,), daemon=True, name="account").start()

    def told(self, patience_s: float) -> Funds | None:
        """The answer; None where nobody can be asked. One that has not come in time knows nothing."""
        return self._funds if self._done.wait(patience_s) else Funds(asked=self._at)

    def _ask(self, ask: Callable[[], Mapping[str, float] | None]) -> None:
        try:
            told = ask()
            if told is not None:
                known = {name: told.get(name) for name in ("balance", "spend_per_hr", "spend_limit")}
                self._funds = Funds(**known, asked=self._at)
        except GpuopsError:
            self._funds = Funds(asked=self._at)  # never a reason to fail: it is not known
        finally:
            self._done.set()


def beyond(ctx: Context, row: ClusterRow, lease: Lease, now: float) -> str:
    """Why the account cannot pay for all of a live cluster's lease; empty where it can, or where that is not known."""
    try:
        funds = Asked(ctx, ctx.provisioner_of(row)).told(PATIENCE_S)
    except GpuopsError:  # the package that brings it is no longer installed
        return ""
    per_hour = sum(one.per_hour for one in ctx.ledger.resources(row.id) if one.bills)
    return leases.beyond(lease, funds, per_hour, now) if funds is not None else ""


PAUSES = (60.0, 60.0, 90.0, 120.0)
"""How long nothing is asked after one look in vain; the last for ever."""
REPLACING_S = 1800.0
"""How long machines that replace others are asked for, where nobody has said (`--wait`)."""
ROUND_S = 600.0
"""So long a look and its attempts may take: until then the guard lets a waiting command be."""
SOON_S = 2.0
"""So long the account's answer is waited for once the offers are there."""

Plan = Callable[[Request, set[str]], Sequence[Offer]]


class Search:
    """One hunt for machines: its offers, what the account can pay, the price that was agreed to."""

    def __init__(
        self,
        ctx: Context,
        request: Request,
        plan: Plan,
        agreed: float | None = None,
        *,
        replaces: bool = False,
        until: float | None = None,
    ) -> None:
        """`replaces`: machines that were taken back; `until`: when nothing is worth renting any more (UTC seconds)."""
        self.agreed = agreed
        """$/h that somebody has agreed to; None: nobody was asked yet."""
        self.rounds = 0
        """How often nothing could be had."""
        self._world = ctx
        self._request = request
        self._plan = plan
        self._notes: set[str] = set()
        self._replaces = replaces
        wait_s = (REPLACING_S if replaces else 0.0) if request.wait_s is None else request.wait_s
        self._wait_s = wait_s if until is None else max(0.0, min(wait_s, until - ctx.clock.now()))
        self._end = ctx.clock.monotonic() + self._wait_s
        refuse_dotenv(ctx, request.provider)
        self.asked = self._ask()

    def payer(self, offer: Offer) -> Payer | None:
        """Who would pay for an offer."""
        return payer(self._world, dataclasses.replace(self._request, region=offer.region))

    def offers(self, refused: ProviderError | None = None, row: ClusterRow | None = None) -> Sequence[Offer]:
        """What can be had and paid, best first. `refused`: why nothing came of the last ones; waits before it asks
        again, and raises it where there is no time left, or waiting does not help. `row`: the cluster that is to be.
        """
        while True:
            if refused is not None:
                self._pause(refused, row)
                self.asked = self._ask()
            try:
                return self._payable(self._plan(self._request, self._notes))
            except (NoCapacity, QuotaExceeded) as error:
                refused = error
            except (RateLimited, Unknown) as error:
                if not self.rounds and not self._replaces:
                    raise
                refused = error  # one bad look is not the end of a long wait

    def _ask(self) -> Asked:
        return Asked(self._world, self._world.provisioner(self._request.provider))

    def _payable(self, offers: Sequence[Offer]) -> Sequence[Offer]:
        """Those that the account may have. Raises QuotaExceeded where that is none."""
        funds = self.asked.told(SOON_S)
        if funds is None:
            return offers
        payable = [offer for offer in offers if not leases.over_limit(funds, offer.per_hour)]
        if not payable:
            raise QuotaExceeded(
                leases.over_limit(funds, min(offer.per_hour for offer in offers)),
                "end something, at the provider's console if need be, ask for less, or have the limit raised there",
            )
        return payable

    def _pause(self, refused: ProviderError, row: ClusterRow | None) -> None:
        """Wait for the next look. Raises `refused` when the time is over, Interrupted when another command ends it."""
        ctx, clock = self._world, self._world.clock
        left = self._end - clock.monotonic()
        quota = isinstance(refused, QuotaExceeded)
        if left <= 0 or (quota and not self._replaces):
            raise self._in_vain(refused)
        if not self.rounds:
            counted = " (what was taken back may still be counted)" if quota else ""
            ctx.out.say(f"{refused.say}{counted}: asking again for {span(left)}")
            if row is None:
                self._agree_ahead(left)
        wait = min(PAUSES[min(self.rounds, len(PAUSES) - 1)], left)
        if isinstance(refused, RateLimited) and refused.retry_after is not None:
            wait = min(max(wait, refused.retry_after), left)
        self.rounds += 1
        if row is not None:
            self._put_off(row, wait)
        with ctx.progress.during("nothing can be had yet", aside=True):
            ctx.progress.waits(f"asking again in {span(wait)}, {span(left)} left")
            clock.pause(wait, self._end)
        if row is not None:
            self._put_off(row, 0.0)

    def _in_vain(self, refused: ProviderError) -> ProviderError:
        if self.rounds:
            refused.say = f"{refused.say}; asked {self.rounds + 1} times in {span(self._wait_s)}"
        return refused

    def _put_off(self, row: ClusterRow, wait: float) -> None:
        """The guard undoes what is not ready at its boot deadline, and what waits is not late."""
        now = self._world.ledger.cluster(row.id)
        if now.state != "creating":
            raise Interrupted(f"another command ends {row.name} while it waits", "gpuops status")
        self._world.ledger.set_cluster(row.id, boot_deadline=self._world.clock.now() + wait + ROUND_S)

    def _agree_ahead(self, left: float) -> None:
        """The one question, before there is an offer. Raises UsageError."""
        ctx, most = self._world, self._request.max_price
        rented = is_rented(ctx.provisioner(self._request.provider))
        if ctx.yes or not rented or self.agreed is not None:
            return
        if not ctx.out.interactive:
            raise UsageError("this costs money, and nobody is there to be asked", "say --yes")
        if most is None:
            ctx.out.say("note: stay near: you are asked when there is an offer; with --max-price you are asked now")
        elif ctx.out.confirm(
            f"wait for {span(left)} at most, then rent for up to {money(most)}/h"
            f"{table.paid(payer(ctx, self._request))}: go?"
        ):
            self.agreed = most
        else:
            raise UsageError("not confirmed: nothing was created", "say --yes to skip the question")
