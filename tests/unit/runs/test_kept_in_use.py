"""Signs of use for the other machines of a cluster that ends as a whole, while a run is followed on some of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuops.core import polling
from gpuops.core.context import Context
from gpuops.core.errors import NodeError
from gpuops.core.models import Lease
from gpuops.guard import cleanup
from gpuops.ledger.store import RunRow
from gpuops.nodes.session import ClusterSession
from gpuops.runs import kept_in_use, monitor
from gpuops.runs.kept_in_use import KeptInUse
from tests.unit.runs.test_finish import a_cluster, a_run


class Clock(polling.Clock):
    seconds = 0.0

    def now(self) -> float:
        return 1000.0 + self.seconds

    def monotonic(self) -> float:
        return self.seconds


class Node:
    def __init__(self, error: NodeError | None = None) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.error = error

    def call(self, verb: str, **arguments: Any) -> None:
        self.asked.append((verb, arguments))
        if self.error:
            raise self.error


def a_followed_run(
    world: Context, nodes: list[Node], data: dict[str, Any], *, all_nodes: bool = False
) -> tuple[Clock, ClusterSession, RunRow]:
    clock = world.clock = Clock()
    cluster = a_cluster(world, created=0.0)
    row = a_run(world, cluster, created=0.0)
    world.ledger.set_run(row.id, request={**row.request, "nodes": len(nodes), "all_nodes": all_nodes})
    machines = [SimpleNamespace(data=data) for _ in nodes]
    count = len(nodes)
    session = ClusterSession(cluster, cast(Any, machines), cast(Any, nodes), [None] * count, [0.0] * count)
    return clock, session, world.ledger.run(row.id)


@pytest.mark.parametrize(("part", "of_job"), [(False, False), (True, False), (False, True)])
def test_an_idle_machine_does_not_end_the_cluster_under_a_run_on_another(
    world: Context, monkeypatch: pytest.MonkeyPatch, part: bool, of_job: bool
) -> None:
    """They are told of the lease as it is by now, whoever has extended it. A pod ends them all, and a batch job keeps a
    machine whose node has ended, which nobody can use then."""
    nodes = [Node(), Node(NodeError("it has ended")), Node()]
    clock, session, row = a_followed_run(world, nodes, {} if of_job else {"ends_itself": False})
    monkeypatch.setattr(world, "provisioner_of", lambda _row: SimpleNamespace(grants_machines=of_job))
    kept = KeptInUse(world, session.part([0]) if part else session, row)
    clock.seconds = kept_in_use.INTERVAL_S - 1
    kept.poll()
    assert kept._job is None
    world.ledger.set_cluster(row.cluster, lease=Lease(hard_end=2000.0, idle_s=1800.0))
    clock.seconds = kept_in_use.INTERVAL_S
    for _ in range(2):
        kept.poll()
        assert kept._job is not None
        assert kept._job.join(10)
    assert [node.asked for node in nodes] == [[("lease", {"ends_in": 970.0, "idle_s": 1800.0})]] * 3


@pytest.mark.parametrize(("data", "all_nodes"), [({}, False), ({"ends_itself": False}, True)])
def test_machines_that_end_by_themselves_or_run_are_left_alone(
    world: Context, data: dict[str, Any], all_nodes: bool
) -> None:
    nodes = [Node(), Node()]
    clock, session, row = a_followed_run(world, nodes, data, all_nodes=all_nodes)
    kept = KeptInUse(world, session, row)
    clock.seconds = kept_in_use.INTERVAL_S
    kept.poll()
    assert kept._job is None


class Followed:
    """A run that is seen to go on, and then to have ended."""

    looks = 0
    is_cut_off = False

    @property
    def has_ended(self) -> bool:
        self.looks += 1
        return self.looks > 1

    @property
    def reports(self) -> dict[int, Any]:
        return {}

    def start(self) -> None:
        """No thread."""

    def watch(self, _timeout: float) -> bool:
        return self.has_ended

    wait = watch


def test_the_command_and_the_guard_send_them(world: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    polled: list[str] = []
    _, session, row = a_followed_run(world, [Node(), Node()], {})
    fake = SimpleNamespace(poll=lambda **_: None, say_notices=lambda: None)
    monkeypatch.setattr(monitor, "follow_with_remarks", lambda *_: (Followed(), fake))
    monkeypatch.setattr(cleanup, "make_follower", lambda *_: Followed())
    monkeypatch.setattr(cleanup, "_owns_run", lambda *_: True)
    world.ledger.set_cluster(row.cluster, state="up")
    for module in (monitor, cleanup):
        monkeypatch.setattr(module, "KeptInUse", lambda *_, who=module.__name__: SimpleNamespace(
            poll=lambda: polled.append(who)
        ))  # fmt: skip
    tail = SimpleNamespace(new=lambda **_: iter(()), skip=lambda _most: 0, rest=lambda: iter(()))
    monitor.show_run(world, session, row, cast(Any, tail))
    cleanup._follow(world, session, row, None)
    assert polled == ["gpuops.runs.monitor", "gpuops.guard.cleanup"]
