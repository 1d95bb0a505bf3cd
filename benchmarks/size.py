"""What an installation brings along: packages and MB, beside two tools that start machines, too.

Ours is installed from this folder into an empty environment. Peers are resolved, not installed, as long as the
registry is within reach; their MB are figures that were measured on a day, or with --install those of today.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path

from benchmarks.measure import PYTHON, ROOT, Failed, Options, Skip, Table, run

GOAL_PACKAGES, GOAL_MB = 25, 60
MEASURED = {"skypilot": (96, 459), "dstack": (53, 160)}
"""Packages and MB of environments, pip and setuptools (26 MB) in them; versions 0.14.1 and 0.22.5."""
MEASURED_ON = "2026-11"
NAMED = 6
"""So many of our own packages are named, the largest first."""


def tables(options: Options) -> Iterator[Table | Skip]:
    try:
        ours = _installed(str(ROOT))
    except Failed as why:
        raise Skip(f"the registry is out of reach, or it cannot be built ({why})") from why
    rows = [["gpuops", str(len(ours)), f"{_mb(ours):.0f}", "installed just now"]]
    for name, (packages, mb) in MEASURED.items():
        rows.append([name, *_peer(name, packages, mb, options)])
    largest = sorted(ours.items(), key=lambda item: item[1], reverse=True)
    named = [f"{name} {size / 1e6:.1f}" for name, size in largest[:NAMED]]
    named.append(f"all others {_mb(dict(largest[NAMED:])):.1f}")
    notes = (f"Goal: {GOAL_PACKAGES} packages, {GOAL_MB} MB. Ours, in MB: {', '.join(named)}.",)
    yield Table("Size", ("of", "packages", "MB", "how known"), rows, notes)


def _mb(sizes: Mapping[str, int]) -> float:
    return sum(sizes.values()) / 1e6


def _peer(name: str, packages: int, mb: int, options: Options) -> list[str]:
    known = [str(packages), str(mb), f"measured {MEASURED_ON}"]
    if options.tiny:
        return known
    try:
        if options.install:
            there = _installed(name)
            return [str(len(there)), f"{_mb(there):.0f}", "installed just now"]
        return [str(_resolved(name)), str(mb), f"resolved just now; MB: {known[-1]}"]
    except Failed:
        return known


def _resolved(name: str) -> int:
    """How many packages an installation into an empty environment would bring. Raises Failed."""
    with tempfile.TemporaryDirectory(prefix="gpuops-b") as folder:
        report = Path(folder) / "report.json"
        run([PYTHON, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", report, name])
        return len(json.loads(report.read_text())["install"])


def _installed(what: str) -> dict[str, int]:
    """Bytes of every package of an environment into which `what` was installed, compiled files included."""
    with tempfile.TemporaryDirectory(prefix="gpuops-b") as folder:
        run([PYTHON, "-m", "venv", "--without-pip", folder])
        run([PYTHON, "-m", "pip", "--python", f"{folder}/bin/python", "install", "--quiet", what])
        (site,) = Path(folder).glob("[lL]ib/**/site-packages")
        return _weighed(site)


def _weighed(site: Path) -> dict[str, int]:
    sizes: dict[str, int] = defaultdict(int)
    for package in metadata.distributions(path=[str(site)]):
        for file in package.files or ():
            path = Path(str(package.locate_file(file)))
            sizes[package.name] += path.stat().st_size if path.is_file() else 0
    return dict(sizes)
