"""How long gpuops takes to begin: three commands that do next to nothing, beside Python itself."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import PYTHON, Options, Table, alternate, environment, gpuops, milliseconds, run

GOALS = {"--version": 60, "--help": 70, "status": 150}
"""Milliseconds, where bare Python takes BARE_MS."""
BARE_MS = 9


def tables(options: Options) -> Iterator[Table]:
    with tempfile.TemporaryDirectory(prefix="gpuops-b") as folder:
        env = environment(Path(folder, "home"))

        def work(argv: list[str]) -> None:
            run(argv, cwd=Path(folder), env=env)

        bare = f"{Path(PYTHON).name} -c pass"
        commands = {bare: [PYTHON, "-c", "pass"]} | {f"gpuops {word}": gpuops(word) for word in GOALS}
        works = {name: lambda argv=argv: work(argv) for name, argv in commands.items()}
        taken = alternate(works, options.times(15))
    goals = {f"gpuops {word}": str(goal) for word, goal in GOALS.items()}
    rows = [[f"`{name}`", *milliseconds(one), goals.get(name, "")] for name, one in taken.items()]
    yield Table(
        "Start",
        ("command", "median, ms", "least, ms", "goal, ms"),
        rows,
        (f"The goals are for a machine on which bare Python takes {BARE_MS} ms; `status` is that of an empty home.",),
    )
