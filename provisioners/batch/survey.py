"""What `gpuops doctor` tells of a cluster, whatever its batch system is: a queue, and the site's modules (environment
modules or Lmod) that have torch. Pure."""

from __future__ import annotations

import re

from gpuops.core.format import plural, span
from gpuops.core.models import SiteFact

LIMIT = """
limit() { if command -v timeout >/dev/null; then timeout 20 "$@"; else "$@"; fi; }
"""
"""For a program that may hang, and whose answer can be done without."""
MODULES = rf"""{LIMIT}
limit bash -lc 'type module >/dev/null 2>&1 && {{ echo "module: yes"; module -t avail 2>&1; }}' </dev/null || :
"""
"""`module` is a function that only a login shell has."""
NAME = re.compile(r"([\w./+-]+)(?:\([\w:]*\))?")
SHOWN = 12


def describe_queue(
    name: str, nodes: str, free: int, gpus: int, *, is_default: bool, max_s: float | None, default_s: float | None
) -> str:
    """`partition gpu (the default): 2 nodes with 4 h100 GPUs, …; 5 of 8 GPUs free now; a job may take …`."""
    most = "as long as it likes" if max_s is None else span(max_s)
    usual = "" if default_s in (None, max_s) else f", {span(default_s)} without --max-hours"
    return (
        f"{name}{' (the default)' if is_default else ''}: {nodes}; {free} of {plural(gpus, 'GPU')} free now; "
        f"a job may take {most}{usual}"
    )


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
