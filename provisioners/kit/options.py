"""A provider's own flags, each declared once: as a field of a dataclass, with its type, its help and its default.

@dataclass(frozen=True)
class Wishes(OwnOptions):
    who = "Heron"
    disk: int = option("GB of disk.", 100, least=8)
    bid: float | None = option("With --spot: $/h.")

options = Wishes.flags()         # --disk and --bid
wishes = Wishes.parse(request)   # wishes.disk is 100 where none is given
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar, get_args, get_type_hints

from gpuops.core.errors import UsageError
from gpuops.core.models import Option, Request

Own = TypeVar("Own", bound="OwnOptions")
Check = tuple[object, str, str]
"""Whether something is wrong, the sentence, and what to do."""
TYPES: dict[Any, Any] = {str: "str", int: "int", float: "float", bool: "bool"}


def option(help_text: str, default: Any = None, *, least: float | None = None, most: float | None = None) -> Any:
    """A field that is a flag. `least`, `most`: a number must be between them."""
    return dataclasses.field(default=default, metadata={"help": help_text, "least": least, "most": most})


@dataclass(frozen=True)
class OwnOptions:
    """A checked request with a provider's own flags; the provider was not asked for anything yet."""

    who: ClassVar[str]
    """The provider, for errors."""
    default_image: ClassVar[str] = ""
    """Of a container, where none is named."""
    request: Request

    @property
    def gpus(self) -> int:
        return 1 if self.request.gpus is None else self.request.gpus

    @property
    def image(self) -> str:
        return (self.request.image or self.default_image).strip()

    def checks(self) -> Iterable[Check]:
        """What else makes no sense anywhere."""
        return ()

    @classmethod
    def flags(cls) -> Sequence[Option]:
        """`min_ram` is `--min-ram`."""
        return tuple(
            Option(flag, one.metadata["help"], TYPES[type_], one.default or None) for flag, one, type_ in cls._fields()
        )

    @classmethod
    def parse(cls: type[Own], request: Request) -> Own:
        """Flags as they are given, else as they are by default. Raises UsageError for the first thing that is wrong."""
        given: dict[str, Any] = {}
        for flag, one, type_ in cls._fields():
            if (value := request.options.get(flag)) is None:
                continue
            least, most = one.metadata["least"], one.metadata["most"]
            if (least is not None and value < least) or (most is not None and value > most):
                span = f"{least:g} and more" if most is None else f"from {least:g} to {most:g}"
                raise UsageError(f"--{flag} {value:g} is out of range", f"it is {span}")
            given[one.name] = value.strip() if isinstance(value, str) else type_(value)
        own = cls(request, **given)
        like = f"write it like {cls.default_image}" if cls.default_image else "write it without spaces"
        no_gpu = own.gpus < 1, f"a machine at {cls.who} has at least one GPU", "leave out --gpus, or ask for 1 and more"
        bad_image = len(own.image.split()) > 1, f"'{own.image}' is not the name of an image", like
        for is_wrong, say, hint in (no_gpu, bad_image, *own.checks()):
            if is_wrong:
                raise UsageError(say, hint)
        return own

    @classmethod
    def _fields(cls) -> list[tuple[str, Any, Any]]:
        """Each one's flag, field and plain type."""
        hints = get_type_hints(cls)
        fields = [one for one in dataclasses.fields(cls) if "help" in one.metadata]
        return [
            (one.name.replace("_", "-"), one, (get_args(hints[one.name]) or [hints[one.name]])[0]) for one in fields
        ]
