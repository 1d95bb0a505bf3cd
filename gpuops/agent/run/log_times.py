"""When what was written: a line in the run's times.jsonl for each look that found its streams longer.

The streams themselves keep every byte as written, and nothing else; this file stands beside them. A byte was
written between the last look that did not see it and the first that did.
"""

from __future__ import annotations

import json
import os
import time
from typing import Callable

from gpuops.agent import run_files

FILE = "times.jsonl"


LEAST_S = 1.0


COARSER = 3600.0
"""A look comes at the earliest after this fraction of the run's age: a day's file stays below some MB."""


NOT_OUTPUT = ("events.jsonl", FILE)


class Times:
    """Keeps the file of one run."""

    def __init__(self, folder: str, clock: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._clock = clock
        self._began = self._looked = clock()
        self._sizes: dict[str, int] = {}

    def look(self, last: bool = False) -> None:
        """Note what has grown, where a look is due or this is the `last`."""
        now = self._clock()
        if not last and 0 <= now - self._looked < max(LEAST_S, (now - self._began) / COARSER):
            return
        self._looked = now
        sizes = {
            name: _size_of(path) for name, path in run_files.streams(self._folder).items() if name not in NOT_OUTPUT
        }
        grown = {name: size for name, size in sizes.items() if size > self._sizes.get(name, 0)}
        self._sizes.update(grown)
        try:
            if grown:
                run_files.append(os.path.join(self._folder, FILE), json.dumps({"at": round(now, 2), "sizes": grown}))
        except OSError:
            pass  # a full disk: what counts is the output itself


def _size_of(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
