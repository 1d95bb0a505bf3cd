"""The picture that `gpuops top` draws."""

from __future__ import annotations

import dataclasses
import io
import json
import re

import pytest
from msgspec import structs
from rich.console import Console

from gpuops.commands.top import NodeView, TopReport
from gpuops.commands.top_table import draw_to_fit, text_lines
from gpuops.transport.usage_schemas import GpuUse, NodeSample, RankUse, RunUse

GPUS = [
    GpuUse(0, 97.0, 41234.0, 81559.0, 61.0, 412.33),
    GpuUse(1, 0.0, 3.0, 81559.0, 29.0, 68.1),
    GpuUse(2, None, 20000.0, 40960.0, 55.0, None),
    GpuUse(3),
]
RANKS = [
    RankUse(0, 12345, 1.01, 2_100_000_000, 1_234_567, 1234.5, 0.04, 12.5),
    RankUse(1023, 4194304, 12.5, 999_900_000_000, None, None, None),
]
SAMPLE = NodeSample(
    at=1.0, cores=128, cpu=80.6, memory=(412_000_000_000, 2_050_000_000_000), net=(1_234_567.0, 999.0),
    disk=(0.0, 340_000_000.0), gpus=GPUS, run=RunUse("digits-3", RANKS),
)  # fmt: skip
LOST = NodeView(None, lost_since=990.0, why="node1 has not answered 'sample' for 10 s " + "and so on " * 20)
REPORT = TopReport(
    name="lab", provider="runpod", now=1000.0, per_hour=49.84, spent=1234.5, hard_end=8200.0, run="digits-3",
    run_since=280.0, nodes=[NodeView(SAMPLE), LOST, NodeView()],
)  # fmt: skip


def test_all_of_it_fits_80_columns() -> None:
    lines = text_lines(REPORT, 80)
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines[:11] if line.endswith("…")], "nothing is cut that a person looks for"
    text = "\n".join(lines)
    for part in ("$49.84/h, $1,234.50 so far", "ends in 2 h 00 min", "digits-3 for 12 min", "CPU  63% of 128 cores",
                 "412 W", "61°C", " 12.5  1,234,567", "4194304", "97%", "4%"):  # fmt: skip
        assert part in text, part
    assert "\x1b" not in text


def test_a_node_that_does_not_answer_says_since_when_and_the_others_go_on() -> None:
    lines = text_lines(REPORT, 80)
    at = next(index for index, line in enumerate(lines) if "node1 does not answer since" in line)
    assert lines[at].endswith("(10 s ago)")
    assert "has not answered 'sample'" in lines[at + 1]
    assert "node2 has not answered yet" in lines


def test_a_gpu_whose_memory_is_less_than_a_byte() -> None:
    sample = NodeSample(at=1.0, cores=1, gpus=[GpuUse(0, memory_mb=1.0, memory_total_mb=1e-9)])
    assert "0 B" in "".join(text_lines(dataclasses.replace(REPORT, nodes=[NodeView(sample)]), 80))


@pytest.mark.parametrize("width", [20, 40, 200])
def test_other_widths(width: int) -> None:
    assert max(map(len, text_lines(REPORT, width))) <= width


@pytest.mark.parametrize(
    ("nodes", "shows", "lacks"),
    [(1, "1,234,567", "taller"), (3, "412 W", "1,234,567"), (16, "3 GPUs  65%", "412 W")],
)
def test_as_much_as_the_terminal_has_lines_for(nodes: int, shows: str, lacks: str) -> None:
    sample = dataclasses.replace(REPORT, nodes=[NodeView(structs.replace(SAMPLE, gpus=[*GPUS[:2], GPUS[0]]))] * nodes)
    console = Console(file=io.StringIO(), width=80, height=24, color_system=None)
    picture = draw_to_fit(sample, console)
    lines = ["".join(part.text for part in line) for line in console.render_lines(picture)]
    assert len(lines) <= 24
    text = "\n".join(lines)
    assert shows in text
    assert lacks not in text
    assert "q ends it" in text


@pytest.mark.parametrize("no_color", ["", "1"])
def test_the_screen_has_colours_unless_a_person_wants_none(monkeypatch: pytest.MonkeyPatch, no_color: str) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    console = Console(file=io.StringIO(), width=80, height=60, force_terminal=True, color_system="standard")
    with console.capture() as caught:
        console.print(draw_to_fit(REPORT, console))
    assert bool(re.search(r"\x1b\[[\d;]*\b[34]\dm", caught.get())) is not bool(no_color)


def test_what_is_free_and_idle() -> None:
    calm = dataclasses.replace(REPORT, per_hour=0.0, spent=0.0, hard_end=None, run=None, run_since=None, nodes=[])
    assert text_lines(calm, 80) == ["lab  runpod · 0 nodes · free", "no run is going on"]


def test_the_document() -> None:
    document = json.loads(json.dumps(REPORT.document()))
    first, second, _ = document["nodes"]
    assert first["sample"]["run"]["ranks"][0]["data_wait"] == 0.04
    assert (second["sample"], second["lost_since"]) == (None, 990.0)


def test_of_an_array_all_runs_that_are_on_are_named() -> None:
    array = dataclasses.replace(REPORT, beside=["digits-1", "digits-2"])
    assert "digits-3 for 12 min; beside it digits-1, digits-2" in text_lines(array, 80)
    assert array.document()["beside"] == ["digits-1", "digits-2"]
