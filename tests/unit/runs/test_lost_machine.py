"""Whether a run could not begin because a machine went: what its provider says, and how long it is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.core.context import Context
from gpuops.core.errors import ConnectionLost, NodeError
from gpuops.core.models import Intent, Lease, Request
from gpuops.ledger.store import LedgerJournal
from gpuops.nodes.session import ClusterSession
from gpuops.runs import retries
from tests.fakes.provider import NAME, Cloud, Fault, surroundings

TWO = Request(NAME, nodes=2)
CUT = ConnectionLost("node1 does not answer")
REFUSED = NodeError("its disk is full")


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Cloud, Context]:
    return surroundings(tmp_path, monkeypatch)


def cluster(world: Context) -> ClusterSession:
    """Two machines that are up, as far as the ledger knows."""
    now = world.clock.now()
    row = world.ledger.intend(provider=NAME, name="lab", folder=world.folder, ephemeral=True, token="t", request={},
                              boot_deadline=now + 600, lease=Lease(), owner_process=world.me, now=now)  # fmt: skip
    provisioner = world.provisioner(NAME)
    intent = Intent(world.owner, "lab", "t", now + 600, Path("agent"))
    machines = list(provisioner.create(provisioner.offers(TWO)[0], intent, LedgerJournal(world.ledger, row.id)))
    assert world.ledger.mark_up(row.id, Lease(), now)
    return ClusterSession(world.ledger.cluster(row.id), machines)


@pytest.mark.parametrize("error", [CUT, REFUSED])
def test_one_that_is_gone(there: tuple[Cloud, Context], error: NodeError) -> None:
    cloud, world = there
    cloud.play(describe=[Fault(), Fault(state="ended")])
    live = cluster(world)
    gone = retries.find_ended_machine(world, live, error)
    assert gone is not None
    assert (gone.node, gone.cluster, gone.exit_code) == (1, live.row.id, 4)
    assert gone.message == f"{live.machines[1].name} ended before its run began"


def test_one_that_its_provider_tells_of_late(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    cloud.play(describe=[Fault(), Fault("Unknown"), Fault(), Fault(), Fault(), Fault(state="ended")])
    assert retries.find_ended_machine(world, cluster(world), CUT) is not None


@pytest.mark.parametrize(("error", "looks"), [(CUT, 22), (REFUSED, 2)])
def test_machines_that_are_well(there: tuple[Cloud, Context], error: NodeError, looks: int) -> None:
    """Who is only not reached is asked about for half a minute, and no longer."""
    cloud, world = there
    live = cluster(world)
    began = world.clock.monotonic()
    assert retries.find_ended_machine(world, live, error) is None
    assert cloud.calls().count("describe") <= looks
    assert world.clock.monotonic() - began <= retries.ENDED_MACHINE_TIMEOUT_S + 1


def test_a_provider_that_says_nothing(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    cloud.play(describe_always=[Fault("Unknown")])
    assert retries.find_ended_machine(world, cluster(world), CUT) is None


def test_what_another_command_ends(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    cloud.play(describe_always=[Fault(state="ended")])
    live = cluster(world)
    world.ledger.begin_end(live.row.id)
    assert retries.find_ended_machine(world, live, CUT) is None


def test_somebody_who_does_not_want_to_wait(there: tuple[Cloud, Context]) -> None:
    _, world = there
    world.signals.count = 1
    live = cluster(world)
    began = world.clock.monotonic()
    assert retries.find_ended_machine(world, live, CUT) is None
    assert world.clock.monotonic() == began
