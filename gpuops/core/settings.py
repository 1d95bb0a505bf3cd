"""Settings: flags > `gpuops.toml` > the environment > `.env`, and what each of them may set.

Keys to providers are not settings: those of `.env` are kept apart, and used where no other key is found
(`gpuops.core.provider.credential`).

A project is often a repository of another author. So its `.env` and `gpuops.toml` may choose sizes and versions, but
not where keys are sent or what runs on this computer: endpoints, identities, proxies and gpuops' own folder come from
the real environment and from flags alone, and other options of `gpuops.toml` that reach beyond the project count once
the user trusts the file (`gpuops.core.config_trust`). Nothing read here is put into `os.environ`.
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuops.core.account_variables import OURS
from gpuops.core.errors import UsageError
from gpuops.core.files import read_small
from gpuops.core.names import did_you_mean
from gpuops.core.platform import HERE

if TYPE_CHECKING:
    from dotenv.parser import Binding

KEYS = tuple(name for declared in OURS.values() for name in declared.credentials)
"""Keys to our own providers. An empty value counts as unset."""
FROM_DOTENV = ("GPUOPS_TORCH_SPEC", "GPUOPS_TORCH_INDEX", "AWS_REGION", "AWS_DEFAULT_REGION")
"""Settings that `.env` may set as well as the environment."""
FROM_ENVIRONMENT = (
    "GPUOPS_HOME",
    "GPUOPS_CHECKIP_URL",
    *(name for declared in OURS.values() for name in declared.surroundings),
)
"""Variables that only the real environment may set. With `FROM_DOTENV` and `KEYS`: those of `.env.example`."""
MAX_WHOLE_NUMBER = 10**12
"""No option takes a larger whole number."""
MAX_TOML_BYTES = 10_000
"""A `gpuops.toml` is a few lines; the time to parse a crafted one may grow much faster than its length."""
NOT_IN_FILES = re.compile(r"(.*-)?(identity|proxy|endpoint|url)")
"""Options that `gpuops.toml` may not set."""

TYPES: Mapping[type, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    list: "a list of texts",
}

Tables = Mapping[str, Mapping[str, type]]
"""Tables of `gpuops.toml`, each with its options (as flags without dashes in front) and their type."""


@dataclass(frozen=True)
class Toml:
    """The checked content of a `gpuops.toml`."""

    path: Path = Path()
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Table to option to value."""
    sha256: str = ""
    """Checksum of the bytes that the tables were read from; empty without a file."""


@dataclass(frozen=True)
class Settings:
    """What files and environment set; commands lay their flags over it."""

    env_values: Mapping[str, str] = field(default_factory=dict)
    """Known variables without keys, the environment before `.env`. A name that is set nowhere is absent."""
    toml: Toml = field(default_factory=Toml)
    dotenv: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What `.env` holds besides: keys to providers, and what is not ours. Taken by name, never as a whole."""


def load(folder: Path, environ: Mapping[str, str], tables: Tables) -> Settings:
    """Settings for the project in `folder`. Raises UsageError naming file, and key or line."""
    in_file = read_dotenv(folder / ".env")
    for name in in_file:
        _check_variable(name)
    return Settings(_known(in_file, environ), read_toml(folder / "gpuops.toml", tables), _besides(in_file))


def load_leniently(folder: Path, environ: Mapping[str, str], tables: Tables) -> tuple[Settings, list[str]]:
    """As `load`, for commands that must not fail: what can be read, and a sentence for each faulty file.

    The lines of `.env` that can be read count, since a credential may stand there; a `gpuops.toml` counts whole.
    """
    wrong: list[str] = []
    try:
        return load(folder, environ, tables), wrong
    except UsageError as error:
        wrong.append(error.message)
    found = Toml()
    try:
        found = read_toml(folder / "gpuops.toml", tables)
    except UsageError as error:
        wrong += [error.message] if error.message not in wrong else []
    try:
        in_file = _values(_bindings(folder / ".env"))
    except UsageError:
        in_file = {}
    return Settings(_known(in_file, environ), found, _besides(in_file)), wrong


def _known(in_file: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The known variables without keys, the environment before the file."""
    settings = {name: in_file[name] for name in FROM_DOTENV if name in in_file}
    return settings | {name: environ[name] for name in (*FROM_DOTENV, *FROM_ENVIRONMENT) if name in environ}


def _besides(in_file: Mapping[str, str]) -> dict[str, str]:
    """What `.env` holds that is no setting. An empty value counts as unset: a copied `.env.example` has it."""
    settings = {*FROM_DOTENV, *FROM_ENVIRONMENT}
    return {name: value for name, value in in_file.items() if name not in settings and value.strip()}


def select(values: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    """The variables of these names that are set, and not empty."""
    return {name: value for name, value in values.items() if name in names and value.strip()}


def dotenv_values(folder: Path, names: Collection[str]) -> dict[str, str]:
    """The values of these variables in a folder's `.env`, as far as it can be read."""
    try:
        return select(_values(_bindings(folder / ".env")), names)
    except UsageError:
        return {}


def surroundings(found: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment that providers and commands use: the real one, with what `.env` sets except keys."""
    return {**{name: value for name, value in environ.items() if value or name not in KEYS}, **found.env_values}


def with_keys(
    env: Mapping[str, str], values: Mapping[str, str], credentials: Collection[str], *, insist: bool
) -> dict[str, str]:
    """The environment with one account's credentials of a `.env` (`values`) as if they were exported, and none of
    another place. Without `insist`, only where none is exported."""
    keys = select(values, credentials)
    if not keys or (not insist and any(env.get(name) for name in credentials)):
        return dict(env)
    return {**{name: value for name, value in env.items() if name not in credentials}, **keys}


def _check_variable(name: str) -> None:
    """Raises UsageError for a variable of gpuops that `.env` may not set, or that does not exist."""
    if name in FROM_ENVIRONMENT:
        raise not_from_dotenv(name)
    if name.startswith("GPUOPS_") and name not in FROM_DOTENV:
        raise UsageError(f".env sets {name}, which gpuops does not know", _nearest(name, (*FROM_DOTENV, *KEYS), "{}"))


def not_from_dotenv(name: str) -> UsageError:
    """The error for a variable in `.env` that only the real environment may set."""
    return UsageError(f"{name} has no effect in .env", f"remove it there, and export {name} in your shell instead")


def read_dotenv(path: Path) -> dict[str, str]:
    """The values of a `.env`, as written (`$NAME` is not expanded). {} where there is none. Raises UsageError."""
    bindings = _bindings(path)
    for binding in bindings:
        if binding.error:
            line = binding.original.line + _blank_lines(binding.original.string)
            raise UsageError(
                f"{path}, line {line}: this is not NAME=value",
                "correct the line, or put a # before it",
            )
    return _values(bindings)


def _bindings(path: Path) -> list[Binding]:
    """The parsed lines of a `.env`. Raises UsageError where it is not text."""
    if not os.path.isfile(path):
        return []
    from dotenv.parser import parse_stream

    try:
        return list(parse_stream(io.StringIO(read_small(path).decode("utf-8-sig"), newline=None)))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {_reason(error)}", "make it a text file in UTF-8") from error


def _values(bindings: Iterable[Binding]) -> dict[str, str]:
    return {binding.key: binding.value for binding in bindings if binding.key and binding.value is not None}


def _blank_lines(text: str) -> int:
    """How many lines pass before the first word: the parser counts from the end of the previous one."""
    return text[: len(text) - len(text.lstrip())].count("\n")


def read_toml(path: Path, tables: Tables) -> Toml:
    """A `gpuops.toml`, every option known and of its type; without tables where there is none. Raises UsageError."""
    if os.path.isdir(path):  # unlike Path.is_dir, False for an inaccessible path
        raise UsageError(f"{path} is a folder", "settings stand in a file of that name: rename the folder")
    if not os.path.isfile(path):
        return Toml(path)
    import hashlib
    import tomllib

    try:
        content = read_small(path, MAX_TOML_BYTES)
        document = tomllib.loads(content.decode())
    except (OSError, ValueError, RecursionError) as error:  # no UTF-8, or no TOML
        raise UsageError(f"{path} cannot be read: {_reason(error)}", "correct the file, or remove it") from error
    for table, options in document.items():
        if not isinstance(options, dict):
            raise UsageError(f"{path}: {table} stands in no table", _where_to(table, tables))
        if table not in tables:
            raise UsageError(f"{path}: there is no table [{table}]", _nearest(table, tables, "[{}]"))
    checked = {
        table: {name: _checked(f"{path}, [{table}]", name, value, tables[table]) for name, value in options.items()}
        for table, options in document.items()
    }
    return Toml(path, checked, hashlib.sha256(content).hexdigest())


def _where_to(name: str, tables: Tables) -> str:
    """The hint for an option, or a table's name, at the top of the file."""
    if name in tables:
        return f"write [{name}] on a line of its own"
    knowing = [table for table in sorted(tables) if name in tables[table]] or sorted(tables)
    return "put it under " + " or ".join(f"[{table}]" for table in knowing)


def _checked(where: str, name: str, value: Any, options: Mapping[str, type]) -> Any:
    if NOT_IN_FILES.fullmatch(name.replace("_", "-")):
        raise UsageError(f"{where}: {name} may not be set in a file", f"use the flag --{name.replace('_', '-')}")
    if name not in options:
        raise UsageError(f"{where}: there is no option {name}", _nearest(name, options, "{}"))
    wanted = options[name]
    texts = not isinstance(value, list) or all(isinstance(item, str) for item in value)
    if type(value) is int and abs(value) > MAX_WHOLE_NUMBER:
        raise UsageError(f"{where}: {name} is a number without end", "correct the value")
    if wanted is float and type(value) is int:
        return float(value)
    if type(value) is not wanted or not texts:
        raise UsageError(f"{where}: {name} must be {TYPES[wanted]}, not {_shown(value)}", "correct the value")
    return value


def _shown(value: Any) -> str:
    """A value as the file writes it: `true`, not `True`."""
    try:
        return str(value).lower() if isinstance(value, bool) else repr(value) if isinstance(value, str) else str(value)
    except ValueError:  # Python refuses to write numbers of thousands of digits
        return "that"


def _nearest(name: str, known: Iterable[str], form: str) -> str:
    """`did you mean gpus?`, or the list of known names."""
    known = sorted(known)
    return did_you_mean(name, known, form=form) or "use one of " + ", ".join(form.format(one) for one in known)


def secret_values(names: Iterable[str], folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The values of `--secret NAME`…, from the environment, else `.env`. Raises UsageError."""
    return {name: value for name, (value, _) in _secrets(names, folder, environ).items()}


def secret_origins(names: Iterable[str], folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Where each of these secrets comes from, for people. Raises UsageError."""
    return {name: origin for name, (_, origin) in _secrets(names, folder, environ).items()}


def _secrets(names: Iterable[str], folder: Path, environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Value and origin of each secret. An empty value counts as none: it is what a copied `.env.example` holds."""
    names = list(names)
    for name in names:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            # What follows a "=" may be the secret itself, and is not repeated.
            raise UsageError(
                f"--secret takes a variable's name, not '{name.partition('=')[0]}…'",
                "give the name alone: its value is read from the environment or .env",
            )
    in_file = read_dotenv(folder / ".env") if names else {}
    found: dict[str, tuple[str, str]] = {}
    for name in names:
        value = environ.get(name) or in_file.get(name)
        if not value:
            raise UsageError(
                f"the secret {name} is neither in the environment nor in {folder / '.env'}",
                f"`{HERE.set_variable(name)}`, or add it to .env",
            )
        # `environ` has the variables of `.env` already.
        found[name] = (value, ".env" if value == in_file.get(name) else "the environment")
    return found


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
