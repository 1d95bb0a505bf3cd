"""When `gpuops logs -f` stops to follow."""

from __future__ import annotations

import io
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from gpuops.cli.terminal.output import Output
from gpuops.commands import logs
from gpuops.core.context import Context
from gpuops.core.errors import ConnectionLost
from gpuops.core.models import Lease
from gpuops.core.polling import Clock
from gpuops.ledger.store import RunRow
from gpuops.runs.logs.home_tail import Filter
from gpuops.sync.run_folder import RunHome

LOOKS_MAX = 20
"""Looks at a run that goes on, of a command that should have left it."""


class Head(Output):
    """Stdout into `head -3`: closed once three lines are read, which the run's next line alone would tell."""

    @property
    def is_closed(self) -> bool:
        return self.seen.count("\n") >= 3

    @property
    def seen(self) -> str:
        assert isinstance(self.out, io.StringIO)
        return self.out.getvalue()


class LimitedClock(Clock):
    def __init__(self) -> None:
        self.pauses = 0

    def sleep(self, seconds: float) -> None:  # noqa: ARG002
        self.pauses += 1
        assert self.pauses < LOOKS_MAX, "it goes on to follow"


@pytest.fixture
def head(world: Context) -> Head:
    world.out = Head(out=io.StringIO(), err=io.StringIO())
    world.clock = LimitedClock()
    return world.out


def add_run(world: Context, state: str) -> RunRow:
    cluster = world.ledger.intend(provider="local", name="lab", folder=world.folder, ephemeral=False, token="t",
                                  request={}, boot_deadline=0.0, lease=Lease(), owner_process=world.me,
                                  now=0.0)  # fmt: skip
    world.ledger.mark_up(cluster.id, Lease(), 1.0)
    request = {"kind": "torchrun", "mode": "multinode", "nodes": 1, "gpus": 0}
    row = world.ledger.add_run(stem="talk", cluster=cluster.id, folder=world.folder, tree="project", request=request,
                               facts={"world": 1}, owner_process=world.me, now=1.0)  # fmt: skip
    world.ledger.set_run(row.id, state=state, started=1.0)
    RunHome(row.home).create()
    path = RunHome(row.home).log(0, "rank0.out")
    path.parent.mkdir(parents=True)
    path.write_text("one\ntwo\nthree\n")
    return world.ledger.run(row.id)


def said(out: Head) -> str:
    assert isinstance(out.err, io.StringIO)
    return out.err.getvalue()


def test_nobody_follows_a_run_for_a_reader_that_has_left(
    world: Context, head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = add_run(world, "running")

    def refuse(*_: object, **__: object) -> None:
        raise ConnectionLost("node0 does not answer")

    monkeypatch.setattr(logs, "open_session", refuse)
    logs.show_logs(world, run.name, Filter(), follow=True)
    assert head.seen.count("\n") == 3
    assert said(head).endswith("detached; talk-1 goes on\n")


def test_nor_over_a_connection_to_its_nodes(world: Context, head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    run = add_run(world, "running")
    looks: list[float] = []

    def watch(seconds: float) -> bool:
        looks.append(seconds)
        assert len(looks) < LOOKS_MAX, "it goes on to follow"
        return False

    following = SimpleNamespace(watch=watch, quit=lambda: None)
    remarks = SimpleNamespace(poll=lambda: None, say_notices=lambda: None)
    session = SimpleNamespace(clients=[None], close=lambda: None)
    monkeypatch.setattr(logs, "open_session", lambda *_, **__: session)
    monkeypatch.setattr(logs, "mirror", lambda *_: None)
    monkeypatch.setattr(logs, "show_waiting", lambda *_: ExitStack())
    monkeypatch.setattr(logs, "follow_with_remarks", lambda *_: (following, remarks))
    logs.show_logs(world, run.name, Filter(), follow=True)
    assert head.seen.count("\n") == 3
    assert said(head) == "detached; talk-1 goes on\n"


def test_nor_waits_for_its_start(world: Context, head: Head) -> None:
    run = add_run(world, "starting")
    head.out.write("an\nearlier\nrun\n")
    logs.show_logs(world, run.name, Filter(), follow=True)
    assert said(head) == "talk-1 is still being prepared\ndetached; talk-1 goes on\n"
