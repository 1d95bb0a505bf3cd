"""From flags, `gpuops.toml` and a provider's own options to the requests that commands take. Raises UsageError."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from gpuops.cli.errors import NEAR
from gpuops.cli.flags import LaunchFlags, MachineFlags, fill_from_table, flag_types
from gpuops.cli.help import providers_with_option
from gpuops.cli.host_files import machines_of
from gpuops.core.context import Context
from gpuops.core.data_address import parse_address
from gpuops.core.errors import UsageError
from gpuops.core.format import listed
from gpuops.core.models import Option, Request
from gpuops.core.names import did_you_mean
from gpuops.core.run_models import RunRequest
from gpuops.core.settings import KEYS, Settings
from gpuops.core.typed_paths import path_inside, typed_path
from gpuops.offers.lease_limits import LeaseLimits, parse_span

F = TypeVar("F")
TIMEOUT_MIN = 20.0
"""Minutes that a node may take to become ready where --timeout is not given."""
LIMIT_MAX = 1e6
"""The highest limit in any unit: hours beyond it would end in more than a hundred years."""
MAY_BE_EMPTY = ("setup",)
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
OPTION_TYPES: Mapping[str, tuple[Any, str]] = {
    "str": (str, "text"),
    "int": (int, "a whole number"),
    "float": (float, "a number"),
    "path": (str, "a path"),
}


def filled_from_table(settings: Settings, table: str, flags: F) -> F:
    """Flags completed from a table of `gpuops.toml`. Raises UsageError for an empty text, most often an unset shell
    variable."""
    complete = fill_from_table(flags, settings.toml.tables.get(table, {}))
    for field in dataclasses.fields(complete):  # type: ignore[arg-type]
        if getattr(complete, field.name) == "" and field.name not in MAY_BE_EMPTY:
            raise UsageError(f"--{field.name.replace('_', '-')} is empty", "give it a value, or leave it out")
    return complete


def count_named_machines(ctx: Context, provider: str, options: Mapping[str, Any]) -> int:
    """The number of machines that a provider's own options name (hosts), at least 1."""
    counting = [option.name for option in ctx.provisioner(provider).options if option.counts]
    return max(1, sum(len(options.get(name) or ()) for name in counting))


def machine_request(provider: str, flags: MachineFlags, options: Mapping[str, Any], count: int = 1) -> Request:
    """The request for machines; `count` of them without --nodes. Raises UsageError for impossible numbers."""
    for name, value, least in (("--nodes", flags.nodes, 1), ("--gpus", flags.gpus, 1), ("--gpu-mem", flags.gpu_mem, 1)):
        if value is not None and value < least:
            raise UsageError(f"{name} {value} is too few", f"{name} takes a number from {least}")
    if flags.gpu_type and re.fullmatch(r"\d{1,2}", flags.gpu_type):
        raise UsageError(f"--gpu-type {flags.gpu_type} names no GPU", f"for how many it is --gpus {flags.gpu_type}")
    for name, amount in (
        ("--max-price", flags.max_price),
        ("--max-hours", flags.max_hours),
        ("--max-cost", flags.max_cost),
        ("--idle", flags.idle),
        ("--timeout", flags.timeout),
    ):
        if amount is not None and not 0 < amount <= LIMIT_MAX:
            raise UsageError(f"{name} {amount:g} is no limit that can be kept", f"{name} takes a number above 0")
    return Request(
        provider=provider,
        nodes=flags.nodes or count,
        gpus=flags.gpus,
        gpu_type=flags.gpu_type,
        gpu_mem=flags.gpu_mem,
        spot=bool(flags.spot),
        region=flags.region,
        max_price=flags.max_price,
        image=flags.image,
        timeout_min=flags.timeout or TIMEOUT_MIN,
        max_hours=flags.max_hours,
        options=options,
        wait_s=None if flags.wait is None else parse_span(flags.wait),
    )


def lease_limits(flags: MachineFlags) -> LeaseLimits:
    return LeaseLimits(flags.max_hours, flags.max_cost, flags.idle)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        text = re.sub(r"argument (--[\w-]+): expected one argument", r"\1 needs a value", message)
        text = re.sub(r"argument (--[\w-]+): ignored explicit argument .*", r"\1 takes no value", text)
        raise UsageError(text, f"see: gpuops {self.prog} --help")


def parse_provider_options(ctx: Context, provider: str, words: Sequence[str], command: str = "up") -> dict[str, Any]:
    """A provider's own flags, parsed as it declares them. Raises UsageError for an unknown flag."""
    parser = _Parser(prog=f"{command} {provider}", add_help=False, allow_abbrev=False)
    options = ctx.provisioner(provider).options
    for option in options:
        _add_option(parser, option)
    known, unknown = parser.parse_known_args(list(words))
    see = f"see: gpuops {command} {provider} --help"
    if unknown and not unknown[0].startswith("-"):
        raise UsageError(f"'{unknown[0]}' is more than gpuops {command} takes", see)
    if unknown:
        name = unknown[0].partition("=")[0]
        flags = [f"--{option}" for option in _option_names(options)]
        if name in flags:  # of `up`, and not of this command
            raise UsageError(f"there is no option {name}", f"see: gpuops {command} --help")
        near = did_you_mean(name, flags, alike=NEAR)
        owners = listed(providers_with_option(name))
        raise UsageError(
            f"there is no option {name}" + (near and f"; {near}"), f"{name} is an option of {owners}" if owners else see
        )
    return {name: value for name, value in vars(known).items() if value is not None}


def refuse_provider_options(words: Sequence[str]) -> None:
    """Raises UsageError for an option of one provider where several are asked."""
    if words:
        name = words[0].partition("=")[0]
        raise UsageError(f"{name} is not an option of every provider", "leave it out, or name one provider that has it")


def _add_option(parser: argparse.ArgumentParser, option: Option) -> None:
    flag = f"--{option.name}"
    if option.type == "bool":
        parser.add_argument(flag, dest=option.name, action="store_true", default=option.default)
    elif option.type == "lines":
        parser.add_argument(flag, dest=option.name, type=partial(_read_lines, option), default=option.default)
    elif option.type == "list":
        parser.add_argument(flag, dest=option.name, action="append", default=option.default)
    else:
        parser.add_argument(flag, dest=option.name, type=_value_parser(option), default=option.default)


def _read_lines(option: Option, path: str) -> list[str]:
    """The lines of a file without comments and empty lines; the machines that they name, where the option names some.
    Raises UsageError."""
    name = option.name
    try:
        text = typed_path(f"--{name}", path, Path()).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(f"--{name} {path} cannot be read: {why}", "name a text file with one of them a line") from None
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    if not any(lines):
        raise UsageError(f"--{name} {path} names nothing", "write one of them a line")
    return machines_of(lines) if option.counts else [line for line in lines if line]


def _value_parser(option: Option) -> Callable[[str], Any]:
    convert, description = OPTION_TYPES[option.type]

    def read(text: str) -> Any:
        try:
            return convert(text)
        except ValueError:
            raise UsageError(f"--{option.name} takes {description}, not '{text}'", "correct the value") from None

    return read


def _option_names(options: Sequence[Option]) -> list[str]:
    """Every option of `up`: the common ones and the provider's own."""
    return [*flag_types(MachineFlags), "name", "dry-run", "yes", "json", *(option.name for option in options)]


def parse_environment(words: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """`--env K=V` and `--env K` as a mapping. Raises UsageError, also for a variable that identifies a rank."""
    from gpuops.runs.launch_spec import IDENTITY

    values = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not VARIABLE.fullmatch(name):
            raise UsageError(
                f"--env {word} names no variable", "write --env NAME=VALUE, or --env NAME for your own value"
            )
        if IDENTITY.fullmatch(name):
            raise UsageError(
                f"--env {name} cannot be set: it tells each process of the run which one it is",
                "leave it out; --nodes and --gpus say how many there are",
            )
        if name in KEYS or name in _other_credentials():
            raise UsageError(
                f"--env {name} would write a provider's key down with the run",
                f"where the run needs it: --secret {name}, which is written nowhere",
            )
        if not equals and name not in environ:
            raise UsageError(f"--env {name}: {name} is not set here", f"set it, or write --env {name}=VALUE")
        values[name] = value if equals else environ[name]
    return values


def _other_credentials() -> set[str]:
    from provisioners import registry

    return registry.other_credentials()


def find_key_like_values(values: Mapping[str, str]) -> dict[str, str]:
    """Variables whose values look like keys, and which kind; empty where the search library is not installed."""
    from gpuops.sync.secret_scan import judge_content

    try:
        kinds = {name: judge_content(f"{name}={value}".encode(errors="replace")) for name, value in values.items()}
    except UsageError:
        return {}
    return {name: kind for name, kind in kinds.items() if kind}


def check_data(data: str | None, folder: Path, *, inside: bool = True) -> str | None:
    """The data's address, or their path, absolute unless it lies in the project and the run works `inside` a copy.

    Raises UsageError for an address that cannot be fetched, when nothing is there, or when it is the whole project.
    """
    if data is None:
        return None
    if parse_address(data):
        return data
    full = typed_path("--data", data, folder)
    if not full.exists():
        raise UsageError(f"--data {data}: there is no such file or folder", "check the path")
    if not full.is_file() and not full.is_dir():
        raise UsageError(f"--data {data} is neither a file nor a folder", "name what the run reads")
    within = path_inside(full, folder)
    if within == ".":
        raise UsageError(f"--data {data} is the project itself, which is sent anyway", "leave out --data")
    return within if inside and within else os.path.normpath(full)


def parse_grace(hours: float | None) -> float | None:
    """`--grace` in seconds. Raises UsageError for a number that is no length of time."""
    if hours is not None and not 0 < hours <= LIMIT_MAX:
        raise UsageError(f"--grace {hours:g} is no time to wait", "--grace takes hours, a number above 0")
    return None if hours is None else hours * 3600


def parse_join_timeout(minutes: float | None) -> float | None:
    """`--join-timeout` in seconds; None: no end. Raises UsageError for a number that is no length of time."""
    if minutes is None:
        return RunRequest.join_timeout_s
    if not 0 <= minutes <= LIMIT_MAX:
        raise UsageError(
            f"--join-timeout {minutes:g} is no time to wait", "--join-timeout takes minutes, a number from 0 (for ever)"
        )
    return minutes * 60 or None


def launch_flags(settings: Settings, table: str, flags: LaunchFlags) -> LaunchFlags:
    """Launch flags completed from `gpuops.toml`; lists are never None afterwards."""
    complete = filled_from_table(settings, table, flags)
    return dataclasses.replace(
        complete,
        out=complete.out or [],
        env=complete.env or [],
        secret=complete.secret or [],
        prelude=complete.prelude or [],
        send_anyway=complete.send_anyway or [],
    )
