"""The scenarios, in the order in which they are run, and one of them run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from gpuops.commands.prove import asking, lasting, making
from gpuops.commands.prove.bench import Bench
from gpuops.commands.prove.outcome import Broken, Missing, NotGuaranteed
from gpuops.core.errors import AuthFailed, GpuopsError, NoCapacity, QuotaExceeded

REFUSALS = (NoCapacity, QuotaExceeded, AuthFailed)
Outcome = Literal["proven", "failed", "not guaranteed", "skipped"]


@dataclass(frozen=True)
class Scenario:
    """`act` returns what was seen in one sentence, or raises one of `outcome.py`, or a GpuopsError."""

    name: str
    says: str
    """What is promised."""
    act: Callable[[Bench], str]
    on: str = ""
    """The machines it needs; those of one name are made once. Empty: it makes none."""


@dataclass(frozen=True)
class Result:
    """What came of one scenario."""

    name: str
    outcome: Outcome
    said: str
    """What was seen, or why not."""
    seconds: float = 0.0
    cost: float = 0.0
    """$ by our own count, of all that lived meanwhile."""
    refused: bool = False
    """The provider said no to these very machines: nothing is shown by that."""


SCENARIOS = (
    Scenario("declares", "what it cannot do it says, with the reason", asking.declares),
    Scenario("preflight", "looking for problems makes nothing", asking.preflight),
    Scenario("offers", "offers are priced, have all nodes, and make nothing", asking.offers),
    Scenario("bad-request", "what cannot be met is refused in words", asking.bad_request),
    Scenario("interrupted", "nothing is made once somebody ends the cluster", asking.interrupted),
    Scenario("create", "machines are marked, in node order, told before and after", making.create, "made"),
    Scenario("list", "all with our mark is listed, and nothing else", making.listing, "made"),
    Scenario("describe", "a look never waits and knows the contract's states", making.describe, "made"),
    Scenario("destroy", "ending may be asked for again and again", making.destroy, "made"),
    Scenario("gone", "what is gone is called ended", making.gone, "made"),
    Scenario("lost-answer", "a lost answer is found by its mark, nothing made twice", lasting.lost_answer, "adopted"),
    Scenario("ready", "nodes come to life and answer", lasting.ready, "adopted"),
    Scenario("watchdog", "a node whose client is silent ends itself", lasting.watchdog, "adopted"),
    Scenario("bill", "offer, machines and account agree on the price", lasting.bill, "adopted"),
    Scenario("killed", "what a killed command has left is found and ended", lasting.killed, "killed"),
    Scenario("boot-deadline", "a machine that nobody logs in to ends itself", lasting.boot_deadline, "unattended"),
    Scenario("nothing-left", "at the end nothing is listed", lasting.nothing_left),
)


def run(bench: Bench, scenario: Scenario) -> Result:
    """One scenario. Raises what ends the whole story: Interrupted, and bugs of ours."""
    clock = bench.world.clock
    began, spent = clock.monotonic(), bench.spent()

    def result(outcome: Outcome, said: str) -> Result:
        return Result(scenario.name, outcome, said, clock.monotonic() - began, bench.spent() - spent)

    try:
        return result("proven", scenario.act(bench))
    except NotGuaranteed as error:
        return result("not guaranteed", str(error))
    except Missing as error:
        return result("skipped", str(error))
    except Broken as error:
        return result("failed", str(error))
    except REFUSALS as error:
        return dataclasses.replace(result("skipped", error.say), refused=True)
    except GpuopsError as error:
        return result("failed", error.say)
