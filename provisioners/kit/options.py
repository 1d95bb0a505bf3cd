"""A provider's own flags, each declared once: as a field of a dataclass, with its type, its help and its default.

@dataclass(frozen=True)
class Wishes:
    request: Request
    disk: int = option("GB of disk.", 100)
    bid: float | None = option("With --spot: $/h.")

options = options_of(Wishes)               # the flags --disk and --bid
wishes = parse_options(Wishes, request)    # wishes.disk is 100 where none is given
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, get_args, get_type_hints

from gpuops.core.errors import UsageError
from gpuops.core.models import Option, Request

T = TypeVar("T")
TYPES: dict[Any, Any] = {str: "str", int: "int", float: "float", bool: "bool"}


def option(help_text: str, default: Any = None, *, least: float | None = None, most: float | None = None) -> Any:
    """A field that is a flag. `least`, `most`: a number must be between them."""
    return dataclasses.field(default=default, metadata={"help": help_text, "least": least, "most": most})


def options_of(kind: type) -> Sequence[Option]:
    """The flags of a dataclass: `min_ram` is `--min-ram`."""
    return tuple(Option(flag, field.metadata["help"], TYPES[type_], field.default or None)
                 for flag, field, type_ in _flags(kind))  # fmt: skip


def parse_options(kind: Callable[..., T], request: Request) -> T:
    """The dataclass of a request: its flags as they are given, else as they are by default. Raises UsageError."""
    given: dict[str, Any] = {}
    for flag, field, type_ in _flags(kind):
        if (value := request.options.get(flag)) is None:
            continue
        least, most = field.metadata["least"], field.metadata["most"]
        if (least is not None and value < least) or (most is not None and value > most):
            span = f"{least:g} and more" if most is None else f"from {least:g} to {most:g}"
            raise UsageError(f"--{flag} {value:g} is out of range", f"it is {span}")
        given[field.name] = value.strip() if isinstance(value, str) else type_(value)
    return kind(request=request, **given)


def refuse(*checks: tuple[object, str, str]) -> None:
    """Raises UsageError with the sentence and the hint of the first check that is true."""
    for is_wrong, say, hint in checks:
        if is_wrong:
            raise UsageError(say, hint)


def _flags(kind: Any) -> list[tuple[str, Any, Any]]:
    """Each one's flag, field and plain type."""
    hints = get_type_hints(kind)
    fields = [field for field in dataclasses.fields(kind) if "help" in field.metadata]
    return [(one.name.replace("_", "-"), one, (get_args(hints[one.name]) or [hints[one.name]])[0]) for one in fields]
