"""What doctor tells of a cluster, from what Slurm prints."""

from __future__ import annotations

from provisioners.batch.survey import modules_with_torch
from provisioners.slurm.limits import parse_limits
from provisioners.slurm.site import parse_site
from provisioners.slurm.survey import survey_site

SITE = parse_site("""\
node|c1|gpu*|gpu:h100:4(S:0-1)|mix|64|500000|ib
node|c2|gpu*|gpu:h100:4(S:0-1)|idle|64|500000|ib
node|c3|gpu*|gpu:h100:4(S:0-1)|drain|64|500000|ib
node|c4|gpu*|gpu:h100:4(S:0-1)|idle*|64|500000|ib
node|m1|cpu|(null)|idle|32|250000|(null)
partition|PartitionName=gpu DefaultTime=01:00:00 MaxTime=2-00:00:00
partition|PartitionName=cpu DefaultTime=NONE MaxTime=UNLIMITED
""")
SURVEY = """\
version|slurm 22.05.8
used|c1                              gpu:h100:3(IDX:0-2)
used|c2                              gpu:h100:0(IDX:N/A)
"""


def said(text: str) -> list[str]:
    return [f"{fact.what}: {fact.say}" for fact in survey_site(SITE, text, parse_limits(""))]


def test_what_there_is_and_what_is_free() -> None:
    """GPUs of a node that is drained, or does not respond, are not free."""
    first, second, third = said(SURVEY)
    assert first == "cluster: Slurm 22.05.8, 2 partitions, of which without GPUs: cpu"
    assert second == (
        "partition: partition gpu (the default): 4 nodes with 4 h100 GPUs, 64 cores, 500000 MB (2 idle); "
        "5 of 16 GPUs free now; a job may take 48 h 00 min, 1 h 00 min without --max-hours"
    )
    assert third.startswith("limits: what limits your account has cannot be read"), "see test_limits.py"


def test_modules_with_torch() -> None:
    listed = "module: yes\n/apps/torch-modules:\ngcc/13.2\npytorch/2.1\nPyTorch/2.4.0(default)\ntorchvision/\n"
    (fact,) = modules_with_torch(listed)
    assert fact.say == "modules with torch: pytorch/2.1, PyTorch/2.4.0"
    assert fact.hint == "to use one: --prelude 'module load PyTorch/2.4.0'"
    assert [one.say for one in modules_with_torch("module: yes\ngcc/13.2\n")] == [
        "no module here has torch in its name"
    ]
    assert modules_with_torch("bash: no such thing, torch\n") == []
    assert len(modules_with_torch(f"module: yes\n{'torch' * 200_000}!\n")) == 1  # in linear time
