"""What a request may have of a PBS cluster, and why it is refused, in PBS's own words and in ours."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpuops.core.errors import NoCapacity, ProviderError, QuotaExceeded, Rejected, Unknown, UsageError
from gpuops.core.models import Request
from provisioners.batch.request import JobShape
from provisioners.pbs.options import parse_wishes
from provisioners.pbs.site import describe_nodes, explain_refusal, parse_site, shape_job


def node(state: str = "free", **more: Any) -> dict[str, Any]:
    has = {"arch": "linux", "mem": "526385152kb", "ncpus": 64, "ngpus": 4, "gpu_model": "v100", **more}
    return {"Mom": "c1", "state": state, "pcpus": 64, "resources_available": has}


QUEUES = {
    "workq": {"queue_type": "Execution", "enabled": "True", "resources_default": {"walltime": "00:30:00"}},
    "gpu": {"resources_max": {"walltime": "72:00:00"}, "kill_delay": 20, "enabled": "True"},
    "old": {"enabled": "False"},
}
NODES = {"c1": node(), "c2": node("job-busy", ngpus=8), "m1": node(ngpus=0, gpu_model="", ncpus=32)}
SITE = parse_site(
    json.dumps({"Queue": QUEUES})
    + "\n\n===\n" + json.dumps({"Server": {"pbs": {"default_queue": "workq"}}})
    + "\n\n===\n" + json.dumps({"nodes": NODES})
)  # fmt: skip


def shape(nodes: int = 2, gpus: int | None = None, hours: float | None = None, **words: object) -> JobShape:
    options = {name.replace("_", "-"): value for name, value in words.items()}
    return shape_job(parse_wishes(Request("pbs", nodes=nodes, gpus=gpus, max_hours=hours, options=options)), SITE)


def test_what_was_not_asked_for_is_chosen() -> None:
    """All GPUs that every node has, the cores and the memory that belong to them, and the queue's time."""
    found = shape(select_extra=["gpu_model=v100"])
    assert (found.queue, found.gpus, found.cpus, found.walltime_s) == ("workq", 4, 32, 1800.0)
    assert found.words == [
        "-l", "select=2:ncpus=32:mpiprocs=1:ngpus=4:mem=257024mb:gpu_model=v100", "-l", "place=scatter",
        "-l", "walltime=0:30:00",
    ]  # fmt: skip
    assert found.say == "2 nodes of queue workq with 4 GPUs and 32 cores each, for 30 min from the job's start"


def test_what_was_asked_for_is_kept() -> None:
    found = shape(1, 2, 1.0, queue="gpu", account="a", cpus=7, mem="64gb", qsub_arg=["-lsoftware=x"])
    assert found.words == [
        "-l", "select=1:ncpus=7:mpiprocs=1:ngpus=2:mem=64gb", "-l", "place=scatter", "-l", "walltime=1:00:00",
        "-q", "gpu", "-A", "a", "-lsoftware=x",
    ]  # fmt: skip


def test_a_cluster_that_tells_nothing_of_its_nodes_is_believed() -> None:
    site = parse_site(json.dumps({"Queue": QUEUES}) + "\n\n===\n\n===\n")
    request = Request("pbs", nodes=9, gpus=8, options={"queue": "gpu"})
    assert shape_job(parse_wishes(request), site).words[1] == "select=9:ncpus=1:mpiprocs=1:ngpus=8"


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(Rejected) as no_queue:
        shape(queue="nope")
    assert no_queue.value.hint == "name one with --queue: workq, gpu"
    with pytest.raises(Rejected, match="queue old takes no jobs now"):
        shape(queue="old")
    with pytest.raises(Rejected, match="queue gpu gives a job 72 h 00 min"):
        shape(queue="gpu", hours=100.0)
    with pytest.raises(NoCapacity, match="queue workq has only 1 node with all that is asked for, and the job needs 2"):
        shape(gpus=8)
    for more in ({"select_extra": ["gpu_model=a100"]}, {"mem": "503gb"}):
        with pytest.raises(NoCapacity, match="no node with all"):
            shape(**more)
    with pytest.raises(Rejected, match="a job of 3 min leaves no time for a run"):
        shape(hours=0.05)


@pytest.mark.parametrize(
    "options",
    [
        {"queue": " "}, {"cpus": 0}, {"select-extra": ["v100"]}, {"select-extra": ["ngpus=3"]},
        {"select-extra": ["a=1+2:ncpus=3"]}, {"qsub-arg": ["x"]}, {"qsub-arg": ["-Nx"]}, {"qsub-arg": ["-hNx"]},
        {"qsub-arg": ["-lselect=9"]}, {"qsub-arg": ["-l select=9"]}, {"qsub-arg": ["-lsoftware=x,walltime=9:00:00"]},
        {"qsub-arg": ["-Wblock=true"]},
    ],
)  # fmt: skip
def test_options_that_make_no_sense(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        parse_wishes(Request("pbs", options=options))


@pytest.mark.parametrize("word", ["-lsoftware=x", "-h", "-p-5", "-Wumask=077", "-P proj"])
def test_what_is_handed_on(word: str) -> None:
    assert parse_wishes(Request("pbs", options={"qsub-arg": [word]})).raw == [word]


@pytest.mark.parametrize(
    ("said", "kind", "message"),
    [
        ("qsub: Unknown queue", Rejected, "qsub refuses this queue: Unknown queue"),
        ("qsub: Job violates queue and/or server resource limits", QuotaExceeded,
         "a limit of the queue or of your account forbids this: Job violates queue and/or server resource limits"),
        ("Connection refused\nqsub: cannot connect to server pbs (errno=111)", Unknown,
         "the PBS server did not answer: cannot connect to server pbs (errno=111)"),
        ("qsub: Invalid account", Rejected, "qsub refuses: Invalid account"),
    ],
)  # fmt: skip
def test_a_refusal_in_plain_words(said: str, kind: type[ProviderError], message: str) -> None:
    error = explain_refusal(said, SITE)
    assert (type(error), error.message) == (kind, message)


def test_the_nodes_in_words() -> None:
    assert describe_nodes(SITE.nodes).startswith("1 node with 4 GPUs (gpu_model=v100), 64 cores, 502 GB (1 free) and ")
