"""The launch that is exported, as one value; and in one sentence why another one cannot be."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass

from gpuops.core.data_address import NodeData, is_address, parse_address, without_query
from gpuops.core.errors import UsageError
from gpuops.core.format import calm, plural
from gpuops.core.run_models import RunRequest
from gpuops.offers.lease_limits import parse_span
from gpuops.runs.launch_spec import rank_command
from gpuops.runs.prepare import run_name_stem
from gpuops.sync.workloads_and_data import workloads_folder

CPUS_PER_RANK = 4
"""Cores that are asked for without --cpus: Slurm gives a task one core, which all ranks would share."""
TIME_S = 3600
"""The time limit without --time: a job without any waits behind maintenance, and a short one starts sooner."""
CLOCK_TIME = re.compile(r"(\d{1,4}):([0-5]\d):([0-5]\d)")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
READS_RANK = re.compile(r"\$\{?#?((LOCAL|NODE|GROUP|ROLE)_)?(RANK|WORLD_SIZE)\b")
HEADER_WORD = re.compile(r"[\w.,:=@/+-]+", re.ASCII)
"""What may stand in a line that a scheduler reads, where no quotes protect it."""
LABEL = re.compile(r"[a-z]([a-z0-9-]{0,48}[a-z0-9])?")
"""A name of Kubernetes (RFC 1035), with room for a pod's number."""


@dataclass(frozen=True)
class TargetOptions:
    """What a scheduler is told beside the launch; None where it was not typed."""

    time: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    mem: int | None = None
    """GB per node."""
    cpus: int | None = None
    """Cores per node."""
    select_extra: str | None = None
    image: str | None = None
    namespace: str | None = None
    name: str | None = None

    def typed(self) -> list[str]:
        """The names of those that were typed."""
        return [field.name for field in dataclasses.fields(self) if getattr(self, field.name) is not None]


@dataclass(frozen=True)
class ExportJob:
    """One launch, checked."""

    request: RunRequest
    """Its `nodes` and `gpus` are numbers; its `data` is a path, and its script is where a node finds it."""
    name: str
    time_s: int
    options: TargetOptions

    @property
    def nodes(self) -> int:
        return self.request.nodes

    @property
    def ranks(self) -> int:
        """Per node, one per GPU."""
        assert self.request.gpus is not None
        return self.request.gpus

    @property
    def cpus(self) -> int:
        """Cores per node that are asked for."""
        return self.options.cpus or self.ranks * CPUS_PER_RANK

    @property
    def python(self) -> str:
        return self.request.python or "python3"

    @property
    def program(self) -> list[str]:
        """What torchrun starts, with the Python that torchrun itself runs on."""
        return rank_command(self.request, self.python)[1:]

    @property
    def size(self) -> str:
        """`2 nodes, 4 ranks on each`."""
        each = " on each" if self.nodes > 1 else ""
        return f"{plural(self.nodes, 'node')}, {plural(self.ranks, 'rank')}{each}, one per GPU"

    @property
    def shown(self) -> str:
        """The program for a comment: its name, in one line."""
        return " ".join((self.request.script or f"-m {self.request.module}").split())


def make_job(request: RunRequest, options: TargetOptions, *, in_image: bool) -> ExportJob:
    """The launch as it is exported; `in_image`: a container runs it, which has no file of this computer.

    Raises UsageError for what cannot be exported.
    """
    if request.gpus is None:
        raise UsageError("a launch that is written down says how many ranks a node has", "add --gpus 4: a rank per GPU")
    for name, number in (("--mem", options.mem), ("--cpus", options.cpus)):
        if number is not None and number < 1:
            raise UsageError(f"{name} {number} is too few", f"{name} takes a number from 1")
    request = dataclasses.replace(request, data=_data_path(request, in_image=in_image))
    if request.workload:
        if in_image:
            raise UsageError(
                f"the workload {request.workload} lies on this computer, and no container has it",
                "name a script that the image holds",
            )
        request = dataclasses.replace(request, script=str(workloads_folder() / str(request.script)))
    _check_words(request)
    _check_header_words(options)
    return ExportJob(request, options.name or run_name_stem(request), _parse_time(options.time), options)


def _data_path(request: RunRequest, *, in_image: bool) -> str | None:
    """Where every node has the data. Raises UsageError for an address that somebody has to fetch first."""
    address = parse_address(request.data or "")
    if isinstance(address, NodeData):
        return address.path
    if request.data and is_address(request.data):
        raise UsageError(
            f"--data {without_query(request.data)} would be fetched by gpuops, and an exported launch does without it",
            "fetch it to a folder that every node sees, and name that: --data node:/PATH",
        )
    if request.data and in_image:
        raise UsageError(
            f"--data {request.data} lies on this computer, and no container has it",
            "mount a volume that holds it, and name the path there: --data node:/PATH",
        )
    return request.data


def _check_words(request: RunRequest) -> None:
    for line in request.prelude:
        if found := READS_RANK.search(line):
            raise UsageError(
                f"the prelude line `{line}` reads {found[0].lstrip('${#')}, and an exported launch runs preludes once "
                "per node, before torchrun has made any rank",
                "do it in the script, where each rank knows its number",
            )
    for name in request.secrets:
        if not VARIABLE.fullmatch(name):
            raise UsageError(f"--secret {name} names no variable", "write --secret NAME, and export NAME yourself")
    for word in _user_words(request):
        if strange := next((char for char in word if calm(char) != char), None):
            raise UsageError(
                f"{word!r} holds a character that nobody would see in a file (U+{ord(strange):04X})",
                "hand it over in a file that the script reads",
            )


def _user_words(request: RunRequest) -> Iterator[str]:
    yield from (request.script or "", request.module or "", request.python or "", request.data or "")
    yield from (*request.argv, *request.prelude, *request.env.values())


def _check_header_words(options: TargetOptions) -> None:
    for name in ("partition", "account", "qos", "select_extra", "image"):
        word = getattr(options, name)
        if word is not None and not HEADER_WORD.fullmatch(word):
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} {word!r} cannot stand in a header", f"{flag} takes letters, digits and .,:=@/+-_")
    for flag, word in (("--name", options.name), ("--namespace", options.namespace)):
        if word is not None and not LABEL.fullmatch(word):
            raise UsageError(
                f"{flag} {word!r} is no name for a job", f"{flag} takes up to 50 small letters, digits and dashes"
            )


def _parse_time(text: str | None) -> int:
    """`02:30:00`, `150min` or `2.5h` as seconds. Raises UsageError."""
    if text is None:
        return TIME_S
    clock = CLOCK_TIME.fullmatch(text)
    seconds = int(clock[1]) * 3600 + int(clock[2]) * 60 + int(clock[3]) if clock else int(parse_span(text))
    if seconds < 60:
        raise UsageError(f"--time {text} is too short for a job", "--time takes 02:30:00, 150min or 2.5h")
    return seconds


def clock_time(seconds: int) -> str:
    """Seconds as `02:30:00`, as schedulers write a time limit."""
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
