"""The page about a run: whole, and without a word of a node that a browser would obey."""

from __future__ import annotations

from html.parser import HTMLParser

from gpuops.core.run_models import Verdict, VerdictOutcome
from gpuops.runs.report.curves import Curve, NodeUsage
from gpuops.runs.report.page import Story, render
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
VOID = {"meta", "rect", "path", "line"}


class Elements(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def test_nothing_of_what_is_told_becomes_an_element() -> None:
    page = render(STORY)
    elements = Elements(page)
    assert elements.open == []
    assert {tag for tag, _ in elements.seen} <= ALLOWED
    names = {name for _, attributes in elements.seen for name in attributes}
    assert not {name for name in names if name.startswith("on") or name in ("href", "src", "style")}
    assert "\x1b" not in page


def test_it_needs_nothing_from_elsewhere_and_knows_both_themes() -> None:
    page = render(STORY)
    assert "default-src 'none'" in page
    assert "prefers-color-scheme:dark" in page
    assert "url(" not in page


def test_what_it_tells() -> None:
    page = render(STORY)
    for part in ("Where 1 h 00 min, $4.98 went", "What it learnt", "What node0 used", "GPU power", "does not show all"):
        assert part in page, part
    assert page.count("<svg") == 6


def test_a_run_of_which_little_is_known() -> None:
    page = render(Story("r-1", None, [], [], 0.0, [], [], 0.0, "1.0"))
    assert Elements(page).open == []
    assert "it goes on" in page
    assert "<svg" not in page
