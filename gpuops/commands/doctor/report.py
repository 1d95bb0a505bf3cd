"""What doctor makes of facts: findings, the rules that yield them, the line that sums up a place, and the report."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from gpuops.commands.doctor.facts import Checkup
from gpuops.core.errors import NodeError, ProviderError, worst_exit_code
from gpuops.core.format import listed, plural

T = TypeVar("T")
Level = Literal["ok", "note", "warning", "error"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note", "ok")
"""Worst first."""
SETUP = "setup"
"""The subject of what a provider itself says."""


@dataclass(frozen=True)
class Finding:
    level: Level
    what: str
    """The subject, for programs; each is a line of docs/doctor.md."""
    say: str
    """One sentence."""
    hint: str = ""
    """One command or step that mends it."""
    where: str = ""
    """Where it was found: `this computer`, `node0`, the name of a host or of a provider."""


def error(what: str, say: str, hint: str) -> Finding:
    return Finding("error", what, say, hint)


def warning(what: str, say: str, hint: str) -> Finding:
    return Finding("warning", what, say, hint)


def note(what: str, say: str, hint: str) -> Finding:
    return Finding("note", what, say, hint)


@dataclass(frozen=True)
class Rule(Generic[T]):
    """One row of a table of checks. `T`: what is judged, one checkup or all that are compared."""

    words: Callable[[T], Mapping[str, object] | None]
    """None where nothing is wrong; otherwise what the finding's sentences are filled with."""
    finding: Finding
    """Its sentences may hold `{name}` for each of the words."""


def apply_rules(rules: Sequence[Rule[T]], judged: T) -> Iterator[Finding]:
    """The findings of the rules that apply, in the order of the table."""
    for rule in rules:
        words = rule.words(judged)
        if words is not None:
            say, hint = rule.finding.say.format(**words), rule.finding.hint.format(**words)
            yield dataclasses.replace(rule.finding, say=say, hint=hint)


def format_size(count: float) -> str:
    """Bytes for people, in powers of 1024 as `df -h` and GPU vendors write them."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} TB"


@dataclass(frozen=True)
class Report:
    findings: Sequence[Finding]

    @property
    def exit_code(self) -> int:
        """3 where a provider's set-up has an error, 4 where a place has one, otherwise 0."""
        errors = [finding for finding in self.findings if finding.level == "error"]
        return worst_exit_code(
            *(ProviderError.exit_code if one.what == SETUP else NodeError.exit_code for one in errors)
        )

    @property
    def places(self) -> list[str]:
        return list(dict.fromkeys(finding.where for finding in self.findings))

    def document(self) -> dict[str, Any]:
        return {
            "say": self.say,
            "exit_code": self.exit_code,
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
        }

    @property
    def say(self) -> str:
        """The last line: how many findings of each level."""
        counts = [(level, sum(one.level == level for one in self.findings)) for level in LEVELS if level != "ok"]
        found = [plural(count, level) for level, count in counts if count]
        if not found:
            return "nothing is wrong"
        joined = listed(found)
        if self.exit_code:
            return f"{joined}: see what is marked error first"
        return f"{joined}: nothing that keeps a run from starting"

    def lines(self) -> list[str]:
        lines = []
        for place in self.places:
            here = [finding for finding in self.findings if finding.where == place]
            lines.append(place)
            for finding in sorted(here, key=lambda one: LEVELS.index(one.level)):
                lines.append(f"  {finding.level}: {finding.say}")
                if finding.hint:
                    lines.append(f"    hint: {finding.hint}")
            lines.append("")
        return [*lines, self.say]


def summarize(place: Checkup) -> Finding:
    """One line on what a place has: Python, GPUs, cores, memory, disk."""
    machine, home = place.facts.machine, place.disk("home")
    names = [gpu.name for gpu in place.gpus]
    parts = [_summarize_python(place)]
    parts += [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)] or ["no GPU"]
    parts += [f"driver {place.gpus[0].driver}"] if names else []
    parts += [plural(machine.cores, "core")] if machine.cores else []
    parts += [f"{format_size(machine.memory)} of memory"] if machine.memory else []
    parts += [f"{format_size(home.free)} of disk free"] if home and home.there else []
    host = f"{machine.hostname}: " if place.reached and machine.hostname else ""
    return Finding("ok", "place", host + ", ".join(filter(None, parts)), where=place.where)


def _summarize_python(place: Checkup) -> str:
    """The Python that a run would use, with its torch; otherwise the agent's; empty where none is known."""
    if place.python:
        return f"torch {place.python.torch} ({place.python.path})" if place.python.torch else place.python.path
    agent = place.facts.pythons.agent if place.facts.pythons else None
    return f"Python {'.'.join(map(str, agent.version))}" if agent else ""
