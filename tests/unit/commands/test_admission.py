"""A provider that lets in one address is told this computer's new one; and what it tells of a machine that ended."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuops.cli.terminal.output import Output
from gpuops.commands import ssh, status
from gpuops.core.context import Context
from gpuops.core.errors import AuthFailed, ConnectionLost, GpuopsError, NodeRefused
from gpuops.core.models import Lease, Resource
from gpuops.core.signals import Signals
from gpuops.guard.services import SERVICES
from gpuops.ledger.store import ClusterRow
from gpuops.nodes import session

AWAY, THERE = ConnectionLost("node0 does not answer"), object()


class Door:
    """A provider, as far as it lets somebody in."""

    capabilities: Mapping[str, bool | str] = {}
    credentials: Sequence[str] = ()

    def __init__(self, answer: bool | GpuopsError) -> None:
        self.answer = answer
        self.asked: list[list[str]] = []

    def admit(self, resources: Sequence[Resource]) -> bool:
        self.asked.append([one.kind for one in resources])
        if isinstance(self.answer, GpuopsError):
            raise self.answer
        return self.answer


@pytest.fixture
def world(tmp_path: Path) -> Context:
    out = Output(err=io.StringIO())
    return Context(
        home=tmp_path, owner="0a1b2c3d", folder=tmp_path, env={}, out=out, signals=Signals(), services=SERVICES
    )


def a_cluster(world: Context, provider: Any) -> ClusterRow:
    world.provisioners["aws"] = provider
    row = world.ledger.intend(
        provider="aws", name="lab", folder=world.folder, ephemeral=False, token="t", request={}, boot_deadline=1.0,
        lease=Lease(), owner_process=world.me, now=0.0,
    )  # fmt: skip
    for kind in ("group", "machine"):
        world.ledger.got(row.id, Resource(kind, f"{kind}-1", "r", f"gpuops-0a1b2c3d-lab-{kind}", kind == "machine"))
    return row


def answers(monkeypatch: pytest.MonkeyPatch, *given: Any) -> list[Any]:
    """What reaching the cluster comes to, one after the other."""
    left = list(given)

    def reach(*_: Any, **__: Any) -> Any:
        answer = left.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    monkeypatch.setattr(session, "contact_cluster", reach)
    return left


def said(world: Context) -> str:
    assert isinstance(world.out.err, io.StringIO)
    return world.out.err.getvalue()


def test_it_is_let_in_and_tried_once_more(world: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door(True)
    row = a_cluster(world, door)
    answers(monkeypatch, AWAY, THERE)
    assert session.open_session(world, row) is THERE
    assert door.asked == [["group", "machine"]]
    assert said(world) == "note: this computer's address has changed: lab lets it in now\n"


@pytest.mark.parametrize(
    ("provider", "asked"),
    [(Door(False), 1), (Door(AuthFailed("expired", "log in")), 1)],
)
def test_what_nobody_changed_is_not_tried_again(
    world: Context, monkeypatch: pytest.MonkeyPatch, provider: Any, asked: int
) -> None:
    row = a_cluster(world, provider)
    left = answers(monkeypatch, AWAY, THERE)
    with pytest.raises(ConnectionLost, match="does not answer"):
        session.open_session(world, row)
    assert left == [THERE]
    assert len(provider.asked) == asked
    assert said(world) == ""


def test_a_rented_machine_that_is_no_more_is_said_to_be(world: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    landlord = SimpleNamespace(
        capabilities={"rented": True},
        credentials=(),
        describe=lambda machine: dataclasses.replace(machine, state="ended"),
        admit=lambda _: False,
    )
    row = a_cluster(world, landlord)
    answers(monkeypatch, AWAY)
    with pytest.raises(ConnectionLost) as caught:
        session.open_session(world, row)
    assert caught.value.message == "node0 of lab has ended: gpuops status says why"
    assert caught.value.hint.startswith("gpuops down lab ")


def logins(monkeypatch: pytest.MonkeyPatch, codes: list[int], *answers: BaseException | None) -> None:
    """What `ssh` ends with, one after another, and what logins of our own come to."""
    left = list(answers)

    def log_in(*_: Any) -> None:
        answer = left.pop(0)
        if answer is not None:
            raise answer

    monkeypatch.setattr(ssh, "run_foreground", lambda *_: codes.pop(0))
    monkeypatch.setattr(ssh, "_log_in", log_in)


def entered(world: Context, row: ClusterRow) -> int:
    target = {"target": {"host": "192.0.2.1", "user": "u"}, "root": "/r", "connection": "ssh"}
    (machine,) = session.nodes_of(world, row)
    (world.home / "ssh").mkdir()
    (world.home / "ssh" / "lab.conf").touch()
    return ssh.open_shell(world, row, dataclasses.replace(machine, data={**machine.data, **target}), 0, ["true"])


def test_a_shell_on_a_node_is_let_in_too(world: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    door, codes = Door(True), [255, 0]
    logins(monkeypatch, codes, AWAY, None)
    assert entered(world, a_cluster(world, door)) == 0
    assert (codes, len(door.asked)) == ([], 1)


def test_a_command_that_says_255_is_not_typed_again(world: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    door, codes = Door(True), [255, 0]
    logins(monkeypatch, codes, None)
    assert entered(world, a_cluster(world, door)) == 255
    assert (codes, door.asked) == ([0], [])


def test_a_shell_on_a_machine_that_is_no_more(world: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    landlord = SimpleNamespace(
        capabilities={"rented": True},
        credentials=(),
        describe=lambda machine: dataclasses.replace(machine, state="ended"),
        admit=lambda _: False,
    )
    logins(monkeypatch, [255], AWAY)
    with pytest.raises(ConnectionLost, match="node0 of lab has ended"):
        entered(world, a_cluster(world, landlord))


def test_a_second_failure_is_the_answer(world: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    door = Door(True)
    row = a_cluster(world, door)
    answers(monkeypatch, AWAY, ConnectionLost("still not"))
    with pytest.raises(ConnectionLost, match="still not"):
        session.open_session(world, row)
    assert len(door.asked) == 1


@pytest.mark.parametrize("answer", [THERE, NodeRefused("it is busy", kind="busy")])
def test_who_answers_needs_no_door(world: Context, monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    door = Door(True)
    row = a_cluster(world, door)
    answers(monkeypatch, answer)
    if answer is THERE:
        assert session.open_session(world, row) is THERE
    else:
        with pytest.raises(NodeRefused):
            session.open_session(world, row)
    assert door.asked == []


def test_status_says_how_a_machine_ended(world: Context) -> None:
    """And in which words: its provider's."""

    def describe(one: Resource) -> Resource:
        return dataclasses.replace(one, state="ended", data={"reclaimed": True, "why_ended": "AWS took it back"})

    row = a_cluster(world, type("Provider", (), {"describe": staticmethod(describe), "credentials": ()})())
    world.ledger.mark_up(row.id, Lease(), 1.0)
    (cluster,) = status.describe_clusters(world)
    assert cluster.why_ended == {"node0": "AWS took it back"}
    assert status.cluster_lines([cluster])[-1] == "lab: node0 is gone: AWS took it back"


@pytest.mark.parametrize(("state", "shown"), [("running", {"node0": ["https://p1"]}), ("ended", {})])
def test_status_says_where_open_ports_are(world: Context, state: str, shown: dict[str, list[str]]) -> None:
    def describe(one: Resource) -> Resource:
        return dataclasses.replace(one, state=state)

    row = a_cluster(world, type("Provider", (), {"describe": staticmethod(describe), "credentials": ()})())
    machine = Resource("machine", "machine-1", "r", "gpuops-0a1b2c3d-lab-machine", True, data={"urls": ["https://p1"]})
    world.ledger.got(row.id, machine)
    (cluster,) = status.describe_clusters(world)
    assert cluster.urls == shown
    assert [line for line in status.cluster_lines([cluster]) if "https" in line] == [
        "lab: node0 shows https://p1"
    ] * len(shown)


def test_status_shows_a_run_whose_request_is_damaged(world: Context) -> None:
    """What looks must go on: another cluster may cost money."""
    row = a_cluster(world, type("Provider", (), {"describe": staticmethod(lambda one: one), "credentials": ()})())
    world.ledger.add_run(
        stem="train", cluster=row.id, folder=world.folder, tree="project", request={}, facts={},
        owner_process=world.me, now=1.0,
    )  # fmt: skip
    (cluster,) = status.describe_clusters(world)
    assert cluster.doing is not None
    assert (cluster.doing.run, cluster.doing.ranks) == ("train-1", None)
