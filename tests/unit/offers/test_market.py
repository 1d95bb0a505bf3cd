"""Several providers asked at once: who is waited for, what is dropped and named, and what is tried first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from gpuops.core.context import Context
from gpuops.core.errors import GpuopsError, NoCapacity, NotSetUp, ProviderError, QuotaExceeded, Unknown, UsageError
from gpuops.core.models import Offer, Price, Request
from gpuops.offers.market import (
    Answer,
    Market,
    ask_providers,
    describe_answer,
    nothing_offered,
    parse_market,
    rank,
    renting_providers,
)
from tests.fakes import stalls

WISH = Request("", gpus=4, gpu_mem=24, gpu_type="l4,rtx4090,a10g,h100,l40s")


@pytest.fixture
def street(world: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    for path in stalls.settle(tmp_path / "site"):
        monkeypatch.syspath_prepend(path)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "RUNPOD_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return world


def ask(ctx: Context, *names: str, request: Request = WISH) -> dict[str, Answer]:
    requests = [Request(**{**vars(request), "provider": name}) for name in names]
    return {answer.provider: answer for answer in ask_providers(ctx, requests)}


def test_who_fails_is_named_and_keeps_no_other_from_answering(street: Context) -> None:
    answers = ask(street, "shut", "stall", "booth")
    assert [*answers] == ["shut", "stall", "booth"], "in the order asked"
    assert [[offer.id for offer in answers[name].offers] for name in ("stall", "booth")] == [["RTX-4090"], ["A10G"]]
    assert describe_answer(answers["shut"]) == ["note: shut wants fewer requests; wait a minute"]


def test_what_cannot_be_what_was_asked_for_is_dropped_and_named(street: Context) -> None:
    answer = ask(street, "liar")["liar"]
    assert [offer.say for offer in answer.offers] == ["the true one"]
    assert [line.removeprefix("liar: ") for line in answer.dropped] == [
        "negative is left out: it has no price",
        "in part negative is left out: it has no price",
        "NaN is left out: it has no price",
        "absent is left out: it has no price",
        "a word is left out: it has no price",
        "other nodes is left out: it is for 2 nodes, not for 1",
        "fewer GPUs is left out: it has 3 GPUs per machine, not 4",
        "less memory is left out: its GPU has 12 GB, not 24",
        "another GPU is left out: its GPU is RTX 3060, not l4,rtx4090,a10g,h100,l40s",
        "another's is left out: it is of stall",
        "an offer, on my word is left out: it is no offer",
    ]


@pytest.mark.parametrize(
    ("wish", "name", "fits"),
    [
        ("h100", "H100 SXM", True),
        ("rtx4090", "RTX 4090", True),
        ("NVIDIA GeForce RTX 4090", "RTX 4090", True),
        ("a100 80gb", "A100 PCIe", True),
        ("t4", "T4", True),
        ("rtx 4090", "RTX 3090", False),
        ("l40s", "A10G", False),
        ("h100, a100", "A100 SXM", True),
    ],
)
def test_a_gpu_is_known_by_any_of_its_names(street: Context, wish: str, name: str, fits: bool) -> None:
    class One(stalls.Stall):
        kinds = ({"gpu": name, "gpu_mem": 80, "price": 1.0},)

    street.provisioners["stall"] = street.provisioner("stall")
    street.provisioners["stall"].inner.__class__ = One  # type: ignore[attr-defined]
    answer = ask(street, "stall", request=Request("", gpu_type=wish))["stall"]
    assert bool(answer.offers) == fits
    assert bool(answer.dropped) == (not fits)


def test_prices_without_an_account_are_shown_and_not_rented(street: Context) -> None:
    answer = ask(street, "keyless")["keyless"]
    assert [offer.id for offer in answer.offers] == ["L40S"]
    assert answer.rentable == ()
    assert describe_answer(answer) == [
        "note: there is no key of keyless (these are its prices, for whoever has an account); export KEYLESS_KEY=…"
    ]
    (runpod,) = describe_answer(ask(street, "runpod")["runpod"])
    assert runpod.startswith("note: there is no RunPod API key: RUNPOD_API_KEY is not set; make one at https://")


def test_what_a_provider_cannot_do_and_a_price_that_nobody_has(street: Context) -> None:
    spot = ask(street, "runpod", request=Request("", spot=True))["runpod"]
    assert "cannot do spot" in str(spot.error)
    dear = ask(street, "booth", request=Request("", gpus=4, max_price=1.0))["booth"]
    assert str(dear.error) == "booth offers nothing at $1.00/h or less: the cheapest that fits is $1.20/h"


def test_of_several_gpus_those_that_a_provider_knows(street: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = stalls.Stall.offers

    def offers(self: stalls.Stall, request: Request) -> Sequence[Offer]:
        known = [one for one in whole(self, request) if request.gpu_type and request.gpu_type in one.id.lower()]
        if not known:
            raise UsageError(f"there is no {request.gpu_type}", "name another")
        return known

    monkeypatch.setattr(stalls.Stall, "offers", offers)
    known = ask(street, "stall", request=Request("", gpu_type="a100, h200,4090"))["stall"]
    assert [one.id for one in known.offers] == ["RTX-4090", "A100-SXM"]
    assert str(ask(street, "stall", request=Request("", gpu_type="h200,t4"))["stall"].error) == "there is no h200,t4"


def offer(provider: str, per_hour: float, place: str = "") -> Offer:
    return Offer(provider, f"{provider}{per_hour:g}", "", 1, 1, prices=(Price("", per_hour),), data={"place": place})


ANSWERS = [
    Answer("b", [offer("b", 2.0, "east"), offer("b", 5.0, "west")]),
    Answer("a", [offer("a", 1.0), offer("a", 3.0)]),
    Answer("c", [offer("c", 0.5)], error=Unknown("no")),
]


@pytest.mark.parametrize(
    ("by_price", "avoided", "last", "order", "why"),
    [
        (False, [], [], "b2 b5 a1 a3", "its provider was named first"),
        (True, [], [], "a1 b2 a3 b5", "the cheapest"),
        (True, [], ["a"], "b2 b5 a1 a3", "the cheapest of those that lost none"),
        (False, ["east"], ["b"], "a1 a3 b5 b2", "its provider was named first of those that lost none"),
        (False, [], ["b", "a"], "b2 b5 a1 a3", "its provider was named first"),
    ],
)
def test_what_is_tried_first(by_price: bool, avoided: list[str], last: list[str], order: str, why: str) -> None:
    ranked = rank(Market(["b", "a", "c"], by_price), ANSWERS, avoided, last)
    assert [one.id for one in ranked] == order.split()
    assert ranked[0].data["why"] == why


@pytest.mark.parametrize(
    ("errors", "kind"),
    [
        ([NoCapacity("none"), UsageError("no such region")], NoCapacity),
        ([None, UsageError("no such region")], NoCapacity),
        ([NotSetUp("no key"), UsageError("no such region")], ProviderError),
        ([NotSetUp("no key"), NotSetUp("no key")], NotSetUp),
        ([QuotaExceeded("used up")], QuotaExceeded),
    ],
)
def test_why_there_is_nothing_and_whether_it_is_worth_to_wait(
    errors: Sequence[GpuopsError | None], kind: type[GpuopsError]
) -> None:
    answers = [Answer(f"p{number}", error=error) for number, error in enumerate(errors)]
    assert type(nothing_offered(answers)) is kind


def test_names_of_a_market(street: Context) -> None:
    assert parse_market(street, "stall") is None
    assert parse_market(street, "booth,stall, booth") == Market(["booth", "stall"])
    everybody = parse_market(street, "cheapest")
    assert everybody == Market(renting_providers(street), by_price=True)
    assert {"aws", "runpod", *stalls.NAMES} <= {*everybody.providers}
    assert "local" not in everybody.providers
    for typed, say in (
        ("stall,local", "local rents nothing"),
        ("stall,", "is no list of providers"),
        ("stall,cheapest", "is no list of providers"),
        ("stall,moon", "there is no provider named 'moon'"),
    ):
        with pytest.raises(UsageError, match=say):
            parse_market(street, typed)
