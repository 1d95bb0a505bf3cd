"""A cluster against a provider that refuses, loses answers, lies, lags and never finishes (tests/fakes/provider.py)."""

from __future__ import annotations

import dataclasses
import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuops.cli.terminal.output import Output
from gpuops.clusters import creation, readiness
from gpuops.clusters.owned_resources import select_by_tag
from gpuops.clusters.teardown import tear_down
from gpuops.core.context import Context
from gpuops.core.errors import (
    AuthFailed,
    GpuopsError,
    LocalDisk,
    MachineGone,
    NoCapacity,
    NodeError,
    ProviderError,
    Rejected,
    StillBilling,
    Unknown,
)
from gpuops.core.format import clock_time, money
from gpuops.core.models import Intent, Journal, Lease, Offer, Price, Request, Resource
from gpuops.nodes.session import ClusterSession
from gpuops.offers.lease_limits import LeaseLimits
from gpuops.offers.price_approval import PriceApproval
from gpuops.offers.price_terms import Terms
from gpuops.offers.search import OfferSearch
from gpuops.transport.ssh import Denied
from tests.fakes.provider import NAME, PRICE, Cloud, Fault, Scripted, surroundings

TWO = Request(NAME, nodes=2, timeout_min=1.0)
STATES_HELD = ["starting", "ended", "unknown", "EXITED"]


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Cloud, Context]:
    return surroundings(tmp_path, monkeypatch)


def up(world: Context, request: Request = TWO) -> ClusterSession:
    return creation.bring_up(world, request, name="lab", ephemeral=False, wish=LeaseLimits())


def assert_nothing_left(cloud: Cloud, world: Context) -> None:
    assert cloud.machines() == []
    assert world.ledger.clusters() == []


# -- creation -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault("NoCapacity", made=0), NoCapacity),
        (Fault("NoCapacity", made=1), NoCapacity),
        (Fault("AuthFailed", made=1), AuthFailed),
        (Fault("QuotaExceeded", made=1), ProviderError),
        (Fault("Rejected", made=0), ProviderError),
        (Fault("Unknown", made=0), Unknown),
        (Fault("Unknown", made=1, told=0), Unknown),
        (Fault("Unknown", made=2, told=1, twice=True), Unknown),
        (Fault("KeyError", made=1, told=0), Unknown),
        (Fault("OSError", made=0), Unknown),
        (Fault(made=1), Unknown),
        (Fault(made=2, twice=True, error="Unknown"), Unknown),
    ],
)
def test_what_fails_half_way_is_undone(there: tuple[Cloud, Context], fault: Fault, error: type[Exception]) -> None:
    cloud, world = there
    cloud.play(create=[fault])
    with pytest.raises(error):
        up(world)
    assert_nothing_left(cloud, world)


def test_a_lost_answer_of_a_provider_that_lags_leaves_no_orphan(there: tuple[Cloud, Context]) -> None:
    """The list shows what was made only after a while: an empty list means nothing until `settle_s` is over."""
    cloud, world = there
    cloud.play(create=[Fault("Unknown", made=1, told=0)], list_owned=[Fault(lie=True)] * 6, settle_s=60)
    with pytest.raises(Unknown):
        up(world)
    assert_nothing_left(cloud, world)


@pytest.mark.parametrize(("shown_at", "error"), [(1, NodeError), (2, Unknown)])
def test_a_list_that_comes_late_tells_of_when_it_was_asked_for(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch, shown_at: int, error: type[Exception]
) -> None:
    """Its answer takes longer than what was made may take to be shown. `shown_at`: the look that shows it; 1: when
    it is looked up after the lost answer (so that it is waited for), 2: when it is undone."""
    cloud, world = there
    cloud.play(create=[Fault("Unknown", told=0)], settle_s=30.0)
    real, looks = Scripted.list_owned, list[int]()

    def listed(self: Scripted, owner: str, regions: Sequence[str]) -> Sequence[Resource]:
        looks.append(len(looks))
        if looks[-1] < shown_at:
            world.clock.sleep(40.0)
            return []
        return real(self, owner, regions)

    monkeypatch.setattr(Scripted, "list_owned", listed)
    with pytest.raises(error):
        up(world)
    assert_nothing_left(cloud, world)


@pytest.mark.parametrize(
    ("fault", "lies"),
    [
        (Fault("Unknown", instead="NoCapacity", made=0), 0),
        (Fault("Unknown", instead="QuotaExceeded", made=0), 0),
        (Fault("Unknown", instead="RateLimited", made=0), 0),
        (Fault("Unknown", instead="NoCapacity", made=1, told=0), 6),
        (Fault("Unknown", instead="NoCapacity", made=1, told=1), 6),
        (Fault("Unknown", instead="NoCapacity", made=2, told=1, twice=True), 0),
        (Fault("Unknown", instead="RateLimited", made=1, told=0), 6),
    ],
)
def test_a_no_behind_a_lost_answer_holds_once_nothing_is_found(
    there: tuple[Cloud, Context], fault: Fault, lies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is found is ended first; then the next offer is tried, or the same one again."""
    cloud, world = there
    cloud.play(
        create=[fault],
        list_owned=[Fault(lie=True)] * lies,
        describe_always=[Fault(state="starting")],
        settle_s=60,
    )
    asked, made_by = Scripted.create, Counter[str]()

    def create(self: Scripted, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        assert cloud.machines() == [], "the attempt before has left something"
        made_by[offer.id] += 1
        return asked(self, offer, intent, journal)

    def offers(_: Scripted, request: Request) -> list[Offer]:
        price = (Price("machines", 2.0),)
        return [
            Offer(NAME, f"offer-{at}", "one", request.nodes, 0, prices=price, data={"quota": str(at)})
            for at in range(2)
        ]

    monkeypatch.setattr(Scripted, "create", create)
    monkeypatch.setattr(Scripted, "offers", offers)
    with pytest.raises(NodeError, match="was not ready after"):
        up(world)
    again = fault.instead == "RateLimited"
    assert made_by == ({"offer-0": 2} if again else {"offer-0": 1, "offer-1": 1})
    assert_nothing_left(cloud, world)


@pytest.mark.parametrize(("instead", "error"), [("AuthFailed", AuthFailed), ("Rejected", Rejected)])
def test_what_no_other_offer_changes_is_raised_itself(
    there: tuple[Cloud, Context], instead: str, error: type[Exception]
) -> None:
    cloud, world = there
    cloud.play(create=[Fault("Unknown", instead=instead, made=0)], offers_at=[2.0, 2.1])
    with pytest.raises(error):
        up(world)
    assert cloud.calls().count("create") == 1
    assert_nothing_left(cloud, world)


def test_a_look_that_fails_is_no_proof_that_nothing_was_made(there: tuple[Cloud, Context]) -> None:
    """It was made, and nobody was told; what the look came to must not make anybody believe the first empty list."""
    cloud, world = there
    fault = Fault("Unknown", instead="NoCapacity", made=1, told=0)
    cloud.play(create=[fault], list_owned=[Fault("AuthFailed"), *[Fault(lie=True)] * 6], settle_s=60)
    with pytest.raises(AuthFailed):
        up(world)
    assert_nothing_left(cloud, world)


def test_a_crash_before_the_answer_at_a_provider_that_lags_leaves_no_orphan(there: tuple[Cloud, Context]) -> None:
    """The command died inside `create`; whoever undoes it sees an empty list at first, and does not believe it."""
    cloud, world = there
    row = made(cloud, world, list_owned=[Fault(lie=True)] * 6, settle_s=60)
    world.ledger.mark_cleared(row)
    world.ledger.set_cluster(row, state="creating", ready=None)
    world.ledger.will(row, "machine", f"gpuops-{world.owner}-lab-0", "t", "moon")
    tear_down(world, row, "undone")
    assert_nothing_left(cloud, world)


def test_where_nothing_was_asked_for_nobody_need_say_that_nothing_is_left(there: tuple[Cloud, Context]) -> None:
    """Credentials that are refused everywhere: that is what is told, and not that something may still bill."""
    cloud, world = there
    cloud.play(create=[Fault("AuthFailed", made=0)], list_owned_always=[Fault("AuthFailed")])
    with pytest.raises(AuthFailed):
        up(world)
    assert_nothing_left(cloud, world)


def test_what_a_refused_offer_had_made_does_not_count_for_the_next(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    cloud.play(offers_at=[2.5, 2.5], create=[Fault("NoCapacity", made=1)])
    with pytest.raises(NodeError, match="reached by 'pigeon'"):
        up(world)
    assert_nothing_left(cloud, world)


def test_what_the_list_hides_but_the_ledger_knows_is_ended_too(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    cloud.play(create=[Fault("AuthFailed", made=1)], list_owned_always=[Fault(lie=True)])
    with pytest.raises(AuthFailed):
        up(world)
    assert_nothing_left(cloud, world)


def test_offer_after_offer(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    cloud.play(offers_at=[1.0, 1.0, 1.0], create_always=[Fault("NoCapacity", made=1)])
    with pytest.raises(NoCapacity, match="none of 3 offers"):
        up(world)
    assert cloud.calls().count("create") == 3
    assert_nothing_left(cloud, world)


def test_the_next_offer_is_not_tried_while_something_of_the_last_is_left(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    cloud.play(offers_at=[1.0, 1.0], create=[Fault("NoCapacity", made=1)], destroy_always=[Fault(lie=True)])
    with pytest.raises(StillBilling, match=r"\$1\.25/h"):
        up(world)
    assert cloud.calls().count("create") == 1
    assert [row.state for row in world.ledger.clusters()] == ["ending"]


@pytest.mark.parametrize("max_price", [None, 50.0])
def test_one_question_for_what_may_come_in_its_place_as_well(
    there: tuple[Cloud, Context], max_price: float | None
) -> None:
    """Nobody is asked about each dearer one."""
    cloud, world = there
    cloud.play(offers_at=[2.0, 2.9, 40.0], create=[Fault("NoCapacity", made=0)] * 3)
    world.yes = False
    asked: list[str] = []
    world.out = Yes(asked)
    now = world.clock.now()
    latest = clock_time(now + 24 * 3600 + TWO.timeout_min * 60, now)
    with pytest.raises(NoCapacity) as caught:
        up(world, request=dataclasses.replace(TWO, max_price=max_price))
    dearest = "$40.00" if max_price else "$2.90"
    assert [question.split(", ")[1] for question in asked] == [
        f"$2.00/h (or up to {dearest}/h where that cannot be had); until {latest} at the latest"
    ]
    hours = 24.0 + TWO.timeout_min / 60
    assert asked[0].endswith(f", {money(hours * (40.0 if max_price else 2.9))} at most: go?")
    assert cloud.calls().count("create") == (3 if max_price else 2)
    assert ("allow it: --max-price 40.00" in caught.value.hint) is (max_price is None)
    assert_nothing_left(cloud, world)


@pytest.mark.parametrize(
    ("offered", "max_price", "yes", "most"),
    [(1.0, None, True, "1.50"), (1.0, 2.0, True, "2.00"), (2.4, None, False, "2.40")],
)
def test_what_costs_more_than_was_agreed_to_is_undone(
    there: tuple[Cloud, Context], offered: float, max_price: float | None, yes: bool, most: str
) -> None:
    """What was made tells its price: $2.50/h for two."""
    cloud, world = there
    cloud.play(offers_at=[offered])
    world.yes = yes
    world.out = Yes([])
    with pytest.raises(Rejected) as caught:
        up(world, request=dataclasses.replace(TWO, max_price=max_price))
    assert caught.value.message == f"lab costs $2.50/h, as {NAME} tells it now, and ${most}/h was agreed to"
    assert caught.value.hint == "where that is worth it: --max-price 2.50"
    assert cloud.calls().count("create") == 1
    assert_nothing_left(cloud, world)


class Yes(Output):
    """Somebody at the terminal who says yes once."""

    interactive = True  # type: ignore[assignment]

    def __init__(self, asked: list[str]) -> None:
        super().__init__()
        self.asked = asked

    def confirm(self, question: str) -> bool:
        self.asked.append(question)
        return len(self.asked) == 1


# -- waiting ------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", STATES_HELD)
def test_a_state_that_lasts_for_ever(there: tuple[Cloud, Context], state: str) -> None:
    cloud, world = there
    cloud.play(describe=[Fault(state=state, address="")] * 5000)
    began = world.clock.monotonic()
    with pytest.raises(NodeError) as caught:
        up(world)
    assert world.clock.monotonic() - began < TWO.timeout_min * 60 + 200
    assert caught.value.exit_code == 4
    assert_nothing_left(cloud, world)


def test_a_machine_that_ends_before_it_is_ready(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    cloud.play(describe=[Fault(state="starting")] * 6 + [Fault(state="ended")])
    with pytest.raises(MachineGone, match=r"lab-[01] ended before it was ready"):
        up(world)
    assert_nothing_left(cloud, world)


def test_a_machine_that_its_provider_does_not_know_yet_is_waited_for(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    cloud.play(describe=[Fault(state="ended")] * 8 + [Fault(state="starting")] * 500, settle_s=60)
    with pytest.raises(NodeError, match="still starting"):
        up(world)
    assert_nothing_left(cloud, world)


def test_a_provisioner_that_does_not_say_how_a_node_is_reached(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    cloud.play(data={"connection": "ssh"})
    with pytest.raises(NodeError, match=r"does not say of .*: root, python, artefact"):
        up(world)
    assert_nothing_left(cloud, world)


@pytest.mark.parametrize(("looks", "waited_s", "hint"), [(200, 545.0, "--timeout"), (5000, 7200.0, "--wait")])
def test_waiting_for_a_turn_is_no_part_of_the_timeout(
    there: tuple[Cloud, Context], looks: int, waited_s: float, hint: str
) -> None:
    """It has a limit of its own, and the timeout begins after it."""
    cloud, world = there
    cloud.play(queue_s=7200.0, describe=[Fault(state="starting", queued=at < looks) for at in range(5000)])
    began = world.clock.monotonic()
    with pytest.raises(NodeError) as caught:
        up(world)
    assert hint in caught.value.hint
    assert world.clock.monotonic() - began == pytest.approx(waited_s, abs=40.0)
    (row,) = world.ledger.clusters(live=False)
    assert row.boot_deadline == pytest.approx(1_800_000_000.0 + began + 7200.0 + 660.0, abs=1.0)
    assert_nothing_left(cloud, world)


@pytest.mark.parametrize(("max_cost", "boot_s", "hint"), [(None, 660.0, "--timeout"), (0.02, 28.8, "--max-cost")])
def test_a_node_does_not_boot_for_longer_than_the_money_lasts(
    there: tuple[Cloud, Context], max_cost: float | None, boot_s: float, hint: str
) -> None:
    cloud, world = there
    cloud.play(describe=[Fault(state="starting")] * 5000)
    began = world.clock.now()
    with pytest.raises(NodeError) as caught:
        creation.bring_up(world, TWO, name="lab", ephemeral=False, wish=LeaseLimits(max_cost=max_cost))
    assert hint in caught.value.hint
    (row,) = world.ledger.clusters(live=False)
    assert row.boot_deadline == pytest.approx(began + boot_s, abs=1.0)
    assert_nothing_left(cloud, world)


def test_the_boot_lease_is_that_of_the_offer_that_was_taken(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    cloud.play(offers_at=[1.0, 36.0], create=[Fault("NoCapacity", made=0)])
    began = world.clock.now()
    with pytest.raises(NodeError):
        creation.bring_up(
            world,
            dataclasses.replace(TWO, max_price=50.0),
            name="lab",
            ephemeral=False,
            wish=LeaseLimits(max_cost=1.0),
        )
    (row,) = world.ledger.clusters(live=False)
    assert row.boot_deadline == pytest.approx(began + 100.0, abs=1.0)


@pytest.mark.parametrize(("told", "per_hour"), [(PRICE, 2 * PRICE), (10 * PRICE, 20 * PRICE), (0.0, 2 * PRICE)])
def test_money_is_counted_from_the_intent_on_and_at_the_dearer_price(
    there: tuple[Cloud, Context], told: float, per_hour: float
) -> None:
    cloud, world = there
    row = made(cloud, world)
    world.ledger.set_cluster(row, state="creating", ready=None)
    world.out = Output(err=(said := io.StringIO()))
    row_then = world.ledger.cluster(row)
    machines = [dataclasses.replace(one, per_hour=told) for one in world.ledger.resources(row)]
    world.clock.sleep(600.0)
    provisioner = world.provisioner(NAME)
    live = ClusterSession(row_then, machines)
    terms = Terms(world, TWO, LeaseLimits(max_cost=10.0), True, OfferSearch(world, TWO, lambda *_: []), PriceApproval())
    creation._start_lease(world, live, terms, provisioner, provisioner.offers(TWO)[0])
    assert live.row.lease.money_end == pytest.approx(row_then.created + 10.0 / per_hour * 3600, abs=1.0)
    assert ("lab costs $25.00/h, and $2.50/h was offered" in said.getvalue()) is (told == 10 * PRICE)
    assert "these machines cannot end themselves (nothing is known of that)" in said.getvalue()


def test_a_machine_that_does_not_know_our_key_yet_is_waited_for(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its sshd is up before whoever rents it has put the key there; one that never comes is not waited for for long."""
    cloud, world = there
    looks: list[float] = []

    def denied(*_: object) -> ClusterSession:
        looks.append(world.clock.monotonic())
        raise Denied("permission denied for root@192.0.2.1", "pass --identity KEY")

    monkeypatch.setattr(readiness, "contact_cluster", denied)
    with pytest.raises(Denied):
        up(world, Request(NAME, nodes=2, timeout_min=20.0))
    assert readiness.LOGIN_REFUSED_LIMIT_S <= looks[-1] - looks[0] < 2 * readiness.LOGIN_REFUSED_LIMIT_S
    assert_nothing_left(cloud, world)


# -- the end ------------------------------------------------------------------------------------


def made(cloud: Cloud, world: Context, **script: object) -> int:
    """A cluster that is up as far as the ledger knows, on machines on which nothing answers."""
    from gpuops.core.models import Intent
    from gpuops.ledger.store import LedgerJournal

    row = world.ledger.intend(provider=NAME, name="lab", folder=world.folder, ephemeral=False, token="t",
                              request={}, boot_deadline=world.clock.now() + 600, lease=Lease(), owner_process=world.me,
                              now=world.clock.now())  # fmt: skip
    provisioner = world.provisioner(NAME)
    intent = Intent(world.owner, "lab", "t", row.boot_deadline, world.home / "x.pyz")
    provisioner.create(provisioner.offers(TWO)[0], intent, LedgerJournal(world.ledger, row.id))
    world.ledger.mark_up(row.id, Lease(), world.clock.now())
    (cloud.folder / "calls").unlink()
    cloud.play(**script)
    return row.id


def test_without_a_guard_nothing_is_rented(there: tuple[Cloud, Context]) -> None:
    """The second dead-man is there before anything bills."""
    cloud, world = there

    def fail(_home: object, _row: object, waits: bool) -> None:
        if waits:  # for its first heartbeat
            raise OSError(28, "No space left on device")

    world.services = dataclasses.replace(world.services, ensure_guard=fail)
    with pytest.raises(LocalDisk, match="the guard cannot be started: No space left on device"):
        up(world)
    assert "create" not in cloud.calls()
    assert_nothing_left(cloud, world)


@pytest.mark.parametrize(
    ("behind_s", "moved_s", "note"),
    [
        (None, 0.0, ""),
        (0.0, 0.0, ""),
        (60.0, 0.0, ""),
        (-60.0, 0.0, ""),
        (3600.0, 3600.0, "1 h 00 min behind that of"),
        (-7200.0, -7200.0, "2 h 00 min ahead of that of"),
    ],
)
def test_machines_that_do_not_get_ready_end_by_their_providers_clock(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch, behind_s: float | None, moved_s: float, note: str
) -> None:
    """A laptop that has slept may be an hour behind: machines ended at once, or hours too late."""
    cloud, world = there
    world.out = Output(err=(err := io.StringIO()))
    ends: list[tuple[float, float]] = []
    real = Scripted.create

    def create(self: Scripted, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        (row,) = world.ledger.clusters()
        ends.append((intent.boot_deadline, row.boot_deadline))
        return real(self, offer, intent, journal)

    told = None if behind_s is None else lambda _: world.clock.now() + behind_s
    monkeypatch.setattr(Scripted, "create", create)
    monkeypatch.setattr(Scripted, "provider_time", told or (lambda _: None), raising=False)
    cloud.play(create=[Fault("NoCapacity", made=0)], offers_at=[1.0, 1.0])
    with pytest.raises(GpuopsError):
        up(world)
    assert [round(asked - ours) for asked, ours in ends] == [moved_s, moved_s]
    assert err.getvalue().count("note: this computer's clock is") == bool(note)
    assert note in err.getvalue()


def test_a_command_has_one_provisioner_of_each_provider(there: tuple[Cloud, Context]) -> None:
    _, world = there
    assert world.provisioner(NAME) is world.provisioner(NAME)
    assert world.provisioner(NAME) is not world.provisioner("local")


def test_a_mark_is_read_to_its_last_dash(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    made(cloud, world)
    both = world.provisioner(NAME).list_owned(world.owner, [])
    assert len(select_by_tag(both, world.owner, "lab")) == 2
    assert select_by_tag(both, world.owner, "la") == []
    other = [type(one)(**{**vars(one), "name": one.name.replace("lab-", "lab-b-")}) for one in both]
    assert select_by_tag(other, world.owner, "lab") == []


def test_the_lease_is_that_of_the_offer_that_is_taken(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first offer ends in an hour, and is gone; the next one does not."""
    cloud, world = there
    left: list[float] = []
    offers, create = Scripted.offers, Scripted.create

    def with_end(self: Scripted, request: Request) -> Sequence[Offer]:
        first, *others = offers(self, request)
        return [dataclasses.replace(first, data={"ends": world.clock.now() + 3600}), *others]

    def noting(self: Scripted, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        (row,) = world.ledger.clusters()
        left.append(round(((row.lease.hard_end or 0.0) - world.clock.now()) / 3600))
        return create(self, offer, intent, journal)

    monkeypatch.setattr(Scripted, "offers", with_end)
    monkeypatch.setattr(Scripted, "create", noting)
    cloud.play(create=[Fault("NoCapacity", made=0), Fault("Rejected", made=0)], offers_at=[1.0, 1.0])
    with pytest.raises(Rejected):
        up(world)
    assert left == [1, 24]


@pytest.mark.parametrize("others", [0, 1])
def test_what_ends_by_itself_at_once_is_not_rented(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    """Its end may be over already, as its provider tells it: no machine would get ready."""
    cloud, world = there
    offers, tried = Scripted.offers, list[str]()

    def with_end(self: Scripted, request: Request) -> Sequence[Offer]:
        first, *rest = offers(self, request)
        return [dataclasses.replace(first, data={"ends": world.clock.now() - 60.0}), *rest]

    def noting(_: Scripted, offer: Offer, *__: object) -> Sequence[Resource]:
        tried.append(offer.id)
        raise Rejected("no", "")

    monkeypatch.setattr(Scripted, "offers", with_end)
    monkeypatch.setattr(Scripted, "create", noting)
    cloud.play(offers_at=[1.0] * (1 + others))
    with pytest.raises(Rejected if others else NoCapacity):
        up(world)
    assert tried == ["offer-1"] * others
