"""What `gpuops prove` decides: what fits into the money, when to stop, what it says at the end, with which code."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpuops.cli.terminal.output import Output
from gpuops.commands.prove import proof_record
from gpuops.commands.prove.prove import Proof, plan_steps, prove
from gpuops.core.errors import AuthFailed, NoCapacity, UsageError
from gpuops.core.format import span
from gpuops.core.models import Intent, Journal, Offer, Price, Request, Resource
from tests.fakes.plain import Plain, world_of

ROOT = Path(__file__).parents[4]
Prove = Callable[..., Proof]


@pytest.fixture
def proving(tmp_path: Path) -> Iterator[Prove]:
    """The whole story on a provider in memory, whose nodes never answer and whose clock costs nothing."""
    with world_of(tmp_path) as world:

        def run(provider: Plain, spend: float = 5.0) -> Proof:
            world.provisioners[provider.name] = provider.checked()
            return prove(world, Request(provider.name, nodes=2, timeout_min=1.0), spend)

        yield run


def outcomes(proof: Proof) -> dict[str, str]:
    return {scenario.name: scenario.outcome for scenario in proof.record.scenarios}


def offer(per_hour: float) -> Offer:
    return Offer("plain", "x", "2 of 1", 2, 0, prices=(Price("machines", per_hour),))


@pytest.mark.parametrize(
    ("per_hour", "spend", "skipped"),
    [
        (0.0, 0.1, set()),
        (0.36, 0.1, set()),
        (0.36, 0.055, {"adopted"}),
        (0.36, 0.02, {"adopted", "killed", "unattended"}),
        (10.0, 3.0, set()),
    ],
)
def test_what_fits_into_the_money(per_hour: float, spend: float, skipped: set[str]) -> None:
    todo = plan_steps(offer(per_hour), 0.0, spend)
    assert {step.scenario.on for step in todo if step.skipped} == skipped
    assert sum(step.cost for step in todo if not step.skipped) <= spend
    assert all("more than is left" in step.skipped for step in todo if step.scenario.on in skipped)


def test_when_nothing_fits_nothing_is_begun() -> None:
    with pytest.raises(UsageError) as caught:
        plan_steps(offer(10.0), 0.0, 0.1)
    assert "$0.4167 for the least of it, and --spend is $0.1000" in caught.value.message
    enough = float(re.findall(r"--spend ([0-9.]+)", caught.value.hint)[0])
    assert not [step for step in plan_steps(offer(10.0), 0.0, enough) if step.skipped]


def test_money_is_asked_for_once(proving: Prove) -> None:
    class Nobody(Plain):
        def offers(self, request: Request) -> Sequence[Offer]:
            self.world.yes = False
            return super().offers(request)

    Plain.world.out = Output(err=(said := io.StringIO()))
    with pytest.raises(UsageError, match="cannot ask for confirmation"):
        proving(Nobody())
    assert "about $0.2806 in all, at most $5.0000" in said.getvalue()


def test_the_cheapest_is_taken_and_all_of_it_ended(proving: Prove) -> None:
    plain = Plain()
    proof = proving(plain)
    assert proof.record.per_hour == 1.0
    assert all(machine.state == "ended" for machine in plain.machines.values())
    assert proof.record.left == []
    # Nobody answers there: what needs an agent fails, and says so.
    assert (proof.exit_code, outcomes(proof)["lost-answer"], outcomes(proof)["nothing-left"]) == (4, "failed", "proven")


class Slow(Plain):
    """Ten minutes pass until `create` answers."""

    def create(self, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        self.world.clock.sleep(600.0)
        return super().create(offer, intent, journal)


def test_it_stops_before_what_would_break_the_limit(proving: Prove) -> None:
    proof = proving(Slow(), spend=0.3)
    assert outcomes(proof)["create"] == "proven"
    said = {scenario.name: scenario.said for scenario in proof.record.scenarios if scenario.outcome == "skipped"}
    assert set(said) == {"lost-answer", "ready", "watchdog", "killed", "bill", "boot-deadline"}
    assert re.fullmatch(
        r"\$0\.1\d+ of \$0\.3000 are spent, and its machines take about \$0\.\d+ more", said["lost-answer"]
    )
    assert proof.record.cost < 0.3
    assert proof.exit_code == 0


class Refuses(Plain):
    def create(self, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:  # noqa: ARG002
        journal.will("machine", intent.mark(0), intent.token, "moon")
        raise NoCapacity("none to be had", "try again later")


def test_a_provider_that_says_no_is_none_that_failed(proving: Prove) -> None:
    proof = proving(Refuses())
    assert "failed" not in outcomes(proof).values()
    assert outcomes(proof)["create"] == "skipped"
    assert proof.exit_code == 3


class Rises(Plain):
    """What was announced is dearer once something was made."""

    def offers(self, request: Request) -> Sequence[Offer]:
        return [self.offer(request.nodes, 9)] if self.machines else super().offers(request)


def test_a_price_that_has_risen_is_a_refusal(proving: Prove) -> None:
    proof = proving(Rises())
    assert outcomes(proof)["create"] == "proven"
    assert [outcomes(proof)[name] for name in ("lost-answer", "killed", "boot-deadline")] == ["skipped"] * 3
    assert proof.exit_code == 3


def test_who_may_not_even_ask_is_told_before_anything_is_made(proving: Prove) -> None:
    class NoKey(Plain):
        def preflight(self, request: Request) -> Sequence[Any]:  # noqa: ARG002
            raise AuthFailed("no key", "set PLAIN_KEY")

    with pytest.raises(AuthFailed):
        proving(NoKey())


class Keeps(Plain):
    def destroy(self, resources: Sequence[Resource]) -> None:
        pass


def test_what_is_left_is_named_with_its_own_code(proving: Prove) -> None:
    proof = proving(Keeps())
    assert proof.exit_code == 5
    assert {mark.rpartition("-")[2] for mark in proof.record.left} == {"0", "1"}
    assert "something may still be there: gpuops-0a1b2c3d-prove-" in "\n".join(proof.last)


class Lags(Plain):
    """What it has made it shows only after 40 s, and says that it takes 5."""

    made = float("inf")

    def create(self, offer: Offer, intent: Intent, journal: Journal) -> Sequence[Resource]:
        made = super().create(offer, intent, journal)
        self.made = self.world.clock.monotonic()
        return made

    def list_owned(self, owner: str, regions: Sequence[str]) -> Sequence[Resource]:
        return super().list_owned(owner, regions) if self.world.clock.monotonic() > self.made + 40 else []


def test_one_that_failed_is_not_believed_at_once(proving: Prove) -> None:
    lags = Lags()
    proof = proving(lags)
    assert proof.exit_code == 4
    assert proof.record.left == []
    (end,) = [scenario for scenario in proof.record.scenarios if scenario.name == "nothing-left"]
    assert (end.seconds > 5.0, f"({span(end.seconds)})" in end.said) == (True, True), end
    assert [machine.name for machine in lags.machines.values() if machine.state != "ended"] == []


def test_a_record_is_one_document_that_never_replaces_another(proving: Prove, tmp_path: Path) -> None:
    proof, path = proving(Plain()), tmp_path / "plain.json"
    proof_record.check_free(path)
    proof_record.save(path, proof.record)
    document = json.loads(path.read_text())
    assert (document["schema"], document["kind"], document["provider"]) == (1, "proof", "plain")
    with pytest.raises(UsageError, match="exists already"):
        proof_record.check_free(path)
    with pytest.raises(UsageError, match="there is no folder"):
        proof_record.check_free(tmp_path / "nowhere" / "plain.json")
