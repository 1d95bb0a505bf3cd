"""`gpuops quota aws` and `gpuops policy aws`, typed: what is seen in each state of an account, and the exit codes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuops.cli.terminal.output import Output
from gpuops.core.polling import Clock
from provisioners.aws import quota_advice
from tests.desk import Desk
from tests.fakes.aws import FakeAWS, Fault
from tests.fakes.aws.known import G_SPOT, P5_SPOT, G

ASKED = ("quota", "aws", "--gpus", "4", "--nodes", "2", "--spot")


@pytest.fixture
def aws(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeAWS]:  # noqa: ARG001
    with FakeAWS(tmp_path / "aws") as fake:
        for name, value in fake.env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("COLUMNS", "200")
        yield fake


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Nobody waits; what was to be waited is noted."""
    waited: list[float] = []
    monkeypatch.setattr(Clock, "sleep", lambda _, seconds: waited.append(seconds))
    return waited


def document(text: str) -> dict[str, Any]:
    found = json.loads(text)
    assert (found["schema"], found["kind"]) == (1, "quota")
    assert isinstance(found, dict)
    return found


def test_a_fresh_account(desk: Desk, aws: FakeAWS) -> None:
    aws.fresh_account()
    said = desk.type(*ASKED)
    assert said.code == 3
    assert said.out.splitlines() == [
        "REGION     QUOTA                                 CODE        LIMIT   IN USE  NEED  MISSING  OPEN REQUESTS",
        "us-east-1  All G and VT Spot Instance Requests   L-3819A6DF  0 vCPU  0       96    96       none",
        "us-east-1  Running On-Demand G and VT instances  L-DB2E81BA  0 vCPU  0       96    96       none",
        "it does not fit",
        "nothing with such GPUs runs as spot today in us-east-1: the vCPU that are free are too few for one machine",
        (
            "quotas are counted by region, and another may have room: "
            "gpuops quota aws --gpus 4 --nodes 2 --spot --region all"
        ),
        (
            "from 0 a small step is granted sooner: first 8 vCPU on demand, then more, then spot: gpuops quota aws "
            "--gpus 1 --nodes 2 --gpu-type g4dn.xlarge --on-demand --region us-east-1 --request 8"
        ),
        (
            "the smallest increase that would do is to 96 vCPU in us-east-1 (2 x 48 vCPU): "
            "gpuops quota aws --gpus 4 --nodes 2 --spot --region us-east-1 --request 96"
        ),
        (
            "a smaller one would do for as many GPUs in smaller machines: 8 x g4dn.xlarge is 32 vCPU, 8 nodes of 1 GPU "
            "each (so are g5.xlarge, g6.xlarge, g6e.xlarge): "
            "gpuops quota aws --gpus 1 --nodes 8 --gpu-type g4dn.xlarge --spot --region us-east-1 --request 32"
        ),
    ]


def test_it_fits(desk: Desk, aws: FakeAWS) -> None:
    aws.quota["us-east-1", G_SPOT] = 96.0
    said = desk.type(*ASKED)
    assert said.code == 0
    assert said.out.splitlines()[-1] == (
        "it fits in us-east-1: 2 x 48 vCPU is 96, and 96 are free of All G and VT Spot Instance Requests: "
        "gpuops up aws --gpus 4 --nodes 2 --spot --region us-east-1"
    )


def test_nothing_asked_for_is_all_there_is(desk: Desk, aws: FakeAWS) -> None:
    aws.fresh_account()
    said = desk.type("quota", "aws")
    assert said.code == 0
    assert [line for line in said.out.splitlines() if line.startswith("us-east-1 ")] == said.out.splitlines()[1:6]
    assert "NEED" not in said.out
    assert P5_SPOT in said.out


@pytest.mark.parametrize("market", ["--on-demand", "--spot"])
def test_nothing_asked_for_says_what_one_gpu_needs_and_its_line_can_be_typed(
    desk: Desk, aws: FakeAWS, market: str
) -> None:
    aws.fresh_account()
    lines = desk.type("quota", "aws", market).out.splitlines()[6:]
    assert lines[0].startswith(f"no GPU runs {'as spot' if market == '--spot' else 'on demand'} today in us-east-1; ")
    assert lines[-1] == "that is for one GPU, with --gpus N for more, and --nodes N for several machines"
    typed = lines[0].rpartition(": gpuops ")[2].split()
    assert desk.type(*typed, "--yes").code == 0
    (filed,) = aws.quota_requests.values()
    assert (filed.region, filed.code, filed.desired) == ("us-east-1", G_SPOT if market == "--spot" else G, 4.0)


def test_nothing_asked_for_in_many_regions(desk: Desk, aws: FakeAWS) -> None:
    aws.fresh_account()
    aws.quota["eu-west-1", G_SPOT] = 8.0
    lines = desk.type("quota", "aws", "--region", "all").out.splitlines()
    assert lines[-2] == (
        "as spot one GPU fits in eu-west-1: 1 x 4 vCPU is 4, and 8 are free of All G and VT Spot Instance Requests: "
        "gpuops up aws --gpus 1 --spot --region eu-west-1"
    )


def test_a_region_that_has_room(desk: Desk, aws: FakeAWS) -> None:
    aws.fresh_account()
    aws.quota["eu-west-1", G_SPOT] = 128.0
    said = desk.type(*ASKED, "--region", "us-east-1,eu-west-1")
    assert said.code == 0
    assert "it fits in eu-west-1: 2 x 48 vCPU is 96, and 128 are free" in said.out


@pytest.mark.parametrize("denied", ["servicequotas:*", "ec2:Describe*"])
def test_no_permission_is_unknown_and_no_reason_against(desk: Desk, aws: FakeAWS, denied: str) -> None:
    aws.fresh_account()
    aws.deny(denied)
    said = desk.type(*ASKED)
    assert said.code == 0
    assert "unknown" in said.out
    assert "whether it fits is not known" in said.out
    assert "note: us-east-1 is known in part: these AWS credentials lack the permission" in said.err


def test_as_a_document(desk: Desk, aws: FakeAWS) -> None:
    aws.quota["us-east-1", G_SPOT] = 64.0
    said = desk.type(*ASKED, "--json")
    assert said.code == 3
    found = document(said.out)
    assert (found["provider"], found["fits"], found["filed"], found["watched"]) == ("aws", False, None, [])
    first = found["quotas"][0]
    assert {name: first[name] for name in ("region", "code", "limit", "used", "need", "missing", "asked", "sum")} == {
        "region": "us-east-1", "code": G_SPOT, "limit": 64.0, "used": 0.0, "need": 96.0, "missing": 32.0,
        "asked": True, "sum": "2 x 48 vCPU",
    }  # fmt: skip
    assert found["advice"][0].startswith("on demand it fits today")


def test_unknown_as_a_document(desk: Desk, aws: FakeAWS) -> None:
    aws.deny("servicequotas:*")
    said = desk.type(*ASKED, "--json")
    assert said.code == 0
    found = document(said.out)
    assert found["fits"] is None
    assert (found["quotas"][0]["limit"], found["quotas"][0]["missing"], found["quotas"][0]["increases"]) == (
        None, None, None,
    )  # fmt: skip


def test_filing_a_request(desk: Desk, aws: FakeAWS) -> None:
    aws.fresh_account()
    said = desk.type(*ASKED, "--request", "96", "--yes")
    assert said.code == 0
    (filed,) = aws.quota_requests.values()
    assert (filed.region, filed.code, filed.desired) == ("us-east-1", G_SPOT, 96.0)
    assert said.out == (
        "asked for 96 vCPU of All G and VT Spot Instance Requests (L-3819A6DF) in us-east-1: "
        f"request {filed.id}, PENDING\n"
    )


def test_a_request_that_would_not_do_is_filed_and_said_to_be_too_small(desk: Desk, aws: FakeAWS) -> None:
    aws.fresh_account()
    said = desk.type(*ASKED, "--request", "48", "--yes")
    assert [one.desired for one in aws.quota_requests.values()] == [48.0]
    assert said.out.endswith("\nnote: that is less than the request needs (2 x 48 vCPU = 96, which is more; now 0)\n")


def test_somebody_is_asked_with_the_arithmetic(desk: Desk, aws: FakeAWS, monkeypatch: pytest.MonkeyPatch) -> None:
    aws.fresh_account()
    questions = []
    monkeypatch.setattr(Output, "interactive", property(lambda _: True))
    monkeypatch.setattr(Output, "confirm", lambda _, question: questions.append(question))
    said = desk.type(*ASKED, "--request", "96")
    assert (said.code, aws.quota_requests) == (2, {})
    assert questions == [
        (
            "ask aws for 96 vCPU of All G and VT Spot Instance Requests (L-3819A6DF) in us-east-1 (2 x 48 vCPU = 96; "
            "now 0): go?"
        )
    ]
    assert "error: not confirmed: no request was filed\n" in said.err


def test_nobody_there_to_be_asked(desk: Desk, aws: FakeAWS) -> None:
    aws.fresh_account()
    said = desk.type(*ASKED, "--request", "96")
    assert (said.code, aws.quota_requests) == (2, {})
    assert said.err.endswith("error: cannot ask for confirmation: no terminal\nhint: add --yes\n")


def test_what_is_asked_for_already(desk: Desk, aws: FakeAWS) -> None:
    aws.fresh_account()
    desk.type(*ASKED, "--request", "96", "--yes")
    (filed,) = aws.quota_requests.values()
    filed.created = time.time() - 7200
    said = desk.type(*ASKED, "--request", "128", "--yes")
    assert said.code == 0
    assert len(aws.quota_requests) == 1
    assert said.out.startswith(
        "a request for more of All G and VT Spot Instance Requests (L-3819A6DF) in us-east-1 is open already: "
        "96 vCPU, PENDING, 2 h"
    )
    assert "96 vCPU, PENDING, 2 h 00 min ago" in desk.type(*ASKED).out


def test_asked_for_by_somebody_else_in_between(desk: Desk, aws: FakeAWS) -> None:
    aws.fresh_account()
    theirs: list[str] = []

    def quicker(request: Any, moment: str) -> None:
        if request.action == "RequestServiceQuotaIncrease" and moment == "before" and not theirs:
            theirs.append(request.action)
            aws.client("service-quotas").request_service_quota_increase(
                ServiceCode="ec2", QuotaCode=G_SPOT, DesiredValue=64.0
            )

    aws.on_answer(quicker)
    said = desk.type(*ASKED, "--request", "96", "--yes")
    assert said.code == 0
    assert "is open already: 64 vCPU, PENDING" in said.out


def test_a_limit_that_is_there_already(desk: Desk, aws: FakeAWS) -> None:
    aws.quota["us-east-1", G_SPOT] = 96.0
    said = desk.type(*ASKED, "--request", "96", "--yes")
    assert (said.code, aws.quota_requests) == (0, {})
    assert said.out == (
        "96 vCPU of All G and VT Spot Instance Requests (L-3819A6DF) in us-east-1 are allowed already: no "
        "request was filed\n"
    )


@pytest.mark.parametrize(
    ("words", "say"),
    [
        (("quota", "aws", "--request", "96"), "which quota shall be raised to 96?"),
        (
            (*ASKED, "--region", "us-east-1,us-west-2", "--request", "96"),
            "an increase is requested in one region at a time",
        ),
        ((*ASKED, "--request", "0"), "--request 0 is no quota"),
        ((*ASKED, "--code", G_SPOT), "--code says of which quota more is asked for"),
        ((*ASKED, "--request", "96", "--code", "L-1"), "there is no quota L-1 for that request"),
        (("quota", "aws", "--gpus", "8", "--spot", "--request", "192"), "which quota shall be raised to 192?"),
        (("quota", "local"), "local does not report quotas"),
        (("quota", "aws", "--gpus", "0"), "--gpus 0 is too few"),
        (("quota", "aws", "--gpus", "4", "--gpu-type", "a11g"), "AWS has no GPU called 'a11g' in us-east-1"),
        (("quota", "aws", "--no-such"), "there is no option --no-such"),
        (("policy", "local"), "local grants access as a whole"),
        (("policy", "aws", "--sink", "here"), "--sink here is no bucket"),
    ],
)
def test_what_makes_no_sense(desk: Desk, aws: FakeAWS, words: tuple[str, ...], say: str) -> None:
    said = desk.type(*words, *([] if words[0] == "policy" else ["--yes"]))
    assert said.code == 2, said
    assert f"error: {say}" in said.err
    assert said.err.removeprefix("asking aws for its quotas\n").count("\n") == 2
    assert aws.quota_requests == {}


def test_by_its_code(desk: Desk, aws: FakeAWS) -> None:
    aws.fresh_account()
    assert desk.type("quota", "aws", "--request", "32", "--code", G, "--yes").code == 0
    assert [(one.code, one.desired) for one in aws.quota_requests.values()] == [(G, 32.0)]


def test_watching_until_it_is_granted(desk: Desk, aws: FakeAWS, hasty: list[float]) -> None:
    aws.fresh_account()
    course = {1: "CASE_OPENED", 3: "APPROVED"}

    def decide(request: Any, moment: str) -> None:
        if request.action == "GetRequestedServiceQuotaChange" and moment == "before":
            (filed,) = aws.quota_requests
            if status := course.get(len(hasty)):
                aws.decide(filed, status)

    aws.on_answer(decide)
    said = desk.type(*ASKED, "--request", "96", "--yes", "--watch")
    assert said.code == 0
    told = [line for line in said.err.splitlines() if line.startswith("96 vCPU of")]
    what = "96 vCPU of All G and VT Spot Instance Requests in us-east-1"
    assert told[0].startswith(f"{what}: PENDING, ")
    assert told[1:] == [f"{what}: CASE_OPENED"]
    assert "people at AWS decide, and may ask what it is for: https://support.console.aws.amazon.com/" in said.err
    assert said.out == f"{what}: granted (APPROVED)\n"
    assert hasty == [15.0, 30.0, 60.0]


@pytest.mark.parametrize(("in_s", "code"), [(1800.0, 0), (7200.0, 3)])
def test_what_is_closed_without_a_word_is_looked_at_for_an_hour(
    desk: Desk, aws: FakeAWS, monkeypatch: pytest.MonkeyPatch, in_s: float, code: int
) -> None:
    """As the only status before a grant and after it; a grant takes effect within the hour."""
    aws.fresh_account()
    monkeypatch.setattr(Clock, "sleep", lambda _, seconds: aws.advance(seconds))
    monkeypatch.setattr(Clock, "now", lambda _: aws.world.now())
    desk.type(*ASKED, "--request", "96", "--yes")
    (filed,) = aws.quota_requests
    aws.grants_s = in_s
    aws.on_answer(
        lambda request, moment: (
            aws.decide(filed, "CASE_CLOSED", 96.0)
            if (request.action, moment) == ("GetRequestedServiceQuotaChange", "before")
            and not aws.world.grants
            and aws.quota_requests[filed].status == "PENDING"
            else None
        )
    )
    said = desk.type(*ASKED, "--watch")
    assert said.code == code, said.err
    assert f"in us-east-1: CASE_CLOSED\n{quota_advice.GRANT_DELAY_NOTE}\n" in said.err
    if code:
        assert "in us-east-1: not granted (CASE_CLOSED)\nreply in its case, and file no new request" in said.out
        assert aws.quota_requests[filed].case in said.out
    else:
        assert said.out.endswith("in us-east-1: granted (CASE_CLOSED)\n")


def test_watching_what_is_denied(desk: Desk, aws: FakeAWS, hasty: list[float]) -> None:
    aws.fresh_account()
    desk.type(*ASKED, "--request", "96", "--yes")
    (filed,) = aws.quota_requests
    aws.on_answer(lambda request, _: aws.decide(filed, "DENIED") if request.action.startswith("GetRequested") else None)
    said = desk.type("quota", "aws", "--watch", "--json")
    assert said.code == 3
    (watched,) = document(said.out)["watched"]
    assert (watched["id"], watched["status"], watched["open"], watched["granted"]) == (filed, "DENIED", False, False)
    assert len(hasty) == 1


def test_a_bad_look_does_not_end_the_watch(desk: Desk, aws: FakeAWS, hasty: list[float]) -> None:
    aws.fresh_account()
    desk.type(*ASKED, "--request", "96", "--yes")
    (filed,) = aws.quota_requests
    aws.play(Fault("GetRequestedServiceQuotaChange", times=6, what="500"))

    def decide(request: Any, moment: str) -> None:
        if request.action == "GetRequestedServiceQuotaChange" and moment == "before" and len(hasty) > 2:
            aws.decide(filed)

    aws.on_answer(decide)
    said = desk.type("quota", "aws", "--watch")
    assert said.code == 0
    assert said.err.count("note: ") == 1
    assert "granted (APPROVED)" in said.out


def test_seen_enough(desk: Desk, aws: FakeAWS, monkeypatch: pytest.MonkeyPatch) -> None:
    import os
    import signal

    aws.fresh_account()
    desk.type(*ASKED, "--request", "96", "--yes")
    monkeypatch.setattr(Clock, "sleep", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    said = desk.type("quota", "aws", "--watch")
    assert said.code == 0
    assert said.err.endswith("stopped watching; open requests stay filed\n")
    assert next(iter(aws.quota_requests.values())).status == "PENDING"


def test_nothing_to_watch(desk: Desk, aws: FakeAWS) -> None:
    assert not aws.quota_requests
    said = desk.type("quota", "aws", "--watch")
    assert said.code == 0
    assert "no request for more is open" in said.err


def test_the_policy_is_what_can_be_pasted(desk: Desk) -> None:
    said = desk.type("policy", "aws")
    assert (said.code, said.err) == (0, "")
    assert json.loads(said.out)["Version"] == "2012-10-17"
    as_document = json.loads(desk.type("policy", "aws", "--json").out)
    assert (as_document["kind"], as_document["policy"]) == ("policy", json.loads(said.out))
    assert "arn:*:s3:::bucket/runs/*" in desk.type("policy", "aws", "--sink", "s3://bucket/runs").out
