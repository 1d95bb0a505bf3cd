"""What a run has to draw: losses from TensorBoard's files, else from printed lines; what each node used."""

from __future__ import annotations

import fnmatch
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

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
MAX_USAGE_LINES = 30_000
"""As many as a run of a year writes."""
MAX_GPUS = 16
"""So many GPUs of a node are drawn."""
LOSS = re.compile(rb"""\bloss\b["']?\s*(?:[:=]\s*)?([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)""", re.IGNORECASE)
"""`loss 0.12`, `loss=0.12`, `Loss: 0.12`, `{'loss': 0.12}`."""
LINE_END = re.compile(rb"[\r\n]+")
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
    """The scalars for TensorBoard, losses first; where there are none, the losses in the logs."""
    return _board_curves(home, is_late) or _log_curves(home, is_late)


def _board_curves(home: RunHome, is_late: IsLate) -> list[Curve]:
    by_tag: defaultdict[str, dict[str, list[Point]]] = defaultdict(dict)
    for folder, tag, step, value in islice(_scalars(home, is_late), MAX_SCALARS):
        by_tag[tag].setdefault(folder, []).append((step, value))
    tags = sorted(by_tag, key=lambda tag: ("loss" not in tag.lower(), tag))[:MAX_CURVES]
    return [Curve(tag, _lines(by_tag[tag]), "step") for tag in tags]


def _scalars(home: RunHome, is_late: IsLate) -> Iterator[tuple[str, str, int, float]]:
    """Folder, tag, step and number of each."""
    for path in sorted(_board_files(home, is_late)):
        folder = str(path.parent.relative_to(home.out))
        try:
            with path.open("rb") as file:
                for scalar in read_scalars(file, is_late):
                    yield (folder, *scalar)
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


def _log_curves(home: RunHome, is_late: IsLate) -> list[Curve]:
    found: dict[str, Sequence[Point]] = {}
    for path in sorted((home.path / "logs").glob("node*/*"), key=_by_rank):
        if not STREAM.fullmatch(path.name) or is_late() or len(found) == MAX_LINES:
            continue
        points = [(float(count), value) for count, value in enumerate(_printed_losses(path, is_late), 1)]
        if len(points) > 1:
            found[f"{path.parent.name} {path.stem}"] = thin_out(points)
    return [Curve("loss", _lines(found), "printed line")] if found else []


def _by_rank(path: Path) -> tuple[int, str]:
    """By the numbers of the ranks; the launcher's lines last."""
    match = STREAM.fullmatch(path.name)
    return (int(match[1]) if match and match[1] else 1 << 31), str(path)


def _printed_losses(path: Path, is_late: IsLate) -> Iterator[float]:
    try:
        with path.open("rb") as file:
            while not is_late() and file.tell() < MAX_LOG_BYTES and (block := file.read(BLOCK_BYTES)):
                yield from find_losses(block + file.readline(BLOCK_BYTES))
    except OSError:
        return


def find_losses(text: bytes) -> list[float]:
    """The first loss of each line: a second one is another loss. In linear time, whatever stands there."""
    return [float(match[1]) for match in map(LOSS.search, LINE_END.split(text)) if match]


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

    try:
        lines = home.lines(node, USAGE_FILE)
    except OSError:
        return
    for line in lines[:MAX_USAGE_LINES]:
        if is_late():
            return
        if usage := parse_usage(line):
            yield usage
