"""The page: HTML with its style and charts in it, nothing from elsewhere and no script. Pure.

What a node, a log or a name says is escaped (`svg.text_of`); the page's own policy lets a browser load nothing.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from gpuops.core.format import clock_time, money, span
from gpuops.core.run_models import Verdict, VerdictOutcome
from gpuops.runs.report.curves import Curve, NodeUsage
from gpuops.runs.report.phases import Phase
from gpuops.runs.report.svg import Line, Segment, format_number, line_chart, phase_bar, text_of

POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
PERCENT = 100.0
STYLE = """
:root{color-scheme:light dark;--page:#fff;--text:#1f2328;--faint:#656d76;--line:#d8dee4;--good:#1a7f37;--bad:#cf222e;
--c0:#0969da;--c1:#bc4c00;--c2:#1a7f37;--c3:#8250df;--c4:#bf3989;--c5:#9a6700;--c6:#0a7d8c;--c7:#57606a}
@media(prefers-color-scheme:dark){:root{--page:#0d1117;--text:#e6edf3;--faint:#8b949e;--line:#30363d;--good:#3fb950;
--bad:#f85149;--c0:#58a6ff;--c1:#f0883e;--c2:#3fb950;--c3:#bc8cff;--c4:#f778ba;--c5:#d29922;--c6:#39c5cf;--c7:#8b949e}}
body{background:var(--page);color:var(--text);font:15px/1.5 system-ui,sans-serif;max-width:760px;margin:2rem auto;
padding:0 1rem;overflow-wrap:anywhere}
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}h3{font-size:.9rem;margin:1rem 0 .2rem}
table{border-collapse:collapse;width:100%}td,th{padding:.15rem .8rem .15rem 0;text-align:left;vertical-align:top}
th{font-weight:400;color:var(--faint);white-space:nowrap}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
.verdict{font-weight:600}.good{color:var(--good)}.bad{color:var(--bad)}.faint,footer{color:var(--faint)}
footer{margin-top:3rem;font-size:.85rem}
pre{overflow:auto;border:1px solid var(--line);border-radius:6px;padding:.8rem;font-size:.8rem}
svg{width:100%;height:auto;display:block}svg text{font-size:11px;fill:var(--faint)}.grid{stroke:var(--line)}
path{fill:none;stroke-width:1.5;stroke:currentColor}rect{fill:currentColor}svg g text{fill:var(--page)}
.legend{margin:.1rem 0;font-size:.8rem}.legend span{margin-right:1rem}.legend span:before{content:"\\25cf  "}
"""
COLOUR_CLASSES = "".join(f".c{index}{{color:var(--c{index})}}" for index in range(8))


@dataclass(frozen=True)
class Story:
    """All that the page tells."""

    run: str
    verdict: Verdict | None
    """None while the run goes on."""
    rows: Sequence[tuple[str, str]]
    """Label and text of each fact."""
    phases: Sequence[Phase]
    per_hour: float
    curves: Sequence[Curve]
    usage: Sequence[NodeUsage]
    made: float
    """When the page was made, UTC seconds."""
    version: str
    is_cut: bool = False
    """Whether there was not enough time to read all."""


def render(story: Story) -> str:
    """The HTML document."""
    body = [
        f"<h1>{text_of(story.run)}</h1>",
        _verdict(story.verdict),
        _facts(story.rows),
        _phases(story.phases, story.per_hour, story.made),
        *_curves(story.curves),
        *_usage(story.usage),
        _footer(story),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"/>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}"/>\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1"/>\n'
        f"<title>{text_of(story.run)}</title>\n<style>{STYLE}{COLOUR_CLASSES}</style></head>\n"
        f"<body>\n{chr(10).join(filter(None, body))}\n</body></html>\n"
    )


def _verdict(verdict: Verdict | None) -> str:
    if verdict is None:
        return '<p class="verdict">it goes on</p>'
    kind = "good" if verdict.outcome is VerdictOutcome.DONE else "bad"
    parts = [f'<p class="verdict {kind}">{text_of(verdict.say)}</p>']
    if verdict.hint:
        parts.append(f'<p class="faint">{text_of(verdict.hint)}</p>')
    if verdict.tail and verdict.exit_code:
        parts.append(f"<pre>{text_of(verdict.tail)}</pre>")
    return "".join(parts)


def _facts(rows: Sequence[tuple[str, str]]) -> str:
    cells = (f"<tr><th>{text_of(label)}</th><td>{text_of(text)}</td></tr>" for label, text in rows)
    return f"<table>{''.join(cells)}</table>"


def _phases(phases: Sequence[Phase], per_hour: float, now: float) -> str:
    if not phases:
        return ""
    segments, rows = [], []
    for phase in phases:
        cost = f", {money(phase.cost)}" if per_hour else ""
        segments.append(Segment(phase.name, phase.seconds, f"{phase.name}: {span(phase.seconds)}{cost}"))
        dollars = f'<td class="n">{money(phase.cost)}</td>' if per_hour else ""
        rows.append(
            f"<tr><td>{text_of(phase.name)}</td><td>{_clock(phase.began, now)}</td>"
            f'<td class="n">{span(phase.seconds)}</td>{dollars}</tr>'
        )
    head = '<tr><th></th><th>from</th><th class="n">took</th>' + '<th class="n">cost</th>' * bool(per_hour) + "</tr>"
    total = sum(phase.seconds for phase in phases)
    cost = f", {money(sum(phase.cost for phase in phases))}" if per_hour else ""
    title = f"<h2>Where {span(total)}{cost} went</h2>"
    return f"{title}{phase_bar(segments)}<table>{head}{''.join(rows)}</table>"


def _clock(when: float, now: float) -> str:
    """To the second: phases may be short."""
    return f"{text_of(clock_time(when, now))}:{time.localtime(when).tm_sec:02d}"


def _curves(curves: Sequence[Curve]) -> list[str]:
    charts = [
        f"<h3>{text_of(curve.title)} <span class='faint'>by {text_of(curve.x)}</span></h3>{chart}"
        for curve in curves
        if (chart := line_chart(curve.lines, format_number))
    ]
    return ["<h2>What it learnt</h2>", *charts] if charts else []


def _usage(usage: Sequence[NodeUsage]) -> list[str]:
    parts: list[str] = []
    for node in usage:
        drawn: list[tuple[str, Sequence[Line], float | None, str]] = [
            ("processor and memory", node.machine, PERCENT, "%"),
            ("GPU use", node.gpus, PERCENT, "%"),
            ("GPU memory", node.gpu_memory, PERCENT, "%"),
            ("GPU power", node.power, None, " W"),
        ]
        charts = [
            f"<h3>{title}</h3>{chart}"
            for title, lines, top, unit in drawn
            if (chart := line_chart(lines, span, top, unit))
        ]
        parts += [f"<h2>What node{node.node} used</h2>", *charts] if charts else []
    return parts


def _footer(story: Story) -> str:
    cut = (
        " It does not show all that is home: gpuops report makes it anew, and reads for up to a minute." * story.is_cut
    )
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(story.made))
    return (
        f"<footer>Made by gpuops {text_of(story.version)}, {made}. Times are those of the computer that made it; "
        f"dollars are estimates until the provider bills.{cut}</footer>"
    )
