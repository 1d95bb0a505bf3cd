"""Values that a shell offers: names from the ledger, providers, workloads.

The user waits after a key press, so only what a list needs is imported. Nothing is created, and where the ledger cannot
be read nothing is offered.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gpuops import ledger
from gpuops.core.names import CHEAPEST

RUNS_MAX = 50
"""Runs that are offered."""
LEDGER_TIMEOUT_S = 0.2
"""Seconds to wait for a ledger that another command writes: longer would be felt at the keyboard."""


def typed(env: Mapping[str, str], commands: Sequence[str]) -> str | None:
    """The command in the line to be completed; None while it is not typed to its end."""
    words = (env.get("COMP_WORDS") or env.get("_TYPER_COMPLETE_ARGS") or "").split()
    return words[1] if len(words) > 2 and words[1] in commands else None


def clusters(incomplete: str) -> list[tuple[str, str]]:
    """Live clusters."""
    rows = _ask("SELECT name, provider, state FROM clusters WHERE state != 'gone' ORDER BY name")
    return [(name, f"{provider}, {state}") for name, provider, state in _fitting(rows, incomplete)]


def runs(incomplete: str) -> list[tuple[str, str]]:
    """Runs, the latest first."""
    rows = _ask("SELECT name, state FROM runs ORDER BY id DESC LIMIT ?", RUNS_MAX)
    return [(name, {"home": "ended"}.get(state, state)) for name, state in _fitting(rows, incomplete)]


def live_runs(incomplete: str) -> list[str]:
    """Runs that can be stopped."""
    rows = _ask("SELECT name FROM runs WHERE state IN ('starting', 'running') ORDER BY id DESC")
    return [name for (name,) in _fitting(rows, incomplete)]


def providers(incomplete: str) -> list[str]:
    from provisioners import registry

    return [name for name in registry.provider_names() if name.startswith(incomplete)]


def providers_to_rent_from(incomplete: str) -> list[str]:
    return [*providers(incomplete), *([CHEAPEST] if CHEAPEST.startswith(incomplete) else [])]


def workloads(incomplete: str) -> list[tuple[str, str]]:
    from gpuops.sync.workloads_and_data import WORKLOADS

    return [(name, known.line) for name, known in WORKLOADS.items() if name.startswith(incomplete)]


def export_targets(incomplete: str) -> list[str]:
    from gpuops.commands.export.targets import TARGETS

    return [name for name in TARGETS if name.startswith(incomplete)]


def modes(incomplete: str) -> list[tuple[str, str]]:
    known = {"single": "one rank", "multigpu": "one node, a rank per GPU", "multinode": "several nodes"}
    return [(name, does) for name, does in known.items() if name.startswith(incomplete)]


def _fitting(rows: Sequence[Sequence[str]], incomplete: str) -> Iterator[Sequence[str]]:
    return (row for row in rows if row[0].startswith(incomplete))


def _ask(query: str, *values: int) -> list[Sequence[str]]:
    """Rows of the ledger, opened read-only; none where it does not exist or cannot be read."""
    import sqlite3

    home = Path(os.environ.get("GPUOPS_HOME") or Path.home() / ".gpuops")
    try:
        db = sqlite3.connect(f"{(home / ledger.FILE).as_uri()}?mode=ro", uri=True, timeout=LEDGER_TIMEOUT_S)
        try:
            return db.execute(query, values).fetchall()
        finally:
            db.close()
    except (sqlite3.Error, OSError, ValueError):
        return []
