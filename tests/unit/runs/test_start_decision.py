"""Where ranks would begin, from what earlier runs left on each node: the decision, as a table."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gpuops.agent.files.output_files import compile_patterns
from gpuops.runs.start_decision import EarlierFile, decide_start, may_be_resumed, may_go_on
from gpuops.sync.download import DEFAULT_OUTS

RUNS = ("one-1", "two-1", "two-2")
"""The oldest first."""


def has(**runs: str) -> dict[str, EarlierFile]:
    """Files of one node: name (`__` is a dot, `_on_` a slash) -> the run that made it."""
    return {
        name.replace("_on_", "/").replace("__", "."): EarlierFile(5, 1, run.rstrip("*"), run.endswith("*"))
        for name, run in runs.items()
    }


@dataclass(frozen=True)
class Row:
    name: str
    nodes: tuple[dict[str, EarlierFile], ...]
    files: tuple[str, ...] = ()
    uneven: tuple[tuple[str, str, int, tuple[int, ...]], ...] = ()
    """Path, run, a node that has it, the nodes that lack it."""
    is_one_state: bool = True
    outdated: tuple[str, ...] = ()


TABLE = (
    Row("nothing", ({}, {})),
    Row("one node, one snapshot", (has(snapshot__pt="one-1"),), ("snapshot.pt",)),
    Row("of a run on node0, and node1 is new", (has(snapshot__pt="one-1"), {}), ("snapshot.pt",),
        (("snapshot.pt", "one-1", 0, (1,)),)),
    Row("rank 0 alone has saved, on two nodes", (has(snapshot__pt="two-1"), {}), ("snapshot.pt",),
        (("snapshot.pt", "two-1", 0, (1,)),)),
    Row("the same, after node1 was given the one before", (has(snapshot__pt="two-2"), has(snapshot__pt="two-1*")),
        ("snapshot.pt",), (("snapshot.pt", "two-2", 0, (1,)),)),
    Row("node1 has the newer one", (has(snapshot__pt="one-1"), has(snapshot__pt="two-1")), ("snapshot.pt",),
        (("snapshot.pt", "two-1", 1, (0,)),)),
    Row("every node wrote its own in one run", (has(snapshot__pt="two-1"), has(snapshot__pt="two-1")),
        ("snapshot.pt",)),
    Row("put back on one, made on the other", (has(snapshot__pt="two-1"), has(snapshot__pt="two-1*")),
        ("snapshot.pt",)),
    Row("a third node came", (has(a__pt="two-1"), has(a__pt="two-1"), {}), ("a.pt",), (("a.pt", "two-1", 0, (2,)),)),
    Row("a file of each rank", (has(rank0__pt="two-1"), has(rank1__pt="two-1")), ("rank0.pt", "rank1.pt")),
    Row("of each rank, two on a node, after a resume",
        (has(r0__pt="two-2", r1__pt="two-2", r2__pt="two-1*"), has(r2__pt="two-2", r3__pt="two-2", r0__pt="two-1*")),
        ("r0.pt", "r1.pt", "r2.pt", "r3.pt")),
    Row("shards of a step lie where they belong, its index on node0 alone",
        (has(s10_on_s_0_0__distcp="two-1", s10_on___metadata="two-1"), has(s10_on_s_1_0__distcp="two-1")),
        ("s10/.metadata", "s10/s_0_0.distcp", "s10/s_1_0.distcp"), (("s10/.metadata", "two-1", 0, (1,)),)),
    Row("a step that one rank had not saved yet is no file of a rank",
        (has(s5__pt="two-1", s10__pt="two-1"), has(s5__pt="two-1")), ("s10.pt", "s5.pt"),
        (("s10.pt", "two-1", 0, (1,)),)),
    Row("the last step alone is kept, and they differ", (has(s10__pt="two-1"), has(s5__pt="two-1")),
        ("s10.pt", "s5.pt"), (("s10.pt", "two-1", 0, (1,)), ("s5.pt", "two-1", 1, (0,)))),
    Row("ranks of two runs are no set", (has(rank0__pt="two-1"), has(rank1__pt="two-2")), ("rank1.pt", "rank0.pt"),
        (("rank0.pt", "two-1", 0, (1,)), ("rank1.pt", "two-2", 1, (0,))), is_one_state=False),
    Row("a rank without a file of its own", (has(rank0__pt="two-1"), has(rank1__pt="two-1"), {}),
        ("rank0.pt", "rank1.pt"), (("rank0.pt", "two-1", 0, (1, 2)), ("rank1.pt", "two-1", 1, (0, 2)))),
    Row("parts of a model, each on its node", (has(encoder__pt="two-1"), has(decoder__pt="two-1")),
        ("decoder.pt", "encoder.pt"), (("decoder.pt", "two-1", 1, (0,)), ("encoder.pt", "two-1", 0, (1,)))),
    Row("two runs, and node0 has all of both", (has(a__pt="one-1", b__pt="two-1"), {}), ("b.pt", "a.pt"),
        (("a.pt", "one-1", 0, (1,)), ("b.pt", "two-1", 0, (1,)))),
    Row("two runs, each on another node", (has(a__pt="two-1"), has(b__pt="two-2")), ("b.pt", "a.pt"),
        (("a.pt", "two-1", 0, (1,)), ("b.pt", "two-2", 1, (0,))), is_one_state=False),
    Row("logs, curves and pictures", (
        has(events__out__tfevents__17__n0="two-1", train__log="two-1", loss__csv="two-1", out_on_loss__png="two-1"),
        has(events__out__tfevents__18__n1="two-1"))),
    Row("results that no script begins with", (has(outputs_on_x__npy="two-1", results_on_x__json="two-1"), {})),
    Row("a checkpoint is a folder of many names", (has(results_on_checkpoint_5_on_state__json="two-1"), {}),
        ("results/checkpoint_5/state.json",), (("results/checkpoint_5/state.json", "two-1", 0, (1,)),)),
    Row("of what was put on node1, a later run on node0 has removed the oldest", (
        has(s20__pt="two-1", s30__pt="two-2"), has(s10__pt="two-1*", s20__pt="two-1*")), ("s30.pt", "s20.pt"),
        (("s30.pt", "two-2", 0, (1,)),), outdated=("s10.pt",)),
    Row("put back on two nodes, and the third is new", (has(a__pt="one-1*"), has(a__pt="one-1*"), {}), ("a.pt",),
        (("a.pt", "one-1", 0, (2,)),)),
    Row("curves beside a snapshot of rank 0",
        (has(events__out__tfevents__1="two-1", a__pt="two-1"), has(events__out__tfevents__2="two-1")), ("a.pt",),
        (("a.pt", "two-1", 0, (1,)),)),
    Row("what was put there by hand, before any run", (has(weights__pt=""), {})),
    Row("by hand on both, and changed by a run on one", (has(a__pt="one-1"), has(a__pt="")), ("a.pt",),
        (("a.pt", "one-1", 0, (1,)),)),
    Row("a run that the ledger has lost", (has(a__pt="lost-9"), {})),
)  # fmt: skip


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row.name)
def test_where_ranks_would_begin(row: Row) -> None:
    start = decide_start(row.nodes, RUNS)
    assert tuple(path for path, _ in start.files) == row.files
    assert tuple((one.path, one.run, one.holders[0], one.lacking) for one in start.uneven) == row.uneven
    assert start.is_one_state is row.is_one_state
    assert tuple(one.path for one in start.outdated) == row.outdated


@pytest.mark.parametrize(
    ("line", "may"),
    [
        ("hostname", False),
        ("nvidia-smi --list-gpus", False),
        ("cat /etc/os-release", False),
        ("torchrun --standalone train.py 50 10", True),
        ("./run.sh", True),
        ("python3 -m my.train", True),
        ("/opt/env/bin/python3.11 -c pass", True),
    ],
)
def test_a_command_that_looks_at_a_node_goes_on_from_nothing(line: str, may: bool) -> None:
    assert may_go_on(line.split(), {"train.py", "run.sh"}) is may


@pytest.mark.parametrize(
    "path",
    [
        "snapshot.pt",
        "checkpoint.pth.tar",
        "my_model/checkpoint-500/trainer_state.json",
        "lightning_logs/version_0/checkpoints/epoch=1.ckpt",
        "step10/.metadata",
    ],
)
def test_what_known_programs_go_on_from_is_a_result_and_compared_without_out(path: str) -> None:
    assert compile_patterns(DEFAULT_OUTS)(path)
    assert may_be_resumed(path)
