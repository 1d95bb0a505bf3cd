"""Splits a command line: words behind the first `--` go to the user's program unparsed, options that a provider
declares go to that provider; and shows both in help texts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.core import TyperCommand

from gpuops.core.errors import GpuopsError
from gpuops.core.names import CHEAPEST

if TYPE_CHECKING:
    from gpuops.core.models import Option
    from gpuops.core.provider import LoadedProvisioner


_PASSED: list[str] | None = None


def split_at_separator(arguments: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """The words before and behind the first `--`; None for the latter where there is no `--`."""
    words = list(arguments)
    if "--" not in words:
        return words, None
    at = words.index("--")
    return words[:at], words[at + 1 :]


def set_passed_words(words: list[str] | None) -> None:
    global _PASSED
    _PASSED = words


def passed_words() -> list[str] | None:
    """The words behind `--` of this command; None when there was no `--`."""
    return _PASSED


EXAMPLES = "\n\n\b\nExamples:\n"
WORDS = "gpuops.words"
"""In a context's `meta`: the options of the provider behind `--on`, as they were typed."""
TYPED = "gpuops.typed"
"""In a context's `meta`: all words behind the command's name."""


class TakesArguments(TyperCommand):
    """What stands behind `--` is not parsed (`train`: it goes to the script), and `--on PROVIDER` brings that
    provider's own options."""

    passed = "[-- ARGS...]"

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        common = {name for parameter in self.params for name in parameter.opts}
        ctx.meta[TYPED] = list(args)
        ours, ctx.meta[WORDS] = split_provider_options(args, common)
        return super().parse_args(ctx, ours)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), self.passed]


class TakesCommand(TakesArguments):
    """`run`: what stands behind `--` is the command."""

    passed = "-- COMMAND [ARGS...]"


class MayTakeCommand(TakesArguments):
    """`ssh`: what stands behind `--` is a command, instead of a shell."""

    passed = "[-- COMMAND [ARGS...]]"


class NamesProvider(TyperCommand):
    """A command whose help has the examples, and ends with the options, of the provider that was named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[TYPED] = list(args)
        return super().parse_args(ctx, args)

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        general, named = self.help or "", _named_provider(ctx)
        if named:
            self.help = _with_own_examples(general, ctx.info_name, named)
        try:
            super().format_help_text(ctx, formatter)
        finally:
            self.help = general

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        named = _named_provider(ctx)
        if named is None:
            from provisioners import registry

            formatter.write_paragraph()
            providers = ", ".join(registry.provider_names())
            formatter.write_text(f"Providers: {providers}. Their own options: gpuops up PROVIDER --help")
            return
        rows = [(_flag(option), option.help) for option in _options(named)]
        with formatter.section(f"Options of {named}"):
            if rows:
                formatter.write_dl(rows)
            else:
                formatter.write_text("none of its own")


def _named_provider(ctx: Any) -> str | None:
    """The first provider among the words that were typed."""
    from provisioners import registry

    providers = registry.provider_names()
    return next((word for word in ctx.meta.get(TYPED, ()) if word in providers), None)


def _with_own_examples(general: str, command: str, provider: str) -> str:
    """The help text with the provider's own examples in place of everybody's; of another command than `up`, with those
    of its examples that name the provider, if any does."""
    what, _, examples = general.partition(EXAMPLES)
    lines = [line.strip() for line in examples.splitlines()]
    own = [f"gpuops up {provider} {words}" for words in _load(provider).examples] if command == "up" else []
    return example_help(what, *(own or [line for line in lines if provider in line.split()] or lines))


def split_provider_options(words: Sequence[str], common: Collection[str]) -> tuple[list[str], list[str]]:
    """A command line split into the rest, and the options that the provider behind `--on` declares."""
    takes_value = {
        f"--{option.name}": option.type != "bool"
        for option in _options_if_known(_typed_value("--on", words))
        if f"--{option.name}" not in common
    }
    rest, own = [], []
    remaining = iter(words)
    for word in remaining:
        name, equals, _ = word.partition("=")
        if name not in takes_value:
            rest.append(word)
            continue
        own.append(word)
        if takes_value[name] and not equals:
            own += [value for value in (next(remaining, None),) if value is not None]
    return rest, own


def _typed_value(flag: str, words: Sequence[str]) -> str:
    """The last value typed for a flag; empty where it was not typed."""
    found = ""
    for position, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == flag:
            found = value if equals else "".join(words[position + 1 : position + 2])
    return found


def _options_if_known(typed: str) -> Sequence[Option]:
    """The own options of a provider, or of all that `a,b` or `cheapest` means; none of one that cannot be loaded, which
    the command itself reports later."""
    if not typed:
        return ()
    from provisioners import registry

    found: list[Option] = []
    for provider in registry.provider_names() if typed == CHEAPEST else typed.split(","):
        with suppress(GpuopsError):
            found += _options(provider)
    return found


def providers_with_option(flag: str) -> list[str]:
    """The providers that declare an option of this name, such as `--host`."""
    from provisioners import registry

    found = []
    for provider in registry.provider_names():
        with suppress(GpuopsError):
            found += [provider for option in _options(provider) if f"--{option.name}" == flag]
    return found


def _options(provider: str) -> Sequence[Option]:
    """The options that a provider declares."""
    return _load(provider).options


def _load(provider: str) -> LoadedProvisioner:
    """A provider for what it declares: that needs no credentials."""
    from gpuops.core.provider import Context
    from provisioners import registry

    return registry.load_provisioner(provider, Context(owner="", home=Path(), env={}))


def _flag(option: Option) -> str:
    values = {"bool": "", "list": f" {option.name.upper()}", "lines": " FILE", "path": " PATH"}
    return f"--{option.name}" + values.get(option.type, f" <{option.type}>")


def example_help(what: str, *examples: str) -> str:
    """Help text: what a command does, and example lines, which typer must not join."""
    return f"{what}{EXAMPLES}" + "\n".join(f"  {line}" for line in examples)
