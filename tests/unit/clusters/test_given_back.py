"""What machines have cost that were given back, since no whole cluster could be had: it counts against `--max-cost`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuops.clusters import creation
from gpuops.core.context import Context
from gpuops.core.errors import AuthFailed, GpuopsError, MachineGone, NoCapacity, NodeError, Rejected
from gpuops.core.format import money
from gpuops.core.models import Intent, Journal, Offer, Price, Request, Resource
from gpuops.ledger.store import ClusterRow
from gpuops.offers.lease_limits import LeaseLimits
from gpuops.offers.price_approval import PriceApproval
from gpuops.runs.retries import JobOutcome, Preemption, RetryState, run_with_retries
from tests.fakes.provider import NAME, PRICE, Cloud, Fault, Scripted, surroundings
from tests.unit.clusters.test_creation import Yes

TWO = Request(NAME, nodes=2, timeout_min=1.0)
OFFERED = 2 * PRICE
HALF_AN_HOUR = 1800.0


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Cloud, Context]:
    """A provider that takes half an hour over each launch."""
    cloud, world = surroundings(tmp_path, monkeypatch)
    real = Scripted.create

    def create(self: Scripted, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        world.clock.sleep(HALF_AN_HOUR)
        return real(self, offer, intent, journal)

    monkeypatch.setattr(Scripted, "create", create)
    return cloud, world


def try_to_create(world: Context, limits: LeaseLimits, approval: PriceApproval, error: type[GpuopsError]) -> ClusterRow:
    """Try, in vain; the row of what was tried last."""
    with pytest.raises(error):
        creation.bring_up(world, TWO, name=None, ephemeral=True, wish=limits, approval=approval)
    return world.ledger.clusters(live=False)[-1]


@pytest.mark.parametrize(
    ("fault", "machines"),
    [
        (Fault("NoCapacity", made=0), 0),
        (Fault("NoCapacity", made=1), 1),
        (Fault("Unknown", instead="NoCapacity", made=1, told=0), 2),
    ],
)
def test_the_next_attempt_has_less_to_spend(there: tuple[Cloud, Context], fault: Fault, machines: int) -> None:
    """Where it is not known what was made, all of it counts."""
    cloud, world = there
    cloud.play(offers_at=[OFFERED, OFFERED], create=[fault], settle_s=0.0)
    row = try_to_create(world, LeaseLimits(max_cost=5.0), PriceApproval(), NodeError)
    spent = machines * PRICE / 2
    assert row.spent_before == pytest.approx(spent, abs=0.01)
    assert row.lease.money_end == pytest.approx(row.created + (5.0 - row.spent_before) / OFFERED * 3600)


def test_what_is_asked_for_once_more_counts_each_time(there: tuple[Cloud, Context]) -> None:
    """One launch that the provider limits is undone and repeated."""
    cloud, world = there
    cloud.play(create=[Fault("RateLimited", made=1)])
    row = try_to_create(world, LeaseLimits(max_cost=5.0), PriceApproval(), NodeError)
    assert row.spent_before == pytest.approx(PRICE / 2, abs=0.01)


@pytest.mark.parametrize("max_cost", [1.0, None])
def test_nothing_is_rented_for_what_is_too_little(there: tuple[Cloud, Context], max_cost: float | None) -> None:
    """$0.625 are gone, and ten minutes of both cost $0.42."""
    cloud, world = there
    cloud.play(offers_at=[OFFERED, OFFERED], create_always=[Fault("NoCapacity", made=1)])
    kind = NoCapacity if max_cost is None else Rejected
    try_to_create(world, LeaseLimits(max_cost=max_cost), PriceApproval(), kind)
    assert cloud.calls().count("create") == (1 if max_cost else 2)


@pytest.mark.parametrize("refusal", ["NoCapacity", "AuthFailed"])
def test_another_provider_is_told_of_it(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    """The same approval goes from one to the next, and the cluster that comes up has all of it in its own cost."""
    cloud, world = there
    cloud.play(create_always=[Fault(refusal, made=1)])
    approval, limits = PriceApproval(), LeaseLimits(max_cost=5.0)
    kind = {"NoCapacity": NoCapacity, "AuthFailed": AuthFailed}[refusal]
    for times in (1, 2):
        try_to_create(world, limits, approval, kind)
        assert approval.spent_before == pytest.approx(times * PRICE / 2, abs=0.01)
    cloud.play()
    assert try_to_create(world, limits, approval, NodeError).spent_before == pytest.approx(PRICE, abs=0.02)
    monkeypatch.setattr(creation, "_create_and_wait", lambda *_: None)
    creation.bring_up(world, TWO, name=None, ephemeral=True, wish=limits, approval=approval)
    assert approval.spent_before == 0.0


def test_attempts_that_take_long_do_not_move_the_end_that_was_agreed_to(there: tuple[Cloud, Context]) -> None:
    """One hour from when the first may be ready. Before the third attempt a minute of that is left."""
    cloud, world = there
    cloud.play(offers_at=[OFFERED, OFFERED], create=[Fault("NoCapacity", made=0)])
    latest = world.clock.now() + TWO.timeout_min * 60 + 3600.0
    approval = PriceApproval()
    row = try_to_create(world, LeaseLimits(max_hours=1.0), approval, NodeError)
    assert (approval.until, row.lease.hard_end) == (latest, latest)
    assert row.boot_deadline <= latest
    cloud.play(offers_at=[OFFERED] * 3, create_always=[Fault("NoCapacity", made=0)])
    try_to_create(world, LeaseLimits(max_hours=1.0), PriceApproval(), Rejected)
    assert cloud.calls().count("create") == 4


def test_a_replacement_over_the_quota_waits_with_nothing_rented(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preempted machines may still be counted, so that the search goes on; one of the two was made before the no."""
    cloud, world = there
    cloud.play(create=[Fault("QuotaExceeded", made=1)], describe_always=[Fault(state="starting")])
    real, there_at_each_round = Scripted.offers, list[int]()

    def offers(self: Scripted, request: Request) -> Sequence[Offer]:
        there_at_each_round.append(len(cloud.machines()))
        return real(self, request)

    monkeypatch.setattr(Scripted, "offers", offers)
    approval, waits = PriceApproval(first=OFFERED, settled=True), dataclasses.replace(TWO, wait_s=7200.0)
    with pytest.raises(NodeError):
        creation.bring_up(world, waits, name=None, ephemeral=True, wish=LeaseLimits(max_cost=9.0), approval=approval)
    row = world.ledger.clusters(live=False)[-1]
    assert there_at_each_round == [0, 0]
    assert row.spent_before == pytest.approx(PRICE / 2, abs=0.01)


def test_machines_that_were_taken_while_they_booted_are_counted_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what was given back before them, and at their own price, which is dearer than the offer's."""
    cloud, world = surroundings(tmp_path, monkeypatch)
    cloud.play(offers_at=[0.8 * OFFERED], describe_always=[Fault(state="starting")] * 6 + [Fault(state="ended")])
    chain, wishes = RetryState(1, PriceApproval(spent_before=0.3)), list[LeaseLimits]()

    def attempt(wish: LeaseLimits, _: str | None) -> JobOutcome:
        wishes.append(wish)
        creation.bring_up(world, TWO, name=None, ephemeral=True, wish=wish, approval=chain.approval)
        raise AssertionError("it cannot come up")

    with pytest.raises(MachineGone):
        run_with_retries(world, chain, LeaseLimits(max_cost=9.0), attempt)
    first, second = world.ledger.clusters(live=False)
    assert first.ended is not None
    cost = 0.3 + OFFERED * (first.ended - first.created) / 3600
    assert chain.spent == pytest.approx(cost)
    assert wishes[1].max_cost == pytest.approx(9.0 - cost)
    assert (second.spent_before, chain.approval.spent_before) == (0.0, 0.0)


@pytest.mark.parametrize("described", ["before", "while it boots"])
def test_machines_that_are_dearer_than_offered_boot_no_longer_than_the_money_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, described: str
) -> None:
    """The boot lease was counted at the offer's price, and the dearer one is within what was agreed to."""
    cloud, world = surroundings(tmp_path, monkeypatch)
    cloud.play(offers_at=[0.8 * OFFERED], describe_always=[Fault(state="starting")])
    if described == "while it boots":
        real = Scripted._add
        monkeypatch.setattr(
            Scripted, "_add", lambda self, mark: dataclasses.replace(real(self, mark), per_hour=0.8 * PRICE)
        )
    request = dataclasses.replace(TWO, timeout_min=60.0)
    with pytest.raises(GpuopsError):
        creation.bring_up(world, request, name=None, ephemeral=True, wish=LeaseLimits(max_cost=1.0))
    (row,) = world.ledger.clusters(live=False)
    assert row.ended is not None
    assert OFFERED * (row.ended - row.created) / 3600 == pytest.approx(1.0, abs=0.02)


def test_what_replaces_machines_has_the_jobs_end() -> None:
    """A person may have extended it since the question."""
    state = RetryState(1, PriceApproval(until=1.0))
    state.add(Preemption("r", "c", "", 0, "gone"), 1.0)
    assert (state.approval.settled, state.approval.until) == (True, None)


def test_the_question_tells_of_the_offer_that_lasts_longest(there: tuple[Cloud, Context]) -> None:
    """The first one ends by itself within the hour; the next, which may come in its place, does not."""
    _, world = there
    now = world.clock.now()
    offers = [
        Offer(NAME, "x", "x", 1, 0, prices=(Price("m", 1.0),), data=data) for data in ({"ends": now + 3600.0}, {})
    ]
    asked: list[str] = []
    world.yes, world.out, approval = False, Yes(asked), PriceApproval()
    assert approval.confirm_offers(world, TWO, offers, lambda _: None, LeaseLimits(max_hours=3.0))
    assert approval.until == now + TWO.timeout_min * 60 + 3 * 3600.0
    assert f"{money(3 + TWO.timeout_min / 60)} at most" in asked[0]
