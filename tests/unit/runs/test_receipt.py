"""The receipt: what is said of a run in the end, whatever is known of it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gpuops.runs.receipt import format_cost_without_run, format_receipt
from gpuops.sync.run_record import RunRecord

RENTED: dict[str, Any] = {
    "run": "digits-3",
    "verdict": {"outcome": "failed", "exit_code": 1, "say": "rank 3 on node1 failed with exit code 3"},
    "commit": "0123456789abcdef0123456789abcdef01234567",
    "dirty": True,
    "provider": "runpod",
    "nodes": 2,
    "image": "pytorch:2.8",
    "torch": "2.13.0",
    "driver": "570.86",
    "before_s": 95.4,
    "duration_s": 3725.0,
    "rented": True,
    "cost": 4.5,
    "home": "/home/me/project/runs/digits-3",
    "missing": "node1 cannot be reached any more",
}


def test_a_job_that_never_had_a_run() -> None:
    assert format_cost_without_run(0.126) == "cost     about $0.13, for machines that went before there was a run"


def test_a_rented_run() -> None:
    assert format_receipt(RunRecord.parse(RENTED)) == [
        "run      digits-3",
        "code     commit 0123456789 with uncommitted changes",
        "where    2 nodes on runpod",
        "with     image pytorch:2.8, torch 2.13.0, driver 570.86",
        "time     1 h 02 min; 1:35 min billed before its launch",
        "cost     about $4.50",
        "results  /home/me/project/runs/digits-3",
        "not home node1 cannot be reached any more",
    ]


RECLAIMED = {**RENTED, "verdict": {"outcome": "reclaimed", "exit_code": 4, "say": "reclaimed by AWS at step 120"}}


@pytest.mark.parametrize(
    ("progress", "lost"),
    [
        ({"step": 120, "saved": 100}, ["lost     20 steps: from 100, its newest snapshot's, to 120"]),
        ({"step": 101, "saved": 100}, ["lost     1 step: from 100, its newest snapshot's, to 101"]),
        ({"step": 120, "saved": 120}, ["lost     nothing: its newest snapshot is of step 120"]),
        ({"step": 120}, []),
        ({}, []),
    ],
)
def test_what_a_reclaimed_run_has_lost(progress: dict[str, int], lost: list[str]) -> None:
    assert [
        line for line in format_receipt(RunRecord.parse({**RECLAIMED, "progress": progress})) if line.startswith("lost")
    ] == lost
    assert not any(
        line.startswith("lost") for line in format_receipt(RunRecord.parse({**RENTED, "progress": progress}))
    )


def test_this_machine_is_free_and_bills_nothing() -> None:
    local = {
        "provider": "local",
        "rented": False,
        "nodes": 1,
        "image": None,
        "driver": None,
        "cost": 0.0,
        "missing": "",
    }
    assert format_receipt(RunRecord.parse({**RENTED, **local, "dirty": False})) == [
        "run      digits-3",
        "code     commit 0123456789",
        "where    1 node on local",
        "with     torch 2.13.0",
        "time     1 h 02 min",
        "cost     free: this machine",
        "results  /home/me/project/runs/digits-3",
    ]


def test_a_cluster_that_stays_says_what_it_bills() -> None:
    bill = "lab goes on at $1.09/h: `gpuops down lab` ends it; it ends by itself at 08:53"
    lines = format_receipt(RunRecord.parse(RENTED), bill)
    at = lines.index(f"bills    {bill}")
    assert lines[at - 1].startswith("cost ")
    assert lines[:at] + lines[at + 1 :] == format_receipt(RunRecord.parse(RENTED))


@pytest.mark.parametrize(
    ("hosts", "where"),
    [
        (["root@10.0.0.5", "root@10.0.0.6"], "where    2 nodes on root@10.0.0.5, root@10.0.0.6"),
        (["a", "b", "c", "d", "e", "f"], "where    2 nodes on a, b, c, d and 2 more"),
        ([], "where    2 nodes on ssh"),
        (None, "where    2 nodes on ssh"),
        ("damaged", "where    2 nodes on ssh"),
    ],
)
def test_ones_own_hosts_are_named(hosts: object, where: str) -> None:
    assert where in format_receipt(RunRecord.parse({**RENTED, "provider": "ssh", "nodes": 2, "hosts": hosts}))


def test_what_is_not_known_is_not_made_up() -> None:
    assert format_receipt(RunRecord.parse({})) == ["code     no git commit"]


@pytest.mark.parametrize("name", list(RENTED))
def test_each_fact_may_be_missing(name: str) -> None:
    assert format_receipt(RunRecord.parse({**RENTED, name: None}))


def test_a_price_that_is_not_known_is_not_free() -> None:
    assert "cost     not known" in format_receipt(RunRecord.parse({**RENTED, "cost": None}))


def test_the_code_of_a_workload_is_ours() -> None:
    said = format_receipt(
        RunRecord.parse({**RENTED, "request": {"workload": "digits"}, "gpuops": "0.1.0", "commit": None})
    )
    assert "code     gpuops 0.1.0, workload digits" in said


LOSS = {"run": "toy-1", "cluster": "lab", "place": "here", "step": 7, "steps_lost": 2, "gap_s": 9.0, "cost": 1.0}
DAMAGED: list[Any] = [True, "x", math.inf, math.nan, -1, 10**400, [], [1], ["x"], {"a": 1}]


@pytest.mark.parametrize("value", DAMAGED, ids=[repr(value)[:9] for value in DAMAGED])
def test_no_damage_of_a_record_keeps_the_rest_from_being_shown(value: Any) -> None:
    whole = {**RECLAIMED, "progress": {"step": 9, "saved": 7}, "retries": [LOSS], "hosts": ["a"], "payer": None}
    damaged = [
        *({**whole, name: value} for name in whole if name != "run"),
        *({**whole, "retries": [{**LOSS, name: value}]} for name in LOSS),
        *({**whole, "progress": {"step": 9, "saved": 7, name: value}} for name in ("step", "saved")),
    ]
    for document in damaged:
        assert format_receipt(RunRecord.parse(document))[0] == "run      digits-3", document
