"""The page about a run: whole, and without a word of a node that a browser would obey."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from gpuops.core.run_models import Verdict, VerdictOutcome
from gpuops.runs.report.curves import Curve, NodeUsage
from gpuops.runs.report.page import COLOUR_CLASSES, STYLE, Story, render
from gpuops.runs.report.phases import Phase
from gpuops.runs.report.svg import Line

HOSTILE = "</style><script src=https://evil.example>alert(1)</script><img src=x onerror=alert(1)>\x1b[2J\"'&"
LINES = [Line(HOSTILE, [(0.0, 1.0), (10.0, 2.0)]), Line("b", [(0.0, 2.0)])]
STORY = Story(
    run="digits-3",
    verdict=Verdict(VerdictOutcome.FAILED, 1, HOSTILE, HOSTILE, tail=HOSTILE),
    rows=[("command", HOSTILE), (HOSTILE, "x")],
    phases=[Phase("train", 0.0, 3600.0, 4.98)],
    per_hour=4.98,
    curves=[Curve(HOSTILE, LINES, "step")],
    usage=[NodeUsage(0, LINES, LINES, LINES, LINES)],
    made=10_000.0,
    version="1.0",
    is_cut=True,
)
ALLOWED = {
    "html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "pre", "table", "tr", "th", "td", "svg",
    "g", "rect", "path", "line", "text", "span", "footer",
}  # fmt: skip


def elements_of(page: str) -> list[ElementTree.Element]:
    """As strict as a parser can be: every tag closed in its order, every `<` and `&` escaped."""
    doctype, _, document = page.partition("\n")
    assert doctype == "<!doctype html>"
    return list(ElementTree.fromstring(document).iter())


def test_nothing_of_what_is_told_becomes_an_element() -> None:
    page = render(STORY)
    elements = elements_of(page)
    assert {element.tag for element in elements} <= ALLOWED
    names = {name for element in elements for name in element.attrib}
    assert not {name for name in names if name.startswith("on") or name in ("href", "src", "style")}
    assert "\x1b" not in page


def test_it_needs_nothing_from_elsewhere() -> None:
    page = render(STORY)
    assert "default-src 'none'" in page
    assert not re.findall(r"url\(|@import|xlink|://(?!evil)", page)


LIGHT, DARK = (dict(re.findall(r"--(\w+):#(\w+)", theme)) for theme in re.findall(r"(?s):root\{(.*?)\}", STYLE))


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_every_colour_can_be_read_in_both_themes(theme: dict[str, str]) -> None:
    """The contrast that WCAG 2.2 asks of text (AA)."""
    used = set(re.findall(r"var\(--(\w+)\)", STYLE + COLOUR_CLASSES))
    assert used == theme.keys()
    page = luminance(theme["page"])
    for name in used - {"page", "line"}:  # the grid's lines are only decoration
        low, high = sorted((page, luminance(theme[name])))
        assert (high + 0.05) / (low + 0.05) >= 4.5, name


def luminance(colour: str) -> float:
    """Of `fff` or `1f2328`, from 0 to 1."""
    parts = re.findall("..", colour if len(colour) == 6 else "".join(2 * digit for digit in colour))
    shares = [int(part, 16) / 255 for part in parts]
    linear = [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]
    return sum(weight * share for weight, share in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_what_it_tells() -> None:
    page = render(STORY)
    for part in ("Where 1 h 00 min, $4.98 went", "What it learnt", "What node0 used", "GPU power", "does not show all"):
        assert part in page, part
    assert page.count("<svg") == 6


def test_a_run_of_which_little_is_known() -> None:
    page = render(Story("r-1", None, [], [], 0.0, [], [], 0.0, "1.0"))
    assert elements_of(page)
    assert "it goes on" in page
    assert "<svg" not in page
