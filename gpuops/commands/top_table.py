"""What `gpuops top` shows, drawn by rich: a heading, and for each node its machine, its GPUs and its ranks. Pure.

A terminal of 80 columns has room for all of it; on a narrower one texts are cut at their end.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from gpuops.core.format import ago, amount, clock_time, first_few, money, plural, span

if TYPE_CHECKING:
    from gpuops.commands.top import NodeView, TopReport
    from gpuops.transport.usage_schemas import GpuUse, NodeSample, RankUse, Rates

BAR_CHARS = 20
MIB = 1 << 20
IDLE_PERCENT, BUSY_PERCENT = 10.0, 80.0
FULL = 0.95
"""Memory of which so much is in use is shown in red."""
FADED = "dim"
DEFAULT_WIDTH = 80
RANKS_MAX = 64
"""So many ranks of a node are listed: a screen has no more lines."""

BESIDE_MAX = 4
"""So many of an array's other runs are named."""


class Detail(Enum):
    """How much is drawn of each node."""

    RANKS = "its ranks, too"
    GPUS = "a line for each GPU"
    NODES = "one line"


def draw(report: TopReport, foot: str = "", detail: Detail = Detail.RANKS) -> RenderableType:
    """The picture; `foot` stands below it."""
    parts: list[RenderableType] = [_heading(report)]
    for index, node in enumerate(report.nodes):
        is_first = index == 0 or detail is not Detail.NODES
        parts += [*([Text()] if is_first else []), *_node(f"node{index}", node, report.now, detail)]
    return Group(*parts, *([Text(), Text(foot, FADED)] if foot else []))


def draw_to_fit(report: TopReport, console: Console) -> RenderableType:
    """As much of it as fits the height of the terminal."""
    picture = draw(report, "q ends it")
    for detail, missing in ((Detail.GPUS, "ranks"), (Detail.NODES, "GPUs and ranks")):
        if len(console.render_lines(picture, pad=False)) <= console.height:
            break
        picture = draw(report, f"q ends it; a taller terminal shows {missing}, and so does --once", detail)
    return picture


def text_lines(report: TopReport, width: int | None, *, colour: bool = False) -> list[str]:
    """The same as lines of text."""
    console = Console(
        file=io.StringIO(),
        width=width or DEFAULT_WIDTH,
        color_system="standard" if colour else None,
        force_terminal=colour,
        legacy_windows=False,
        highlight=False,
    )
    with console.capture() as caught:
        console.print(draw(report))
    return [line.rstrip() for line in caught.get().splitlines()]


def _heading(report: TopReport) -> Text:
    cost = f"{money(report.per_hour)}/h, {money(report.spent)} so far" if report.per_hour else "free"
    parts = [report.provider, plural(len(report.nodes), "node"), cost, _end(report)]
    text = Text(report.name, "bold", overflow="ellipsis", no_wrap=True)
    text.append("  " + " · ".join(filter(None, parts)), "not bold")
    run = "no run is going on"
    if report.run and report.run_since is not None:
        run = f"{report.run} for {span(report.now - report.run_since)}"
        run += f"; beside it {first_few(report.beside, BESIDE_MAX)}" if report.beside else ""
    return text.append(f"\n{run}", "not bold")


def _end(report: TopReport) -> str:
    if report.hard_end is None:
        return ""
    left_s = report.hard_end - report.now
    return f"ends in {span(left_s)}" if left_s >= 0 else f"overdue by {span(-left_s)}"


def _node(name: str, node: NodeView, now: float, detail: Detail) -> Iterator[RenderableType]:
    if node.lost_since is not None:
        say = f"{name} does not answer since {clock_time(node.lost_since, now)} ({ago(node.lost_since, now)})"
        yield Text(say, "bold red", overflow="ellipsis", no_wrap=True)
        yield Text(f"  {node.why}", FADED, overflow="ellipsis", no_wrap=True)
    elif node.sample is None:
        yield Text(f"{name} has not answered yet", FADED)
    else:
        yield _machine(name, node.sample, sums_gpus=detail is Detail.NODES)
        if node.sample.gpus and detail is not Detail.NODES:
            yield _gpus(node.sample.gpus)
        if node.sample.run and detail is Detail.RANKS:
            yield from _ranks(node.sample.run.ranks)


def _table(*headings: str, right: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style=FADED, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", no_wrap=True, overflow="ellipsis")
    return table


def _machine(name: str, sample: NodeSample, *, sums_gpus: bool) -> Text:
    """`node0  CPU 63% of 16 cores  memory 12.1 of 64.0 GB  net 1.2 MB/s in, 3.4 kB/s out`."""
    text = Text(name, "bold", overflow="ellipsis", no_wrap=True)
    known = [gpu.use for gpu in sample.gpus or () if gpu.use is not None]
    if sums_gpus and known:
        text.append(f"  {plural(len(known), 'GPU')} {sum(known) / len(known):3.0f}%", "not bold")
    if sample.cpu is not None:
        text.append(f"  CPU {min(1.0, sample.cpu / sample.cores):4.0%} of {plural(sample.cores, 'core')}", "not bold")
    if sample.memory is not None:
        used, total = sample.memory
        style = "bold red" if used > FULL * total else "not bold"
        text.append(f"  memory {_of(used, total)}", style)
    for label, rates in (("net", sample.net), ("disk", sample.disk)):
        if rates is not None and None not in rates:
            text.append(f"  {label} {_rates(rates)}", "not bold")
    return text


def _of(used: float, total: float) -> str:
    """`12.1/64.0 GB`: both in the unit of the larger."""
    number, unit = amount(total).split()
    scale = total / float(number) if float(number) else 1.0
    return f"{used / scale:.1f}/{number} {unit}"


def _rates(rates: Rates) -> str:
    return "/".join(_short(rate or 0.0) for rate in rates)


def _short(rate: float) -> str:
    """Bytes per second in at most five characters: `1.2M`, `340k`, `0`."""
    for unit in ("", "k", "M", "G"):
        if rate < 1000 or unit == "G":
            break
        rate /= 1000
    return f"{rate:.1f}{unit}" if unit and rate < 10 else f"{rate:.0f}{unit}"


def _gpus(gpus: Sequence[GpuUse]) -> Table:
    table = _table("  GPU", "USE", "", "MEMORY", "TEMP", "POWER", right=("  GPU", "", "MEMORY", "TEMP", "POWER"))
    for gpu in gpus:
        use = gpu.use
        style = "" if use is None else FADED if use < IDLE_PERCENT else "green" if use < BUSY_PERCENT else "bold green"
        memory = Text("-", FADED)
        if gpu.memory_mb is not None and gpu.memory_total_mb:
            is_full = gpu.memory_mb > FULL * gpu.memory_total_mb
            memory = Text(_of(gpu.memory_mb * MIB, gpu.memory_total_mb * MIB), "bold red" if is_full else "")
        table.add_row(
            str(gpu.index),
            Text(_bar(use), style),
            Text("-" if use is None else f"{use:.0f}%", style),
            memory,
            "-" if gpu.temperature is None else f"{gpu.temperature:.0f}°C",
            "-" if gpu.power_w is None else f"{gpu.power_w:.0f} W",
        )
    return table


def _bar(percent: float | None) -> str:
    full = round(BAR_CHARS * min(100.0, percent or 0.0) / 100)
    return "█" * full + "░" * (BAR_CHARS - full)


def _rate(per_s: float) -> str:
    return f"{per_s:.3g}" if per_s < 1 else f"{per_s:.1f}" if per_s < 100 else f"{per_s:,.0f}"


def _ranks(ranks: Sequence[RankUse]) -> Iterator[RenderableType]:
    if not ranks:
        return
    names = ("  RANK", "EPOCH", "STEP", "STEPS/S", "WAITS FOR DATA", "CPU", "MEMORY", "PID")
    table = _table(*names, right=names)
    for rank in ranks[:RANKS_MAX]:
        table.add_row(
            str(rank.rank),
            "" if rank.epoch is None else f"{rank.epoch:,.10g}",
            "" if rank.step is None else f"{rank.step:,.0f}",
            "" if rank.rate is None else _rate(rank.rate),
            "" if rank.data_wait is None else f"{min(rank.data_wait, 1.0):.0%}",
            "" if rank.cpu is None else f"{rank.cpu:.0%}",
            "" if rank.memory is None else amount(rank.memory),
            str(rank.pid),
        )
    yield table
    if len(ranks) > RANKS_MAX:
        yield Text(f"  and {plural(len(ranks) - RANKS_MAX, 'more rank')}", FADED)
