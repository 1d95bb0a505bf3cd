"""A report for people: place by place, what is well in one line each, then one sentence about it all."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuops.commands.doctor.finding import LEVELS, SETUP, Examined, Finding, plural, size
from gpuops.core.errors import NodeError, ProviderError, worst


@dataclass(frozen=True)
class Report:
    findings: Sequence[Finding]

    @property
    def exit_code(self) -> int:
        """3 where a provider's set-up says no, 4 where a place does, 0 where nothing is worse than a warning."""
        errors = [finding for finding in self.findings if finding.level == "error"]
        return worst(*(ProviderError.exit_code if one.what == SETUP else NodeError.exit_code for one in errors))

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
        """The last line: how many of what."""
        counts = [(level, sum(one.level == level for one in self.findings)) for level in LEVELS if level != "ok"]
        found = [plural(count, level) for level, count in counts if count]
        if not found:
            return "nothing is wrong"
        joined = " and ".join(filter(None, [", ".join(found[:-1]), found[-1]]))
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


def well(place: Examined) -> Finding:
    """One line about a place as it is, however many findings it has."""
    machine, python, home = place.part("machine"), place.python, place.disk("home")
    parts = []
    if python:
        parts.append(f"torch {python['torch']} ({python['path']})" if python.get("torch") else str(python["path"]))
    elif agent := place.part("pythons").get("agent"):
        parts.append(f"Python {'.'.join(str(part) for part in agent['version'])}")
    names = [str(gpu.get("name")) for gpu in place.gpus]
    parts += [f"{names.count(name)} x {name}" for name in dict.fromkeys(names)] or ["no GPU"]
    parts += [f"driver {place.gpus[0]['driver']}"] if names else []
    parts += [plural(int(machine["cores"]), "core")] if machine.get("cores") else []
    parts += [f"{size(int(machine['memory']))} of memory"] if machine.get("memory") else []
    parts += [f"{size(int(home['free']))} of disk free"] if home.get("there") else []
    host = f"{machine['hostname']}: " if place.reached and machine.get("hostname") else ""
    return Finding("ok", "place", host + ", ".join(parts), where=place.where)
