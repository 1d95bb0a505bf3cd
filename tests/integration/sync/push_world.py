"""One project here and one node, and what a push makes of them."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpuops.core.reporting import Silent
from gpuops.sync.pull_edits import PulledEdit, pull_edits
from gpuops.sync.push_record import PushRecord
from gpuops.sync.scan import Tree, scan
from gpuops.sync.uplink import Uplink
from gpuops.sync.upload import PushReport, push_many
from tests.fakes.inprocess import InProcessClient


class World:
    """One project, one node."""

    def __init__(self, project: Path, node: InProcessClient, cache: Path) -> None:
        self.here, self.node, self.cache = project, node, cache
        self.there = Path(node.node.dir) / "project"
        self.record = PushRecord(cache.parent / "home", "token", "project")

    def scan(self, *allow: str) -> Tree:
        return scan(self.here, self.cache, allow)

    def push(self, **options: Any) -> PushReport:
        return self.push_to([self.node], **options)[0]

    def push_to(self, nodes: Sequence[InProcessClient], **options: Any) -> list[PushReport]:
        return push_many(nodes, "project", self.scan(), progress=Silent(), record=self.record, **options)  # type: ignore[arg-type]

    def pull(self, node: InProcessClient | None = None) -> tuple[list[PulledEdit], str]:
        brought: list[PulledEdit] = []
        refused = pull_edits(node or self.node, "project", self.here, self.record, brought)  # type: ignore[arg-type]
        return brought, refused

    def edits(self) -> list[PulledEdit]:
        """What comes home where nothing is refused."""
        brought, refused = self.pull()
        assert not refused
        return brought


def contents(folder: Path) -> dict[bytes, object]:
    """Every file: its bytes, mode and time; every link: its target."""
    found: dict[bytes, object] = {}
    root = os.fsencode(folder)
    for base, names, files in os.walk(root):
        for name in [*files, *(name for name in names if os.path.islink(os.path.join(base, name)))]:
            path = os.path.join(base, name)
            seen = os.lstat(path)
            if stat.S_ISLNK(seen.st_mode):
                found[os.path.relpath(path, root)] = os.readlink(path)
            else:
                with open(path, "rb") as file:
                    found[os.path.relpath(path, root)] = (file.read(), stat.S_IMODE(seen.st_mode), seen.st_mtime_ns)
    return found


class Meddling(Uplink):
    """Something writes to a file whenever a piece of it has been sent."""

    def __init__(self, path: Path, times: float) -> None:
        super().__init__(measured_bytes_per_s=1e9)
        self.path, self.times = path, times

    def passed(self, count: int) -> None:
        super().passed(count)
        if self.times:
            self.times -= 1
            with open(self.path, "ab") as file:
                file.write(b"more" * 1000)
