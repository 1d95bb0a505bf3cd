# ruff: noqa: ARG002 (what is broken uses less than it is given)
"""Provisioners that break the contract, each in one way: the scenario that is there for it says so."""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpuops.commands.prove.sandbox import CALL_TIMEOUT_S, Sandbox
from gpuops.commands.prove.scenarios import SCENARIOS, Result, run_scenario
from gpuops.core.errors import Interrupted, NodeError, RateLimited, Rejected
from gpuops.core.models import Intent, Journal, Offer, Option, Payer, Price, Request, Resource
from tests.fakes.plain import Plain, world_of

NEEDS_AN_AGENT = {"lost-answer", "ready", "watchdog", "bill"}
"""Nobody answers on these machines: what is wrong with those scenarios is shown by the tent."""
RUN = [scenario for scenario in SCENARIOS if scenario.name not in NEEDS_AN_AGENT]


def results_of(provider: Plain, home: Path) -> dict[str, Result]:
    """On a provisioner that no name leads to, so that what is to be killed is cut short instead."""
    with world_of(home) as world:
        world.provisioners[provider.name] = provider.checked()
        call_timeout_s = 2.0 if isinstance(provider, Waits) else CALL_TIMEOUT_S
        bench = Sandbox(world, Request(provider.name, nodes=2), call_timeout_s=call_timeout_s)
        return {scenario.name: run_scenario(bench, scenario) for scenario in RUN}


@pytest.mark.parametrize("kind", ["Plain", "GoesOn"])
def test_one_that_keeps_it_passes(kind: str, tmp_path: Path) -> None:
    provider: Plain = Plain() if kind == "Plain" else GoesOn()
    results = results_of(provider, tmp_path)
    assert {one.outcome for one in results.values()} == {"proven"}, results


class CreatesBeforeWill(Plain):
    def create(self, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        made = [self.add(intent.mark(index), intent) for index in range(offer.nodes)]
        for index, one in enumerate(made):
            journal.will("machine", one.name, f"{intent.token}-{index}", "moon")
            journal.got(one)
        return made


class GoesOnAfterAnInterrupt(Plain):
    def create(self, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        try:
            return super().create(offer, intent, journal)
        except Interrupted:
            return []


class MakesAnErrorOfAnInterrupt(Plain):
    def create(self, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        try:
            return super().create(offer, intent, journal)
        except BaseException as error:
            raise Rejected(str(error), "try again") from error


class Heard:
    """A journal through which everything goes but what a subclass keeps to itself."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def will(self, kind: str, mark: str, token: str, region: str) -> None:
        self.journal.will(kind, mark, token, region)

    def got(self, resource: Resource) -> None:
        self.journal.got(resource)


class Altered(Plain):
    """One whose journal is another's."""

    heard: type[Heard]

    def create(self, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        return super().create(offer, intent, self.heard(journal))


class ForgetsGot(Altered):
    class heard(Heard):
        def got(self, resource: Resource) -> None:
            pass


class NeverAnnounces(Altered):
    class heard(Heard):
        def will(self, kind: str, mark: str, token: str, region: str) -> None:
            if mark.endswith("0"):
                super().will(kind, mark, token, region)


class AnnouncesElsewhere(Altered):
    class heard(Heard):
        def will(self, kind: str, mark: str, token: str, region: str) -> None:
            super().will(kind, mark, token, "mars")


class OneTokenOfItsOwn(Altered):
    class heard(Heard):
        def will(self, kind: str, mark: str, token: str, region: str) -> None:
            super().will(kind, mark, "my-token", region)


class Unmarked(Plain):
    def add(self, mark: str, intent: Intent) -> Resource:
        return super().add(f"training-{mark[-1]}", intent)


class Backwards(Plain):
    def create(self, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        return list(reversed(super().create(offer, intent, journal)))


class Fewer(Plain):
    def create(self, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        return super().create(dataclasses.replace(offer, nodes=1), intent, journal)


class CallsItFree(Plain):
    def add(self, mark: str, intent: Intent) -> Resource:
        free = dataclasses.replace(super().add(mark, intent), bills=False)
        self.machines[free.id] = free
        return free


class ForeignInCreate(Plain):
    def create(self, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        super().create(offer, intent, journal)
        raise KeyError("pods")


class FirstPage(Plain):
    def list_owned(self, owner: str, regions: Sequence[str]) -> Sequence[Resource]:
        return super().list_owned(owner, regions)[:1]


class OnlyInAllRegions(Plain):
    def list_owned(self, owner: str, regions: Sequence[str]) -> Sequence[Resource]:
        return [] if regions else super().list_owned(owner, regions)


class ListsStrangers(Plain):
    def list_owned(self, owner: str, regions: Sequence[str]) -> Sequence[Resource]:
        return [*super().list_owned(owner, regions), Resource("machine", "db", "moon", "production-db", bills=True)]


class HasAKeyForToken(Plain):
    def add(self, mark: str, intent: Intent) -> Resource:
        machine = super().add(mark, intent)
        self.machines[machine.id] = dataclasses.replace(machine, data={**machine.data, "token": "sk-123"})
        return self.machines[machine.id]


class HasNoToken(Plain):
    def add(self, mark: str, intent: Intent) -> Resource:
        machine = super().add(mark, intent)
        data = {name: value for name, value in machine.data.items() if name != "token"}
        self.machines[machine.id] = dataclasses.replace(machine, data=data)
        return self.machines[machine.id]


class ListsTwice(Plain):
    def list_owned(self, owner: str, regions: Sequence[str]) -> Sequence[Resource]:
        return [*super().list_owned(owner, regions)] * 2


class ForeignInList(Plain):
    def list_owned(self, owner: str, regions: Sequence[str]) -> Sequence[Resource]:
        return [self.machines["pods"]]


class NodeErrorInList(Plain):
    def list_owned(self, owner: str, regions: Sequence[str]) -> Sequence[Resource]:
        raise NodeError("no route", "check the network")


class HasWordsOfItsOwn(Plain):
    def describe(self, resource: Resource) -> Resource:
        seen = super().describe(resource)
        return seen if seen.state == "ended" else dataclasses.replace(seen, state="EXITED")


class TellsOfAnother(Plain):
    def describe(self, resource: Resource) -> Resource:
        return super().describe(next(iter(self.machines.values())))


class Waits(Plain):
    """Until the test is over, as one does that polls until a machine runs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.over = True, threading.Event()

    def describe(self, resource: Resource) -> Resource:
        if self.first:
            self.first = False
            self.over.wait(600)
        return super().describe(resource)


class RaisesOnUnknown(Plain):
    def describe(self, resource: Resource) -> Resource:
        if self.machines[resource.id].state == "ended":
            raise Rejected("no such machine", "look at the console")
        return super().describe(resource)


class RememberForEver(Plain):
    def describe(self, resource: Resource) -> Resource:
        return dataclasses.replace(super().describe(resource), state="running")


class RaisesOnGone(Plain):
    def destroy(self, resources: Sequence[Resource]) -> None:
        for one in resources:
            if self.machines[one.id].state == "ended":
                raise Rejected("404", "it is gone")
        super().destroy(resources)


class EndsTheFirstAlone(Plain):
    def destroy(self, resources: Sequence[Resource]) -> None:
        super().destroy(resources[:1])


class GoesOn(Plain):
    """One machine at a time."""

    launches_apart_s = 12.0

    def create(self, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        made = list(intent.made)
        for index in range(len(made), offer.nodes):
            journal.will("machine", intent.mark(index), f"{intent.token}-{index}", "moon")
            if len(made) > len(intent.made):
                raise RateLimited("too soon", "wait")
            made.append(self.add(intent.mark(index), intent))
            journal.got(made[-1])
        return made


class BeginsAnew(Plain):
    launches_apart_s = 12.0


class DeclaresAKeyOfOurs(Plain):
    credentials = ("GPUOPS_MOON_KEY",)


class DeclaresAWord(Plain):
    credentials: Any = "MOON_KEY"


class LiesAboutTheEnd(Plain):
    def destroy(self, resources: Sequence[Resource]) -> None:
        pass


class OutlivesItsBootDeadline(Plain):
    def add(self, mark: str, intent: Intent) -> Resource:
        return super().add(mark, dataclasses.replace(intent, boot_deadline=math.inf))


class DiesYoung(Plain):
    def add(self, mark: str, intent: Intent) -> Resource:
        return super().add(mark, dataclasses.replace(intent, boot_deadline=self.world.clock.now() + 5))


class OffersMake(Plain):
    def offers(self, request: Request) -> Sequence[Offer]:
        self.machines["held"] = Resource("machine", "held", "moon", "gpuops-0a1b2c3d-held-0", bills=True)
        return super().offers(request)


class LooksMake(Plain):
    def preflight(self, request: Request) -> Sequence[Any]:
        self.machines["key"] = Resource("key", "key", "moon", "gpuops-0a1b2c3d-all-keys", bills=False)
        return super().preflight(request)


class OffersFewer(Plain):
    def offer(self, nodes: int, times: int) -> Offer:
        return super().offer(1, times)


class OffersForNothing(Plain):
    def offer(self, nodes: int, times: int) -> Offer:
        return dataclasses.replace(super().offer(nodes, times), prices=())


class DearestFirst(Plain):
    def offers(self, request: Request) -> Sequence[Offer]:
        return list(reversed(super().offers(request)))


class OffersWhatCannotBeKept(Plain):
    def offer(self, nodes: int, times: int) -> Offer:
        return dataclasses.replace(super().offer(nodes, times), data={"client": self})


class PricesAreWords(Plain):
    def offers(self, request: Request) -> Sequence[Any]:
        return [{"id": "x1", "price": Price("machines", 0.5)}]


class ProblemsAreWords(Plain):
    def preflight(self, request: Request) -> Sequence[Any]:
        return ["no credit"]


class IsPaidByWords(Plain):
    def payer(self, request: Request, patience_s: float) -> Any:
        return "me"


class IsPaidFromNowhere(Plain):
    def payer(self, request: Request, patience_s: float) -> Payer:
        return Payer("me", "")


class DropsWishes(Plain):
    def preflight(self, request: Request) -> Sequence[Any]:
        return []


class KeepsSilentOnSpot(Plain):
    capabilities: Mapping[str, Any] = {**Plain.capabilities, "spot": False}


class TakesEverybodysOption(Plain):
    options = (Option("region", "Where."),)


class GoneBeforeItWas(Plain):
    gone_s = -1.0


BROKEN: list[tuple[type[Plain], str, str]] = [
    (CreatesBeforeWill, "interrupted", "exists although journal.will had raised"),
    (GoesOnAfterAnInterrupt, "interrupted", "create went on"),
    (MakesAnErrorOfAnInterrupt, "interrupted", "create made Rejected of it"),
    (ForgetsGot, "create", "journal.got never told of node0, node1"),
    (NeverAnnounces, "create", "machine node1 that no journal.will had announced"),
    (AnnouncesElsewhere, "create", "is in region 'moon', announced was 'mars'"),
    (OneTokenOfItsOwn, "create", "not derived from Intent.token"),
    (Unmarked, "create", "not named by Intent.mark"),
    (Backwards, "create", "not in node order"),
    (Fewer, "create", "returned 1 machines for 2 nodes"),
    (CallsItFree, "create", "says bills=False"),
    (ForeignInCreate, "create", "create raised KeyError, none of gpuops.core.errors"),
    (FirstPage, "list", "does not show node1"),
    (OnlyInAllRegions, "list", "asked in moon, list_owned does not show node0, node1"),
    (ListsStrangers, "list", "does not carry our mark: 'production-db'"),
    (HasAKeyForToken, "list", "data['token'] of node0 is not its journal.will's"),
    (HasNoToken, "list", "node0 is listed without data['token']"),
    (ListsTwice, "list", "shows a thing twice"),
    (ForeignInList, "preflight", "list_owned raised KeyError"),
    (NodeErrorInList, "preflight", "list_owned raised NodeError, no ProviderError"),
    (HasWordsOfItsOwn, "describe", "describe says 'EXITED'"),
    (TellsOfAnother, "describe", "describe tells of another"),
    (Waits, "describe", "has not returned within 2 s: it must ask once and never wait"),
    (RaisesOnUnknown, "gone", "no such machine"),
    (RememberForEver, "gone", "is gone, and describe calls it 'running'"),
    (RaisesOnGone, "destroy", "404"),
    (BeginsAnew, "create", "create makes again what Intent.made names"),
    (EndsTheFirstAlone, "destroy", "destroy was given 2 machines, and 30 s later node1 still runs"),
    (DeclaresAKeyOfOurs, "declares", "names of variables are promised, none begins with GPUOPS_"),
    (DeclaresAWord, "declares", "credentials is 'MOON_KEY'"),
    (LiesAboutTheEnd, "destroy", "30 s later node0, node1 is still listed"),
    (
        OutlivesItsBootDeadline,
        "boot-deadline",
        "nobody logged in, and 30 min later the provider still has a machine",
    ),
    (DiesYoung, "boot-deadline", "before its boot deadline"),
    (OffersMake, "offers", "offers has made something: machine"),
    (LooksMake, "preflight", "preflight has made something: key"),
    (OffersFewer, "offers", "asked for 2 nodes it offers 1"),
    (OffersForNothing, "offers", "a price, since it is rented"),
    (DearestFirst, "offers", "best first is promised"),
    (OffersWhatCannotBeKept, "offers", "cannot be written into the ledger"),
    (PricesAreWords, "offers", "gives dict where Offer is promised"),
    (ProblemsAreWords, "preflight", "gives str where Problem is promised"),
    (IsPaidByWords, "preflight", "payer gives str where Payer is promised"),
    (IsPaidFromNowhere, "preflight", "payer does not say where its key comes from"),
    (DropsWishes, "bad-request", "offers something for --gpu-type no-such-gpu"),
    (KeepsSilentOnSpot, "declares", "capabilities['spot'] is False"),
    (TakesEverybodysOption, "declares", "the option --region is everybody's"),
    (GoneBeforeItWas, "declares", "gone_s is -1.0, which is no length of time"),
]


class NothingInside(Plain):
    def add(self, mark: str, intent: Intent) -> Resource:
        machine = super().add(mark, dataclasses.replace(intent, boot_deadline=math.inf))
        del machine.data["artefact"]
        return machine


class CannotEndItself(Plain):
    capabilities: Mapping[str, Any] = {**Plain.capabilities, "self_destruct": "it has no door from inside"}


@pytest.mark.parametrize(
    ("honest", "said"),
    [
        (NothingInside, "until gpuops has logged in, nothing on the machine ends it"),
        (CannotEndItself, "it has no door from inside"),
    ],
)
def test_no_end_at_the_boot_deadline_is_not_guaranteed_where_none_is_promised(
    honest: type[Plain], said: str, tmp_path: Path
) -> None:
    result = results_of(honest(), tmp_path)["boot-deadline"]
    assert (result.outcome, result.said) == ("not guaranteed", said)


@pytest.mark.parametrize(("broken", "scenario", "said"), BROKEN, ids=lambda one: getattr(one, "__name__", None))
def test_each_way_to_break_it_is_caught_by_name(broken: type[Plain], scenario: str, said: str, tmp_path: Path) -> None:
    provider = broken()
    results = results_of(provider, tmp_path)
    if isinstance(provider, Waits):
        provider.over.set()
    assert results[scenario].outcome == "failed", results
    assert said in results[scenario].said
    before = [one.outcome for one in results.values()][: list(results).index(scenario)]
    assert set(before) <= {"proven"}, "what comes before it has nothing to do with it"
