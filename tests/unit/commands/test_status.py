"""The table of what is up: one calm line each, and which node is not as it should be."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gpuops.commands import status
from gpuops.core.context import Context
from gpuops.core.errors import LocalDisk
from gpuops.core.format import table
from gpuops.core.models import Lease
from gpuops.guard import guard_heartbeat
from gpuops.ledger.rows import ClusterState, RunState

HERE = status.ClusterReport(
    name="lab", provider="ssh", nodes=["running"], virtual=0, state=status.ShownState.UP, run=None, age_s=5.0,
    created=1000.0, per_hour=0.0, spent=0.0, hard_end=None, idle_s=None, lease="no end", ephemeral=False, doing=None,
    why_ended={}, urls={}, folder="/here",
)  # fmt: skip


def cluster(**changed: Any) -> status.ClusterReport:
    return dataclasses.replace(HERE, **changed)


@pytest.mark.parametrize(
    ("ledger", "nodes", "expected"),
    [
        ("up", ["running", "running"], "up"),
        ("up", ["running", "unknown"], "partly up"),
        ("up", ["unknown", "unknown"], "out of reach"),
        ("up", ["ended", "ended"], "ended"),
        ("up", [], "up"),
        ("ending", ["running", "ended"], "ending"),
    ],
)
def test_what_the_machines_say_of_a_cluster(ledger: str, nodes: list[str], expected: str) -> None:
    assert status._cluster_state(ClusterState(ledger), nodes) == expected


def test_the_report_of_the_latest_run_is_named() -> None:
    assert status.cluster_lines([cluster(report="/p/runs/a-1/report.html")])[-1] == (
        "lab: report of its latest run: /p/runs/a-1/report.html"
    )


def test_the_table_names_the_node_that_is_missing() -> None:
    assert status.cluster_lines([]) == ["nothing is up"]
    assert "$" not in status.cluster_lines([cluster()])[0], "no price where nothing costs"
    away = cluster(state=status.ShownState.PARTLY_UP, nodes=["running", "unknown", "ended"])
    lines = status.cluster_lines([away, cluster()])
    assert [line.split()[0] for line in lines[:3]] == ["NAME", "lab", "lab"]
    assert lines[3:] == ["lab: node1 does not answer, node2 has ended"]


RENTED = {"provider": "runpod", "per_hour": 3.94, "spent": 8.2, "age_s": 7500.0, "hard_end": 87400.0, "idle_s": 1800.0}


def test_what_a_rented_cluster_has_cost_and_when_it_ends() -> None:
    doing = status.LiveRun(run="digits-3", state=RunState.RUNNING, ranks=4, for_s=720.0, silent_s=3.0)
    assert status.cluster_lines([cluster(**RENTED, doing=doing), cluster(name="here", idle_s=600.0)], 80) == [
        "NAME  PROVIDER  NODES  STATE  AGE         $/H    COST   ENDS",
        "lab   runpod    1      up     2 h 05 min  $3.94  $8.20  in 21 h 55 min",
        "here  ssh       1      up     5 s         -      free   10 min idle",
        "lab: digits-3 runs for 12 min on 4 ranks, last line 3 s ago",
        "lab: ends after 30 min without use, too",
    ]


@pytest.mark.parametrize(
    ("state", "left_s", "ends"),
    [("up", 70.0, "in 1:10 min"), ("up", -70.0, "overdue by 1:10 min"), ("ended", -70.0, "in 0 s")],
)
def test_what_has_outlived_its_lease_is_overdue(state: str, left_s: float, ends: str) -> None:
    """Neither its nodes nor the guard have ended it."""
    late = cluster(state=status.ShownState(state), age_s=100.0, hard_end=HERE.created + 100.0 + left_s)
    assert status._format_end(late) == ends


def test_who_has_no_guard_that_works_is_named(world: Context) -> None:
    """That one is started for it does not suffice."""
    row = world.ledger.intend(provider="local", name="lab", folder=world.folder, ephemeral=True, token="t", request={},
                              boot_deadline=0.0, lease=Lease(), owner_process=world.me, now=0.0)  # fmt: skip

    def fail(*_: object) -> None:
        raise LocalDisk("the guard of lab ended at once: No module named 'filelock'", "look")

    world.services = dataclasses.replace(world.services, ensure_guard=fail)
    guard_heartbeat.lock_path(world.home, row.id)
    why = "the guard of lab ended at once: No module named 'filelock'"
    assert [*status.describe_missing_guards(world)] == [(f"no guard works for lab: {why}", "look")]
    last = guard_heartbeat.start(world.home, row, {})
    assert [*status.describe_missing_guards(world)] == []
    guard_heartbeat.beat(world.home, row.id, dataclasses.replace(last, failures=4))
    ((say, _),) = status.describe_missing_guards(world)
    assert say == "the guard of lab works in vain: its last 4 attempts failed"


def test_where_its_open_ports_are() -> None:
    urls = {"node0": ["https://p1-6006.example.org", "https://p1-8888.example.org"], "node1": ["https://p2"]}
    assert status.cluster_lines([cluster(urls=urls)])[2:] == [
        "lab: node0 shows https://p1-6006.example.org", "lab: node0 shows https://p1-8888.example.org",
        "lab: node1 shows https://p2",
    ]  # fmt: skip


def test_what_is_not_ready_yet_says_what_it_is_at() -> None:
    waits = cluster(state=status.ShownState.CREATING, phase="queued: Priority, starts about 14:20")
    assert status.cluster_lines([waits])[2:] == ["lab: queued: Priority, starts about 14:20"]


def test_a_cluster_of_a_run_ends_with_it() -> None:
    ends = [
        status._format_end(cluster(**lease)) for lease in ({}, {"ephemeral": True}, {"ephemeral": True, "idle_s": 60.0})
    ]
    assert ends == ["by hand", "with its run", "1 min idle"]


@pytest.mark.parametrize(
    ("doing", "note"),
    [
        ({"state": RunState.STARTING, "ranks": None, "silent_s": None}, "x-1 is being prepared for 1:10 min"),
        ({"state": RunState.RUNNING, "ranks": 1, "silent_s": None}, "x-1 runs for 1:10 min on 1 rank, no line yet"),
        ({"state": RunState.RUNNING, "ranks": None, "silent_s": 65.0}, "x-1 runs for 1:10 min, last line 1:05 min ago"),
    ],
)
def test_what_a_run_is_at(doing: dict[str, Any], note: str) -> None:
    assert status.cluster_lines([cluster(doing=status.LiveRun(run="x-1", for_s=70.0, **doing))])[-1] == f"lab: {note}"


def test_every_run_of_an_array_is_shown() -> None:
    first, last = (status.LiveRun(f"x-{n}", RunState.RUNNING, None, 70.0, None) for n in (1, 2))
    assert status.cluster_lines([cluster(doing=last, beside=[first])])[-2:] == [
        "lab: x-1 runs for 1:10 min, no line yet",
        "lab: x-2 runs for 1:10 min, no line yet",
    ]


def test_a_narrow_terminal_is_spared_what_it_can_do_without_and_no_name_is_cut() -> None:
    long = cluster(name="a-name-of-twenty-4-chars", state=status.ShownState.OUT_OF_REACH, **RENTED)
    assert len(status.cluster_lines([long])[1]) > 90
    assert status.cluster_lines([long], 80)[:2] == [
        "NAME                      NODES  STATE         AGE         COST   ENDS",
        "a-name-of-twenty-4-chars  1      out of reach  2 h 05 min  $8.20  in 21 h 55 min",
    ]
    assert status.cluster_lines([long], 20)[0].split() == ["NAME", "NODES", "STATE", "COST", "ENDS"]


def test_a_table_is_cut_in_one_column_alone() -> None:
    rows = [
        ["RUN", "WHAT CAME OF IT", "RESULTS"],
        ["digits-1", "rank 3 on node1 failed with exit code 1", "runs/digits-1"],
    ]
    assert table(rows, 50, gives=1)[1] == "digits-1  rank 3 on node1 failed w…  runs/digits-1"
    assert table(rows, 10, gives=1)[1] == "digits-1  rank 3 on node1…  runs/digits-1"
    assert table(rows)[1] == "  ".join(rows[1])
    assert table(rows, 30, gives=1, spare=("RESULTS", "RUN"))[1] == "digits-1  rank 3 on node1 fai…"
    assert table(rows, 20, gives=1, spare=("RUN",))[1] == "rank 3 on node1…  runs/digits-1"


def test_what_providers_list_on_a_narrow_terminal() -> None:
    one = status.CloudResource(
        provider="ssh", mark="gpuops-me-lab-0", id="lab-0", kind="machine", state="running", per_hour=0.0, bills=False,
        known=True, owner="me",
    )  # fmt: skip
    report = status.CloudReport([one], [], [])
    assert status.cloud_lines(report, 40) == [
        "MARK             STATE    IN THE LEDGER",
        "gpuops-me-lab-0  running  yes",
    ]
    assert len(status.cloud_lines(report)[1]) > 40
