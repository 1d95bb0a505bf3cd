"""What a retry may still cost, where it looks, and what it is told to have cost."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuops.core.errors import MachineGone
from gpuops.core.format import clock_time
from gpuops.core.models import Lease, Offer, Price, Resource
from gpuops.core.run_models import RunRequest, Verdict, VerdictOutcome
from gpuops.ledger.rows import ClusterState, RunFacts
from gpuops.ledger.store import ClusterRow, RunRow
from gpuops.offers import lease_limits, offer_table
from gpuops.offers.lease_limits import LeaseLimits
from gpuops.offers.price_approval import PriceApproval
from gpuops.offers.price_terms import Terms
from gpuops.runs import retries
from gpuops.runs.logs import events
from gpuops.runs.outcome.node_report import ReasonKind, lost_report
from gpuops.runs.receipt import format_receipt
from gpuops.runs.retries import JobOutcome, Preemption, RetryState
from gpuops.sync.run_folder import RunHome
from gpuops.sync.run_record import RunRecord

NOW = 1_800_000_000.0
H = 3600.0
OFFER = {"prices": [{"what": "m", "per_hour": 2.0}], "data": {"place": "us-east-1b"}}


def cluster(**changes: Any) -> ClusterRow:
    known = {field.name: None for field in dataclasses.fields(ClusterRow)}
    row = {**known, "id": 1, "name": "aws-1", "offer": OFFER, "lease": Lease(), "created": NOW - H, "ended": NOW}
    return ClusterRow(**{**row, **changes})


def test_what_a_cluster_has_cost_is_the_dearer_of_two_prices() -> None:
    assert retries.final_cost(cluster(), 1.0) == pytest.approx(2.0)
    assert retries.final_cost(cluster(), 3.0) == pytest.approx(3.0)
    after_others = cluster(offer={**OFFER, "spent_before": 0.5})
    assert retries.final_cost(after_others, 3.0) == pytest.approx(3.5), "with what was given back before it"


def test_hours_and_money_are_the_jobs() -> None:
    row = cluster(lease=Lease(NOW + 5 * H, 1800.0, NOW + 2 * H))
    wish, why = retries.remaining_limits(LeaseLimits(6.0, 10.0, 30.0), row, 4.0, NOW)
    assert (wish, why) == (LeaseLimits(6.0, 6.0, 30.0, NOW + 5 * H), "")
    made = lease_limits.new_lease(wish, rented=True, per_hour=2.0, now=NOW)
    assert made == Lease(NOW + 5 * H, 1800.0, NOW + 3 * H), "not six hours from now"


@pytest.mark.parametrize(
    ("lease", "wish", "spent", "said"),
    [
        (Lease(NOW + 599.0), LeaseLimits(max_hours=1.0), 0.0, "--max-hours counts from its first machines"),
        (Lease(NOW + 601.0), LeaseLimits(max_hours=1.0), 0.0, ""),
        (Lease(), LeaseLimits(max_cost=2.3), 2.0, "$2.00 of --max-cost $2.30 are spent"),
        (Lease(), LeaseLimits(max_cost=2.4), 2.0, ""),
        (Lease(), LeaseLimits(max_cost=2.0), 2.5, "are spent"),
    ],
)
def test_what_is_not_worth_a_machine(lease: Lease, wish: LeaseLimits, spent: float, said: str) -> None:
    _, why = retries.remaining_limits(wish, cluster(lease=lease), spent, NOW)
    assert said in why
    assert bool(said) is bool(why)


@pytest.mark.parametrize(
    ("hard_end", "until"), [(NOW + 60, NOW + 23 * H), (NOW + 50, NOW + 23 * H), (NOW + 30 * H, NOW + 30 * H)]
)
def test_the_end_of_the_first_machines_is_not_the_jobs(hard_end: float, until: float) -> None:
    """Others may live on when an offer ended by itself, or the balance at its provider; a person may extend a lease."""
    offer = {**OFFER, "data": {"ends": NOW + 60}}
    row = cluster(offer=offer, lease=Lease(hard_end), ready=NOW - H, provider="vast")
    wish, why = retries.remaining_limits(LeaseLimits(), row, 0.0, NOW)
    assert (wish.until, why) == (until, "")
    wish, why = retries.remaining_limits(LeaseLimits(until=NOW + 2 * H), row, 0.0, NOW)
    assert (wish.until, why) == (max(NOW + 2 * H, hard_end if hard_end > NOW + 24 * H else 0.0), "")


def test_a_second_retry_does_not_begin_the_hours_anew() -> None:
    """Six hours from when the first machines were ready, whatever became ready since."""
    gone = [cluster(id=at, ready=NOW + at * H, lease=Lease(NOW + 6 * H)) for at in (0, 1)]
    world: Any = SimpleNamespace(
        clock=SimpleNamespace(now=lambda: NOW + 2 * H),
        signals=SimpleNamespace(count=0, forward=lambda: None),
        out=SimpleNamespace(say=lambda _: None),
        provisioner_of=lambda _: SimpleNamespace(grants_machines=False),
    )
    wishes: list[LeaseLimits] = []

    def attempt(wish: LeaseLimits, _resume: str | None) -> JobOutcome:
        wishes.append(wish)
        at = len(wishes) - 1
        return JobOutcome(0, {}, loss=LOSS if at < 2 else None, gone=gone[at] if at < 2 else None, cost=1.0)

    retries.run_with_retries(world, RetryState(3), LeaseLimits(6.0, 10.0), attempt)
    assert [(wish.until, wish.max_cost) for wish in wishes] == [(None, 10.0), (NOW + 6 * H, 9.0), (NOW + 6 * H, 8.0)]


def offers(*places: str) -> list[Offer]:
    return [Offer("aws", one, one, 1, 1, prices=(Price("m", 1.0),), data={"place": one}) for one in places]


def test_the_place_that_took_them_comes_last() -> None:
    order = offer_table.order_avoided_last([*offers("a", "b", "c"), Offer("aws", "x", "x", 1, 1)], ["b", "a"])
    assert [one.id for one in order] == ["c", "x", "b", "a"]
    assert order[0].data["why"] == "the best elsewhere than a"
    assert offer_table.order_avoided_last(offers("a", "b"), ["b"]) == offers("a", "b"), "the first is still the first"
    assert offer_table.order_avoided_last(offers("a"), ["a"]) == offers("a"), "better there than nowhere"
    assert offer_table.order_avoided_last([], ["a"]) == []


class Asked:
    """A search, as far as terms look at it."""

    account = type("Nothing", (), {"answer": lambda *_: None})()

    def payer(self, _: Offer) -> None:
        """Nobody who is named."""


@pytest.mark.parametrize(
    ("yes", "price", "dear"), [(False, 3.0, False), (False, 3.01, True), (True, 3.0, False), (True, 3.01, True)]
)
def test_nobody_is_asked_again(yes: bool, price: float, dear: bool) -> None:
    approval = PriceApproval(first=2.0, agreed=2.0, settled=True)
    world: Any = type("World", (), {"yes": yes})()
    request: Any = type("Request", (), {"max_price": None, "timeout_min": 1.0})()
    terms = Terms(world, request, LeaseLimits(), True, Asked(), approval)  # type: ignore[arg-type]
    assert bool(terms.explain_refusal(Offer("aws", "x", "x", 1, 1, prices=(Price("m", price),)))) is dear


LOSS = Preemption("toy-1", "aws-1", "us-east-1b", 1, "reclaimed by AWS", 120, 100, NOW, resumable=True)


def test_it_is_announced_in_a_line() -> None:
    chain = RetryState(2)
    chain.add(LOSS, 1.5)
    said = "node1 was reclaimed at step 120; retry 1 of 2: looking for machines elsewhere than us-east-1b"
    assert chain.announce(LOSS) == said
    nothing = dataclasses.replace(LOSS, run="toy-2", place="", node=None, step=None, resumable=False)
    chain.add(nothing, 0.5)
    assert chain.announce(nothing) == "its machines were reclaimed; retry 2 of 2: looking for machines anew"
    assert (chain.left, chain.spent, chain.resume) == (0, 2.0, "toy-1")
    assert chain.approval.avoided == ["us-east-1b"]
    assert chain.approval.settled


def test_what_failed_is_told_in_the_words_of_its_verdict() -> None:
    lost = dataclasses.replace(LOSS, place="", say="the run was lost on node1: it was gone", reclaimed=False)
    chain = RetryState(2, restarts=1)
    chain.add(lost, 0.0)
    assert chain.announce(lost) == "the run was lost on node1: it was gone; retry 2 of 2: looking for machines anew"
    assert chain.left == 0, "a run that was started again by itself counts as well"
    rows = format_receipt(RunRecord.parse({"retries": chain.documents}))
    assert "before   toy-1 lost its machines at step 120: 20 steps lost" in rows


def test_what_is_queued_for_is_queued_for_again_for_the_same_time() -> None:
    wish = LeaseLimits(max_hours=1.0)
    assert retries.remaining_limits(wish, cluster(lease=Lease(NOW)), 0.0, NOW, granted=True) == (wish, "")


def test_what_it_cost_is_in_the_receipt() -> None:
    chain = RetryState(2)
    chain.add(LOSS, 1.5)
    assert chain.resumed(NOW + 340.0)
    rows = format_receipt(RunRecord.parse({"rented": True, "cost": 0.5, "retries": chain.documents}))
    assert "cost     about $0.50, $2.00 with what was reclaimed before" in rows
    lost = (
        "toy-1 was reclaimed in us-east-1b at step 120: 20 steps lost, 5:40 min from the notice to the first new step"
    )
    assert f"before   {lost}" in rows
    assert not RetryState(2).resumed(NOW), "nothing was lost before"


def test_of_what_nobody_was_told_there_is_no_notice_in_the_receipt() -> None:
    chain = RetryState(1)
    chain.add(dataclasses.replace(LOSS, warned=False), 1.5)
    assert chain.resumed(NOW + 340.0)
    (row,) = (one for one in format_receipt(RunRecord.parse({"retries": chain.documents})) if one.startswith("before"))
    assert row.endswith("20 steps lost, 5:40 min from its end to the first new step")


def test_machines_that_went_before_there_was_a_run() -> None:
    error = MachineGone("gpuops-0a1b2c3d-aws-2-0 ended before it was ready: AWS took it back", "try again", 0, 2)
    row = cluster(id=2, name="aws-2", offer={**OFFER, "data": {"place": "us-east-1c"}})
    chain = RetryState(3, resume="earlier-7")
    chain.add(LOSS, 1.5)
    chain.add(retries.preemption_before_run(row, error, NOW + 100.0), 0.1)
    assert (chain.left, chain.resume, chain.approval.avoided) == (1, "toy-1", ["us-east-1b", "us-east-1c"])
    loss = retries.preemption_before_run(row, error, NOW)
    assert chain.announce(loss) == f"{error.message}; retry 2 of 3: looking for machines elsewhere than us-east-1c"
    assert chain.resumed(NOW + 340.0)
    assert [loss.gap_s for loss in chain.losses] == [340.0, 240.0], "the first step after both"
    assert not chain.resumed(NOW + 400.0), "what is known is known"
    rows = [line for line in format_receipt(RunRecord.parse({"retries": chain.documents})) if "lost in" in line]
    lost = "aws-2 was lost in us-east-1c before its run began: 4 min from its end to the first new step"
    assert rows == [f"before   {lost}"]


@pytest.mark.parametrize(
    ("state", "data", "taken"),
    [
        ("ended", {}, True),
        ("running", {}, False),
        ("unknown", {"hopeless": "its image cannot be pulled"}, False),
        ("unknown", {"hopeless": "RunPod has stopped it", "stopped": True}, True),
        ("unknown", {"hopeless": "its image does not start", "stopped": False}, False),
        ("ended", {"why_ended": "somebody has ended it"}, False),
        ("ended", {"why_ended": "AWS took it back", "reclaimed": True}, True),
        ("unknown", {"hopeless": "AWS took it back", "reclaimed": True}, True),
    ],
)
def test_what_went_by_nobodys_wish(state: str, data: dict[str, Any], taken: bool) -> None:
    machine = Resource("machine", "i", "r", "n", bills=True, state=state, data=data)
    assert machine.status.is_replaceable is taken


def test_a_nodes_events_on_our_clock(tmp_path: Path) -> None:
    row: Any = RunRow(**{
        **{field.name: None for field in dataclasses.fields(RunRow)},
        "home": tmp_path, "facts": RunFacts(skews=[5.0, -5.0]),
        "request": RunRequest(kind="torchrun", mode="multinode", nodes=3, gpus=None).document(),
    })  # type: ignore[arg-type]  # fmt: skip
    for node, lines in enumerate([[{"at": NOW, "event": "stepped"}], ["no event", {"event": "stepped"}]]):
        path = RunHome(tmp_path).log(node, "events.jsonl")
        path.parent.mkdir(parents=True)
        path.write_text("\n".join(json.dumps(one) for one in lines) + '\n{"at": 17')
    assert events.first_step_time(row) == NOW + 5.0
    assert events.first_event_time(row, lambda event: event.event == "notice") is None


def test_who_agrees_agrees_to_what_replaces_it_too() -> None:
    asked: list[str] = []
    out = type("Out", (), {"interactive": True, "confirm": lambda _self, question: asked.append(question) or True})()
    world: Any = type("World", (), {"yes": False, "out": out, "clock": SimpleNamespace(now=lambda: NOW)})()
    request: Any = type("Request", (), {"max_price": None, "timeout_min": 6.0, "wait_s": None})()
    offer = Offer("aws", "x", "two of them", 1, 1, prices=(Price("m", 2.0),))
    approval = PriceApproval(first=2.0, replaces=True)
    terms = Terms(world, request, LeaseLimits(), True, Asked(), approval)  # type: ignore[arg-type]
    terms.confirm_price([offer])
    approval.settled = True
    terms.confirm_price([Offer("aws", "y", "two dearer ones", 1, 1, prices=(Price("m", 2.9),))])
    until = clock_time(NOW + 24.1 * 3600, NOW)
    price = "$2.00/h (and up to $3.00/h for what replaces it)"
    assert asked == [f"two of them, {price}; until {until} at the latest, $72.30 at most: go?"]


@pytest.mark.parametrize(
    ("machine", "kind", "lease_s", "rented", "failed"),
    [
        ({"state": "ended"}, ReasonKind.ENDED, None, True, True),
        ({"state": "unknown", "data": {"stopped": True}}, ReasonKind.ENDED, 24 * H, True, True),
        ({"state": "ended"}, ReasonKind.ENDED, 24 * H, False, False),
        ({"state": "ended"}, ReasonKind.UNREACHABLE, 24 * H, True, False),
        ({"state": "ended"}, ReasonKind.ENDED, lease_limits.MIN_LEASE_S - 1, True, False),
        ({"state": "ended", "data": {"why_ended": "somebody has ended it"}}, ReasonKind.ENDED, 24 * H, True, False),
        ({"state": "running"}, ReasonKind.ENDED, 24 * H, True, False),
    ],
)
def test_a_machine_that_failed_under_its_run(
    machine: dict[str, Any], kind: ReasonKind, lease_s: float | None, rented: bool, failed: bool
) -> None:
    """Not where its own end may have been the lease's, or somebody's wish."""
    row = cluster(lease=Lease(None if lease_s is None else NOW + lease_s), state=ClusterState.UP)
    told = Resource("machine", "i", "r", "n", bills=True, **machine)
    provider = SimpleNamespace(capabilities={"rented": rented}, describe=lambda _: told)
    world: Any = SimpleNamespace(
        clock=SimpleNamespace(now=lambda: NOW, monotonic=lambda: 0.0),
        signals=SimpleNamespace(count=0),
        ledger=SimpleNamespace(cluster=lambda _: row),
        provisioner_of=lambda _: provider,
    )
    session: Any = SimpleNamespace(row=row, machines=[told])
    assert retries.have_machines_failed(world, session, [lost_report(0, "gone", kind)]) is failed


@pytest.mark.parametrize(
    ("outcome", "failed", "retried"),
    [
        (VerdictOutcome.LOST, True, True),
        (VerdictOutcome.LOST, False, False),
        (VerdictOutcome.FAILED, True, False),
        (VerdictOutcome.STOPPED, True, False),
    ],
)
def test_only_a_run_that_was_lost_with_its_machine_goes_on_elsewhere(
    tmp_path: Path, outcome: VerdictOutcome, failed: bool, retried: bool
) -> None:
    row: Any = SimpleNamespace(name="toy-1", home=tmp_path, request={}, facts=RunFacts())
    end: Any = SimpleNamespace(verdict=Verdict(outcome, 4, "node0 is gone"), may_destroy=True, left_in_bucket=False,
                               home=RunHome(tmp_path), progress={}, ended_at=NOW)  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retries, "first_event_time", lambda *_: None)
        found = retries.find_preemption(row, cluster(provider="runpod"), end, failed=failed)
    assert bool(found) is retried
    assert found is None or (found.reclaimed, found.sentence()) == (False, "node0 is gone")
