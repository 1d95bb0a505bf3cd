"""A pod's own log: its lines out of a stream of events, and what in them will not heal. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

NEVER_PULLED = re.compile(
    r"manifest unknown|manifest for \S+ not found|no matching manifest|pull access denied|repository does not exist|"
    r"repository name not known|requested access to the resource is denied|invalid reference format|"
    r"unauthorized: (?!.*rate)|authentication required",
    re.IGNORECASE,
)
DRIVER = re.compile(r"unsatisfied condition: (cuda\s*>=\s*[\d.]+)", re.IGNORECASE)
NOT_STARTED = re.compile(
    r"error (?:creating|starting) container|OCI runtime \w+ failed|executable file not found|exec format error|"
    r"container exited|exited with (?:exit )?(?:code|status)",
    re.IGNORECASE,
)
STARTS = re.compile(r"start container\b", re.IGNORECASE)
"""What the host says each time: a container whose command ends is started again, for ever."""
LONGEST = 200


def lines(stream: bytes) -> list[str]:
    """What was said, in order. An event that was cut short is left out."""
    found = []
    for row in stream.decode(errors="replace").splitlines():
        if not row.startswith("data:"):
            continue
        try:
            event = json.loads(row[5:])
        except ValueError:
            continue
        if isinstance(event, dict) and isinstance(event.get("line"), str):
            found.append(_plain(event["line"]))
    return [line for line in found if line]


def hopeless(said: list[str]) -> str:
    """The sentence for what no waiting heals; empty where nothing of the kind was said."""
    for line in reversed(said):
        if match := DRIVER.search(line):
            return f"its machine's driver is too old for the image ({match[1]}): --min-cuda asks for newer ones"
        if NEVER_PULLED.search(line):
            return f"its image cannot be pulled: {short(line)}"
    return ""


def never_up(said: list[str]) -> str:
    """Why the container of a pod that has stopped never was of use, in its host's own words; empty where they do not
    say that it lay with its image."""
    if why := hopeless(said):
        return why
    for line in reversed(said):
        if NOT_STARTED.search(line):
            return f"its container does not start: {short(line)}"
    return looping(said, 2)


def looping(said: Sequence[str], least: int) -> str:
    """The sentence for a container that ends whenever it is started, `least` times or more; else empty."""
    times = sum(bool(STARTS.match(line)) for line in said)
    return f"its container ended by itself each of the {times} times that it was started" if times >= least else ""


def short(line: str) -> str:
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"


def _plain(line: str) -> str:
    return "".join(char if char.isprintable() else " " for char in line).rstrip()
