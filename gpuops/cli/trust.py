"""`trust`, and what every launch asks: may this `gpuops.toml` reach beyond its project?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from gpuops.cli.context import make_context, tables
from gpuops.cli.flags import Free, Json, LaunchFlags, MachineFlags, flag_freedom, untyped_options
from gpuops.cli.help import example_help
from gpuops.core import config_trust
from gpuops.core.context import Context
from gpuops.core.data_address import is_address
from gpuops.core.errors import UsageError
from gpuops.core.settings import Toml, read_toml
from gpuops.core.typed_paths import typed_path
from gpuops.sync.project_files import is_in_project, printable_path

NAME = "gpuops.toml"
TRUST_HELP = example_help(
    "Let this project's gpuops.toml reach beyond the project, as it is now.\n\n"
    "A project may be somebody else's. So what its gpuops.toml says counts by itself only where it reaches no further "
    "than the project: sizes, patterns of results, data inside. All else (commands, secrets, variables, what is sent "
    "anyway, data elsewhere, sinks, clusters, limits, ...) counts once you have read and trusted it. "
    "It is remembered for this content of this file alone. `train`, `run` and `up` ask the same at a terminal. "
    "Their own --yes, which may be typed before the file was seen, does not answer it; nor does it let an untrusted "
    "file say what is rented.",
    "gpuops trust",
    "gpuops trust ~/project --yes",
    "gpuops trust --revoke",
)


class Reach(NamedTuple):
    """One option of the file that reaches beyond the project."""

    table: str
    option: str
    value: Any

    def __str__(self) -> str:
        return f"[{self.table}] {self.option} = {json.dumps(self.value, ensure_ascii=False)}"


def register(app: typer.Typer) -> None:
    app.command("trust", help=TRUST_HELP)(trust)


def trust(
    path: Annotated[
        Path | None, typer.Argument(metavar="PATH", help="The project's folder, or the file; without, here.")
    ] = None,
    revoke: Annotated[bool, typer.Option("--revoke", help="Trust it no more, whatever it says.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="I have read the file: ask no question.")] = False,
    as_json: Json = False,
) -> None:
    ctx, _ = make_context(as_json=as_json)
    file = typed_path("", str(path or ""), ctx.folder)
    file = file if file.name == NAME and not file.is_dir() else file / NAME
    if revoke:
        count = config_trust.revoke(ctx.home, file)
        said = f"{file} is trusted no more" if count else f"{file} was not trusted"
        ctx.out.result("trust", {"path": str(file), "trusted": False, "options": []}, [printable_path(said)])
        return
    toml = read_toml(file, tables())
    if not toml.sha256:
        raise UsageError(f"there is no {printable_path(str(file))}", "name the project's folder: gpuops trust PATH")
    found = reaches(toml, asked=False)
    if found and not config_trust.is_trusted(ctx.home, toml):
        _show(ctx, toml, found)
        if not yes and not ctx.out.interactive:
            raise UsageError("cannot ask for confirmation: no terminal", "read the file, then: gpuops trust --yes")
        if not yes and not ctx.out.confirm("trust this file until it changes?"):
            raise UsageError(f"{NAME} is not trusted", "remove from it what you do not want")
        config_trust.trust(ctx.home, toml)
    options = [{"table": one.table, "option": one.option, "value": one.value} for one in found]
    line = (
        "is trusted until it changes" if found else "reaches for nothing beyond its project: nothing is to be trusted"
    )
    ctx.out.result(
        "trust", {"path": str(file), "trusted": bool(found), "options": options}, [printable_path(f"{file} {line}")]
    )


def reaches(toml: Toml, *, asked: bool = True) -> list[Reach]:
    """What of the file reaches beyond the project. `asked`: somebody is asked before anything is rented."""
    free = flag_freedom(MachineFlags, LaunchFlags)
    return [
        Reach(table, option, value)
        for table, options in toml.tables.items()
        for option, value in options.items()
        if not _is_free(free[option], value, toml.path.parent, asked)
    ]


def _is_free(mark: Free | None, value: Any, folder: Path, asked: bool) -> bool:
    if mark is Free.INSIDE:
        return not is_address(str(value)) and is_in_project(folder, str(value))
    return mark is Free.ALWAYS or (mark is Free.ASKED and asked)


def require_trust(ctx: Context, toml: Toml, table: str, *groups: Any, rents: bool = False) -> None:
    """That the user trusts what this command takes from the file; asks at a terminal. `groups`: the flags as typed.

    `rents`: machines may be rented. Raises UsageError where the file is not trusted.
    """
    taken = {key for flags in groups for key in untyped_options(flags, toml.tables.get(table, {}))}
    found = reaches(toml, asked=not (rents and ctx.yes))
    used = [one for one in found if one.table == table and one.option in taken]
    if not used or config_trust.is_trusted(ctx.home, toml):
        return
    if ctx.yes or not ctx.out.interactive:
        named = ", ".join(dict.fromkeys(one.option for one in used))
        raise UsageError(
            f"{printable_path(str(toml.path))}, [{table}]: you have not trusted this file with {named}",
            "read it, since that reaches beyond the project; where it says what you want: gpuops trust",
        )
    _show(ctx, toml, reaches(toml, asked=False))
    wanted = ", ".join(dict.fromkeys(one.option for one in reaches(toml, asked=False)))
    if not ctx.out.confirm(
        f"a project may be somebody else's, and this reaches beyond it ({wanted}): trust the file until it changes?"
    ):
        raise UsageError(f"{NAME} is not trusted: nothing was done", "remove from it what you do not want")
    config_trust.trust(ctx.home, toml)


def _show(ctx: Context, toml: Toml, found: Sequence[Reach]) -> None:
    ctx.out.say(f"{printable_path(str(toml.path))} asks for:")
    for one in found:
        ctx.out.say(f"  {one}")
