"""A pod's own log: its lines out of a stream of events, and what in them will not heal. Pure."""

from __future__ import annotations

import json
import re

NEVER_PULLED = re.compile(
    r"manifest unknown|manifest for \S+ not found|no matching manifest|pull access denied|repository does not exist|"
    r"repository name not known|requested access to the resource is denied|invalid reference format|"
    r"unauthorized: (?!.*rate)|authentication required",
    re.IGNORECASE,
)
DRIVER = re.compile(r"unsatisfied condition: (cuda\s*>=\s*[\d.]+)", re.IGNORECASE)
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
            short = line if len(line) <= LONGEST else f"{line[:LONGEST]}…"
            return f"its image cannot be pulled: {short}"
    return ""


def _plain(line: str) -> str:
    return "".join(char if char.isprintable() else " " for char in line).rstrip()
