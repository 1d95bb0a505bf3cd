"""What doctor tells of a cluster, from what OpenPBS prints."""

from __future__ import annotations

import json
from typing import Any

import pytest

from provisioners.pbs.site import Site, parse_site
from provisioners.pbs.survey import Person, limits_of, may_use, parse_person, survey_site

ALICE = Person("alice", ["phys", "staff"])
QUEUES: dict[str, Any] = {
    "route": {"queue_type": "Route", "route_destinations": "gpu,cpu", "enabled": "True"},
    "gpu": {
        "queue_type": "Execution", "enabled": "True", "started": "True",
        "resources_max": {"nodect": 4, "walltime": "48:00:00"}, "resources_default": {"walltime": "01:00:00"},
        "default_chunk": {"Qlist": "gpuq", "ncpus": 8, "mem": "2gb"},
        "max_run": "[u:PBS_GENERIC=4], [u:alice=2]", "max_run_res": {"ngpus": "[g:phys=16],[o:PBS_ALL=64]"},
    },
    "vip": {"enabled": "True", "default_chunk": {"Qlist": "gpuq"}, "acl_user_enable": "True", "acl_users": "+bob@*"},
    "cpu": {"enabled": "True", "default_chunk": {"Qlist": "cpuq"}},
    "old": {"enabled": "False"},
}  # fmt: skip


def node(state: str, used: int = 0, gpus: int = 4, queue: str = "gpuq,other") -> dict[str, Any]:
    has = {"mem": "512gb", "ncpus": 64, "ngpus": gpus, "Qlist": queue, **({"gpu_type": "a100"} if gpus else {})}
    return {"state": state, "resources_available": has, "resources_assigned": {"ngpus": used, "ncpus": 16 * used}}


NODES = {
    "g1": node("free", 1), "g2": node("job-busy", 4), "g3": node("job-exclusive", 1), "g4": node("down,offline"),
    "g5": node("<various>", 2), "m1": node("free", gpus=0, queue="cpuq"),
}  # fmt: skip


def site(nodes: dict[str, Any] | None = None, **server: Any) -> Site:
    parts = [
        {"pbs_version": "23.06.06", "Queue": QUEUES},
        {"Server": {"pbs": {"default_queue": "route", **server}}},
        {"nodes": NODES if nodes is None else nodes},
    ]
    return parse_site("\n\n===\n".join(map(json.dumps, parts)))


def said(its: Site) -> list[str]:
    return [f"{fact.what}: {fact.say}" for fact in survey_site(its, ALICE)]


def test_what_there_is_and_what_is_free() -> None:
    """GPUs of a node that is down, or that one job has as a whole, are not free; a queue has the nodes of its Qlist."""
    have = "5 nodes with 4 GPUs (gpu_type=a100), 64 cores, 512 GB (1 free); 5 of 20 GPUs free now"
    assert said(site())[:3] == [
        "cluster: PBS 23.06.06, 5 queues, without GPUs: cpu, closed now: old; route hands jobs on to gpu,cpu",
        f"queue: queue gpu: {have}; a job may take 48 h 00 min, 1 h 00 min without --max-hours, at most 4 nodes",
        f"queue: queue vip: {have}; a job may take as long as it likes; not for you (acl_users or acl_groups)",
    ]


def test_nodes_that_nobody_may_see() -> None:
    assert "queue: queue cpu: its nodes are not told; 0 of 0 GPUs free now; a job may take" in said(site({}))[3]


def test_the_limits_that_count_for_this_user() -> None:
    """One by name goes before the one for everybody else; another group's is nobody's here."""
    assert said(site(max_queued="[g:chem=1],[u:PBS_GENERIC=20]", max_group_run=9))[3:] == [
        "limits: the whole cluster: you 20 jobs in the queue, your group 9 jobs at once",
        "limits: queue gpu: you 2 jobs at once, your group phys 16 GPUs at once, all users 64 GPUs at once",
    ]
    assert limits_of({"max_run": "[u:'bob the builder'=3]"}, Person("bob the builder", [])) == ["you 3 jobs at once"]
    (nothing,) = [fact.say for fact in survey_site(parse_site('{"Queue": {}}'), ALICE)][1:]
    assert nothing == "PBS tells of no limits of your account"


@pytest.mark.parametrize(
    ("kind", "entries", "expected"),
    [
        ("user", "alice@login.hpc,bob", True),
        ("user", "bob", False),
        ("user", "+*@hpc,-alice@*", False),
        ("group", "chem,staff", True),
        ("group", "", False),
    ],
)
def test_a_queue_for_some(kind: str, entries: str, expected: bool) -> None:
    assert may_use({f"acl_{kind}_enable": "True", f"acl_{kind}s": entries}, ALICE) is expected
    assert may_use({f"acl_{kind}_enable": "False", f"acl_{kind}s": entries}, ALICE)


def test_who_asks() -> None:
    assert parse_person("alice\nphys staff\n") == ALICE
    assert parse_person("") == Person("", [])
