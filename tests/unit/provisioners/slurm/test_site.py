"""What a request may have of a Slurm cluster, and why it is refused, in Slurm's own words and in ours."""

from __future__ import annotations

import pytest

from gpuops.core.errors import NoCapacity, ProviderError, QuotaExceeded, Rejected, Unknown, UsageError
from gpuops.core.models import Request
from provisioners.batch.request import JobShape
from provisioners.slurm.limits import parse_limits
from provisioners.slurm.options import parse_wishes
from provisioners.slurm.site import describe_nodes, explain_refusal, parse_site, shape_job

SITE = parse_site("""\
node|c1|gpu*|gpu:h100:4|idle|64|500000|ib
node|c2|gpu*|gpu:h100:8|alloc|64|500000|ib
node|c1|small|gpu:h100:4|idle|64|500000|ib
node|m1|cpu|(null)|idle|32|250000|(null)
partition|PartitionName=gpu DefaultTime=NONE MaxTime=2-00:00:00
partition|PartitionName=small DefaultTime=00:10:00 MaxTime=01:00:00
partition|PartitionName=cpu DefaultTime=NONE MaxTime=02:00:00
partition|PartitionName=strict DefaultTime=00:01:00 MaxTime=1-00:00:00
partition|PartitionName=debug DefaultTime=00:05:00 MaxTime=00:05:00
killwait|30
cluster|lab
enforced|associations,limits,qos
""")


def shape(
    gpus: int | None = None, gpu_type: str | None = None, hours: float | None = None, **words: object
) -> JobShape:
    options = {name.replace("_", "-"): value for name, value in words.items()}
    request = Request("slurm", nodes=2, gpus=gpus, gpu_type=gpu_type, max_hours=hours, options=options)
    return shape_job(parse_wishes(request), SITE)


def test_what_was_not_asked_for_is_chosen() -> None:
    """All GPUs that every node has, the cores that belong to them, and a short time."""
    assert (SITE.kill_wait_s, SITE.signals_descendants) == (30.0, False)
    assert (SITE.cluster, SITE.enforces_limits) == ("lab", True)
    assert not parse_site("enforced|associations").enforces_limits
    found = shape()
    assert (found.queue, found.gpus, found.cpus, found.walltime_s) == ("gpu", 4, 32, 4 * 3600.0)
    assert found.words == [
        "--partition=gpu", "--nodes=2", "--ntasks-per-node=1", "--cpus-per-task=32", "--time=4:00:00", "--gres=gpu:4",
    ]  # fmt: skip
    assert found.say.startswith("2 nodes of partition gpu with 4 GPUs and 32 cores each, for 4 h 00 min")


def test_what_was_asked_for_is_kept() -> None:
    found = shape(2, "h100", 10.0, cpus=7, account="a", mem="64G", sbatch_arg=["--exclusive"])
    assert found.words[3:] == [
        "--cpus-per-task=7", "--time=10:00:00", "--gres=gpu:h100:2", "--account=a", "--mem=64G", "--exclusive",
    ]  # fmt: skip


def test_a_partition_has_times_of_its_own() -> None:
    assert shape(partition="small").walltime_s == 600.0
    assert (shape(partition="cpu").walltime_s, shape(partition="cpu").gpus) == (7200.0, 0)
    with pytest.raises(Rejected, match="partition small gives a job 1 h 00 min"):
        shape(partition="small", hours=2.0)


def test_a_default_that_is_too_short_for_any_run_is_not_taken() -> None:
    """Sites have one of a minute, so that everybody says how long."""
    assert shape(partition="strict").walltime_s == 4 * 3600.0
    with pytest.raises(Rejected, match="a job of 5 min leaves no time for a run") as refused:
        shape(partition="debug")
    assert refused.value.hint == "take another --partition"


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(Rejected) as no_partition:
        shape(partition="nope")
    assert no_partition.value.hint == "name one with --partition: gpu, small, cpu, strict, debug"
    with pytest.raises(Rejected, match="no node of partition gpu has a GPU that Slurm calls a100") as no_type:
        shape(gpu_type="a100")
    assert no_type.value.hint == "types here: h100"


@pytest.mark.parametrize(
    "word",
    ["x", "--job-name=x", "--job-n=x", "-Jx", "-HJx", "-N9", "-a0-3", "--array=0-3", "-Mother", "--clusters=other",
     "--cluster=other", "-W", "--wait", "--requeue", "--ntasks=9", "-n9", "--test-only", "--"],
)  # fmt: skip
def test_what_would_make_another_job_of_it(word: str) -> None:
    """Or one of another name, or in another cluster: nobody would find and end it."""
    with pytest.raises(UsageError, match="cannot be"):
        parse_wishes(Request("slurm", options={"sbatch-arg": [word]}))


@pytest.mark.parametrize("word", ["--exclusive", "--wait-all-nodes=1", "--nodelist=c1", "--hold", "-H", "-wc1", "-pM"])
def test_what_is_handed_on(word: str) -> None:
    assert parse_wishes(Request("slurm", options={"sbatch-arg": [word]})).raw == [word]


@pytest.mark.parametrize("options", [{"partition": " "}, {"cpus": 0}])
def test_options_that_make_no_sense(options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        parse_wishes(Request("slurm", options=options))


def test_a_machine_is_not_chosen_as_a_rented_one_is() -> None:
    with pytest.raises(UsageError, match="--region"):
        parse_wishes(Request("slurm", region="x"))


LIMITS = parse_limits("assoc|proj1|gpu|normal,high||||||\nassoc|proj2||normal||||||\n")


@pytest.mark.parametrize(
    ("said", "kind", "message", "hint"),
    [
        (
            "sbatch: error: invalid partition specified: nope\nallocation failure: Invalid partition name specified",
            Rejected,
            "there is no partition",
            "there are: gpu, small, cpu, strict, debug",
        ),
        (
            "allocation failure: Invalid account or account/partition combination specified",
            Rejected,
            "account a may not be used in this partition",
            "yours: proj1, proj2; --account",
        ),
        (
            "allocation failure: Invalid qos specification",
            Rejected,
            "qos q may not be used",
            "yours: normal, high; --qos",
        ),
        (
            "allocation failure: Invalid feature specification",
            Rejected,
            "no node has what --constraint h200 asks for",
            "there are: ib",
        ),
        (
            "allocation failure: Requested node configuration is not available",
            NoCapacity,
            "partition gpu can never have this job: Requested node configuration is not available",
            f"it has {describe_nodes(SITE, 'gpu')}; ask for less, or another --partition",
        ),
        (
            "allocation failure: Requested reservation is invalid",
            Rejected,
            "reservation r cannot be used",
            "see which there are: scontrol show reservation",
        ),
        (
            "allocation failure: Job violates accounting/QOS policy (job submit limit)",
            QuotaExceeded,
            "sbatch refuses: Job violates accounting/QOS policy (job submit limit)",
            "ask for less, or another --qos or --account",
        ),
        (
            "sbatch: error: QOSMaxSubmitJobPerUserLimit\nallocation failure: Job violates accounting/QOS policy (…)",
            QuotaExceeded,
            "sbatch refuses: the QOS's limit on submitted jobs for one user forbids this (QOSMaxSubmitJobPerUserLimit)",
            "ask for less, or another --qos or --account",
        ),
        (
            "sbatch: error: Unable to contact slurm controller (connect failure)",
            Unknown,
            "Slurm's controller did not answer: Unable to contact slurm controller (connect failure)",
            "try again in a minute",
        ),
        (
            "sbatch: unrecognized option '--wat'\nTry \"sbatch --help\" for more information",
            Rejected,
            "sbatch refuses: sbatch: unrecognized option '--wat'",
            "see what it means for this cluster, or change the request",
        ),
    ],
)
def test_a_refusal_in_plain_words(said: str, kind: type[ProviderError], message: str, hint: str) -> None:
    words = {"account": "a", "qos": "q", "constraint": "h200", "reservation": "r"}
    error = explain_refusal(said, parse_wishes(Request("slurm", options=words)), SITE, LIMITS)
    assert type(error) is kind
    assert error.message.strip() == message
    assert error.hint == hint


def test_the_nodes_in_words() -> None:
    assert describe_nodes(SITE, "gpu") == (
        "1 node with 4 h100 GPUs, 64 cores, 500000 MB (1 idle) and "
        "1 node with 8 h100 GPUs, 64 cores, 500000 MB (0 idle)"
    )
