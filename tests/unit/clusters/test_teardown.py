"""Machines that are leaving cost nothing and keep nobody waiting; what is left of them is cleared later, by whoever."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from gpuops.clusters import leftovers, orphans, teardown
from gpuops.clusters.teardown import (
    LATE_S,
    PERMANENT_ERRORS_MAX,
    Destroy,
    Done,
    GiveUp,
    Listing,
    Wait,
    destroy_cluster,
    is_costless,
    next_step,
    tear_down,
)
from gpuops.commands.down import down
from gpuops.core import provider as contract
from gpuops.core.context import Context
from gpuops.core.errors import AuthFailed, ProviderError, RateLimited, StillBilling, Unknown
from gpuops.core.models import Lease, Resource
from gpuops.core.polling import Clock
from gpuops.core.reporting import Silent
from gpuops.guard import daemon, guard_heartbeat, schedule
from gpuops.ledger.rows import ClusterState
from gpuops.ledger.store import ClusterRow
from tests.fakes.provider import NAME, OWNER, Cloud, FakeClock, Fault, Scripted, surroundings


class Over:
    """An attempt that was made in this very process."""

    def __init__(self, home: Path, cluster: int, job: schedule.Job, failures: int) -> None:
        self.status = daemon.run_attempt(home, cluster, job, failures)

    def poll(self) -> int:
        return self.status

    def end(self) -> None:
        raise AssertionError("it is over")


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Cloud, Context]:
    """Whose machines take long to leave."""
    cloud, world = surroundings(tmp_path, monkeypatch)
    monkeypatch.setenv("SCRIPTED", str(cloud.folder))
    (world.home / "owner").write_text(OWNER + "\n")
    cloud.play(leaves=True)
    return cloud, world


def cluster(world: Context, nodes: int = 1, name: str = "lab") -> ClusterRow:
    """One that is up, with machines at the provider."""
    now = world.clock.now()
    row = world.ledger.intend(
        provider=NAME, name=name, folder=world.folder, ephemeral=False, token=f"{name}-token", request={},
        boot_deadline=now + 99, lease=Lease(), owner_process=world.me, now=now,
    )  # fmt: skip
    provider = world.provisioner(NAME).inner  # type: ignore[attr-defined]
    assert isinstance(provider, Scripted)
    for index in range(nodes):
        world.ledger.got(row.id, provider._add(f"gpuops-{OWNER}-{name}-{index}"))
    world.ledger.set_cluster(row.id, state="up", ready=now)
    return world.ledger.cluster(row.id)


def left(world: Context, row: ClusterRow) -> list[str]:
    return [one.name for one in world.ledger.list_leftovers(row.id)]


def test_who_ends_a_cluster_does_not_wait_until_it_has_left(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud, world = there
    monkeypatch.setattr("gpuops.commands.down._save_runs", lambda *_: [])
    monkeypatch.setattr("gpuops.commands.down._save_edits", lambda *_: None)
    row = cluster(world, 2)
    said = down(world, [row], Silent(), force=False)
    assert said == ["lab is gone: 2 machines still shut down, which costs nothing"]
    assert len(cloud.machines()) == 2
    assert isinstance(world.clock, FakeClock)
    assert sum(world.clock.slept) < 5.0
    assert world.ledger.clusters() == []
    assert left(world, row) == [f"gpuops-{OWNER}-lab-0", f"gpuops-{OWNER}-lab-1"]
    assert not any(one.bills or one.per_hour for one in world.ledger.list_leftovers(row.id))
    assert down(world, [world.ledger.cluster(row.id)], Silent(), force=False) == ["lab is gone already (gpuops down)"]


@pytest.mark.parametrize("more", ["", "unseen", "another provider", "virtual", "intent"])
def test_what_was_just_seen_is_ended_without_a_list_where_that_can_add_nothing(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    cloud, world = there
    row = cluster(world, 2)
    monkeypatch.setattr(world.provisioner(NAME), "ends_only_its_own", more != "another provider")
    if more == "virtual":
        machine = world.ledger.resources(row.id)[0]
        world.ledger.update_resource(row.id, dataclasses.replace(machine, data={**machine.data, "virtual": [2]}))
    elif more == "intent":
        world.ledger.will(row.id, "machine", f"gpuops-{OWNER}-lab-2", "lab-token-2", "here")
    with suppress(StillBilling):
        tear_down(world, row.id, "its end", seen=more != "unseen")
    assert (cloud.folder / "calls").read_text().split()[0] == ("list_owned" if more else "destroy")


def test_its_name_is_free_and_a_newer_one_is_left_alone(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    old = cluster(world)
    tear_down(world, old.id, "its end")
    new = cluster(world)
    assert [one.state for one in leftovers.clear_leftovers_once(world, old)] == ["leaving"]
    cloud.play()
    leftovers.clear_leftovers_once(world, old)
    assert list(leftovers.clear_leftovers_once(world, old)) == world.ledger.list_gone_with_leftovers() == []
    assert len(cloud.machines()) == 1
    assert world.provisioner(NAME).describe(world.ledger.resources(new.id)[0]).state == "running"


def test_the_guard_sees_it_off(there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that was started long after, since the ledger knows."""
    cloud, world = there
    row = cluster(world)
    tear_down(world, row.id, "its end")
    assert world.ledger.list_guarded()
    looks: list[float] = []

    def sleep(_: Clock, seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 12:
            for path in cloud.folder.glob("machines/*"):
                path.unlink()

    monkeypatch.setattr(Clock, "sleep", sleep)
    guard_heartbeat.lock_path(world.home, row.id).touch()
    guard = daemon.Guard(world.home, row.id, Over)
    while guard.round():
        pass
    assert guard.wanted_row() is None
    assert [*(world.home / guard_heartbeat.FOLDER).iterdir()] == [], "it forgets what it wrote down"
    assert cloud.machines() == []
    assert world.ledger.list_gone_with_leftovers() == []
    assert looks[0] == pytest.approx(leftovers.LEFTOVER_PAUSE_MIN_S, rel=0.5)
    assert looks[-1] > 2 * looks[0], "ever more seldom"
    assert world.ledger.take_notices() == []


@pytest.mark.parametrize(
    ("list_owned", "looks"),
    [([], leftovers.LEFTOVER_CHECKS_MAX), ([Fault(error="AuthFailed")], leftovers.LEFTOVER_FAILURES_MAX)],
)
def test_nobody_looks_for_ever(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch, list_owned: list[Fault], looks: int
) -> None:
    """What cannot be cleared keeps no guard, and is told by `reap`, which goes on well."""
    cloud, world = there
    row = cluster(world)
    tear_down(world, row.id, "its end")
    before = len(cloud.calls())
    cloud.play(leaves=True, **({"list_owned_always": list_owned} if list_owned else {}))
    monkeypatch.setattr(Clock, "sleep", lambda *_: None)
    guard_heartbeat.lock_path(world.home, row.id).touch()
    guard = daemon.Guard(world.home, row.id, Over)
    while guard.round():
        pass
    assert cloud.calls()[before:].count("list_owned") == looks
    assert world.ledger.list_guarded(), "the next command's guard tries again"
    assert guard.wanted_row() is None, "and none that this one starts as it leaves"
    assert [*guard_heartbeat.read_refusals(world.home, [row])] == ([NAME] if list_owned else [])
    (said,) = orphans.clear_departing(world)
    assert said.startswith("lab costs nothing any more; left of it: 1 machine shutting down")
    assert said.endswith("which is not cleared: the provider said AuthFailed") == bool(list_owned)
    assert orphans.find_orphans(world)[0] == []


def test_a_stray_that_leaves_is_not_waited_for(there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch) -> None:
    cloud, world = there
    row = cluster(world)
    world.ledger.mark_gone(row.id, 1.0, "this ledger is mistaken")
    said: list[str] = []
    monkeypatch.setattr(world.out, "say", said.append)
    found, _ = orphans.find_orphans(world)
    orphans.destroy_orphans(world, found)
    again = "once more, in some minutes, clears the rest: gpuops reap"
    assert said == [f"note: 1 machine still shuts down, which costs nothing; {again}"]
    assert len(cloud.machines()) == 1


def test_what_leaves_is_not_named_among_what_may_bill(there: tuple[Cloud, Context]) -> None:
    """One of two machines leaves, the other one stays."""
    _, world = there
    row = cluster(world, 2)
    provider = world.provisioner(NAME)
    provider.destroy(world.ledger.resources(row.id)[:1])
    destroy = provider.inner.destroy  # type: ignore[attr-defined]
    try:
        provider.inner.destroy = lambda _: None  # type: ignore[attr-defined]
        with pytest.raises(StillBilling) as caught:
            destroy_cluster(world, provider, row)
    finally:
        provider.inner.destroy = destroy  # type: ignore[attr-defined]
    assert caught.value.message == f"gpuops-{OWNER}-lab-1 may still be there and bill $1.25/h"


def test_what_costs_nothing() -> None:
    leaves = Resource("machine", "m", "", "n", bills=False, state="leaving")
    group = Resource("group", "g", "", "n", bills=False, state="running")
    stays = Resource("machine", "o", "", "n", bills=True, state="running")
    assert is_costless([leaves])
    assert is_costless([leaves, group])
    assert not is_costless([group]), "it can go at once"
    assert not is_costless([leaves, stays])
    assert not is_costless([])


def test_a_refusal_is_the_last_word(there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch) -> None:
    cloud, world = there
    row = cluster(world)
    tear_down(world, row.id, "its end")
    cloud.play(leaves=True, destroy_always=[Fault(error="AuthFailed")])
    monkeypatch.setattr(Clock, "sleep", lambda *_: None)
    with pytest.raises(AuthFailed):
        leftovers.clear_leftovers(world, row)
    assert left(world, row) == [f"gpuops-{OWNER}-lab-0"]


@pytest.mark.parametrize(("error", "given_up"), [("AuthFailed", False), ("Rejected", True)])
def test_force_gives_up_what_cannot_be_ended_and_nothing_for_want_of_credentials(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch, error: str, given_up: bool
) -> None:
    """On hosts of the user's own; refused credentials can be mended."""
    cloud, world = there
    row = cluster(world)
    monkeypatch.setattr(teardown, "is_rented", lambda _: False)
    cloud.play(list_owned_always=[Fault(error=error)])
    monkeypatch.setattr(Clock, "sleep", lambda *_: None)
    with nullcontext() if given_up else pytest.raises(StillBilling):
        tear_down(world, row.id, "its end", force=True)
    assert (world.ledger.cluster(row.id).state == "gone") is given_up


RUNS = Resource("machine", "1", "", "gpuops-o-lab-0", True, state="running")
LEAVES = Resource("machine", "1", "", "gpuops-o-lab-0", True, state="leaving")


@pytest.mark.parametrize(
    ("listing", "error", "step"),
    [
        (Listing([], is_settled=True), None, Done([])),
        (Listing([], is_settled=False), None, Wait()),
        (Listing([RUNS], is_settled=True), None, Destroy([RUNS])),
        (Listing([RUNS], is_settled=False), None, Destroy([RUNS])),
        (Listing([LEAVES], is_settled=True), None, Done([LEAVES])),
        (Listing([LEAVES], is_settled=False), None, Destroy([LEAVES])),
        (Listing([RUNS], is_settled=True), Unknown("no answer"), Wait()),
        (Listing([], is_settled=True), Unknown("no answer"), Wait()),
        (Listing([RUNS], is_settled=True), RateLimited("slower", retry_after=7.0), Wait(7.0)),
        (Listing([RUNS], is_settled=True), RateLimited("slower"), Wait()),
        (Listing([RUNS], False, permanent_errors=PERMANENT_ERRORS_MAX - 1), AuthFailed("no"), Wait()),
        (Listing([RUNS], False, permanent_errors=PERMANENT_ERRORS_MAX), AuthFailed("no"), GiveUp()),
        (Listing([], is_settled=False, was_created=False), AuthFailed("no"), Done([])),
    ],
)
def test_the_next_step_of_a_teardown(
    listing: Listing, error: ProviderError | None, step: Done | Destroy | Wait | GiveUp
) -> None:
    assert next_step(listing, error) == step


@pytest.mark.parametrize("ends_itself", [False, True])
@pytest.mark.parametrize("shown_s", [60.0, LATE_S * 2])
def test_a_machine_that_is_listed_after_its_cluster_was_called_gone(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch, ends_itself: bool, shown_s: float
) -> None:
    """Its launch was never answered. It is looked for a while, also where it would end itself once its boot lease is
    over; what the guard does not end, `reap` does."""
    cloud, world = there
    begin = Scripted.__init__

    def able(self: Scripted, context: contract.Context) -> None:
        begin(self, context)
        self.capabilities = {**self.capabilities, "self_destruct": ends_itself or "it cannot"}

    monkeypatch.setattr(Scripted, "__init__", able)
    cloud.play(settle_s=30.0, data={"token": "lab-token"})
    row = cluster(world)
    (machine,) = world.ledger.resources(row.id)
    world.ledger.mark_cleared(row.id)
    world.ledger.will(row.id, "machine", machine.name, "lab-token", "moon")
    real, listed_from = Scripted.list_owned, world.clock.now() + 30.0 + shown_s
    monkeypatch.setattr(
        Scripted, "list_owned", lambda self, *asked: real(self, *asked) if world.clock.now() > listed_from else []
    )
    tear_down(world, row.id, "its end")
    gone = world.ledger.cluster(row.id)
    assert gone.state is ClusterState.GONE
    assert world.ledger.list_guarded()
    leftovers.clear_leftovers(world, gone)
    is_found = shown_s < LATE_S
    assert bool(cloud.machines()) is not is_found
    assert world.ledger.list_guarded() == []
    assert any(machine.name in say for _, say in world.ledger.take_notices()) is is_found
    world.clock.sleep(max(0.0, listed_from - world.clock.now()))
    found, _ = orphans.find_orphans(world)
    assert [one.resource.name for one in found] == ([] if is_found else [machine.name])
    orphans.destroy_orphans(world, found)
    assert cloud.machines() == []
