"""Charts as SVG: lines over time or steps, and a bar of phases. Colours are the page's classes, so that they follow its
theme. Pure.

Written here, since the libraries that draw SVG weigh more than the page: matplotlib brings 50 MB to every install,
pygal scripts and styles of its own that know no theme.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from gpuops.core.format import calm, cut

WIDTH, HEIGHT = 720, 200
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 8, 24
MAX_POINTS = 500
"""More do not fit into the width: of what lies between, the lowest and the highest are drawn."""
COLOURS = 8
"""So many classes `c0`… the page has."""
MAX_NAME_CHARS = 40
LOG_FROM = 100.0
MAX_VALUE = 1e300
"""A larger number is a gap, as an infinite one: the distance of two would be infinite."""
BAR_HEIGHT = 26

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """One curve; NaN and values beyond `MAX_VALUE` are gaps."""

    name: str
    points: Sequence[Point]


def text_of(text: str) -> str:
    """Foreign text, safe in HTML and SVG."""
    return escape(calm(text))


def line_chart(lines: Sequence[Line], label_x: Callable[[float], str], top: float | None = None, unit: str = "") -> str:
    """The lines and their legend. `top`: the end of the vertical axis, which then begins at 0; without it, values over
    more than `LOG_FROM` times the lowest have a logarithmic one."""
    drawn = [Line(line.name, thin_out(line.points)) for line in lines]
    finite = [point for line in drawn for point in line.points if _is_drawn(point)]
    if not finite:
        return ""
    low_x, high_x = _range([x for x, _ in finite])
    low_y, high_y = (0.0, top) if top else _range([y for _, y in finite])
    scale = math.log10 if not top and 0 < low_y < high_y / LOG_FROM else float

    def place(x: float, y: float) -> Point:
        across = (x - low_x) / (high_x - low_x)
        up = (scale(min(max(y, low_y), high_y)) - scale(low_y)) / (scale(high_y) - scale(low_y))
        return LEFT + across * (WIDTH - LEFT - RIGHT), TOP + (1 - up) * (HEIGHT - TOP - BOTTOM)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">']
    for y in ticks(low_y, high_y) if scale is float else powers_of_ten(low_y, high_y):
        _, at = place(low_x, y)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{format_number(y)}{escape(unit)}</text>')
    for x in ticks(low_x, high_x, 6):
        at, _ = place(x, low_y)
        parts.append(f'<text x="{at:.1f}" y="{HEIGHT - 6}" text-anchor="middle">{text_of(label_x(x))}</text>')
    for index, line in enumerate(drawn):
        parts.append(f'<path class="c{index % COLOURS}" d="{_path(line.points, place)}"/>')
    return "".join([*parts, "</svg>", _legend(drawn)])


def _path(points: Sequence[Point], place: Callable[[float, float], Point]) -> str:
    steps, pen = [], "M"
    for point in points:
        if not _is_drawn(point):
            pen = "M"
            continue
        x, y = place(*point)
        steps.append(f"{pen}{x:.1f} {y:.1f}")
        pen = "L"
    if len(steps) == 1:
        steps.append("h1")  # one point would not be seen
    return "".join(steps)


def _is_drawn(point: Point) -> bool:
    return all(abs(value) <= MAX_VALUE for value in point)


def _legend(lines: Sequence[Line]) -> str:
    names = [f'<span class="c{index % COLOURS}">{text_of(cut(line.name, MAX_NAME_CHARS))}</span>'
             for index, line in enumerate(lines) if line.name]  # fmt: skip
    return f'<p class="legend">{"".join(names)}</p>' if names else ""


def thin_out(points: Sequence[Point]) -> Sequence[Point]:
    """At most `MAX_POINTS`: of each stretch its lowest and its highest point, in their order."""
    if len(points) <= MAX_POINTS:
        return points
    size = math.ceil(2 * len(points) / MAX_POINTS)
    kept: list[Point] = []
    for begin in range(0, len(points), size):
        stretch = points[begin : begin + size]
        known = [point for point in stretch if math.isfinite(point[1])] or stretch[:1]
        ends = (min(known, key=lambda point: point[1]), max(known, key=lambda point: point[1]))
        kept += sorted(set(ends))
    return kept


def _range(values: Sequence[float]) -> Point:
    """From the lowest to the highest, never empty."""
    low, high = min(values), max(values)
    if high > low:
        return low, high
    return low - (abs(low) / 2 or 0.5), high + (abs(high) / 2 or 0.5)


def ticks(low: float, high: float, most: int = 4) -> list[float]:
    """Round numbers between two ends: multiples of 1, 2 or 5 times a power of ten."""
    raw = (high - low) / most
    if not 1 / MAX_VALUE < raw < MAX_VALUE:
        return []
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)][: 2 * most]


def powers_of_ten(low: float, high: float, most: int = 6) -> list[float]:
    """Those between two ends, evenly apart."""
    exponents = range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    return [10.0**exponent for exponent in exponents[:: math.ceil(len(exponents) / most) or 1]]


def format_number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 and abs(value) < 1e6 else f"{value:.3g}"


@dataclass(frozen=True)
class Segment:
    """A part of the bar of phases. `label` stands in it where there is room, `tip` appears over it."""

    label: str
    seconds: float
    tip: str


def phase_bar(segments: Sequence[Segment]) -> str:
    """All of them side by side, as long as they took; what took next to nothing is still to be seen."""
    least = 0.006 * sum(segment.seconds for segment in segments)
    lengths = [max(segment.seconds, least) for segment in segments]
    total = sum(lengths)
    if not total:
        return ""
    parts, x = [f'<svg viewBox="0 0 {WIDTH} {BAR_HEIGHT}" role="img">'], 0.0
    for index, (segment, length) in enumerate(zip(segments, lengths, strict=True)):
        width = WIDTH * length / total
        label = text_of(segment.label) if width > 8 * len(segment.label) else ""
        parts.append(
            f'<g class="c{index % COLOURS}"><title>{text_of(segment.tip)}</title>'
            f'<rect x="{x:.1f}" y="0" width="{width:.1f}" height="{BAR_HEIGHT}"/>'
            f'<text x="{x + width / 2:.1f}" y="{BAR_HEIGHT / 2 + 4}" text-anchor="middle">{label}</text></g>'
        )
        x += width
    return "".join([*parts, "</svg>"])
