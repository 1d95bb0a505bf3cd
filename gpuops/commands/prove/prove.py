"""The story of `gpuops prove`: what it will cost, the scenarios against the real thing, everything ended, a record."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuops.clusters.up import plan
from gpuops.commands.prove.record import counted, document
from gpuops.commands.prove.sandbox import Bench, dollars
from gpuops.commands.prove.scenarios import SCENARIOS, Result, Scenario, run
from gpuops.core.context import Context
from gpuops.core.errors import GpuopsError, Interrupted, ProviderError, UsageError, worst
from gpuops.core.format import span, table
from gpuops.core.models import Offer, Request
from gpuops.offers.payer import payer, refuse_dotenv
from gpuops.offers.table import paid as paid_by

STANDS_S = {"made": 150.0, "adopted": 480.0, "killed": 150.0, "unattended": 210.0}
"""How long machines usually live for the scenarios that share them, in seconds; a boot takes most of it."""
DOUBT_S = 60.0
"""For so long a provider that has failed is not believed when it lists nothing."""


@dataclass(frozen=True)
class Step:
    """A scenario of the plan; `cost` is what its machines are expected to cost, at the first that needs them."""

    scenario: Scenario
    cost: float
    skipped: str = ""


@dataclass(frozen=True)
class Proof:
    """What is printed at the end."""

    record: dict[str, Any]
    last: list[str]
    exit_code: int


def steps(offer: Offer, settle_s: float, spend: float) -> list[Step]:
    """What fits into the money. Raises UsageError where nothing that needs a machine does."""
    expected = {stand: offer.per_hour * (seconds + settle_s) / 3600 for stand, seconds in STANDS_S.items()}
    left, fits = spend, {}
    for stand, cost in expected.items():
        fits[stand] = cost <= left
        left -= cost if fits[stand] else 0.0
    if not any(fits.values()):
        raise UsageError(
            f"the cheapest machines, {offer.say} at {dollars(offer.per_hour)}/h, would cost about "
            f"{dollars(min(expected.values()))} for the least of it, and --spend is {dollars(spend)}",
            f"all of it costs about {dollars(sum(expected.values()))}: --spend {sum(expected.values()) * 1.2:.2f}",
        )
    found, counted_already = [], set[str]()
    for scenario in SCENARIOS:
        cost = expected.get(scenario.on, 0.0) if scenario.on not in counted_already else 0.0
        counted_already.add(scenario.on)
        too_dear = bool(scenario.on) and not fits[scenario.on]
        why = f"its machines would cost about {dollars(expected[scenario.on])}, more than is left" if too_dear else ""
        found.append(Step(scenario, cost, why))
    return found


def prove(ctx: Context, request: Request, spend: float) -> Proof:
    """Run what the money allows. Raises ProviderError and UsageError before anything is made."""
    refuse_dotenv(ctx, request.provider)
    provisioner, found = plan(ctx, request)
    offer = min(found, key=lambda one: one.per_hour)
    todo = steps(offer, provisioner.settle_s, spend)
    _announce(ctx, request, offer, todo, spend)
    _confirm(ctx, offer, todo, spend)
    ctx.yes = True
    cap = offer.per_hour if offer.per_hour else request.max_price
    bench = Bench(ctx, dataclasses.replace(request, max_price=cap), spend=spend)
    began = ctx.clock.now()
    results, stopped = _run_all(bench, todo, offer)
    failed = any(one.outcome == "failed" for one in results)
    left = _left(bench, DOUBT_S if failed and bench.rented else 0.0)
    exit_code = worst(
        5 if left else 0,
        stopped,
        4 if failed else 0,
        3 if any(one.refused for one in results) else 0,
    )
    record = document(
        request, offer, results, began=began, ended=ctx.clock.now(), spend=spend,
        balance=(bench.balance_before, _balance(bench)), left=left, exit_code=exit_code,
    )  # fmt: skip
    return Proof(record, _last_words(record), exit_code)


def _announce(ctx: Context, request: Request, offer: Offer, todo: Sequence[Step], spend: float) -> None:
    price = f"{dollars(offer.per_hour)}/h" if offer.per_hour else "free"
    paid = payer(ctx, dataclasses.replace(request, region=offer.region)) if offer.per_hour else None
    ctx.out.say(f"{request.provider}: {offer.say}, {price}{paid_by(paid)}")
    for note in offer.notes:
        ctx.out.say(f"note: {note}")
    rows = [["SCENARIO", "WHAT IS PROVEN", "ABOUT"]]
    for step in todo:
        about = f"not run: {step.skipped}" if step.skipped else dollars(step.cost) if step.cost else "-"
        rows.append([step.scenario.name, step.scenario.says, about])
    for text in table(rows):
        ctx.out.say(text)
    total = sum(step.cost for step in todo if not step.skipped)
    ctx.out.say(f"about {dollars(total)} in all, at most {dollars(spend)}" if offer.per_hour else "nothing is billed")


def _confirm(ctx: Context, offer: Offer, todo: Sequence[Step], spend: float) -> None:
    """Raises UsageError where money would be spent that nobody has agreed to."""
    if not offer.per_hour or ctx.yes:
        return
    if not ctx.out.interactive:
        raise UsageError("this costs money, and nobody is there to be asked", "say --yes")
    count = sum(not step.skipped for step in todo)
    if not ctx.out.confirm(f"run {count} scenarios for at most {dollars(spend)}: go?"):
        raise UsageError("not confirmed: nothing was created", "say --yes to skip the question")


def _run_all(bench: Bench, todo: Sequence[Step], offer: Offer) -> tuple[list[Result], int]:
    """Every step, and the exit code of an interruption. Whatever happens, what was made is ended."""
    *before, last = todo
    results: list[Result] = []
    purse = Purse(bench)
    stopped = 0
    try:
        for step in before:
            results.append(_run_one(bench, step, purse))
            _tell(bench, results, len(todo), offer)
    except Interrupted as error:
        stopped = error.exit_code
    finally:
        bench.ctx.signals.backward()
        missed = [Result(step.scenario.name, "skipped", "interrupted") for step in before[len(results) :]]
        results += [*missed, run(bench, last.scenario)]
        _tell(bench, results, len(todo), offer)
    return results, stopped


@dataclass
class Purse:
    """Whether the money lasts for the next step. What took longer than was expected will do so again."""

    bench: Bench
    planned: float = 0.0
    denied: dict[str, str] = field(default_factory=dict)
    """Machines for which it did not last when they were first needed, and why."""

    def refusal(self, step: Step) -> str:
        """Why a step is left out; empty where it is not."""
        stand, spent = step.scenario.on, self.bench.spent()
        if not stand or step.skipped or stand in self.denied:
            return step.skipped or self.denied.get(stand, "")
        cost = step.cost * max(1.0, spent / self.planned if self.planned else 1.0)
        if spent + cost > self.bench.spend:
            so_far = f"{dollars(spent)} of {dollars(self.bench.spend)} are spent"
            self.denied[stand] = f"{so_far}, and its machines take about {dollars(cost)} more"
        else:
            self.planned += step.cost
        return self.denied.get(stand, "")


def _run_one(bench: Bench, step: Step, purse: Purse) -> Result:
    why = purse.refusal(step)
    return Result(step.scenario.name, "skipped", why) if why else run(bench, step.scenario)


def _tell(bench: Bench, results: Sequence[Result], count: int, offer: Offer) -> None:
    one = results[-1]
    money = f"; {dollars(bench.spent())} so far" if offer.per_hour else ""
    bench.ctx.out.say(f"{len(results)}/{count} {one.name}: {one.outcome}: {one.said}{money}")


def _left(bench: Bench, doubt_s: float) -> list[str]:
    """What is still listed; the provider itself where it cannot be asked."""
    try:
        return bench.sweep(doubt_s)
    except ProviderError as error:
        return [f"{bench.request.provider} could not be asked: {error.say}"]


def _balance(bench: Bench) -> float | None:
    try:
        return bench.core.balance()
    except GpuopsError:
        return None


def _last_words(record: dict[str, Any]) -> list[str]:
    lines = [f"{record['provider']}: {counted(record)}, in {span(record['seconds'])}"]
    lines += [f"{one['name']} failed: {one['said']}" for one in record["scenarios"] if one["outcome"] == "failed"]
    if record["left"]:
        lines += [f"something may still be there: {', '.join(record['left'])}", "end it with: gpuops reap"]
    return lines
