"""The record of a run: what is written is read again, and what is damaged counts as not known."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from gpuops.core.models import MachineEnd, Payer
from gpuops.core.run_models import Verdict, VerdictOutcome
from gpuops.ledger.rows import RunFacts
from gpuops.sync.run_record import RunRecord

WHOLE = RunRecord(
    run="toy-1",
    verdict=Verdict(VerdictOutcome.PREEMPTED, 4, "reclaimed by AWS", node=1),
    request={"kind": "torchrun"},
    cluster="lab",
    created=1.0,
    started=2.0,
    ended=5.0,
    duration_s=3.0,
    before_s=1.0,
    cost=0.5,
    payer=Payer("me", ".env"),
    is_rented=True,
    home="/p/runs/toy-1",
    report="/p/runs/toy-1/report.html",
    missing="",
    facts=RunFacts(provider="aws", nodes=2),
    nodes_ended={"1": {"outcome": "lost", "reason": {"kind": "reclaim", "reclaimed": True, "by": "AWS"}}},
    kept="safe in s3://b/toy-1",
    left_behind="big.bin",
    progress={"step": 7, "saved": 5},
    in_bucket=[1],
)


def test_what_is_written_is_read_again() -> None:
    assert RunRecord.parse(json.loads(json.dumps(WHOLE.document()))) == WHOLE
    assert {one.name for one in dataclasses.fields(RunRecord) if getattr(WHOLE, one.name) == one.default} == set()


def test_a_key_of_a_newer_version_survives() -> None:
    assert RunRecord.parse({**WHOLE.document(), "carbon_kg": 3}).document()["carbon_kg"] == 3


@pytest.mark.parametrize(
    ("key", "value", "field"),
    [
        ("verdict", {"outcome": "won", "exit_code": 0, "say": ""}, "verdict"),
        ("verdict", {"outcome": "done", "exit_code": 0}, "verdict"),
        ("verdict", "done", "verdict"),
        ("ended", "soon", "ended"),
        ("cost", None, "cost"),
        ("payer", {"account": "me"}, "payer"),
        ("missing", None, "missing"),
        ("nodes_ended", [1], "nodes_ended"),
        ("in_bucket", 3, "in_bucket"),
    ],
)
def test_what_is_damaged_counts_as_not_known(key: str, value: Any, field: str) -> None:
    record = RunRecord.parse({**WHOLE.document(), key: value})
    assert record == dataclasses.replace(WHOLE, **{field: getattr(RunRecord(), field)})


def test_who_took_a_machine_back() -> None:
    assert WHOLE.machine_end(1) == MachineEnd(preempted=True, by="AWS")
    assert WHOLE.machine_end(0) == RunRecord(nodes_ended={"1": {"reason": "lost"}}).machine_end(1) == MachineEnd()
