"""What a run has to draw: losses from TensorBoard's files, else from printed lines; what each node used."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuops.runs.logs.lines import STREAM
from gpuops.runs.monitor import TENSORBOARD_FILES
from gpuops.runs.report.scalars import read_scalars
from gpuops.runs.report.svg import Line, Point
from gpuops.sync.run_folder import RunHome

if TYPE_CHECKING:
    from gpuops.transport.usage_schemas import UsageLine

USAGE_FILE = "usage.jsonl"
MAX_CURVES = 12
MAX_LINES = 8
"""So many lines are in one chart."""
MAX_LOG_BYTES = 16 << 20
"""How much of each log is searched, from its beginning."""
MAX_GPUS = 16
"""So many GPUs of a node are drawn."""
LOSS = re.compile(
    rb"""(?:^|[\r\n])[^\r\n]*?\bloss\b["']?\s*[:=]?\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)""", re.IGNORECASE
)
"""`loss 0.12`, `loss=0.12`, `Loss: 0.12`, `{'loss': 0.12}`: the first of a line, since a second one is another loss."""
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
    for path in sorted(home.out.rglob(TENSORBOARD_FILES)):
        folder = str(path.parent.relative_to(home.out))
        try:
            with path.open("rb") as file:
                for tag, step, value in read_scalars(file):
                    by_tag[tag].setdefault(folder, []).append((step, value))
                    if is_late():
                        break
        except OSError:
            continue
        if is_late():
            break
    tags = sorted(by_tag, key=lambda tag: ("loss" not in tag.lower(), tag))[:MAX_CURVES]
    return [Curve(tag, _lines(by_tag[tag]), "step") for tag in tags]


def _lines(by_name: dict[str, list[Point]]) -> list[Line]:
    """One needs no name, which would only repeat the title."""
    lines = [Line(name, points) for name, points in by_name.items()][:MAX_LINES]
    return [Line("", lines[0].points)] if len(lines) == 1 else lines


def _log_curves(home: RunHome, is_late: IsLate) -> list[Curve]:
    found: dict[str, list[Point]] = {}
    for path in sorted((home.path / "logs").glob("node*/*"), key=_by_rank):
        if not STREAM.fullmatch(path.name) or is_late() or len(found) == MAX_LINES:
            continue
        values = [float(match) for match in LOSS.findall(_head(path))]
        if len(values) > 1:
            found[f"{path.parent.name} {path.stem}"] = [(float(count), value) for count, value in enumerate(values, 1)]
    return [Curve("loss", _lines(found), "printed line")] if found else []


def _by_rank(path: Path) -> tuple[int, str]:
    """By the numbers of the ranks; the launcher's lines last."""
    match = STREAM.fullmatch(path.name)
    return (int(match[1]) if match and match[1] else 1 << 31), str(path)


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_LOG_BYTES)
    except OSError:
        return b""


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
        for gpu in usage.gpus or ():
            gpus["use", gpu.index].append((at, _known(gpu.use)))
            gpus["power", gpu.index].append((at, _known(gpu.power_w)))
            if gpu.memory_total_mb:
                gpus["memory", gpu.index].append((at, 100 * _known(gpu.memory_mb) / gpu.memory_total_mb))

    def of(kind: str) -> list[Line]:
        known = ((index, points) for (one, index), points in sorted(gpus.items()) if one == kind)
        return [Line(f"GPU {index}", points) for index, points in known if any(y == y for _, y in points)][:MAX_GPUS]

    return NodeUsage(node, [Line(*one) for one in machine.items()], of("use"), of("memory"), of("power"))


def _known(value: float | None) -> float:
    """A gap where a driver does not say."""
    return float("nan") if value is None else value


def _usage_lines(home: RunHome, node: int, is_late: IsLate) -> Iterator[UsageLine]:
    from gpuops.transport.validation import parse_usage

    try:
        lines = home.lines(node, USAGE_FILE)
    except OSError:
        return
    for line in lines:
        if is_late():
            return
        if usage := parse_usage(line):
            yield usage
