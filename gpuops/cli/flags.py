"""The flags of `up`, `run` and `train`, once: for the command line, for `gpuops.toml` and for help.

A flag that was not typed is None (or an empty list), so that what `gpuops.toml` says can fill it.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import typer

from gpuops.cli import completion


class Free(enum.Enum):
    """Marks a flag that a project's `gpuops.toml` may set before its user trusts the file. An unmarked flag may not."""

    ALWAYS = "it reaches nothing beyond the project"
    ASKED = "it shapes what is rented, and the user is asked about the price first"
    INSIDE = "it is a path, free where it lies inside the project"


Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Timings = Annotated[bool, typer.Option("--timings", help="Print at the end where the time went, and whose it was.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Ask no questions.")]
YesButTrust = Annotated[  # of the commands that read gpuops.toml
    bool, typer.Option("--yes", "-y", help="Ask no questions. Only `gpuops trust` trusts a gpuops.toml.")
]


def _option(help_text: str, *names: str, metavar: str | None = None, offers: Any = None) -> Any:
    """`offers`: the function of `completion` that proposes values."""
    return typer.Option(*names, help=help_text, metavar=metavar, show_default=False, autocompletion=offers)


# What `export` takes as well, without the rest of its group.
Nodes = Annotated[int | None, _option("How many nodes.", metavar="N")]
Gpus = Annotated[int | None, _option("GPUs per node; without GPUs, ranks per node.", metavar="G")]
Data = Annotated[
    str | None,
    _option(
        "A file or folder the run reads: of this computer, or what the nodes fetch or have (s3://…, https://…, "
        "node:/…).",
        metavar="PATH|ADDRESS",
    ),
]
Env = Annotated[
    list[str] | None,
    _option(
        "Set a variable in the run; K alone takes yours. Recorded: use --secret for what must not be. Repeatable.",
        metavar="K[=V]",
    ),
]
Secret = Annotated[list[str] | None, _option("Like --env K, but never written anywhere. Repeatable.", metavar="NAME")]
Prelude = Annotated[
    list[str] | None,
    _option(
        "A shell line before every rank, such as 'module load cuda'; the run ends where it fails. Repeatable.",
        metavar="LINE",
    ),
]
Python = Annotated[str | None, _option("The Python on the nodes.", metavar="PATH")]


@dataclass(frozen=True)
class MachineFlags:
    """What to bring up, and until when."""

    nodes: Annotated[Nodes, Free.ASKED] = None
    gpus: Annotated[Gpus, Free.ASKED] = None
    gpu_type: Annotated[
        str | None, _option("Which GPU to rent, such as h100.", "--gpu-type", "--gpu", metavar="TYPE"), Free.ASKED
    ] = None
    gpu_mem: Annotated[int | None, _option("GPU memory to rent, in GB.", metavar="GB"), Free.ASKED] = None
    spot: Annotated[
        bool | None, typer.Option("--spot", help="Rent interruptible machines.", show_default=False), Free.ASKED
    ] = None
    region: Annotated[str | None, _option("Where to rent.", metavar="REGION"), Free.ASKED] = None
    image: Annotated[
        str | None, _option("Which image machines start from, or your own hosts run nodes in.", metavar="IMAGE")
    ] = None
    max_price: Annotated[float | None, _option("Highest price, all nodes together.", metavar="$/H")] = None
    max_hours: Annotated[float | None, _option("The cluster ends after so many hours.", metavar="H")] = None
    max_cost: Annotated[float | None, _option("The cluster ends when it has cost so much.", metavar="$")] = None
    idle: Annotated[float | None, _option("The cluster ends after so many minutes without use.", metavar="MIN")] = None
    timeout: Annotated[
        float | None, _option("How long a node may take to become ready.", metavar="MIN"), Free.ASKED
    ] = None
    wait: Annotated[
        str | None,
        _option(
            "While nothing can be had, or a job is queued, go on for this long (2h); what --retries rents: 30min.",
            metavar="SPAN",
        ),
    ] = None


@dataclass(frozen=True)
class LaunchFlags:
    """How to launch: shared by `run` and `train`."""

    on: Annotated[
        str | None,
        _option(
            "Bring up a fresh cluster there, and end it afterwards. Takes that provider's own options as well. a,b: at "
            "the first of these that has the machines, and with --retries at the next; cheapest: at whoever rents them "
            "for the least.",
            metavar="PROVIDER",
            offers=completion.providers_to_rent_from,
        ),
        Free.ASKED,
    ] = None
    cluster: Annotated[str | None, _option("Use this live cluster.", metavar="NAME", offers=completion.clusters)] = None
    data: Annotated[Data, Free.INSIDE] = None
    out: Annotated[
        list[str] | None,
        _option("Files to bring home, such as 'checkpoints/**'; '!GLOB' leaves some. Repeatable.", metavar="GLOB"),
        Free.ALWAYS,
    ] = None
    env: Env = None
    secret: Secret = None
    prelude: Prelude = None
    python: Python = None
    setup: Annotated[
        str | None, _option("A shell command on every node before the launch; '' for none.", metavar="CMD")
    ] = None
    resume: Annotated[
        str | None,
        _option("Put this earlier run's snapshots back on every node first.", metavar="RUN", offers=completion.runs),
    ] = None
    fresh: Annotated[
        bool | None,
        typer.Option(
            "--fresh",
            help="Take what earlier runs made off the nodes first, once it is home.",
            show_default=False,
        ),
    ] = None
    queue: Annotated[
        bool | None,
        typer.Option("--queue", help="Wait while another run is on the cluster.", show_default=False),
        Free.ALWAYS,
    ] = None
    keep: Annotated[
        bool | None, typer.Option("--keep", help="Leave a fresh cluster up afterwards.", show_default=False)
    ] = None
    detach: Annotated[
        bool | None, typer.Option("--detach", help="Return once the run has started.", show_default=False)
    ] = None
    grace: Annotated[
        float | None,
        _option("How long rented nodes wait for this computer to fetch the results after the run.", metavar="HOURS"),
    ] = None
    join_timeout: Annotated[
        float | None,
        _option(
            "End a run in which no rank joins the others when it has printed nothing and stood idle for so long; "
            "0: never. Without it: 30.",
            metavar="MIN",
        ),
    ] = None
    sink: Annotated[
        str | None,
        _option(
            "Keep results there as well, so that this computer may be away: in a bucket, or on a network volume.",
            metavar="s3://BUCKET/PREFIX|volume:NAME",
        ),
    ] = None
    retries: Annotated[
        int | None,
        _option(
            "How often machines rented or queued for, for this run, are replaced when they are taken back, and the run "
            "resumed; on hosts of your own, live clusters and batch jobs: how often a run that failed is started again "
            "from what it left.",
            metavar="K",
        ),
    ] = None
    overwrite: Annotated[
        bool | None,
        typer.Option("--overwrite", help="Send files over versions edited on the node.", show_default=False),
    ] = None
    timings: Annotated[
        bool | None,
        typer.Option("--timings", help="Print at the end where the time went, and whose it was.", show_default=False),
        Free.ALWAYS,
    ] = None
    bwlimit: Annotated[
        str | None,
        _option("Send at most so many bytes per second, to all nodes together: 500k, 2M.", metavar="RATE"),
    ] = None
    send_anyway: Annotated[
        list[str] | None,
        _option(
            "Send a file that looks like a secret, a script with what is a syntax error here, or what links in --data "
            "lead to. Repeatable.",
            metavar="PATH",
        ),
    ] = None


F = TypeVar("F")


def with_flags(*groups: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the fields of dataclasses to a command as options. The command gets one object per class as its first
    arguments."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[len(groups) :]
        options = [_parameter(group, field) for group in groups for field in dataclasses.fields(group)]

        @functools.wraps(function)
        def command(**values: Any) -> None:
            objects = [
                group(**{field.name: values.pop(field.name) for field in dataclasses.fields(group)}) for group in groups
            ]
            function(*objects, **values)

        keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
        command.__signature__ = inspect.Signature([*keyword, *options])  # type: ignore[attr-defined]
        # typer reads annotations from the signature, but resolves names through this attribute too.
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in [*keyword, *options]}
        return command

    return decorate


def _parameter(group: type[Any], field: dataclasses.Field[Any]) -> inspect.Parameter:
    hint = _hints(group)[field.name]  # type: ignore[arg-type]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)


@functools.cache
def _hints(group: type[Any]) -> dict[str, Any]:
    """Type hints of a group, cached: evaluating them takes a millisecond and each of fifty fields asks."""
    return typing.get_type_hints(group, include_extras=True)


def flag_types(*groups: type[Any]) -> dict[str, type]:
    """Names and plain types of flags as `gpuops.toml` writes them: `gpu-type` -> str."""
    table: dict[str, type] = {}
    for group in groups:
        for name, hint in typing.get_type_hints(group).items():
            plain = next(part for part in typing.get_args(hint) if part is not type(None))
            table[name.replace("_", "-")] = typing.get_origin(plain) or plain
    return table


def untyped_options(flags: Any, table: Mapping[str, Any]) -> list[str]:
    """Options of a table of `gpuops.toml` that apply, because they were not typed."""
    names = (field.name for field in dataclasses.fields(flags) if getattr(flags, field.name) in (None, []))
    return [key for key in (name.replace("_", "-") for name in names) if key in table]


def flag_freedom(*groups: type[Any]) -> dict[str, Free | None]:
    """The mark of each flag, by its key in `gpuops.toml`."""
    return {
        name.replace("_", "-"): next((part for part in typing.get_args(hint) if isinstance(part, Free)), None)
        for group in groups
        for name, hint in _hints(group).items()  # type: ignore[arg-type]
    }


def fill_from_table(flags: F, table: Mapping[str, Any]) -> F:
    """The flags, with those that were not typed taken from a table of `gpuops.toml`."""
    values = {key.replace("-", "_"): table[key] for key in untyped_options(flags, table)}
    return dataclasses.replace(flags, **values)  # type: ignore[type-var]
