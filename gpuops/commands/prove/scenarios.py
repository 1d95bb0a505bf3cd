"""The table of scenarios, in the order in which they run, and the function that runs one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from gpuops.commands.prove import create_scenarios, failure_scenarios, free_scenarios
from gpuops.commands.prove.fault_injection import ContractBroken, NotGuaranteed, NotRunnable
from gpuops.commands.prove.sandbox import Sandbox
from gpuops.core.errors import AuthFailed, GpuopsError, NoCapacity, QuotaExceeded

REFUSALS = (NoCapacity, QuotaExceeded, AuthFailed)


class Outcome(StrEnum):
    """What a scenario shows about the contract."""

    PROVEN = "proven"
    NOT_GUARANTEED = "not guaranteed"
    """The provider declares that it cannot do this."""
    FAILED = "failed"
    SKIPPED = "skipped"
    """It was not run, or could not be."""


@dataclass(frozen=True)
class Scenario:
    """`act` returns one sentence on what was seen, or raises an outcome of `fault_injection`, or a GpuopsError."""

    name: str
    says: str
    """The promise, in one clause."""
    act: Callable[[Sandbox], str]
    on: str = ""
    """The shared cluster that it needs; empty where it needs none."""


@dataclass(frozen=True)
class Result:
    """The outcome of one scenario."""

    name: str
    outcome: Outcome
    said: str
    """What was seen, or why it was not run."""
    seconds: float = 0.0
    cost: float = 0.0
    """Dollars by our own count, of every machine that lived while it ran."""
    refused: bool = False
    """The provider refused these machines (capacity, quota, login), which proves nothing about the contract."""


SCENARIOS = (
    Scenario("declares", "what it cannot do it says, with the reason", free_scenarios.declares),
    Scenario("preflight", "looking for problems makes nothing", free_scenarios.preflight),
    Scenario("offers", "offers are priced, have all nodes, and make nothing", free_scenarios.offers),
    Scenario("bad-request", "what cannot be met is refused in words", free_scenarios.bad_request),
    Scenario("interrupted", "nothing is made once somebody ends the cluster", free_scenarios.interrupted),
    Scenario("create", "machines are marked, in node order, told before and after", create_scenarios.create, "made"),
    Scenario("list", "all with our mark is listed, and nothing else", create_scenarios.listing, "made"),
    Scenario("describe", "a look never waits and knows the contract's states", create_scenarios.describe, "made"),
    Scenario("destroy", "ending may be asked for again and again", create_scenarios.destroy, "made"),
    Scenario("gone", "what is gone is called ended", create_scenarios.gone, "made"),
    Scenario(
        "lost-answer",
        "a lost answer is found by its mark, nothing made twice",
        failure_scenarios.lost_answer,
        "adopted",
    ),
    Scenario("ready", "nodes come to life and answer", failure_scenarios.ready, "adopted"),
    Scenario("watchdog", "a node whose client is silent ends itself", failure_scenarios.watchdog, "adopted"),
    Scenario("bill", "offer, machines and account agree on the price", failure_scenarios.bill, "adopted"),
    Scenario("killed", "what a killed command has left is found and ended", failure_scenarios.killed, "killed"),
    Scenario(
        "boot-deadline",
        "a machine that nobody logs in to ends itself",
        failure_scenarios.boot_deadline,
        "unattended",
    ),
    Scenario("nothing-left", "at the end nothing is listed", failure_scenarios.nothing_left),
)


def run_scenario(sandbox: Sandbox, scenario: Scenario) -> Result:
    """Run one scenario. Raises Interrupted, and exceptions that are bugs of gpuops."""
    clock = sandbox.ctx.clock
    began, spent = clock.monotonic(), sandbox.dollars_spent()

    def result(outcome: Outcome, said: str) -> Result:
        return Result(scenario.name, outcome, said, clock.monotonic() - began, sandbox.dollars_spent() - spent)

    try:
        return result(Outcome.PROVEN, scenario.act(sandbox))
    except NotGuaranteed as error:
        return result(Outcome.NOT_GUARANTEED, str(error))
    except NotRunnable as error:
        return result(Outcome.SKIPPED, str(error))
    except ContractBroken as error:
        return result(Outcome.FAILED, str(error))
    except REFUSALS as error:
        return dataclasses.replace(result(Outcome.SKIPPED, error.message), refused=True)
    except GpuopsError as error:
        return result(Outcome.FAILED, error.message)
