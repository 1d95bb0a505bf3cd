"""Charts of a report."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from gpuops.runs.report.svg import (
    MAX_POINTS,
    Line,
    Segment,
    format_number,
    line_chart,
    phase_bar,
    powers_of_ten,
    thin_out,
    ticks,
)


def paths(chart: str) -> list[str]:
    ElementTree.fromstring(f"<div>{chart}</div>")
    return re.findall(r' d="([^"]*)"', chart)


def test_a_line_from_left_to_right_with_a_gap() -> None:
    points = [(0.0, 1.0), (1.0, 3.0), (2.0, math.nan), (3.0, 2.0), (4.0, math.inf)]
    [path] = paths(line_chart([Line("", points)], format_number))
    assert path.count("M") == 2
    assert path.count("L") == 1
    xs = [float(x) for x in re.findall(r"[ML]([\d.]+) ", path)]
    assert xs == sorted(xs)


@pytest.mark.parametrize(
    "points",
    [
        [(0.0, 5.0)],
        [(0.0, 0.0), (1.0, 0.0)],
        [(1.0, 2.0), (1.0, 3.0)],
        [(0.0, -1e300), (1.0, 1e300)],
        [(0.0, 1.383e-321), (1.0, 5.35e-321)],
        [(0.0, 0.0), (1.0, 1.0), (2.0, -1.7e308), (3.0, 1.7e308)],
    ],
)
def test_what_has_no_extent(points: list[tuple[float, float]]) -> None:
    [path] = paths(line_chart([Line("one", points)], format_number))
    assert path.startswith("M")
    assert "nan" not in path


def test_a_loss_over_many_powers_of_ten() -> None:
    chart = line_chart([Line("", [(0.0, 2.0), (1.0, 2e-3), (2.0, 2e-6)])], format_number)
    heights = [float(y) for y in re.findall(r"[ML][\d.]+ ([\d.]+)", paths(chart)[0])]
    assert heights[1] - heights[0] == pytest.approx(heights[2] - heights[1], abs=0.2)
    assert ">0.001</text>" in chart
    assert powers_of_ten(2e-6, 2.0) == pytest.approx([1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0])


def test_nothing_to_draw() -> None:
    assert line_chart([], format_number) == ""
    assert line_chart([Line("x", [(0.0, math.nan)])], format_number) == ""
    assert phase_bar([]) == ""


def test_foreign_names_are_text() -> None:
    chart = line_chart([Line('"><script>\x1b[2J', [(0.0, 1.0), (1.0, 2.0)]), Line("b", [(0.0, 1.0)])], format_number)
    assert len(paths(chart)) == 2
    assert "<script" not in chart
    assert "\x1b" not in chart


def test_many_points_keep_their_extremes() -> None:
    points = [(float(x), 100.0 if x == 7777 else -5.0 if x == 1234 else math.sin(x)) for x in range(100_000)]
    kept = thin_out(points)
    assert len(kept) <= MAX_POINTS + 2
    assert {(7777.0, 100.0), (1234.0, -5.0)} <= set(kept)
    assert kept == sorted(kept)


def test_round_numbers_along_an_axis() -> None:
    assert ticks(0.0, 100.0) == [0.0, 50.0, 100.0]
    assert ticks(0.13, 0.87) == [pytest.approx(0.2), pytest.approx(0.4), pytest.approx(0.6), pytest.approx(0.8)]
    assert ticks(1.0, 1.0) == []


def test_a_phase_that_took_no_time_is_still_seen() -> None:
    bar = phase_bar([Segment("train", 3600.0, "train: 60 min"), Segment("end", 0.0, "end: 0 s")])
    widths = [float(width) for width in re.findall(r'<rect x="[\d.]+" y="0" width="([\d.]+)"', bar)]
    assert widths[0] > 600
    assert widths[1] > 2
