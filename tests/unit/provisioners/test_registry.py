"""A stranger's provisioner: found by its wheel's entry point, held to the contract, never trusted further."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path
from typing import Any

import pytest

from gpuops.core import provider as contract
from gpuops.core.context import Context
from gpuops.core.errors import GpuopsError, RateLimited, Unknown, UsageError
from gpuops.core.models import Payer, Request, Resource
from gpuops.core.polling import Clock
from gpuops.core.provider import Credential
from provisioners import registry
from provisioners.checked_provisioner import CheckedProvisioner
from tests.fakes.provider import NAME, OWNER, Cloud, Fault, Scripted, surroundings


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Cloud, Context]:
    return surroundings(tmp_path, monkeypatch)


def bring(cloud: Cloud, line: str) -> None:
    (cloud.site / "scripted-1.0.dist-info" / "entry_points.txt").write_text(f"[gpuops.provisioners]\n{line}\n")


class Older(Scripted):
    contract = 0


class Vague(Scripted):
    def __init__(self, context: contract.Context) -> None:
        super().__init__(context)
        self.gone_s: Any = "soon"


class Lacking(Scripted):
    describe: Any = property(lambda _: (_ for _ in ()).throw(AttributeError("describe")))


def broken(context: contract.Context) -> Scripted:
    raise RuntimeError(f"no key for {context.owner}")


def test_a_wheel_adds_a_provider(there: tuple[Cloud, Context]) -> None:
    _, world = there
    assert registry.provider_names() == ["aws", "lambda", "local", "pbs", "runpod", NAME, "slurm", "ssh", "vast"]
    assert world.provisioner(NAME).name == NAME
    assert world.provisioner("local").name == "local"


@pytest.mark.parametrize(
    ("line", "name", "say"),
    [
        (f"{NAME} = tests.fakes.provider:Scripted", "scriptd", "no provider named 'scriptd'; did you mean scripted?"),
        ("mars = no_such_module:nothing", "mars", "cannot be loaded: ModuleNotFoundError: No module named 'no_such_"),
        ("mars = tests.fakes.provider:Nothing", "mars", "cannot be loaded: AttributeError"),
        ("mars = tests.fakes.provider:NAME", "mars", "cannot be loaded: TypeError"),
        (f"mars = {__name__}:broken", "mars", f"cannot be loaded: RuntimeError: no key for {OWNER}"),
        (f"mars = {__name__}:Older", "mars", "was written for contract 0, and does not fit this gpuops"),
        (f"mars = {__name__}:Vague", "mars", "says of itself what makes no sense: could not convert string to float"),
        (f"mars = {__name__}:Lacking", "mars", "lacks describe, and does not fit this gpuops"),
    ],
)  # fmt: skip
def test_one_that_does_not_fit(there: tuple[Cloud, Context], line: str, name: str, say: str) -> None:
    cloud, world = there
    bring(cloud, line)
    with pytest.raises(UsageError) as caught:
        world.provisioner(name)
    assert say in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("method", ["list_owned", "describe", "destroy", "offers", "preflight"])
def test_a_foreign_exception_becomes_ours(there: tuple[Cloud, Context], method: str) -> None:
    cloud, world = there
    cloud.play(**{method: [Fault("KeyError"), Fault("RateLimited", retry_after=3.0)]})
    arguments: dict[str, tuple[Any, ...]] = {
        "list_owned": (OWNER, []), "describe": (MACHINE,), "destroy": ([MACHINE],), "offers": (Request(NAME),),
        "preflight": (Request(NAME),),
    }  # fmt: skip
    call = getattr(world.provisioner(NAME), method)
    with pytest.raises(Unknown, match=r"scripted failed: KeyError: 'pods'") as caught:
        call(*arguments[method])
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(RateLimited) as limited:
        call(*arguments[method])
    assert limited.value.retry_after == 3.0


MACHINE = Resource("machine", "i-1", "moon", f"gpuops-{OWNER}-lab-0", True)


class Hanging(Scripted):
    """Waits until the test is over."""

    release = threading.Event()

    def describe(self, resource: Resource) -> Resource:
        self.release.wait(600)
        return resource


def test_a_call_that_never_returns_is_left_behind(there: tuple[Cloud, Context]) -> None:
    _, world = there
    provisioner = CheckedProvisioner(Hanging(contract.Context(OWNER, world.home, world.env)), limit_s=0.2)
    try:
        with pytest.raises(Unknown, match="did not answer within"):
            provisioner.describe(MACHINE)
    finally:
        Hanging.release.set()


def test_a_description_of_something_else_is_none(there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is destroyed after it must be ours."""
    _, world = there
    other = dataclasses.replace(MACHINE, id="somebody-elses", state="running")
    monkeypatch.setattr(Scripted, "describe", lambda *_: other)
    with pytest.raises(Unknown, match="described somebody-elses"):
        CheckedProvisioner(Scripted(contract.Context(OWNER, world.home, world.env))).describe(MACHINE)


def test_what_a_provider_has_not_got_is_answered_all_the_same(there: tuple[Cloud, Context]) -> None:
    """Nobody who is handed a provisioner asks which of its optional methods are there."""
    _, world = there
    bare = CheckedProvisioner(Scripted(contract.Context(OWNER, world.home, world.env)))
    request = Request("scripted")
    assert (bare.balance(), bare.account(), bare.payer(request), bare.quota(request), bare.policy()) == (None,) * 5
    assert (bare.admit([]), bare.forget("moon"), bare.standing(request)) == (False, False, [])
    assert bare.last_words(MACHINE) == ""


def test_who_pays_is_never_a_reason_to_fail(there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch) -> None:
    """A provisioner that was written before it could be asked has nobody named."""
    _, world = there
    context, request = contract.Context(OWNER, world.home, world.env), Request(NAME)
    assert CheckedProvisioner(Scripted(context)).payer(request) is None
    monkeypatch.setattr("provisioners.checked_provisioner.PAYER_EXTRA_S", 0.1)
    release = threading.Event()
    for answer, told in (
        (lambda *_: Payer("alice", "TENT_KEY"), Payer("alice", "TENT_KEY")),
        (lambda *_: {}["key"], Payer("", "")),
        (lambda *_: release.wait(600), Payer("", "")),
    ):
        monkeypatch.setattr(Scripted, "payer", answer, raising=False)
        assert CheckedProvisioner(Scripted(context)).payer(request, 0.1) == told
    release.set()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda *_: 1.8e9, 1.8e9),
        (lambda *_: None, None),
        (lambda *_: float("nan"), None),
        (lambda *_: "noon", None),
        (lambda *_: {}["date"], None),
        (Clock(), None),
    ],
)
def test_a_providers_time_is_a_number_or_not_known(
    there: tuple[Cloud, Context], monkeypatch: pytest.MonkeyPatch, answer: object, told: float | None
) -> None:
    _, world = there
    checked = CheckedProvisioner(Scripted(contract.Context(OWNER, world.home, world.env)))
    assert checked.provider_time() is None
    monkeypatch.setattr(Scripted, "provider_time", answer, raising=False)
    assert checked.provider_time() == told


def test_a_third_party_finds_keys_in_the_same_order(tmp_path: Path) -> None:
    """Whole, from the first place that has one."""
    stored: list[Credential | None] = [Credential("~/.tent", {"TENT_KEY": "stored"}), None]
    for env, dotenv, mine, found in (
        ({"TENT_KEY": "mine"}, {"TENT_KEY": "projects"}, 0, Credential("TENT_KEY", {"TENT_KEY": "mine"})),
        ({"TENT_KEY": " "}, {"TENT_KEY": "projects"}, 0, stored[0]),
        ({"TENT_ID": "lone"}, {"TENT_KEY": "projects"}, 1, Credential(".env", {"TENT_KEY": "projects"})),
        ({"TENT_KEY": "k", "TENT_ID": "i"}, {}, 0, Credential("TENT_KEY", {"TENT_KEY": "k", "TENT_ID": "i"})),
        ({}, {"TENT_KEY": ""}, 1, None),
    ):
        context = contract.Context(OWNER, tmp_path, env, dotenv)
        assert context.credential(["TENT_KEY"], lambda mine=mine: stored[mine], ["TENT_ID"]) == found


def test_what_is_listed_is_ours_and_once(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    cloud.play(list_owned_always=[Fault(twice=True)])
    scripted = Scripted(contract.Context(OWNER, world.home, world.env))
    scripted._add(f"gpuops-{OWNER}-lab-0")
    scripted._add("gpuops-ffffffff-lab-0")
    assert [one.name for one in world.provisioner(NAME).list_owned(OWNER, [])] == [f"gpuops-{OWNER}-lab-0"]


def test_an_unknown_state_is_unknown(there: tuple[Cloud, Context]) -> None:
    cloud, world = there
    cloud.play(describe_always=[Fault(state="EXITED")])
    machine = Scripted(contract.Context(OWNER, world.home, world.env))._add(f"gpuops-{OWNER}-lab-0")
    assert world.provisioner(NAME).describe(machine).state == "unknown"


def test_ours_keep_the_contract_too(there: tuple[Cloud, Context]) -> None:
    _, world = there
    for name in registry.BUILT_IN:
        provisioner = world.provisioner(name)
        assert all(hasattr(provisioner, member) for member in registry.REQUIRED_MEMBERS)
        assert all(able is True or able for able in provisioner.capabilities.values()), "yes, or the sentence why not"
        assert isinstance(Unknown("x"), GpuopsError)
