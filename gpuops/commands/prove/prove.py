"""`gpuops prove`: announce the cost, run the scenarios against the real provider, end everything, make the record."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpuops.clusters.available_offers import find_offers
from gpuops.commands.prove.proof_record import BalanceRecord, ProofRecord, make_record
from gpuops.commands.prove.sandbox import Sandbox, dollars
from gpuops.commands.prove.scenarios import SCENARIOS, Outcome, Result, Scenario, run_scenario
from gpuops.core.context import Context
from gpuops.core.errors import (
    GpuopsError,
    Interrupted,
    NodeError,
    ProviderError,
    StillBilling,
    UsageError,
    worst_exit_code,
)
from gpuops.core.format import span, table
from gpuops.core.models import Offer, Request
from gpuops.offers.billing_account import find_payer, refuse_dotenv
from gpuops.offers.offer_table import format_payer
from gpuops.offers.price_approval import confirm_price

CLUSTER_LIFETIMES_S = {"made": 150.0, "adopted": 480.0, "killed": 150.0, "unattended": 210.0}
"""Seconds that the machines of each shared cluster usually live; a boot takes most of them."""
RECHECK_AFTER_FAILURE_S = 60.0
"""How long an empty list is asked for again after a failed scenario: a provider may list late what it made."""


@dataclass(frozen=True)
class Step:
    """A planned scenario. `cost`: expected dollars of its machines, counted at the first scenario that needs them."""

    scenario: Scenario
    cost: float
    skipped: str = ""


@dataclass(frozen=True)
class Proof:
    """What is printed at the end."""

    record: ProofRecord
    last: list[str]
    exit_code: int


def plan_steps(offer: Offer, settle_s: float, spend: float) -> list[Step]:
    """The scenarios that `spend` dollars pay for. Raises UsageError where they pay for no machine at all."""
    expected = {
        machines: offer.per_hour * (seconds + settle_s) / 3600 for machines, seconds in CLUSTER_LIFETIMES_S.items()
    }
    left, fits = spend, {}
    for machines, cost in expected.items():
        fits[machines] = cost <= left
        left -= cost if fits[machines] else 0.0
    if not any(fits.values()):
        raise UsageError(
            f"the cheapest machines, {offer.say} at {dollars(offer.per_hour)}/h, would cost about "
            f"{dollars(min(expected.values()))} for the least of it, and --spend is {dollars(spend)}",
            f"all of it costs about {dollars(sum(expected.values()))}: --spend {sum(expected.values()) * 1.2:.2f}",
        )
    steps, counted_already = [], set[str]()
    for scenario in SCENARIOS:
        cost = expected.get(scenario.on, 0.0) if scenario.on not in counted_already else 0.0
        counted_already.add(scenario.on)
        too_dear = bool(scenario.on) and not fits[scenario.on]
        why = f"its machines would cost about {dollars(expected[scenario.on])}, more than is left" if too_dear else ""
        steps.append(Step(scenario, cost, why))
    return steps


def prove(ctx: Context, request: Request, spend: float) -> Proof:
    """Run the scenarios that `spend` pays for. Raises ProviderError and UsageError before anything is created."""
    refuse_dotenv(ctx, request.provider)
    provisioner, offers = find_offers(ctx, request)
    offer = min(offers, key=lambda offer: offer.per_hour)
    steps = plan_steps(offer, provisioner.settle_s, spend)
    _announce(ctx, request, offer, steps, spend)
    _confirm(ctx, offer, steps, spend)
    ctx.yes = True
    cap = offer.per_hour if offer.per_hour else request.max_price
    sandbox = Sandbox(ctx, dataclasses.replace(request, max_price=cap), spend=spend)
    began = ctx.clock.now()
    results, stopped = _run_all(sandbox, steps, offer)
    failed = any(result.outcome is Outcome.FAILED for result in results)
    left = _remaining_tags(sandbox, RECHECK_AFTER_FAILURE_S if failed and sandbox.rented else 0.0)
    exit_code = worst_exit_code(
        StillBilling.exit_code if left else 0,
        stopped,
        NodeError.exit_code if failed else 0,
        ProviderError.exit_code if any(result.refused for result in results) else 0,
    )
    record = make_record(
        request, offer, results, began=began, ended=ctx.clock.now(), spend=spend,
        balance=BalanceRecord(sandbox.balance_before, _balance(sandbox)), left=left, exit_code=exit_code,
    )  # fmt: skip
    return Proof(record, _closing_lines(record), exit_code)


def _announce(ctx: Context, request: Request, offer: Offer, steps: Sequence[Step], spend: float) -> None:
    price = f"{dollars(offer.per_hour)}/h" if offer.per_hour else "free"
    paid = find_payer(ctx, dataclasses.replace(request, region=offer.region)) if offer.per_hour else None
    ctx.out.say(f"{request.provider}: {offer.say}, {price}{format_payer(paid)}")
    for note in offer.notes:
        ctx.out.say(f"note: {note}")
    rows = [["SCENARIO", "WHAT IS PROVEN", "ABOUT"]]
    for step in steps:
        about = f"not run: {step.skipped}" if step.skipped else dollars(step.cost) if step.cost else "-"
        rows.append([step.scenario.name, step.scenario.says, about])
    for text in table(rows):
        ctx.out.say(text)
    total = sum(step.cost for step in steps if not step.skipped)
    ctx.out.say(f"about {dollars(total)} in all, at most {dollars(spend)}" if offer.per_hour else "nothing is billed")


def _confirm(ctx: Context, offer: Offer, steps: Sequence[Step], spend: float) -> None:
    """Ask whether the money may be spent. Raises UsageError unless the answer is yes."""
    if not offer.per_hour or ctx.yes:
        return
    count = sum(not step.skipped for step in steps)
    confirm_price(ctx, f"run {count} scenarios for at most {dollars(spend)}")


def _run_all(sandbox: Sandbox, steps: Sequence[Step], offer: Offer) -> tuple[list[Result], int]:
    """Run every step, then end what was created, in every case. Returns the results and the exit code of an
    interruption, or 0."""
    *before, last = steps
    results: list[Result] = []
    budget = Budget(sandbox)
    stopped = 0
    try:
        for step in before:
            results.append(_run_one(sandbox, step, budget))
            _report(sandbox, results, len(steps), offer)
    except Interrupted as error:
        stopped = error.exit_code
    finally:
        sandbox.ctx.signals.backward()
        missed = [Result(step.scenario.name, Outcome.SKIPPED, "interrupted") for step in before[len(results) :]]
        results += [*missed, run_scenario(sandbox, last.scenario)]
        _report(sandbox, results, len(steps), offer)
    return results, stopped


@dataclass
class Budget:
    """Decides whether the money lasts for the next step; a cost above the estimate raises the later estimates alike."""

    sandbox: Sandbox
    planned: float = 0.0
    denied: dict[str, str] = field(default_factory=dict)
    """Machines that were refused when they were first needed, and why."""

    def refusal(self, step: Step) -> str:
        """Why a step is skipped; empty where it runs."""
        machines, spent = step.scenario.on, self.sandbox.dollars_spent()
        if not machines or step.skipped or machines in self.denied:
            return step.skipped or self.denied.get(machines, "")
        cost = step.cost * max(1.0, spent / self.planned if self.planned else 1.0)
        if spent + cost > self.sandbox.spend:
            so_far = f"{dollars(spent)} of {dollars(self.sandbox.spend)} are spent"
            self.denied[machines] = f"{so_far}, and its machines take about {dollars(cost)} more"
        else:
            self.planned += step.cost
        return self.denied.get(machines, "")


def _run_one(sandbox: Sandbox, step: Step, budget: Budget) -> Result:
    why = budget.refusal(step)
    return Result(step.scenario.name, Outcome.SKIPPED, why) if why else run_scenario(sandbox, step.scenario)


def _report(sandbox: Sandbox, results: Sequence[Result], count: int, offer: Offer) -> None:
    result = results[-1]
    spent = f"; {dollars(sandbox.dollars_spent())} so far" if offer.per_hour else ""
    sandbox.ctx.out.say(f"{len(results)}/{count} {result.name}: {result.outcome}: {result.said}{spent}")


def _remaining_tags(sandbox: Sandbox, doubt_s: float) -> list[str]:
    """Tags that the provider still lists, or one sentence where it cannot be asked."""
    try:
        return sandbox.end_orphans(doubt_s)
    except ProviderError as error:
        return [f"{sandbox.request.provider} could not be asked: {error.message}"]


def _balance(sandbox: Sandbox) -> float | None:
    try:
        return sandbox.core.balance()
    except GpuopsError:
        return None


def _closing_lines(record: ProofRecord) -> list[str]:
    failed = [scenario for scenario in record.scenarios if scenario.outcome is Outcome.FAILED]
    lines = [f"{record.provider}: {record.count_outcomes()}, in {span(record.seconds)}"]
    lines += [f"{scenario.name} failed: {scenario.said}" for scenario in failed]
    if record.left:
        lines += [f"something may still be there: {', '.join(record.left)}", "end it with: gpuops reap"]
    return lines
