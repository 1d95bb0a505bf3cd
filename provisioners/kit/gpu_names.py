"""The names of GPUs, as people and providers write them, and which a `--gpu-type` means. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

from gpuops.core.errors import UsageError
from gpuops.core.names import close_names, spellings, words

T = TypeVar("T", bound=Hashable)

MAKERS = frozenset({"nvidia", "amd", "tesla", "geforce", "rtx", "instinct"})
"""Words before the name that people use."""
FORMS = re.compile(r"sxm\d*|pcie|nvl|oam|hbm\d*e?")
"""Words that tell the forms apart in which one GPU is built."""
ONLY_BY_NAME = frozenset({"mig", "v100", "k80", "m60"})
"""A slice of a GPU, and what drivers and newer builds of torch have left behind: only by name."""
MIN_MEMORY_GB = 16
"""The least memory of a GPU that is meant where none is named."""
MAX_NAMES = 12
"""How many names an error lists."""


def split_wish(wish: str | None) -> list[str]:
    """What a flag names, separated by commas."""
    return [part.strip() for part in (wish or "").split(",") if part.strip()]


def match_gpus(kinds: Sequence[T], wish: str, who: str, *, name: Callable[[T], str], **options: Any) -> list[T]:
    """As `match_gpu`, of several names that are separated by commas; each kind once."""
    found = [kind for one in wish.split(",") for kind in match_gpu(kinds, one, who, name=name, **options)]
    return list(dict.fromkeys(found))


def match_gpu(
    kinds: Sequence[T],
    wish: str,
    who: str,
    *,
    name: Callable[[T], str],
    aliases: Callable[[T], Iterable[str]] = lambda _: (),
    is_there: Callable[[T], bool] = lambda _: True,
    where: str = "",
) -> list[T]:
    """The kinds with the one GPU that a name means, in all forms that fit (`h100`: SXM, PCIe and NVL). Raises
    UsageError for what means none, or several.

    name      of a kind's GPU, as the provider writes it
    aliases   by which a kind may be asked for as well: the provider's id, `80gb`
    is_there  whether a kind can be had at all: those that can go before the others
    who       the provider, for errors
    where     `in us-east-1`; empty: there is no need to say
    """
    wanted = words(wish)
    plain = _squeezed(wish)
    exact = [kind for kind in kinds if plain and plain in {_squeezed(name(kind)), *map(_squeezed, aliases(kind))}]
    if exact:
        return [kind for kind in exact if name(kind) == name(exact[0])]

    def fits(kind: T) -> bool:
        known = {"nvidia"}.union(*map(spellings, (name(kind), *aliases(kind))))
        return all(word in known for word in wanted)

    found = [kind for kind in kinds if fits(kind)] if wanted else []
    found = [kind for kind in found if is_there(kind)] or found
    models = sorted({name(kind) for kind in found})
    if len({_without_form(model) for model in models}) > 1:
        raise UsageError(
            f"'{wish.strip()}' is more than one GPU at {who}: {', '.join(models[:MAX_NAMES])}",
            "name one of them exactly",
        )
    if not found:
        there = where and f" {where}"
        raise UsageError(
            f"{who} has no GPU called '{wish.strip()}'{there}", suggest_names({name(kind) for kind in kinds}, wish, who)
        )
    return found


def suggest_names(known: Iterable[str], wish: str, who: str) -> str:
    """The names that a misspelt one may mean, else those that there are."""
    names = sorted(set(known))
    keyed: dict[str, list[str]] = {}
    for name in names:
        bare = _without_maker(words(name))
        for key in {" ".join(bare), bare[0] if bare else ""}:
            keyed.setdefault(key, []).append(name)
    if close := close_names(" ".join(_without_maker(words(wish))), keyed, 2, 0.7):
        meant = dict.fromkeys(name for key in close for name in keyed[key])
        return f"did you mean {' or '.join(list(meant)[:4])}?"
    return f"{who} has {join_names(names)}" if names else f"{who} has none"


def join_names(names: Iterable[str]) -> str:
    """`A10, A100 and others`."""
    known = sorted(set(names))
    return ", ".join(known[:MAX_NAMES]) + (" and others" if len(known) > MAX_NAMES else "")


def is_only_by_name(*names: str) -> bool:
    """Whether a GPU is not meant where none is named."""
    return any(not ONLY_BY_NAME.isdisjoint(words(name)) for name in names)


def _squeezed(name: str) -> str:
    return "".join(_without_maker(words(name)))


def _without_maker(found: Sequence[str]) -> list[str]:
    """Without what makers put before a name: `NVIDIA GeForce RTX 4090`, `RTX 4090` and `4090` are one."""
    first = next((at for at, word in enumerate(found) if word not in MAKERS), 0)
    bare = list(found[first:])
    if bare and bare[0].startswith("rtx") and bare[0] != "rtx":
        bare[0] = bare[0].removeprefix("rtx")
    return bare


def _without_form(name: str) -> str:
    return " ".join(word for word in _without_maker(words(name)) if not FORMS.fullmatch(word))
