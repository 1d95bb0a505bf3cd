# ruff: noqa: ARG002 (a contract's parameters are not all of use to every provider)
"""A provider in memory that keeps the contract, as plainly as can be: what the proofs are tried against.

Its machines answer nobody. What is to be broken in it is a method of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpuops.cli.terminal.output import Output
from gpuops.core.context import Context
from gpuops.core.models import Intent, Journal, Offer, Option, Price, Problem, Request, Resource
from gpuops.core.provider import CONTRACT
from gpuops.core.signals import Signals
from gpuops.guard.services import WITHOUT_GUARD
from provisioners.checked_provisioner import CheckedProvisioner
from tests.fakes.provider import OWNER, FakeClock

PRICE = 0.5


class Plain:
    contract = CONTRACT
    name = "plain"
    capabilities: Mapping[str, Any] = {
        "multinode": True,
        "spot": "there is none",
        "self_destruct": True,
        "host_keys": "nobody logs in",
        "rented": True,
        "shares_disk": "it has no disk",
    }
    options: Sequence[Option] = (Option("tier", "How good."),)
    credentials: Sequence[str] = ()
    surroundings: Sequence[str] = ()
    settle_s = 5.0
    gone_s = 30.0

    world: Context
    """That of the test."""

    def __init__(self) -> None:
        self.machines: dict[str, Resource] = {}
        self.ends: dict[str, float] = {}

    def checked(self) -> CheckedProvisioner:
        """As the registry gives it to gpuops."""
        return CheckedProvisioner(self)

    def preflight(self, request: Request) -> Sequence[Problem]:
        wishes = {"--gpu-type": request.gpu_type, "--gpu-mem": request.gpu_mem, "--region": request.region}
        return [Problem(f"nothing here has {flag}", f"leave out {flag}") for flag, one in wishes.items() if one]

    def offers(self, request: Request) -> Sequence[Offer]:
        return [self.offer(request.nodes, times) for times in (1, 2)]

    def offer(self, nodes: int, times: int) -> Offer:
        price = Price("machines", PRICE * nodes * times)
        return Offer(self.name, f"x{times}", f"{nodes} of {times}", nodes, 0, "moon", (price,))

    def create(self, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        made = []
        for index in range(offer.nodes):
            journal.will("machine", intent.mark(index), f"{intent.token}-{index}", "moon")
            made.append(self.add(intent.mark(index), intent))
            journal.got(made[-1])
        return made

    def add(self, mark: str, intent: Intent) -> Resource:
        data = {"connection": "pigeon", "root": "/r", "python": "python3", "artefact": "a", "token": intent.token}
        machine = Resource(
            "machine",
            f"i-{len(self.machines)}",
            "moon",
            mark,
            bills=True,
            state="running",
            address="192.0.2.1",
            per_hour=PRICE,
            data=data,
        )
        self.machines[machine.id] = machine
        self.ends[machine.id] = intent.boot_deadline
        return machine

    def list_owned(self, owner: str, regions: Sequence[str]) -> Sequence[Resource]:
        return [one for one in self.machines.values() if one.name.startswith(f"gpuops-{owner}-") and self.has(one)]

    def has(self, machine: Resource) -> bool:
        return machine.state != "ended"

    def describe(self, resource: Resource) -> Resource:
        if self.world.clock.now() >= self.ends.get(resource.id, 0.0):
            self.destroy([resource])
        return self.machines.get(resource.id) or dataclasses.replace(resource, state="ended")

    def destroy(self, resources: Sequence[Resource]) -> None:
        for one in resources:
            if one.id in self.machines:
                self.machines[one.id] = dataclasses.replace(one, state="ended")

    def self_destruct(self, resource: Resource) -> Sequence[str] | None:
        return ["true"]


@contextmanager
def world_of(home: Path) -> Iterator[Context]:
    """A command's world in which no guard starts, under a clock that runs while somebody sleeps."""
    world = Context(
        home=home,
        owner=OWNER,
        folder=home,
        env={},
        out=Output(),
        signals=Signals(),
        services=WITHOUT_GUARD,
        yes=True,
        clock=FakeClock(),
    )
    Plain.world = world
    yield world
