"""Whatever is broken on a host, what a command says to type next leads somewhere: each hint is followed to its end.

A walk types a command, then what its hints name, each alternative in a world of its own. No command is named again
that has failed in the very same state, and where something fails one way at least ends with nothing up, or mends it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gpuops.core.context import Context
from gpuops.core.errors import Rejected
from gpuops.core.home import owner
from gpuops.core.models import Lease, ResourceState
from gpuops.core.processes import Identity
from gpuops.core.provider import Context as Surroundings
from gpuops.core.run_models import RunRequest
from gpuops.guard.services import WITHOUT_GUARD
from gpuops.ledger.store import Ledger
from provisioners import registry
from provisioners.ssh.host_agent import NodeRecord
from provisioners.ssh.hosts import HostBook
from provisioners.ssh.provisioner import SshProvisioner
from tests.desk import Desk, Said
from tests.fakes.host import NAME, ROOT, FakeHost
from tests.fakes.provider import FakeClock

FOLDER = f"{ROOT}/lab/n0"
LONGEST_WALK = 8
"""Commands that nobody would type one after the other."""
NAMED = re.compile(r"(?:gpuops (?=[a-z])|(?=mv ))([a-z]+(?: (?:lab|sh-1|root@a|--?[a-z]+|[0-9]+h|/[^ ;]+))*)")


@dataclass
class World:
    """A cluster of one host in a home of its own."""

    desk: Desk
    host: FakeHost

    def type(self, line: str) -> Said:
        if line.startswith("mv "):
            source, target = (self.desk.home / "ssh" / Path(path).name for path in line.split()[1:])
            source.rename(target)
            return Said(0, "", "")
        return self.desk.type(*line.split())

    @property
    def ledger(self) -> Ledger:
        return Ledger.open(self.desk.home)

    def state(self) -> tuple[object, ...]:
        """All that a command's success depends on."""
        ledger = self.ledger
        clusters = [(row.name, row.state) for row in ledger.clusters()]
        runs = [(run.name, run.state) for run in ledger.runs()]
        ledger.close()
        try:
            hosts = HostBook(self.desk.home / "ssh" / "hosts.json").names()
        except Rejected:
            hosts = ["torn"]
        return str(clusters), str(runs), str(hosts), str(sorted(self.host.nodes)), bool(self.host.agents)

    def is_up(self) -> bool:
        ledger = self.ledger
        try:
            return bool(ledger.clusters())
        finally:
            ledger.close()


def remove_agent(world: World) -> None:
    world.host.agents.clear()


def remove_agent_for_good(world: World) -> None:
    world.host.agents.clear()
    world.host.takes_agents = False


def remove_folder(world: World) -> None:
    world.host.agents.clear()
    world.host.nodes.clear()


def take_away(world: World) -> None:
    world.host.is_up = False


def change_key(world: World) -> None:
    world.host.shows_key = "ssh-ed25519 BBBB"


def tear_book(world: World) -> None:
    (world.desk.home / "ssh" / "hosts.json").write_text("{torn")


def end_by_half(world: World) -> None:
    world.host.nodes[FOLDER]["state"] = "ended"


def kill_processes(_world: World) -> None:
    """None of the fake's nodes has an agent that answers."""


def refuse_to_end(world: World) -> None:
    say = "/root/x is mounted from elsewhere"
    world.host.end_refusal = f'{{"error": {{"kind": "remains", "say": "{say}", "hint": "unmount it: umount /root/x"}}}}'


def lose_machines(world: World) -> None:
    world.host.nodes.clear()
    ledger = world.ledger
    with ledger._transaction() as db:
        db.execute("DELETE FROM resources")
    ledger.close()


STATES: list[Callable[[World], None]] = [
    *(remove_agent, remove_agent_for_good, remove_folder, take_away, change_key, tear_book),
    *(end_by_half, kill_processes, refuse_to_end, lose_machines),
]
COMMANDS = ("down lab", "reap --yes", "lease lab --extend 2h", "doctor lab")


@pytest.fixture
def make_world(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Callable[[World], None]], World]:
    """Each call makes a world of its own, which the next one's does not share."""
    monkeypatch.setattr("gpuops.cli.context.SERVICES", WITHOUT_GUARD)
    monkeypatch.setattr("gpuops.cli.context.Context", functools.partial(Context, clock=FakeClock()))
    monkeypatch.setattr(registry, "provider_names", lambda: ["ssh"])
    count = iter(range(1000))

    def make(break_it: Callable[[World], None]) -> World:
        home = tmp_path / f"home-{next(count)}"
        monkeypatch.setenv("GPUOPS_HOME", str(home))
        host = FakeHost()
        monkeypatch.setattr("gpuops.transport.ssh.connect", host.connect)
        world = World(replace(desk, home=home), host)
        set_up(world)
        break_it(world)
        return world

    return make


def set_up(world: World) -> None:
    home, host = world.desk.home, world.host
    home.mkdir(mode=0o700)
    ours = owner(home)
    mark = f"gpuops-{ours}-lab-0"
    host.put_node(NodeRecord(mark, FOLDER, ResourceState.RUNNING))
    HostBook(home / "ssh" / "hosts.json").record(NAME, host.known_host)
    (machine,) = SshProvisioner(Surroundings(ours, home, {})).list_owned(ours, [])
    ledger = world.ledger
    nobody = Identity(1 << 22, 0.0)
    row = ledger.intend(
        provider="ssh", name="lab", folder=world.desk.folder, ephemeral=False, token="t", request={},
        boot_deadline=2e9, lease=Lease(), owner_process=nobody, now=1.0,
    )  # fmt: skip
    ledger.will(row.id, "machine", mark, "t-0", NAME)
    ledger.got(row.id, machine)
    ledger.set_cluster(row.id, state="up", ready=1.0, owner_process=None)
    run = ledger.add_run(
        stem="sh", cluster=row.id, folder=world.desk.folder, tree="project", facts={},
        request=RunRequest("command", "run", 1, None, argv=["true"]).document(),
        owner_process=nobody, now=1.0, claim=lambda _: True,
    )  # fmt: skip
    ledger.set_run(run.id, state="running", started=1.0, owner_process=None)
    ledger.close()
    host.programs.clear()


@dataclass(frozen=True)
class Step:
    line: str
    is_second: bool = False
    """It is named behind another (`…; then: …`), and is typed where that one went well."""


def named_steps(said: Said) -> Iterator[list[Step]]:
    """The ways on that a command names; an empty one for what is to be done by hand first."""
    lines = [line.strip() for line in (said.out + said.err).splitlines()]
    for hint in [line for line in lines if line.startswith(("hint: ", "note: "))]:
        *before, last = hint.split("; then: ")
        second = [Step(line, is_second=True) for line in NAMED.findall(last)]
        first = [Step(line) for part in before for line in NAMED.findall(part)]
        yield from ([step, *second] for step in first)
        if not first:
            yield from [[]] if before else ([Step(step.line)] for step in second)


def walk(world: World, way: list[Step]) -> tuple[list[Step], tuple[object, ...], Said]:
    """The steps that were typed; of the last one the state before it, and what it said."""
    before: tuple[object, ...] = ()
    failed: set[tuple[object, ...]] = set()
    said, typed = Said(0, "", ""), list[Step]()
    for step in way:
        if step.is_second and said.code:
            break
        before = (*world.state(), step.line)
        assert before not in failed, f"{[*typed, step]} goes in a circle: {said}"
        said = world.type(step.line)
        typed.append(step)
        assert said.code != 70, said
        if said.code:
            failed.add(before)
    return typed, before, said


@pytest.mark.parametrize("break_it", STATES, ids=lambda function: function.__name__)
@pytest.mark.parametrize("command", COMMANDS)
def test_each_hint_leads_on(
    make_world: Callable[[Callable[[World], None]], World], break_it: Callable[[World], None], command: str
) -> None:
    ways, ends, has_failed = [[Step(command)]], 0, False
    seen: set[tuple[object, ...]] = set()
    while ways:
        world = make_world(break_it)
        way, before, said = walk(world, ways.pop())
        if before in seen:
            continue  # another way led here
        seen.add(before)
        following = list(named_steps(said))
        assert following or not said.code, f"{way} is a dead end: {said}"
        assert len(way) < LONGEST_WALK, (way, said)
        has_failed |= said.code != 0
        is_mended = not said.code and any(step.line.startswith("mv ") for step in way)
        ends += is_mended or not world.is_up()
        ways += [[*way, *steps] for steps in following if steps and (said.code or not world.is_up())]
    assert ends or not has_failed, "nothing leads to an end"
