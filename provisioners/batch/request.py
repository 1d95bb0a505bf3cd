"""A request to a batch system, checked, and what a job is asked for with: what batch systems have in common. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuops.core.errors import Rejected, UsageError
from gpuops.core.format import plural, span
from gpuops.core.models import Option

LOGIN_OPTIONS: Sequence[Option] = (
    Option(
        "host",
        "The cluster's login node: user@address:port, or a name from your ~/.ssh/config. Without: this machine is it.",
    ),
    Option("identity", "The private key to log in with.", "path"),
    Option("accept-new", "Trust the keys of unknown hosts.", "bool", default=False),
)
MIN_JOB_S = 360.0
"""The shortest job: its nodes start, one short run, and `jobs.END_MARGIN_S`."""
WALLTIME_S = 4 * 3600.0
"""A job's time without `--max-hours`, where its queue has no default: shorter ones start sooner."""


@dataclass(frozen=True)
class JobShape:
    """What a job asks for."""

    queue: str
    nodes: int
    gpus: int
    """Per node."""
    gpu_type: str
    cpus: int
    walltime_s: float
    words: Sequence[str]
    """The arguments that say all of this to the batch system."""
    queue_kind: str = "queue"
    """What the batch system calls one."""

    @property
    def say(self) -> str:
        kind = f"{self.gpu_type} GPU" if self.gpu_type else "GPU"
        each = f"{plural(self.gpus, kind)} and " if self.gpus else ""
        return (
            f"{plural(self.nodes, 'node')} of {self.queue_kind} {self.queue} with {each}{plural(self.cpus, 'core')} "
            f"each, for {span(self.walltime_s)} from the job's start"
        )


def choose_walltime(hours: float | None, default_s: float | None, max_s: float | None, queue: str) -> float:
    """In whole minutes, as batch systems count. `queue`: `partition gpu`. Raises Rejected."""
    most_s = WALLTIME_S if max_s is None else min(max_s, WALLTIME_S)
    usual_s = most_s if default_s is None or default_s < MIN_JOB_S else default_s  # a site may have one of a minute
    wanted = usual_s if hours is None else round(hours * 60) * 60.0
    if wanted < MIN_JOB_S:
        has_room = max_s is None or max_s >= MIN_JOB_S
        raise Rejected(
            f"a job of {span(wanted)} leaves no time for a run: its last 2 min are kept for results on their way",
            f"--max-hours {MIN_JOB_S / 3600:.2g}, or more" if has_room else f"take another --{queue.split()[0]}",
        )
    if max_s is not None and wanted > max_s:
        raise Rejected(
            f"{queue} gives a job {span(max_s)}, and --max-hours is {span(wanted)}",
            f"--max-hours {max_s / 3600:g}, or another --{queue.split()[0]}",
        )
    return wanted


def format_span(seconds: float) -> str:
    """Seconds as batch systems take a time limit: whole minutes, since Slurm counts no others."""
    minutes = max(1, round(seconds / 60))
    return f"{minutes // 60}:{minutes % 60:02d}:00"


def single_words(options: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, str]:
    """Those of some options that were given. Raises UsageError for what is empty or more than one line."""
    words = {name: str(options[name]) for name in names if options.get(name) is not None}
    for name, value in words.items():
        if not value.strip() or any(sign in value for sign in "\0\n\r"):
            raise UsageError(f"--{name} is empty or more than one line", f"give --{name} a value, or leave it out")
    return words


def cores(options: Mapping[str, Any]) -> int | None:
    """`--cpus`. Raises UsageError."""
    cpus: int | None = options.get("cpus")
    if cpus is not None and cpus < 1:
        raise UsageError(f"--cpus {cpus} is too few", "--cpus takes a number from 1")
    return cpus


def raw_words(options: Mapping[str, Any], name: str, is_ours: Callable[[str], bool], example: str) -> list[str]:
    """Arguments that go to the batch system as they are. Raises UsageError for one that gpuops needs to be as it is."""
    raw = [str(word) for word in options.get(name) or ()]
    for word in raw:
        if not word.startswith("-") or is_ours(word):
            raise UsageError(f"--{name} {word} cannot be", f"write it as --{name}={example}; see the docs")
    return raw
