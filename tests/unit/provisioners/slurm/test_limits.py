"""What an account may have, from what sacctmgr prints, and what of a job is refused for it before it is submitted."""

from __future__ import annotations

import pytest

from gpuops.core.errors import QuotaExceeded
from gpuops.core.models import Request
from provisioners.slurm.commands import Partition
from provisioners.slurm.limits import describe_limits, parse_limits, refuse_excess
from provisioners.slurm.options import parse_wishes
from provisioners.slurm.site import parse_site, shape_job

SITE = parse_site("""\
node|c1|gpu*|gpu:h100:8|idle|64|500000|ib
node|c2|gpu*|gpu:h100:8|idle|64|500000|ib
partition|PartitionName=gpu DefaultTime=01:00:00 MaxTime=UNLIMITED
""")
TOLD = """\
given||
default|optics
assoc|optics||long,normal|normal|4||2-00:00:00||
assoc|optics|debug|normal||||||
assoc|teaching||normal||||||gres/gpu=2
account|root||
account|physics|root|cpu=256,gres/gpu=24
account|optics|physics|
account|teaching|physics|
account|chemistry|root|gres/gpu=1
qos|normal|||||||
qos|long||2||7-00:00:00|node=4,gres/gpu:h100=12|gres/gpu=16|
qos|others|DenyOnLimit|1|||||
"""


def described(text: str) -> list[str]:
    return [fact.say for fact in describe_limits(parse_limits(text))]


def test_the_limits_of_accounts_those_above_them_and_qos() -> None:
    assert described(TOLD) == [
        "account optics (the default): qos long,normal, jobs at once 4, time 2-00:00:00",
        "account optics (the default): partition debug, qos normal",
        "account teaching: qos normal, for all its users gres/gpu=2",
        "account physics, with all below it: for all its users cpu=256,gres/gpu=24",
        "qos long: jobs at once 2, time 7-00:00:00, per job node=4,gres/gpu:h100=12, at once gres/gpu=16",
    ]


def test_limits_that_nobody_may_read() -> None:
    refused = "untold|You are not running a supported accounting_storage plugin\nuntold|Again\n"
    assert described(refused) == [
        "what limits your account has cannot be read: You are not running a supported accounting_storage plugin"
    ]
    assert described("") == ["what limits your account has cannot be read: sacctmgr names no account of yours"]
    assert described("assoc|half\nassoc|\nqos|x|y\n") == described(""), "what has other columns is nothing"


def refusal(text: str, partition_qos: str = "", /, **asked: object) -> str:
    words = ("account", "cpus", "qos", "sbatch_arg")
    options = {word.replace("_", "-"): asked.pop(word) for word in words if word in asked}
    wishes = parse_wishes(Request("slurm", options=options, **asked))  # type: ignore[arg-type]
    try:
        refuse_excess(parse_limits(text), wishes, shape_job(wishes, SITE), Partition("gpu", None, None, partition_qos))
    except QuotaExceeded as error:
        return f"{error.message}; {error.hint}"
    return ""


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"max_hours": 48.0}, ""),
        (
            {"max_hours": 60.0},
            "account optics gives a job 48 h 00 min, and this one asks for 60 h 00 min; --max-hours 48, or",
        ),
        ({"max_hours": 60.0, "qos": "long"}, ""),  # a QOS's own comes before the account's
        ({"nodes": 3, "gpus": 8}, ""),
        ({"nodes": 4, "gpus": 8}, "account physics gives all its users together 24 GPUs, and this job asks for 32"),
        ({"nodes": 2, "gpus": 8, "qos": "long"}, ""),  # typed, and no type was asked for
        (
            {"nodes": 2, "gpus": 8, "qos": "long", "gpu_type": "h100"},
            "qos long gives a job 12 h100 GPUs, and this job asks for 16",
        ),
        ({"nodes": 3, "gpus": 8, "qos": "long"}, "qos long gives one user 16 GPUs, and this job asks for 24"),
        ({"nodes": 5, "gpus": 1, "qos": "long"}, "qos long gives a job 4 nodes, and this job asks for 5"),
        ({"gpus": 4, "account": "teaching"}, "account teaching gives all its users together 2 GPUs"),
        ({"nodes": 3, "gpus": 1, "cpus": 128}, "account physics gives all its users together 256 cores"),
        ({"nodes": 4, "gpus": 8, "sbatch_arg": ["--account=chemistry"]}, ""),  # whose limits these are is not known
        ({"nodes": 3, "gpus": 1, "cpus": 128, "sbatch_arg": ["-c1"]}, ""),  # nor how much is asked for
        ({"nodes": 4, "gpus": 8, "sbatch_arg": ["--exclusive"]}, "account physics gives"),
        ({"nodes": 4, "gpus": 8, "account": "unknown"}, ""),  # sbatch says that
    ],
)
def test_what_would_wait_for_ever_is_refused(asked: dict[str, object], why: str) -> None:
    said = refusal(TOLD, **asked)
    assert said.startswith(why)
    assert bool(said) is bool(why)


def test_a_partitions_qos_comes_first_unless_the_jobs_own_does() -> None:
    part = "qos|part|||||gres/gpu=4||\n"
    assert refusal(TOLD + part, "part", gpus=8).startswith("qos part gives a job 4 GPUs")
    over = "qos|over|OverPartQOS||||gres/gpu=8||\n"
    assert refusal(TOLD + part + over, "part", gpus=8, qos="over") == ""


def test_what_the_login_nodes_variables_name() -> None:
    given = TOLD.replace("given||", "given|teaching|long")
    assert refusal(given, gpus=4).startswith("account teaching gives all its users together 2 GPUs")
    assert refusal(given, max_hours=60.0, gpus=1) == "", "the qos of SBATCH_QOS"


def test_accounts_that_are_their_own_parents_have_an_end() -> None:
    assert described("assoc|a||n||||||\naccount|a|b|\naccount|b|a|cpu=1\n") == [
        "account a: qos n",
        "account b, with all below it: for all its users cpu=1",
    ]
