"""Which file of which node travels, and where it lies: decided without a disk."""

from __future__ import annotations

import pytest

from gpuops.sync import download_plan
from gpuops.sync.merged_outputs_record import Memory, choose_places


@pytest.mark.parametrize(
    ("sums", "expected"),
    [
        ({0: "A"}, {"A": "p"}),
        ({2: "A"}, {"A": "p"}),
        ({0: "A", 1: "A", 2: "A"}, {"A": "p"}),
        ({0: "A", 1: "B"}, {"A": "p", "B": "node1/p"}),
        ({1: "B", 2: "B", 0: "A"}, {"A": "p", "B": "node1/p"}),
        ({0: "A", 1: "B", 2: "A", 3: "C"}, {"A": "p", "B": "node1/p", "C": "node3/p"}),
    ],
)
def test_which_bytes_have_which_place(sums: dict[int, str], expected: dict[str, str]) -> None:
    assert choose_places("p", sums) == expected


def test_batches_are_bounded_and_keep_a_path_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_plan, "MAX_BATCH_BYTES", 10)
    todo: download_plan.Todo = {"a": {0: (6, 1), 1: (6, 1)}, "b": {0: (4, 1)}, "c": {0: (4, 1)}, "d": {0: (4, 1)}}
    assert [sorted(batch) for batch in download_plan.batches(todo)] == [["a"], ["b", "c"], ["d"]]
    monkeypatch.setattr(download_plan, "MAX_BATCH_FILES", 1)
    assert [sorted(batch) for batch in download_plan.batches(todo)] == [["a"], ["b"], ["c"], ["d"]]


def test_only_what_may_be_equal_is_summed_on_the_node() -> None:
    batch: download_plan.Todo = {"alone": {0: (5, 1)}, "other": {0: (5, 1), 1: (6, 1)}, "same": {0: (5, 1), 1: (5, 2)}}
    assert download_plan.possible_duplicates(batch, Memory()) == {0: ["same"], 1: ["same"]}


def test_small_files_come_after_the_large_ones_that_they_may_name() -> None:
    size = download_plan.MAX_SMALL_BYTES + 1
    todo: download_plan.Todo = {"a": {0: (1, 1)}, "b": {0: (size, 1), 1: (1, 1)}, "c": {0: (size, 1)}}
    assert [list(batch) for batch in download_plan.batches(todo)] == [["b", "c"], ["a"]]
