"""What every benchmark uses: rounds, tables, the machine they come from, and why one was left out."""

from __future__ import annotations

import os
import platform
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHON = sys.executable
"""What trains, too: the hosts see this machine's files, so that gpuops and plain torchrun use the same one."""
HANG_S = 120.0
"""Beyond this a command that is measured hangs."""

Work = Callable[[], object]
"""Something to measure. One that returns a float has measured itself."""


class Skip(Exception):
    """Why something cannot be measured here."""


class Failed(Exception):
    """What went wrong where it should not have."""


@dataclass(frozen=True)
class Options:
    """How much is done. `tiny`: just enough to see that it works; its figures mean nothing."""

    rounds: int | None = None
    tiny: bool = False
    install: bool = False
    """Whether peers may be installed, which takes minutes and hundreds of MB."""
    examples: Path | None = None
    """A checkout of the public examples."""
    nanogpt: Path | None = None
    """A checkout of nanoGPT."""

    def times(self, usual: int) -> int:
        return 1 if self.tiny else self.rounds or usual


@dataclass(frozen=True)
class Table:
    """Rows of text under heads, and what a reader must know of them."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = field(default_factory=tuple)

    def __str__(self) -> str:
        left = f"| {' | '.join(self.heads)} |"
        rule = f"|{'|'.join(['---'] + ['---:'] * (len(self.heads) - 1))}|"
        body = [f"| {' | '.join(row)} |" for row in self.rows]
        lines = [f"### {self.title}", "", left, rule, *body, ""]
        return "\n".join([*lines, *(f"{note}\n" for note in self.notes)])


def timed(work: Work) -> float:
    """Seconds, by the wall."""
    began = time.perf_counter()
    result = work()
    return result if isinstance(result, float) else time.perf_counter() - began


def alternate(works: Mapping[str, Work], rounds: int, *, warm: bool = True) -> dict[str, list[float]]:
    """Seconds of each round of each work, in turn, so that whatever else the machine does meets all alike.

    `warm`: each is done once before what counts.
    """
    if warm:
        for work in works.values():
            work()
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            taken[name].append(timed(work))
    return taken


def compared(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """`0.93 ×`: our median in theirs."""
    return f"{statistics.median(ours) / statistics.median(theirs):.2f} ×"


@dataclass(frozen=True)
class MachineUse:
    """What all processes of this machine have used since its start, containers' included."""

    cpu_s: float
    begun: int
    """Processes and threads."""


def machine_use() -> MachineUse:
    """Zeros where there is no Linux to say it (proc(5), /proc/stat)."""
    cpu_s, begun = 0.0, 0
    with suppress(OSError):
        for line in Path("/proc/stat").read_text(encoding="utf-8").splitlines():
            match line.split():
                case ["cpu", user, nice, system, _, _, irq, softirq, *_]:
                    cpu_s = sum(map(int, (user, nice, system, irq, softirq))) / os.sysconf("SC_CLK_TCK")
                case ["processes", count]:
                    begun = int(count)
    return MachineUse(cpu_s, begun)


def seconds(taken: Sequence[float]) -> list[str]:
    """Median and least, as two cells."""
    return [f"{statistics.median(taken):.2f}", f"{min(taken):.2f}"]


def milliseconds(taken: Sequence[float]) -> list[str]:
    return [f"{1000 * statistics.median(taken):.0f}", f"{1000 * min(taken):.0f}"]


def run(
    argv: Sequence[object], *, cwd: Path | None = None, env: Mapping[str, str] | None = None, hang_s: float = HANG_S
) -> str:
    """A command's output; one that fails ends the benchmark with its last words. Raises Failed."""
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(words, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=hang_s)
    except subprocess.TimeoutExpired:
        raise Failed(f"`{' '.join(words[:6])}` has not ended after {hang_s:.0f} s") from None
    if done.returncode:
        last = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines() or ["it said nothing"]
        raise Failed(f"`{' '.join(words[:6])}` failed: {last[-1]}")
    return done.stdout.decode(errors="replace")


def machine() -> list[str]:
    """The machine, as lines of a markdown list. To be asked before anything is measured: it tells the load."""
    load = " ".join(f"{one:.2f}" for one in os.getloadavg())
    return [
        f"- {_cpu()}, {os.cpu_count()} cores, {_memory()}",
        f"- {platform.system()} {platform.release()}, Python {platform.python_version()}, torch {version('torch')}",
        f"- {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}, load before: {load}",
    ]


def version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _cpu() -> str:
    try:
        found = re.search(r"(?m)^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found.group(1) if found else platform.processor() or platform.machine()


def _memory() -> str:
    try:
        return f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB of memory"
    except (OSError, ValueError):
        return "memory unknown"


def environment(home: Path) -> dict[str, str]:
    """That of a user who has this gpuops: nothing that asks Python for more, or for less, than it does by itself."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("GPUOPS_", "PYTHON"))}
    inherited.pop("VIRTUAL_ENV", None)
    return {**inherited, "GPUOPS_HOME": str(home), "PYTHONPATH": str(ROOT)}


def gpuops(*words: object) -> list[str]:
    """The command line of gpuops as it stands here."""
    return [PYTHON, "-m", "gpuops", *(str(word) for word in words)]
