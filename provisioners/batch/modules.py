"""A site's modules (environment modules or Lmod) that have torch. Pure."""

from __future__ import annotations

import re

from gpuops.core.models import SiteFact

MODULES = r"""
limit() { if command -v timeout >/dev/null; then timeout 20 "$@"; else "$@"; fi; }
limit bash -lc 'type module >/dev/null 2>&1 && { echo "module: yes"; module -t avail 2>&1; }' </dev/null || :
"""
"""`module` is a function that only a login shell has."""
NAME = re.compile(r"([\w./+-]+)(?:\([\w:]*\))?")
SHOWN = 12


def modules_with_torch(text: str) -> list[SiteFact]:
    """`text`: what MODULES printed; nothing of a site without `module`."""
    lines = [line.strip() for line in text.splitlines()]
    if "module: yes" not in lines:
        return []
    found = [match[1] for line in lines if (match := NAME.fullmatch(line)) and not line.endswith(("/", ":"))]
    names = [name for name in found if "torch" in name.lower()]
    if not names:
        return [SiteFact("modules", "no module here has torch in its name")]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return [
        SiteFact(
            "modules",
            f"modules with torch: {', '.join(names[:SHOWN])}{more}",
            f"to use one: --prelude 'module load {names[-1]}'",
        )
    ]
