"""A provider made of files and a script of faults: what it answers to its n-th call is data.

    <folder>/script.json      {method: [fault, …], …}, see `Fault`; the last fault of `*` methods is for ever
    <folder>/machines/<id>    one JSON document each: a machine that exists, whoever knows of it
    <folder>/calls            a line per call: "create", "list_owned", …

It is a third party's provisioner in every respect: found by an entry point (`install`), knowing
nothing but the contract. With `real` its machines are local nodes, else nothing answers on them.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpuops.cli.terminal.output import Output
from gpuops.core import errors
from gpuops.core import provider as contract
from gpuops.core.context import Context
from gpuops.core.models import Intent, Journal, Offer, Option, Price, Problem, Request, Resource
from gpuops.core.polling import Clock
from gpuops.core.provider import CONTRACT
from gpuops.core.signals import Signals
from gpuops.guard.services import WITHOUT_GUARD
from provisioners.local import LocalProvisioner

NAME = "scripted"
OWNER = "0a1b2c3d"
PRICE = 1.25
"""$/h of one machine."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """What one call does. Without any of it, it does what it should.

    `error`: a class of `gpuops.core.errors`, or `KeyError` for a bug; raised after the rest was done.
    """

    error: str = ""
    instead: str = ""
    """create, with `Unknown`: the error that a later request for the same met."""
    retry_after: float | None = None
    made: int | None = None
    """create: how many machines it makes (None: all)."""
    told: int | None = None
    """create: of how many the journal hears (None: of all that are made)."""
    answered: int | None = None
    """create: how many are in the answer (None: all that are made)."""
    twice: bool = False
    """create: every machine is there twice; list_owned: every line is."""
    state: str = ""
    """describe: the state it tells."""
    address: str | None = None
    queued: bool = False
    """describe: the machine waits for its turn."""
    lie: bool = False
    """destroy: accepts, and ends nothing; list_owned: lists nothing."""


class FakeClock(Clock):
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.time = 1_000_000.0
        self.slept: list[float] = []

    def now(self) -> float:
        return 1_800_000_000.0 + self.time

    def monotonic(self) -> float:
        return self.time

    def since_boot(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        assert len(self.slept) < 20_000, "this waits for ever"
        self.slept.append(seconds)
        self.time += seconds + 0.001  # a look costs time too, so that a pause of 0 is no standstill


class Scripted:
    """The provisioner. Every call reads its state from the folder, so that several processes share it."""

    contract = CONTRACT
    name = NAME
    options: Sequence[Option] = (Option("tier", "How good.", "str"),)
    credentials: Sequence[str] = ("SCRIPTED_KEY",)
    surroundings: Sequence[str] = ("SCRIPTED_URL",)

    def __init__(self, context: contract.Context) -> None:
        self.folder = Path(context.env["SCRIPTED"])
        self.script = json.loads((self.folder / "script.json").read_text())
        self.settle_s = float(self.script.get("settle_s", 30.0))
        self.gone_s = float(self.script.get("gone_s", 120.0))
        self.capabilities = {"multinode": True, "spot": "there is none", "rented": True}
        self.owner = context.owner
        self.local = LocalProvisioner(context) if self.script.get("real") else None

    def _fault(self, method: str) -> Fault:
        """What this call does; the call is noted."""
        path = self.folder / "calls"
        nth = path.read_text().split().count(method) if path.exists() else 0
        with path.open("a") as calls:
            calls.write(f"{method}\n")
        for_ever = self.script.get(f"{method}*")
        if for_ever is not None:
            return Fault(**for_ever[min(nth, len(for_ever) - 1)])
        faults = self.script.get(method, [])
        return Fault(**faults[nth]) if nth < len(faults) else Fault()

    def _raise(self, fault: Fault) -> None:
        if not fault.error:
            return
        if fault.error == "RateLimited":
            raise errors.RateLimited("slow down", "wait", fault.retry_after)
        if fault.instead:
            no = getattr(errors, fault.instead)(f"the provider said {fault.instead}", "do something about it")
            raise errors.Unknown("the provider did not answer at first", "try again", instead=no)
        if hasattr(errors, fault.error):
            raise getattr(errors, fault.error)(f"the provider said {fault.error}", "do something about it")
        raise {"KeyError": KeyError, "OSError": OSError}[fault.error]("pods")

    def preflight(self, request: Request) -> Sequence[Problem]:  # noqa: ARG002
        self._raise(self._fault("preflight"))
        return []

    def offers(self, request: Request) -> Sequence[Offer]:
        self._raise(self._fault("offers"))
        prices = self.script.get("offers_at", [PRICE * request.nodes])
        data = {"queue_s": self.script.get("queue_s", 0.0)}
        return [
            Offer(
                NAME,
                f"offer-{index}",
                f"offer {index}",
                request.nodes,
                0,
                prices=(Price("machines", price),),
                data=data,
            )
            for index, price in enumerate(prices)
        ]

    def create(self, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        fault = self._fault("create")
        with (self.folder / "tokens").open("a") as tokens:
            tokens.write(intent.token + "\n")
        count = offer.nodes if fault.made is None else fault.made
        if self.local and count:
            made = self._create_real(count, offer, intent, journal)
        else:
            made = [self._create_one(index, fault, intent, journal) for index in range(count)]
        self._raise(fault)
        return made[: fault.answered] if fault.answered is not None else made

    def _create_one(self, index: int, fault: Fault, intent: Intent, journal: Journal) -> Resource:
        mark = intent.mark(index)
        journal.will("machine", mark, intent.token, "moon")
        machines = [self._add(mark) for _ in range(1 + fault.twice)]
        if fault.told is None or index < fault.told:
            journal.got(machines[0])
        return machines[0]

    def _create_real(self, count: int, offer: Offer, intent: Intent, journal: Journal) -> list[Resource]:
        assert self.local
        nodes = self.local.create(dataclasses.replace(offer, nodes=count, data={}), intent, journal)
        priced = [dataclasses.replace(node, bills=True, per_hour=PRICE) for node in nodes]
        for node in priced:
            self._save(node, Path(node.id).parent.name + Path(node.id).name)
        return priced

    def _add(self, mark: str) -> Resource:
        data = self.script.get("data", {"connection": "pigeon", "root": "/r", "python": "python3", "artefact": "a"})
        machine = Resource("machine", uuid.uuid4().hex[:8], "moon", mark, bills=True, state="running",
                           address="192.0.2.1", per_hour=PRICE, data=data)  # fmt: skip
        self._save(machine, machine.id)
        return machine

    def _save(self, machine: Resource, name: str) -> None:
        (self.folder / "machines").mkdir(exist_ok=True)
        draft = self.folder / f"draft-{uuid.uuid4().hex}"  # others read them, and a kill leaves no half of one
        draft.write_text(json.dumps(dataclasses.asdict(machine)))
        draft.replace(self.folder / "machines" / name)

    def _machines(self) -> dict[Path, Resource]:
        found = {path: Resource(**document) for path, document in _documents(self.folder)}
        for path, machine in list(found.items()):
            if self.local and not Path(machine.id).exists():
                path.unlink(missing_ok=True)
                del found[path]
        return found

    def list_owned(self, owner: str, regions: Sequence[str]) -> Sequence[Resource]:  # noqa: ARG002
        fault = self._fault("list_owned")
        listed = [] if fault.lie else list(self._machines().values())
        if fault.error == "Partial":
            raise errors.Partial("the provider said Partial", "do something about it", listed)
        self._raise(fault)
        strangers = [dataclasses.replace(one, id="theirs", name="production-db") for one in listed[:1]]
        return [*listed, *strangers] * (1 + fault.twice)

    def list_every_owner(self) -> Sequence[Resource]:
        return list(self._machines().values())

    def describe(self, resource: Resource) -> Resource:
        fault = self._fault("describe")
        self._raise(fault)
        there = [one for one in self._machines().values() if one.id == resource.id]
        if not there:
            return dataclasses.replace(resource, state="ended")
        address = there[0].address if fault.address is None else fault.address
        data = {**there[0].data, **({"queued": True} if fault.queued else {})}
        return dataclasses.replace(there[0], state=fault.state or there[0].state, address=address, data=data)

    def destroy(self, resources: Sequence[Resource]) -> None:
        fault = self._fault("destroy")
        ids = {one.id for one in resources}
        assert "theirs" not in ids, "somebody else's machine was to be destroyed"
        if not fault.lie:
            for path, machine in self._machines().items():
                if machine.id in ids and self.script.get("leaves"):  # for a while: until that is not played any more
                    self._save(dataclasses.replace(machine, state="leaving"), path.name)
                elif machine.id in ids and not self.local:
                    path.unlink(missing_ok=True)
            if self.local:
                self.local.destroy([one for one in resources if one.id in ids])
        self._raise(fault)

    def self_destruct(self, resource: Resource) -> Sequence[str] | None:  # noqa: ARG002
        return None


@dataclasses.dataclass
class Cloud:
    """The provider from outside: its script, what exists there, what it was asked."""

    folder: Path
    site: Path
    provisioners: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Those of the command in this process: a new script is read by a new one."""

    def play(self, **script: Any) -> None:
        """`create=[Fault(…)]` for the first calls, `destroy_always=[…]` whose last is for ever; else settings."""
        self.provisioners.clear()
        document = {
            name.replace("_always", "*"): [dataclasses.asdict(one) for one in value]
            if isinstance(value, list) and value and isinstance(value[0], Fault)
            else value
            for name, value in script.items()
        }
        draft = self.folder / "draft-script"  # a guard reads it at any moment
        draft.write_text(json.dumps(document))
        draft.replace(self.folder / "script.json")

    def machines(self) -> list[str]:
        return sorted(document["name"] for _, document in _documents(self.folder))

    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().split() if path.exists() else []

    def tokens(self) -> list[str]:
        return (self.folder / "tokens").read_text().split()


def _documents(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The machines that there are; one may go while they are looked at."""
    for path in sorted(folder.glob("machines/*")):
        with suppress(FileNotFoundError):
            yield path, json.loads(path.read_text())


def install(folder: Path) -> Cloud:
    """A provider and, beside it, the metadata of a wheel that brings its provisioner."""
    metadata = folder / "site" / "scripted-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: scripted\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[gpuops.provisioners]\n{NAME} = tests.fakes.provider:Scripted\n")
    cloud = Cloud(folder, folder / "site")
    cloud.play()
    return cloud


def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock | None = None) -> tuple[Cloud, Context]:
    """A provider that can be named, and a command's world with a fake clock in which no guard starts."""
    (tmp_path / "cloud").mkdir()
    cloud = install(tmp_path / "cloud")
    monkeypatch.syspath_prepend(str(cloud.site))
    home = tmp_path / "home"
    home.mkdir()
    world = Context(home=home, owner=OWNER, folder=tmp_path, env={"SCRIPTED": str(cloud.folder)}, out=Output(),
                  signals=Signals(), services=WITHOUT_GUARD, yes=True, clock=clock or FakeClock(),
                  provisioners=cloud.provisioners)  # fmt: skip
    return cloud, world
