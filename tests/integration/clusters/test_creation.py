"""What tests/unit/clusters/test_creation.py leaves to real processes or sockets."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from gpuops.cli.entry import execute
from gpuops.clusters import readiness
from gpuops.clusters.teardown import tear_down
from gpuops.core.context import Context
from gpuops.core.models import Request, Resource
from gpuops.core.polling import Clock
from gpuops.ledger.store import ClusterRow
from gpuops.nodes.session import ClusterSession, contact_cluster
from tests.conftest import no_guards
from tests.fakes.provider import NAME, Cloud, Fault, surroundings
from tests.unit.clusters.test_creation import assert_nothing_left, up


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Cloud, Context]]:
    cloud, world = surroundings(tmp_path, monkeypatch)
    with no_guards(world.home):
        yield cloud, world


def down_at_the_end(world: Context) -> None:
    for row in world.ledger.clusters():
        tear_down(world, row.id, "the test's end")


def test_up_asks_its_provider_once_for_offers(there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch) -> None:
    cloud, world = there
    monkeypatch.setenv("GPUOPS_HOME", str(world.home))
    monkeypatch.setenv("SCRIPTED", str(cloud.folder))
    monkeypatch.chdir(world.folder)
    cloud.play(create=[Fault("AuthFailed", made=0)])
    assert execute(["up", NAME, "--yes"]) == 3
    assert [cloud.calls().count(call) for call in ("preflight", "offers", "create")] == [1, 1, 1]


def test_a_machine_that_boots_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can be logged in to, and the node's folder is not there yet."""
    cloud, world = surroundings(tmp_path, monkeypatch, Clock())
    cloud.play(real=True, settle_s=0.0)
    looks: list[int] = []

    def early(row: ClusterRow, machines: Sequence[Resource]) -> ClusterSession:
        folder = world.home / "local" / "lab" / "n1"
        looks.append(len(looks))
        if len(looks) > 1:
            return contact_cluster(row, machines)
        aside = folder.rename(folder.with_name("aside"))
        try:
            return contact_cluster(row, machines)
        finally:
            aside.rename(folder)

    monkeypatch.setattr(readiness, "contact_cluster", early)
    try:
        up(world).close()
    finally:
        down_at_the_end(world)
    assert len(looks) == 2
    assert_nothing_left(cloud, world)


@pytest.mark.parametrize("create", [[Fault("AuthFailed", made=1)], [Fault("NoCapacity", made=1)], [Fault(made=1)]])
def test_what_cannot_be_undone_is_told_with_what_went_wrong_first(
    there: tuple[Cloud, Context],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    create: list[Fault],
) -> None:
    cloud, world = there
    monkeypatch.setenv("GPUOPS_HOME", str(world.home))
    monkeypatch.setenv("SCRIPTED", str(cloud.folder))
    monkeypatch.chdir(world.folder)
    cloud.play(create=create, destroy_always=[Fault(lie=True)], settle_s=0.0, gone_s=0.2)
    assert execute(["up", NAME, "--name", "lab", "--nodes", "2", "--yes"]) == 5
    said = capsys.readouterr().err
    first = f"the provider said {create[0].error}" if create[0].error else "scripted made 1 of 2 machines"
    assert f"lab was to be undone because of this: {first}\n" in said
    assert "lab-0 may still be there and bill $1.25/h\nhint: gpuops down lab\n" in said


@pytest.mark.parametrize("error", ["RateLimited", "Unknown", "KeyError"])
def test_one_bad_look_is_not_the_end(there: tuple[Cloud, Context], error: str) -> None:
    cloud, world = there
    cloud.play(real=True, describe=[Fault(error, retry_after=2.0)] * 3)
    live = up(world, Request(NAME, nodes=1, timeout_min=1.0))
    live.close()
    assert world.ledger.cluster(live.row.id).state == "up"
    world.clock = Clock()  # real nodes take real time to end
    down_at_the_end(world)
    assert_nothing_left(cloud, world)


def test_real_nodes_after_all_of_it(there: tuple[Cloud, Context]) -> None:
    """A refused offer, a `slower` with half the gang made, a lost answer: two nodes, no more."""
    cloud, world = there
    cloud.play(real=True, offers_at=[2.0, 2.0],
               create=[Fault("NoCapacity", made=0), Fault("RateLimited", made=1), Fault("Unknown")])  # fmt: skip
    world.clock = Quick()
    live = up(world)
    try:
        assert [hello and hello.busy for hello in live.hellos] == [None, None]
        assert [machine.name[-5:] for machine in live.machines] == ["lab-0", "lab-1"]
        assert live.row.lease.hard_end is not None, "a rented node has a lease"
        assert live.row.state == "up"
    finally:
        live.close()
        down_at_the_end(world)
    assert_nothing_left(cloud, world)


class Quick(Clock):
    """Real time, in shorter pauses."""

    def sleep(self, seconds: float) -> None:
        super().sleep(min(seconds, 0.2))


def test_a_run_that_could_not_be_started_on_machines_that_do_not_go(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What may still bill comes before why there is no run."""
    cloud, world = there
    monkeypatch.setenv("GPUOPS_HOME", str(world.home))
    monkeypatch.setenv("SCRIPTED", str(cloud.folder))
    monkeypatch.chdir(world.folder)
    cloud.play(real=True, destroy_always=[Fault("Unknown", lie=True)], settle_s=0, gone_s=1)
    assert execute(["run", "--on", NAME, "--yes", "--setup", "exit 3", "--", "true"]) == 5
    cloud.play(real=True, settle_s=0)
    down_at_the_end(dataclasses.replace(world, clock=Clock()))
    assert_nothing_left(cloud, world)
