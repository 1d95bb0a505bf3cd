"""The search for machines: offers that the account can pay for, round after round while the request says `--wait`.

`OfferSearch` asks a provider for offers and waits between rounds; `AccountQuery` asks aside what the account may spend.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence

from gpuops.core.context import Context
from gpuops.core.errors import GpuopsError, Interrupted, NoCapacity, ProviderError, QuotaExceeded, RateLimited, Unknown
from gpuops.core.format import span
from gpuops.core.models import Lease, Offer, Payer, Request
from gpuops.core.polling import Poller
from gpuops.core.provider import LoadedProvisioner, is_rented
from gpuops.core.timings import Whose
from gpuops.ledger.rows import ClusterState
from gpuops.ledger.store import ClusterRow
from gpuops.offers import lease_limits
from gpuops.offers.billing_account import find_payer, refuse_dotenv
from gpuops.offers.lease_limits import MIN_LEASE_S, Funds, LeaseLimits
from gpuops.offers.price_approval import PriceApproval

ACCOUNT_WAIT_S = 3.0
"""How long the account's answer is waited for where the machines are ready."""
ACCOUNT_WAIT_FOR_OFFERS_S = 2.0
"""How long the account's answer is waited for once the offers are known."""
SEARCH_PAUSES_S = (60.0, 60.0, 90.0, 120.0)
"""Pauses between rounds without a machine; the last one repeats. Providers' capacity changes within minutes."""
REPLACEMENT_SEARCH_S = 1800.0
"""How long replacements of preempted machines are searched for without `--wait`."""
SEARCH_ROUND_S = 600.0
"""How long one round and its attempts may take: the guard leaves a waiting command alone until then."""

OfferSource = Callable[[Request, set[str]], Sequence[Offer]]
"""Asks for offers, best first; the set holds the notes that were printed before."""


class AccountQuery:
    """A question to a provider about the account's money, asked in a thread of its own while offers are searched."""

    def __init__(self, ctx: Context, provisioner: LoadedProvisioner) -> None:
        self._asked = ctx.clock.now()
        self._funds: Funds | None = None
        self._done = threading.Event()
        if is_rented(provisioner):
            threading.Thread(target=self._ask, args=(provisioner,), daemon=True, name="account").start()
        else:
            self._done.set()

    def answer(self, wait_s: float) -> Funds | None:
        """The account's money, with nothing known where no answer has come within `wait_s`; None where the provider has
        no such account."""
        return self._funds if self._done.wait(wait_s) else Funds(asked=self._asked)

    def _ask(self, provisioner: LoadedProvisioner) -> None:
        try:
            answer = provisioner.account()
            if answer is not None:
                known = {name: answer.get(name) for name in ("balance", "spend_per_hr", "spend_limit")}
                self._funds = Funds(**known, asked=self._asked)
        except GpuopsError:
            self._funds = Funds(asked=self._asked)  # an unknown balance forbids nothing
        finally:
            self._done.set()


def balance_shortfall(ctx: Context, row: ClusterRow, lease: Lease, now: float) -> str:
    """Why the account cannot pay for all of a live cluster's lease; empty where it can, or where that is unknown."""
    try:
        funds = AccountQuery(ctx, ctx.provisioner_of(row)).answer(ACCOUNT_WAIT_S)
    except GpuopsError:  # the package that brings the provider is no longer installed
        return ""
    per_hour = sum(resource.per_hour for resource in ctx.ledger.resources(row.id) if resource.bills)
    return lease_limits.balance_ends_first(lease, funds, per_hour, now) if funds is not None else ""


class OfferSearch:
    """One search for machines of a request, until its time is over."""

    def __init__(
        self,
        ctx: Context,
        request: Request,
        source: OfferSource,
        approval: PriceApproval | None = None,
        limits: LeaseLimits | None = None,
    ) -> None:
        """`limits`: of the cluster that is searched for; shortly before their `until` no machine is worth renting."""
        self._ctx = ctx
        self._request = request
        self._source = source
        self._approval = approval or PriceApproval()
        self._limits = limits or LeaseLimits()
        self._notes: set[str] = set()
        self._failed_rounds = 0
        replacing = REPLACEMENT_SEARCH_S if self._approval.settled else 0.0
        wait_s = replacing if request.wait_s is None else request.wait_s
        until = self._limits.until
        self._wait_s = wait_s if until is None else max(0.0, min(wait_s, until - MIN_LEASE_S - ctx.clock.now()))
        self._deadline = ctx.clock.monotonic() + self._wait_s
        self._poller = Poller.with_pauses(ctx.clock, self._deadline, SEARCH_PAUSES_S)
        self._rounds = iter(self._poller)
        next(self._rounds)  # the first round starts at once
        refuse_dotenv(ctx, request.provider)
        self.account = self._ask_account()

    def payer(self, offer: Offer) -> Payer | None:
        """Who would pay for an offer."""
        return find_payer(self._ctx, dataclasses.replace(self._request, region=offer.region))

    def offers(self, refused: ProviderError | None = None, row: ClusterRow | None = None) -> Sequence[Offer]:
        """Offers that the account can pay for, and that last, best first.

        `refused`: why none of the last offers could be had; the search waits before it asks again, and raises `refused`
        where no time is left or waiting does not help. `row`: the cluster that is being created, if any.
        """
        while True:
            if refused is not None:
                self._wait_for_next_round(refused, row)
                self.account = self._ask_account()
            try:
                return self._payable(self._lasting(self._source(self._request, self._notes)))
            except (NoCapacity, QuotaExceeded) as error:
                refused = error
            except (RateLimited, Unknown) as error:
                if not self._failed_rounds and not self._approval.settled:
                    raise
                refused = error  # one failed round does not end a long wait

    def _ask_account(self) -> AccountQuery:
        return AccountQuery(self._ctx, self._ctx.provisioner(self._request.provider))

    def _lasting(self, offers: Sequence[Offer]) -> Sequence[Offer]:
        """The offers whose machines do not end by themselves before they may be ready. Raises NoCapacity where there
        are none."""
        soonest = self._ctx.clock.now() + MIN_LEASE_S
        lasting = [offer for offer in offers if offer.data.get("ends") is None or offer.data["ends"] >= soonest]
        if not lasting:
            say = f"what {self._request.provider} has ends by itself within {span(MIN_LEASE_S)}"
            raise NoCapacity(say, "try again later, or another provider")
        return lasting

    def _payable(self, offers: Sequence[Offer]) -> Sequence[Offer]:
        """The offers within the account's spend limit. Raises QuotaExceeded where there are none."""
        funds = self.account.answer(ACCOUNT_WAIT_FOR_OFFERS_S)
        if funds is None:
            return offers
        payable = [offer for offer in offers if not lease_limits.explain_spend_limit(funds, offer.per_hour)]
        if not payable:
            raise QuotaExceeded(
                lease_limits.explain_spend_limit(funds, min(offer.per_hour for offer in offers)),
                "end something, at the provider's console if need be, ask for less, or have the limit raised there",
            )
        return payable

    def _wait_for_next_round(self, refused: ProviderError, row: ClusterRow | None) -> None:
        """Wait for the next round. Raises `refused` when the time is over, Interrupted when another command ends the
        cluster."""
        ctx = self._ctx
        left_s = self._deadline - ctx.clock.monotonic()
        over_quota = isinstance(refused, QuotaExceeded)
        if left_s <= 0 or (over_quota and not self._approval.settled):
            raise self._with_attempts(refused)
        if not self._failed_rounds:
            counted = " (preempted machines may still be counted)" if over_quota else ""
            ctx.out.say(f"{refused.message}{counted}: asking again for {span(left_s)}")
            if row is None:
                self._approval.confirm_max_price(ctx, self._request, self._limits, left_s)
        self._failed_rounds += 1
        if isinstance(refused, RateLimited) and (refused.retry_after or 0.0) > self._poller.next_pause_s:
            self._poller.retry_after(refused.retry_after)
        pause_s = self._poller.next_pause_s
        if row is not None:
            self._extend_boot_deadline(row, pause_s)
        with ctx.progress.during("nothing can be had yet", aside=True, whose=Whose.PROVIDER):
            ctx.progress.waits(f"asking again in {span(pause_s)}, {span(left_s)} left")
            next(self._rounds)
        if row is not None:
            self._extend_boot_deadline(row, 0.0)

    def _with_attempts(self, refused: ProviderError) -> ProviderError:
        """The refusal, saying how often the provider was asked."""
        if self._failed_rounds:
            refused.message = f"{refused.message}; asked {self._failed_rounds + 1} times in {span(self._wait_s)}"
        return refused

    def _extend_boot_deadline(self, row: ClusterRow, wait_s: float) -> None:
        """Move the boot deadline, at which the guard would undo the cluster, behind the wait and the next round."""
        now = self._ctx.ledger.cluster(row.id)
        if now.state is not ClusterState.CREATING:
            raise Interrupted(f"another command ends {row.name} while it waits", "gpuops status")
        self._ctx.ledger.set_cluster(row.id, boot_deadline=self._ctx.clock.now() + wait_s + SEARCH_ROUND_S)
