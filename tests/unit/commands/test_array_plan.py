"""`--array`: its grammar, the nodes that its runs share, and what is told at the end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuops.commands.array_plan import (
    Array,
    IndexOutcome,
    choose_slots,
    describe_outcomes,
    documents,
    format_indices,
    parse_array,
    request_of_index,
    summarise,
)
from gpuops.core.errors import UsageError
from gpuops.core.run_models import RunRequest

SINGLE = RunRequest(kind="torchrun", mode="single", nodes=1, gpus=1, script="train.py", argv=["--seed", "{index}"])
MULTIGPU = replace(SINGLE, mode="multigpu", gpus=None)
MULTINODE = replace(SINGLE, mode="multinode", nodes=2, gpus=None)


@pytest.mark.parametrize(
    ("text", "indices", "at_most"),
    [
        ("0-9", [*range(10)], None),
        ("1,3,7", [1, 3, 7], None),
        ("7,1-3", [7, 1, 2, 3], None),
        ("0-15:4", [0, 4, 8, 12], None),
        ("0-9%4", [*range(10)], 4),
        ("0-9%" + "9" * 5000, [*range(10)], 999_999_999),
        (" 1, 3 - 4 % 2 ", [1, 3, 4], 2),
        ("5", [5], None),
        ("3-3", [3], None),
        ("0-999", [*range(1000)], None),
        ("900000000-900000001", [900000000, 900000001], None),
    ],
)
def test_the_grammar_is_slurms(text: str, indices: list[int], at_most: int | None) -> None:
    assert parse_array(text) == Array(text, indices, at_most)


@pytest.mark.parametrize(
    ("text", "say"),
    [
        ("", "--array is empty"),
        ("a", "names no indices with 'a'"),
        ("0-", "names no indices with '0-'"),
        ("-1", "names no indices with '-1'"),
        ("3,,4", "names no indices"),
        ("٣", "names no indices"),
        ("1 3", "names no indices with '1 3'"),
        ("0-9%1 2", "does not say how many may run at once"),
        ("9-3", "9-3 is empty"),
        ("0-9:0", "0-9:0 is empty"),
        ("1,1", "has 1 twice"),
        ("0,0", "has 0 twice"),
        ("0-5,3", "has 3 twice"),
        ("0-1000", "is more than 1000 runs"),
        ("0-999999999", "is more than 1000 runs"),
        ("0-9%0", "does not say how many may run at once"),
        ("0-9%", "does not say how many may run at once"),
        ("0-9%x", "does not say how many may run at once"),
    ],
)
def test_what_is_no_array_is_refused_in_a_sentence(text: str, say: str) -> None:
    with pytest.raises(UsageError, match=say) as caught:
        parse_array(text)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("gpus", "request_", "array", "slots"),
    [
        ([0], SINGLE, "0-9", [[0]]),
        ([0, 0], SINGLE, "0-9", [[0], [1]]),
        ([0, 0, 0], SINGLE, "0-9%2", [[0], [1]]),
        ([0, 0, 0], SINGLE, "0-1", [[0], [1]]),
        ([4], SINGLE, "0-9", [[0], [1], [2], [3]]),
        ([4, 2], SINGLE, "0-9", [[0], [1], [2], [3]]),
        ([8], replace(MULTIGPU, gpus=3), "0-9", [[0], [1]]),
        ([2], replace(MULTIGPU, gpus=4), "0-9", [[0]]),
        ([8, 8], MULTIGPU, "0-9", [[0], [1]]),
        ([8] * 5, MULTINODE, "0-9", [[0, 1], [2, 3]]),
        ([8] * 4, MULTINODE, "0-9%1", [[0, 1]]),
        ([8], MULTINODE, "0-9", [[0, 1]]),
    ],
)
def test_runs_share_the_nodes(gpus: list[int], request_: RunRequest, array: str, slots: list[list[int]]) -> None:
    """The last is one machine for runs on two nodes: virtual ones, one run after another."""
    assert [[*slot] for slot in choose_slots(gpus, request_, parse_array(array))] == slots


@pytest.mark.parametrize("text", ["0-3", "1,3,5-6", "7", "0,2,4-9"])
def test_the_indices_to_start_again_are_an_array(text: str) -> None:
    assert format_indices([*parse_array(text).indices][::-1]) == text


def test_each_run_has_its_index_and_its_nodes() -> None:
    one = request_of_index(SINGLE, 7, [3])
    assert (one.argv, one.nodes, one.nodes_at, one.array_index) == (["--seed", "7"], 1, [3], 7)
    assert RunRequest.parse(one.document()) == one
    assert request_of_index(replace(SINGLE, argv=["a{index}b-{index}", "{other}"]), 0, [0]).argv == ["a0b-0", "{other}"]


OUTCOMES = [
    IndexOutcome(0, 0, "the run ended well", "train-1", 12.4, "runs/train-1", {"run": "train-1", "home": "/p"}),
    IndexOutcome(3, 1, "rank 0 on node0 failed with exit code 3", "train-2", 1.0, "runs/train-2", {"run": "train-2"}),
    IndexOutcome(4, 4, "not started: no node of it is left"),
]


def test_the_end_is_a_table() -> None:
    assert describe_outcomes(OUTCOMES, None) == [
        "INDEX  RUN      SECONDS  RESULTS       WHAT CAME OF IT",
        "0      train-1  12       runs/train-1  the run ended well",
        "3      train-2  1        runs/train-2  rank 0 on node0 failed with exit code 3",
        "4      -        -        -             not started: no node of it is left",
    ]
    assert all(len(line) <= 50 for line in describe_outcomes(OUTCOMES, 50))
    assert summarise(OUTCOMES) == "2 of 3 runs of the array did not end well\nhint: again: --array 3-4"
    assert summarise(OUTCOMES[:1]) == "1 run of the array ended well"
    assert [(one["index"], one["run"], one["exit_code"]) for one in documents(OUTCOMES)] == [
        (0, "train-1", 0), (3, "train-2", 1), (4, None, 4),
    ]  # fmt: skip
