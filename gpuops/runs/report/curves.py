"""What a run has to draw: scalars from TensorBoard's files, else losses and accuracies from printed lines; what each
node used."""

from __future__ import annotations

import fnmatch
import math
import os
import re
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from gpuops.agent.usage.printed_counts import COUNT
from gpuops.runs.logs.lines import STREAM
from gpuops.runs.monitor import TENSORBOARD_FILES
from gpuops.runs.report.scalars import read_scalars
from gpuops.runs.report.svg import Line, Point, thin_out
from gpuops.sync.run_folder import RunHome

if TYPE_CHECKING:
    from gpuops.transport.usage_schemas import UsageLine

USAGE_FILE = "usage.jsonl"
MAX_CURVES = 12
MAX_LINES = 8
"""So many lines are in one chart."""
MAX_LOG_BYTES = 16 << 20
"""How much of each log is searched, from its beginning."""
BLOCK_BYTES = 1 << 20
MAX_SCALARS = 2_000_000
"""So many numbers for TensorBoard are read: what a node has sent is not to fill this computer's memory."""
MAX_TAGS = 10_000
"""So many names of numbers for TensorBoard are told apart."""
MAX_USAGE_LINES = 30_000
"""As many as a run of a year writes."""
MAX_GPUS = 16
"""So many GPUs of a node are drawn."""
MAX_NAMES = 100
"""So many names of printed figures are told apart."""
FIGURE = (
    rb"""(?<![a-z0-9])(loss|accuracy|acc|perplexity)\b["']?[ \t]{0,8}(?:[:=][ \t]{0,8})?"""
    rb"([-+]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30})(?:e[-+]?\d{1,3})?)(?![\d/])"
)
"""`loss 0.12`, `val_loss=0.12`, `Test accuracy: 0.97`, `{'loss': 0.12}`, in small letters. Groups: kind and number."""
TOKEN = re.compile(rb"([\r\n])|" + FIGURE + rb"|" + COUNT)
"""What a log is searched for, in linear time, whatever stands there."""
MAX_WORD_CHARS = 20
WORD_BEFORE = re.compile(rb"([a-z][a-z0-9]*)[ _/-]\Z")
"""`test` of `test loss`."""
NO_NAMES = (b"and", b"the")
IsLate = Callable[[], bool]
"""Whether there is no more time: what was read by then is drawn."""


@dataclass(frozen=True)
class Curve:
    """One chart of what the program told."""

    title: str
    lines: Sequence[Line]
    x: str
    """What runs along it."""


def find_curves(home: RunHome, is_late: IsLate) -> list[Curve]:
    """The scalars for TensorBoard, losses first; where there are none, the figures in the logs."""
    return _board_curves(home, is_late) or _log_curves(home, is_late)


def _board_curves(home: RunHome, is_late: IsLate) -> list[Curve]:
    """A program that goes on from a snapshot begins another file in the same folder: the steps since the snapshot are
    in both, and the later one counts."""
    by_tag: defaultdict[str, dict[str, list[Point]]] = defaultdict(dict)
    latest: dict[tuple[str, str], Path] = {}
    for path, folder, tag, step, value in islice(_scalars(home, is_late), MAX_SCALARS):
        if tag not in by_tag and len(by_tag) == MAX_TAGS:
            continue
        points = by_tag[tag].setdefault(folder, [])
        if latest.get((tag, folder)) != path:
            latest[tag, folder] = path
            while points and points[-1][0] >= step:
                points.pop()
        points.append((step, value))
    tags = sorted(by_tag, key=lambda tag: ("loss" not in tag.lower(), tag))[:MAX_CURVES]
    return [Curve(tag, _lines(by_tag[tag]), "step") for tag in tags]


def _scalars(home: RunHome, is_late: IsLate) -> Iterator[tuple[Path, str, str, int, float]]:
    """File, its folder, tag, step and number of each. Names of a folder's files begin with the time of their making."""
    for path in sorted(_board_files(home, is_late)):
        folder = str(path.parent.relative_to(home.out))
        try:
            with path.open("rb") as file:
                for scalar in read_scalars(file, is_late):
                    yield (path, folder, *scalar)
        except OSError:
            continue


def _board_files(home: RunHome, is_late: IsLate) -> Iterator[Path]:
    for folder, _, names in os.walk(home.out):
        yield from (Path(folder, name) for name in fnmatch.filter(names, TENSORBOARD_FILES))
        if is_late():
            return


def _lines(by_name: Mapping[str, Sequence[Point]]) -> list[Line]:
    """One needs no name, which would only repeat the title."""
    lines = [Line(name, points) for name, points in by_name.items()][:MAX_LINES]
    return [Line("", lines[0].points)] if len(lines) == 1 else lines


@dataclass
class Series:
    """A figure that one stream tells again and again: its values, and the step and epoch of each, NaN where neither
    its line nor one before it told any."""

    values: array[float] = field(default_factory=lambda: array("d"))
    step: array[float] = field(default_factory=lambda: array("d"))
    epoch: array[float] = field(default_factory=lambda: array("d"))

    def rises(self, by: str) -> bool:
        """Whether each value is of a later step, or epoch, than the one before it."""
        along: array[float] = getattr(self, by)
        return all(map(float.__lt__, along, along[1:])) and not math.isnan(along[0])

    def points(self, by: str) -> Sequence[Point]:
        return list(zip(getattr(self, by, range(1, len(self.values) + 1)), self.values, strict=True))


def _log_curves(home: RunHome, is_late: IsLate) -> list[Curve]:
    """A chart for each name, losses first, with a line for each stream that tells it."""
    found: defaultdict[str, dict[str, Series]] = defaultdict(dict)
    streams = 0
    for path in sorted((home.path / "logs").glob("node*/*"), key=_by_rank):
        if not STREAM.fullmatch(path.name) or is_late() or streams == MAX_LINES:
            continue
        told = {name: series for name, series in _printed(path, is_late).items() if len(series.values) > 1}
        for name, series in told.items():
            found[name][f"{path.parent.name} {path.stem}" + " stderr" * (path.suffix == ".err")] = series
        streams += bool(told)
    names = sorted(found, key=lambda name: "loss" not in name)[:MAX_CURVES]
    return [_log_curve(name, found[name]) for name in names]


def _log_curve(name: str, streams: Mapping[str, Series]) -> Curve:
    """Over steps or epochs, where all lines tell them."""
    by = next((by for by in ("step", "epoch") if all(series.rises(by) for series in streams.values())), "")
    lines = {stream: thin_out(series.points(by)) for stream, series in streams.items()}
    return Curve(name, _lines(lines), by or "printed line")


def _by_rank(path: Path) -> tuple[int, str]:
    """By the numbers of the ranks; the launcher's lines last."""
    match = STREAM.fullmatch(path.name)
    return (int(match[1]) if match and match[1] else 1 << 31), str(path)


def _printed(path: Path, is_late: IsLate) -> dict[str, Series]:
    """The figures in a log, by name."""
    figures = Figures()
    try:
        with path.open("rb") as file:
            while not is_late() and file.tell() < MAX_LOG_BYTES and (block := file.read(BLOCK_BYTES)):
                figures.search(block + file.readline(BLOCK_BYTES))
    except OSError:
        pass
    return figures.found


class Figures:
    """What the lines of one stream tell, by name: in each line the first figure of each name."""

    def __init__(self) -> None:
        self.found: dict[str, Series] = {}
        self._counts = {"step": math.nan, "epoch": math.nan}
        """The latest; a line may tell the epoch, and the next one its loss."""
        self._line: dict[str, float] = {}

    def search(self, text: bytes) -> None:
        """Go on with whole lines."""
        text = text.lower()
        for match in TOKEN.finditer(text):
            end, kind, value, epoch, count = match.groups()
            if end:
                self._end_line()
            elif kind:
                self._line.setdefault(_name(text, match.start(), kind), float(value))
            else:
                self._counts["epoch" if epoch else "step"] = float(count)
        self._end_line()

    def _end_line(self) -> None:
        for name, value in self._line.items():
            if len(self.found) < MAX_NAMES or name in self.found:
                series = self.found.setdefault(name, Series())
                series.values.append(value)
                series.step.append(self._counts["step"])
                series.epoch.append(self._counts["epoch"])
        self._line.clear()


def _name(text: bytes, at: int, kind: bytes) -> str:
    """A figure's name: its kind, behind the word before it."""
    before = WORD_BEFORE.search(text, max(0, at - MAX_WORD_CHARS), at)
    words = (before[1], kind) if before and before[1] not in NO_NAMES else (kind,)
    return b" ".join(words).decode()


@dataclass(frozen=True)
class NodeUsage:
    """What one node used, over the seconds since the launch; percent, but for `power` (watts)."""

    node: int
    machine: Sequence[Line]
    gpus: Sequence[Line]
    gpu_memory: Sequence[Line]
    power: Sequence[Line]


def read_usage(home: RunHome, node: int, since: float, skew: float, is_late: IsLate) -> NodeUsage:
    """A node's `usage.jsonl`. `skew`: seconds to add to its clock to get ours."""
    machine: defaultdict[str, list[Point]] = defaultdict(list)
    gpus: defaultdict[tuple[str, int], list[Point]] = defaultdict(list)
    for usage in _usage_lines(home, node, is_late):
        at = usage.at + skew - since
        if usage.cpu is not None:
            machine["CPU"].append((at, 100 * usage.cpu / usage.cores))
        if usage.memory is not None and usage.memory[1]:
            machine["memory"].append((at, 100 * usage.memory[0] / usage.memory[1]))
        for gpu in (usage.gpus or ())[:MAX_GPUS]:
            gpus["use", gpu.index].append((at, _known(gpu.use)))
            gpus["power", gpu.index].append((at, _known(gpu.power_w)))
            if gpu.memory_total_mb:
                gpus["memory", gpu.index].append((at, 100 * _known(gpu.memory_mb) / gpu.memory_total_mb))

    def of(kind: str) -> list[Line]:
        known = ((index, thin_out(points)) for (one, index), points in sorted(gpus.items()) if one == kind)
        return [Line(f"GPU {index}", points) for index, points in known if any(y == y for _, y in points)][:MAX_GPUS]

    drawn = [Line(name, thin_out(points)) for name, points in machine.items()]
    return NodeUsage(node, drawn, of("use"), of("memory"), of("power"))


def _known(value: float | None) -> float:
    """A gap where a driver does not say."""
    return float("nan") if value is None else value


def _usage_lines(home: RunHome, node: int, is_late: IsLate) -> Iterator[UsageLine]:
    from gpuops.transport.validation import parse_usage

    for line in islice(home.lines(node, USAGE_FILE), MAX_USAGE_LINES):
        if is_late():
            return
        if usage := parse_usage(line):
            yield usage
