"""A launch that its provider limits is repeated alone, and not for ever."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuops.clusters import creation
from gpuops.clusters.creation import CREATE_ATTEMPTS_MAX
from gpuops.core.context import Context
from gpuops.core.errors import (
    AuthFailed,
    RateLimited,
)
from gpuops.core.models import Intent, Journal, Lease, Offer, Request, Resource
from tests.fakes.provider import NAME, Cloud, FakeClock, Fault, Scripted, surroundings
from tests.unit.clusters.test_creation import assert_nothing_left, up


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Cloud, Context]:
    return surroundings(tmp_path, monkeypatch)


class OneByOne(Scripted):
    """So many machines in a call, then it is too soon for the next."""

    launches_apart_s = 12.0
    at_once = 1

    def create(self, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        made = list(intent.made)
        for index in range(len(made), offer.nodes):
            if index >= len(intent.made) + self.at_once or index == self.script.get("full_at"):
                journal.will("machine", intent.mark(index), intent.token, "moon")
                raise RateLimited("too soon", "wait", self.script.get("retry_after"))
            made.append(self._create_one(index, Fault(), intent, journal))
        return made


def create_one_by_one(there: tuple[Cloud, Context], boot_s: float = 600.0, **script: object) -> list[str]:
    """Create three machines; the ids of those that are there."""
    cloud, world = there
    cloud.play(**script)
    (cloud.site / "scripted-1.0.dist-info" / "entry_points.txt").write_text(
        f"[gpuops.provisioners]\n{NAME} = {__name__}:OneByOne\n"
    )
    now = world.clock.now()
    row = world.ledger.intend(provider=NAME, name="lab", folder=world.folder, ephemeral=False, token="t", request={},
                              boot_deadline=now + boot_s, lease=Lease(), owner_process=world.me, now=now)  # fmt: skip
    provisioner = world.provisioner(NAME)
    offer = provisioner.offers(Request(NAME, nodes=3))[0]
    intent = Intent(world.owner, "lab", "t", row.boot_deadline, Path("agent.pyz"))
    creation.create_offer(world, provisioner, offer, row, intent)
    machines = [machine for machine in world.ledger.resources(row.id) if machine.is_machine]
    assert [machine.name[-1] for machine in machines] == ["0", "1", "2"]
    assert not world.ledger.has_open_intents(row.id)
    return cloud.machines()


@pytest.mark.parametrize(("retry_after", "waited"), [(None, 12.0), (3.0, 12.0), (30.0, 30.0)])
def test_a_limited_launch_is_repeated_alone(
    there: tuple[Cloud, Context], retry_after: float | None, waited: float
) -> None:
    """What was made before it bills, and is not undone for it."""
    cloud, world = there
    assert len(create_one_by_one(there, retry_after=retry_after)) == 3
    assert "destroy" not in cloud.calls()
    assert isinstance(world.clock, FakeClock)
    assert sum(world.clock.slept) == pytest.approx(2 * waited, abs=1.0)


@pytest.mark.parametrize(("boot_s", "waits"), [(600.0, CREATE_ATTEMPTS_MAX), (30.0, 3)])
def test_a_launch_is_not_repeated_for_ever(there: tuple[Cloud, Context], boot_s: float, waits: int) -> None:
    """Nor past the boot deadline, at which the machines that were made end."""
    _, world = there
    with pytest.raises(RateLimited):
        create_one_by_one(there, boot_s, full_at=1)
    assert isinstance(world.clock, FakeClock)
    assert sum(world.clock.slept) == pytest.approx((waits - 1) * 12.0, abs=5.0)


@pytest.mark.parametrize(("error_s", "waits"), [(-3600.0, CREATE_ATTEMPTS_MAX), (3600.0, 3)])
def test_the_boot_deadline_of_a_launch_goes_by_the_providers_clock(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch, error_s: float, waits: int
) -> None:
    """A wrong clock of this computer neither ends the attempts at once, nor goes on past the machines' end."""
    _, world = there
    monkeypatch.setattr(OneByOne, "provider_time", lambda _: world.clock.now() + error_s, raising=False)
    with pytest.raises(RateLimited):
        create_one_by_one(there, (600.0 if error_s < 0 else 30.0) + error_s, full_at=1)
    assert isinstance(world.clock, FakeClock)
    assert sum(world.clock.slept) == pytest.approx((waits - 1) * 12.0, abs=5.0)


def test_slow_down_in_the_middle_of_a_gang_makes_nothing_twice(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    cloud.play(create=[Fault("RateLimited", made=1, retry_after=7.0), Fault("AuthFailed")])
    with pytest.raises(AuthFailed):
        up(world)
    assert cloud.calls().index("destroy") < len(cloud.calls()) - 1 - cloud.calls()[::-1].index("create")
    assert len(set(cloud.tokens())) == 2, "the second call is another one, with another token"
    assert 7.0 in world.clock.slept  # type: ignore[attr-defined]
    assert_nothing_left(cloud, world)


@pytest.mark.parametrize("retry_after", [None, 0.0, -5.0, 1e9, float("nan"), float("inf")])
def test_slow_down_for_ever_has_a_limit(there: tuple[Cloud, Context], retry_after: float | None) -> None:
    cloud, world = there
    cloud.play(create_always=[Fault("RateLimited", made=0, retry_after=retry_after)])
    began = world.clock.monotonic()
    with pytest.raises(RateLimited):
        up(world)
    assert cloud.calls().count("create") == CREATE_ATTEMPTS_MAX
    assert world.clock.monotonic() - began < 3600
    assert_nothing_left(cloud, world)
