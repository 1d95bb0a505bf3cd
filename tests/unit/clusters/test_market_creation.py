"""A cluster at whichever of several providers has it: the order, the one question, and the wait. Nothing is created."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpuops.cli.terminal.output import Output
from gpuops.clusters import market_creation
from gpuops.clusters.market_creation import Wanted, bring_up_at_market, preview
from gpuops.core.context import Context
from gpuops.core.errors import (
    AuthFailed,
    GpuopsError,
    Interrupted,
    NoCapacity,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Rejected,
    Unknown,
    UsageError,
)
from gpuops.core.models import Offer, Payer, Request
from gpuops.offers.lease_limits import MIN_LEASE_S, LeaseLimits, find_most
from gpuops.offers.market import Market
from gpuops.offers.price_approval import PriceApproval
from gpuops.offers.search import SEARCH_PAUSES_S
from tests.fakes import stalls
from tests.fakes.provider import FakeClock
from tests.unit.clusters.test_creation import Yes

FOUR = Request("", gpus=4, gpu_mem=24)
BOTH = Market(["stall", "booth"])
CHEAPEST = Market(["stall", "booth"], by_price=True)


class Makers:
    """In place of `creation.bring_up`: who was asked for which offers, and what each says."""

    def __init__(self, *refusals: GpuopsError | None) -> None:
        self.refusals = [*refusals]
        self.asked: list[list[str]] = []
        self.requests: list[Request] = []

    def during(self, ctx: Context) -> None:
        """What happens while machines are made,"""

    def undoing(self, ctx: Context) -> None:
        """and while what was refused is undone."""

    def __call__(self, ctx: Context, request: Request, **terms: Any) -> Any:
        known: Sequence[Offer] = terms["known"]
        assert {offer.provider for offer in known} == {request.provider}
        self.requests.append(request)
        self.asked.append([f"{offer.provider} {offer.id}" for offer in known])
        self.during(ctx)
        refusal = self.refusals.pop(0) if self.refusals else None
        if refusal:
            ctx.signals.backward()  # it is undone
            self.undoing(ctx)
            raise refusal
        return request.provider


@pytest.fixture
def street(world: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    for path in stalls.settle(tmp_path / "site"):
        monkeypatch.syspath_prepend(path)
    world.yes, world.clock = True, FakeClock()
    return world


@pytest.fixture
def makers(monkeypatch: pytest.MonkeyPatch) -> Makers:
    made = Makers()
    monkeypatch.setattr(market_creation, "bring_up", made)
    return made


def wanted(request: Request = FOUR, **terms: Any) -> Wanted:
    return Wanted(request, None, True, **{"wish": LeaseLimits(), **terms})


@pytest.mark.parametrize(
    ("market", "price", "asked"),
    [
        (BOTH, None, [["stall RTX-4090"], ["booth A10G"]]),
        (CHEAPEST, None, [["booth A10G"], ["stall RTX-4090"]]),
        (CHEAPEST, 4.0, [["booth A10G"], ["stall RTX-4090", "stall A100-SXM"]]),
        (CHEAPEST, 1.3, [["booth A10G"]]),
    ],
)
def test_each_offer_in_turn_until_one_can_be_had(
    street: Context, makers: Makers, market: Market, price: float | None, asked: list[list[str]]
) -> None:
    """What costs more than the first by half is tried with --max-price alone."""
    makers.refusals = [NoCapacity("none left")] * (len(asked) - 1)
    request = Request("", gpus=4, gpu_mem=24, max_price=price)
    last = bring_up_at_market(street, market, wanted(request))
    assert makers.asked == asked
    assert last == asked[-1][0].split()[0]  # type: ignore[comparison-overlap]


class Listener(Output):
    """Keeps what is said."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


def test_what_nobody_has(street: Context, makers: Makers) -> None:
    street.out = listener = Listener()
    makers.refusals = [RateLimited("booth has none left", "wait"), QuotaExceeded("the quota is used up", "file")]
    with pytest.raises(NoCapacity, match="nobody had the machines: booth has none left; the quota is used up"):
        bring_up_at_market(street, CHEAPEST, wanted())
    assert "booth has none left: on to the next offer" in listener.said
    assert "stall: the quota is used up: on to the next offer" in listener.said
    assert "note: dearer offers are not tried (stall, from $3.96/h): --max-price 3.96 allows them" in listener.said


@pytest.mark.parametrize(
    "refusal", [AuthFailed("the key was refused"), Rejected("no credit card"), Unknown("no answer")]
)
def test_what_one_provider_refuses_another_may_have(street: Context, makers: Makers, refusal: ProviderError) -> None:
    street.out = listener = Listener()
    makers.refusals = [refusal]
    assert bring_up_at_market(street, CHEAPEST, wanted()) == "stall"  # type: ignore[comparison-overlap]
    assert f"booth: {refusal.message}: on to the next offer" in listener.said


@pytest.mark.parametrize(
    ("refusals", "kind", "reasons"),
    [
        (
            [AuthFailed("one key was refused", "h"), AuthFailed("the other, too")],
            ProviderError,
            "one key was refused; the other, too",
        ),
        (
            [AuthFailed("the key was refused"), NoCapacity("none left", "h")],
            NoCapacity,
            "the key was refused; none left",
        ),
    ],
)
def test_where_all_refuse_each_reason_is_told(
    street: Context, makers: Makers, refusals: list[GpuopsError | None], kind: type[ProviderError], reasons: str
) -> None:
    makers.refusals = refusals
    with pytest.raises(kind, match=f"nobody had the machines: {reasons}") as raised:
        bring_up_at_market(street, CHEAPEST, wanted())
    assert isinstance(raised.value, NoCapacity) == (kind is NoCapacity), "only what may change is waited for"
    assert raised.value.hint == "h"


def test_a_refused_key_is_not_tried_with_dearer_offers(
    street: Context, makers: Makers, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = stalls.Booth.kinds[0]
    monkeypatch.setattr(stalls.Booth, "kinds", (kind, {**kind, "gpu": "A40", "price": 0.5}))
    makers.refusals = [AuthFailed("the key was refused"), NoCapacity("none left"), NoCapacity("none left")]
    request = Request("", gpus=4, gpu_mem=24, max_price=9.0)
    with pytest.raises(NoCapacity):
        bring_up_at_market(street, CHEAPEST, wanted(request))
    assert makers.asked == [["booth A10G"], ["stall RTX-4090"], ["stall A100-SXM"]]


@pytest.mark.parametrize("when", ["during", "undoing"])
def test_a_signal_is_heard_after_one_provider_has_refused(
    street: Context, makers: Makers, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """While the first one's machines are undone, and while the next one makes its own."""
    makers.refusals = [NoCapacity("none left")]
    due = 1 if when == "undoing" else 2

    def interrupt(ctx: Context) -> None:
        if len(makers.asked) == due:
            ctx.signals._handle(signal.SIGINT, None)

    monkeypatch.setattr(makers, when, interrupt)
    with street.signals, pytest.raises(Interrupted):
        bring_up_at_market(street, CHEAPEST, wanted())
    assert len(makers.asked) == due


def test_one_question_covers_all(street: Context, makers: Makers, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    street.yes, street.out = False, Yes(asked)
    payers = {"booth": Payer("alice", "BOOTH_KEY"), "stall": Payer("bob", "STALL_KEY")}
    monkeypatch.setattr(market_creation, "find_payer", lambda _, request: payers[request.provider])
    makers.refusals = [NoCapacity("none left")]
    approval, wish = PriceApproval(), LeaseLimits(max_hours=1.0)
    request = Request("", gpus=4, gpu_mem=24, wait_s=7200.0)
    now = street.clock.now()
    until = find_most(wish, request, 1.20, 1.36, now).describe(now)
    bring_up_at_market(street, CHEAPEST, wanted(request, approval=approval, wish=wish))
    (question,) = asked
    assert f"; {until}" in question, "it may be found as late as it is waited for"
    assert question.startswith(
        "booth: 1 x 4 x A10G, $1.20/h (or up to $1.36/h where that cannot be had), paid by alice (key from BOOTH_KEY); "
    )
    assert (approval.first, approval.agreed) == (pytest.approx(1.20), pytest.approx(1.36))


def test_a_no_asks_nobody(street: Context, makers: Makers) -> None:
    street.yes = False
    with pytest.raises(UsageError, match="no terminal"):
        bring_up_at_market(street, CHEAPEST, wanted())
    assert makers.asked == []


@pytest.mark.parametrize("has", [1, 3])
def test_the_search_goes_on_over_all_of_them(street: Context, makers: Makers, has: int) -> None:
    """A round asks for everybody's offers anew; no single provider waits by itself meanwhile."""
    makers.refusals = [NoCapacity("none left")] * (2 * has)
    request = Request("", gpus=4, gpu_mem=24, wait_s=3600.0)
    bring_up_at_market(street, CHEAPEST, wanted(request))
    assert isinstance(street.clock, FakeClock)
    assert street.clock.slept == [*SEARCH_PAUSES_S[:has]]
    assert len(makers.asked) == 2 * has + 1
    assert {one.wait_s for one in makers.requests} == {0.0}


def test_prices_that_rise_while_it_waits_do_not_raise_what_is_accepted(
    street: Context, makers: Makers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half as much again as the very first offer, however many rounds there were since."""
    kind = stalls.Booth.kinds[0]
    rising = iter([0.44, *[0.6] * 99])

    class Rising(Makers):
        def __call__(self, ctx: Context, request: Request, **terms: Any) -> Any:
            monkeypatch.setattr(stalls.Booth, "kinds", ({**kind, "price": next(rising)},))
            return super().__call__(ctx, request, **terms)

    makers = Rising(NoCapacity("none left"), NoCapacity("none left"))
    monkeypatch.setattr(market_creation, "bring_up", makers)
    approval = PriceApproval()
    request = Request("", gpus=4, gpu_mem=24, wait_s=600.0)
    with pytest.raises(NoCapacity, match=r"nothing can be had for \$1.80/h or less"):
        bring_up_at_market(street, Market(["booth"]), wanted(request, approval=approval))
    assert len(makers.asked) == 2
    assert (approval.first, approval.agreed) == (pytest.approx(1.20), pytest.approx(1.76))


@pytest.mark.parametrize(("left_s", "rounds"), [(MIN_LEASE_S, 1), (MIN_LEASE_S + 65.0, 3)])
def test_replacements_are_searched_for_while_they_are_worth_it(
    street: Context, makers: Makers, left_s: float, rounds: int
) -> None:
    """Half an hour without --wait, but not to the end of the job's hours."""
    makers.refusals = [NoCapacity("none left")] * 99
    approval = PriceApproval(first=1.2, agreed=1.36, settled=True)
    wish = LeaseLimits(until=street.clock.now() + left_s)
    with pytest.raises(NoCapacity):
        bring_up_at_market(street, CHEAPEST, wanted(approval=approval, wish=wish), last=["booth"])
    assert [one[0] for one in makers.asked] == ["stall RTX-4090", "booth A10G"] * rounds


def test_keys_that_nobody_has_are_not_waited_for(street: Context, makers: Makers) -> None:
    request = Request("", gpus=4, wait_s=3600.0)
    with pytest.raises(ProviderError, match="nothing that fits can be had at keyless and local-less") as raised:
        bring_up_at_market(street, Market(["keyless", "local-less"]), wanted(request))
    assert not isinstance(raised.value, NoCapacity)
    assert makers.asked == []


def test_a_dry_run_shows_the_order(street: Context) -> None:
    offers, payer = preview(street, CHEAPEST, FOUR, LeaseLimits())
    assert [offer.id for offer in offers] == ["A10G", "RTX-4090", "A100-SXM"]
    assert payer is None
