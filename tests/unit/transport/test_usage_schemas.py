"""What a node says of its use is believed only in its shape."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpuops.core.errors import MalformedAnswer
from gpuops.transport.validation import parse_message, parse_usage

SAMPLE: dict[str, Any] = {
    "at": 1.0, "cores": 4, "cpu": 1.5, "memory": [1, 2], "net": [0.0, None], "disk": None,
    "gpus": [{"index": 0, "use": None}], "run": {"name": "r-1", "ranks": [{"rank": 0, "pid": 7}]}, "new": "ignored",
}  # fmt: skip


def parsed(**changed: Any) -> Any:
    return parse_message("node0", "sample", json.dumps({"id": 1, "item": {**SAMPLE, **changed}}).encode())


def test_a_sample_of_an_agent() -> None:
    kind, sample = parsed()
    assert kind == "item"
    assert (sample.gpus[0].use, sample.run.ranks[0].step, sample.net) == (None, None, (0.0, None))


@pytest.mark.parametrize(
    "changed",
    [{"cores": 0}, {"cpu": -1.0}, {"memory": [1]}, {"gpus": [{"index": "\x1b[2J"}]}, {"at": "now"},
     {"run": {"name": 3, "ranks": []}}, {"run": {"name": "r", "ranks": [{"rank": 0}]}}],
)  # fmt: skip
def test_another_shape_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(MalformedAnswer):
        parsed(**changed)


def test_a_torn_line_of_the_record_is_left_out() -> None:
    assert parse_usage(b'{"at": 1.0, "co') is None
    assert parse_usage(b'{"at": 1.0, "cores": 2}') is not None
