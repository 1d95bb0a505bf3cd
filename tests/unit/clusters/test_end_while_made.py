"""A cluster that is ended while its provider lags, fails or is still making it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuops.clusters import creation
from gpuops.clusters.teardown import tear_down
from gpuops.core.context import Context
from gpuops.core.errors import (
    AuthFailed,
    Interrupted,
    ProviderError,
    StillBilling,
    Unknown,
    UsageError,
)
from gpuops.core.models import Resource
from gpuops.core.polling import Clock
from tests.fakes.provider import PRICE, Cloud, FakeClock, Fault, Scripted, surroundings
from tests.unit.clusters.test_creation import assert_nothing_left, made, up


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Cloud, Context]:
    return surroundings(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "script",
    [
        {"destroy_always": [Fault(lie=True)]},
        {"destroy_always": [Fault("Unknown", lie=True)]},
        {"destroy_always": [Fault("KeyError", lie=True)]},
        {"destroy_always": [Fault("RateLimited", lie=True, retry_after=3600.0)]},
        {"destroy_always": [Fault("AuthFailed", lie=True)]},
        {"destroy_always": [Fault(lie=True)], "list_owned_always": [Fault(lie=True)]},
        {"list_owned_always": [Fault("RateLimited", retry_after=-1.0)]},
        {"list_owned_always": [Fault("Unknown")]},
        {"list_owned_always": [Fault("AuthFailed")]},
        {"list_owned_always": [Fault("OSError")]},
    ],
    ids=str,
)
def test_down_never_says_gone_of_what_may_be_there(there: tuple[Cloud, Context], script: dict[str, object]) -> None:
    cloud, world = there
    row = made(cloud, world, **script)
    began = world.clock.monotonic()
    with pytest.raises(StillBilling) as caught:
        tear_down(world, row, "down")
    assert world.clock.monotonic() - began < 200
    assert caught.value.exit_code == 5
    refused = any(one.error == "AuthFailed" for faults in script.values() for one in faults)  # type: ignore[attr-defined]
    assert caught.value.hint == ("do something about it; then: " if refused else "") + "gpuops down lab"
    assert "lab-0" in caught.value.message
    assert "lab-1" in caught.value.message
    assert f"${2 * PRICE:.2f}/h" in caught.value.message
    assert world.ledger.cluster(row).state == "ending", "the guard, or the next `down`, goes on"
    cloud.play()
    tear_down(world, row, "down")
    assert_nothing_left(cloud, world)


@pytest.mark.parametrize("kind", [Unknown, AuthFailed])
@pytest.mark.parametrize("alive", [True, False])
def test_what_has_ended_is_not_named_because_another_region_is_silent(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch, alive: bool, kind: type[ProviderError]
) -> None:
    """`alive`: whether something of the cluster is known to be where nobody answers."""
    cloud, world = there
    row = made(cloud, world)
    first, second = world.ledger.resources(row)
    if alive:
        world.ledger.update_resource(row, dataclasses.replace(second, region="mars"))
        world.ledger.db.execute("UPDATE resources SET region = 'mars' WHERE mark = ?", (second.name,))
    else:  # what was asked for there was refused
        world.ledger.will(row, "machine", first.name, "t", "mars")
        world.ledger.mark_refused(row)
    real = Scripted.list_owned

    def listed(self: Scripted, owner: str, regions: Sequence[str]) -> Sequence[Resource]:
        if "mars" in regions:
            raise kind("mars does not answer", "do something about it")
        return [one for one in real(self, owner, regions) if one.id != second.id or not alive]

    monkeypatch.setattr(Scripted, "list_owned", listed)
    with pytest.raises(StillBilling) as caught:
        tear_down(world, row, "down")
    what = f"{second.name} may still be there and bill ${PRICE:.2f}/h" if alive else "lab may still be there"
    assert caught.value.message == f"{what}: mars does not answer"
    assert world.ledger.cluster(row).state == "ending"
    monkeypatch.undo()
    tear_down(world, row, "down")
    assert_nothing_left(cloud, world)


@pytest.mark.parametrize(
    "script",
    [
        {"destroy": [Fault("Unknown"), Fault("Unknown", lie=True), Fault("RateLimited", lie=True)]},
        {"destroy": [Fault("Unknown")] * 3, "list_owned": [Fault("Unknown")] * 3},
        {"destroy": [Fault(lie=True)] * 4},
        {"list_owned_always": [Fault(twice=True)]},
    ],
    ids=str,
)
def test_down_gets_there_in_the_end(there: tuple[Cloud, Context], script: dict[str, object]) -> None:
    cloud, world = there
    row = made(cloud, world, **script)
    tear_down(world, row, "down")
    assert_nothing_left(cloud, world)


def test_what_was_ended_in_the_last_moment_is_looked_at_again(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An end that is answered only after `gone_s` is one."""
    cloud, world = there
    row = made(cloud, world)
    real = Scripted.destroy

    def destroy(self: Scripted, resources: Sequence[Resource]) -> None:
        real(self, resources)
        world.clock.sleep(self.gone_s + 1)

    monkeypatch.setattr(Scripted, "destroy", destroy)
    tear_down(world, row, "down")
    assert_nothing_left(cloud, world)


def test_a_full_disk_keeps_nothing_alive(there: tuple[Cloud, Context]) -> None:
    """The ledger cannot be written any more: the machines end all the same, and the error is told."""
    cloud, world = there
    row = made(cloud, world)
    world.ledger.db.execute("PRAGMA query_only = ON")
    with pytest.raises(UsageError, match="cannot be used"):
        tear_down(world, row, "down")
    assert cloud.machines() == []
    world.ledger.db.execute("PRAGMA query_only = OFF")
    tear_down(world, row, "down")
    assert_nothing_left(cloud, world)


def test_a_full_disk_hides_no_machine_that_may_bill(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, world = there

    def fail(*_: object) -> None:
        world.ledger.db.execute("PRAGMA query_only = ON")
        raise StillBilling("lab-0 may still be there", "gpuops down lab")

    monkeypatch.setattr(creation, "wait_ready", fail)
    with pytest.raises(StillBilling, match="lab-0 may still be there"):
        up(world)


def test_a_cluster_that_another_command_ends_while_it_is_made(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    row = made(cloud, world)
    world.ledger.set_cluster(row, state="ending")
    with pytest.raises(Interrupted, match="another command ends lab"):
        world.ledger.will(row, "machine", "m", "t", "moon")
    assert not world.ledger.mark_up(row, world.ledger.cluster(row).lease, 0.0)
    tear_down(world, row, "down")
    assert_nothing_left(cloud, world)


def test_machines_that_another_command_ends_while_they_boot(there: tuple[Cloud, Context]) -> None:
    """They are gone and nobody says why; but they did not go by nobody's wish, and nothing is to replace them."""
    cloud, world = there
    cloud.play(describe_always=[*[Fault(state="starting")] * 6, Fault(state="ended")])

    class Other(FakeClock):
        def sleep(self, seconds: float) -> None:
            for row in world.ledger.clusters():
                world.ledger.begin_end(row.id)
            super().sleep(seconds)

    world.clock = Other()
    with pytest.raises(Interrupted, match="another command ends lab while it is being created"):
        up(world)
    assert_nothing_left(cloud, world)


def test_what_was_made_after_a_cluster_was_gone_is_ended_all_the_same(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    row = made(cloud, world)
    machines = world.ledger.resources(row)
    world.ledger.mark_gone(row, 0.0, "somebody else's look came too early")
    world.ledger.got(row, machines[0])
    tear_down(world, row, "down")
    assert cloud.machines() == []


def test_two_teardowns_at_once_leave_a_newer_cluster_of_the_name_alone(there: tuple[Cloud, Context]) -> None:
    """While the second waits for its provider's list, the first is done, and `up` takes the name again."""
    cloud, world = there
    row = made(cloud, world, destroy=[Fault(lie=True)])
    newer = []

    class Meanwhile(Clock):
        def sleep(self, seconds: float) -> None:  # noqa: ARG002
            if not newer:
                for path in cloud.folder.glob("machines/*"):
                    path.unlink()
                world.ledger.mark_gone(row, 0.0, "the other command")
                newer.append(made(cloud, world))

    world.clock = Meanwhile()
    tear_down(world, row, "down")
    assert world.ledger.cluster(newer[0]).state == "up"
    assert len(cloud.machines()) == 2
    assert world.ledger.cluster(row).why == "the other command"


def test_a_cluster_that_is_gone_is_not_made_to_end_again(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    row = made(cloud, world)
    assert world.ledger.begin_end(row)
    world.ledger.mark_gone(row, 0.0, "down")
    assert not world.ledger.begin_end(row)
    assert world.ledger.cluster(row).state == "gone"
