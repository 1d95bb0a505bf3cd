"""Four nodes that pass a push on, by real processes and sockets."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpuops.sync import push_chain
from gpuops.sync.scan import scan
from gpuops.sync.uplink import Uplink
from gpuops.sync.upload import PushReport, push_many
from gpuops.transport import rsync
from gpuops.transport.connection import ProcessChannel
from tests.fakes.inprocess import InProcessClient
from tests.integration.sync.node_here import Words
from tests.integration.sync.push_world import contents

BIG_BYTES = 12_000_000
SMALL_FILES = 40


class Member(InProcessClient):
    """A node whose programs can be made to misbehave, and whose input is counted."""

    def __init__(self, folder: Path, label: str) -> None:
        super().__init__(folder, label)
        self.prelude = ""
        """What the programs `relay` and `relay-source` execute before they begin."""
        self.instead = ""
        """A program that runs in place of these."""
        self.got = 0
        """Bytes that left home for this node."""
        self.programs: list[Any] = []

    @property
    def tree(self) -> Path:
        return Path(self.node.dir) / "project"

    def start(self, argv: Sequence[str]) -> ProcessChannel:
        words = list(argv)
        if {"relay", "relay-source"} & set(words):
            words[3] = self.instead or words[3].replace("\ntry:", f"\n{self.prelude}\ntry:")
        channel = super().start(words)
        write = channel.stdin.write

        def counted(data: Any) -> int:
            count = write(data)
            self.got += count
            return count

        channel.stdin.write = counted  # type: ignore[method-assign, assignment]
        self.programs.append(channel._process)
        return channel

    def signal(self, number: signal.Signals) -> None:
        self.programs[-1].send_signal(number)


class Scene:
    """A project here and four nodes, without rsync."""

    def __init__(self, project: Path, tmp_path: Path) -> None:
        self.here, self.cache = project, tmp_path / "cache"
        (project / "big.bin").write_bytes(os.urandom(BIG_BYTES))
        (project / "many").mkdir()
        for number in range(SMALL_FILES):
            (project / "many" / f"f{number}").write_bytes(os.urandom(10_000))
        self.nodes = [Member(tmp_path / f"host{number}" / "c" / f"n{number}", f"node{number}") for number in range(4)]
        self.words = Words()

    def push(self, uplink: Uplink | None = None, nodes: Sequence[Member] = ()) -> list[PushReport]:
        tree = scan(self.here, self.cache)
        found: Any = list(nodes or self.nodes)
        return push_many(found, "project", tree, progress=self.words, uplink=uplink or Fast())

    @property
    def size(self) -> int:
        return scan(self.here, self.cache).size

    @property
    def left_home(self) -> int:
        return sum(node.got for node in self.nodes)

    def is_everywhere(self) -> bool:
        return all(contents(node.tree) == contents(self.here) for node in self.nodes)


class Fast(Uplink):
    """A line so fast that nothing is deflated; something may happen once a share of `size` has passed."""

    def __init__(self, size: int = 0, share: float = 1.0, event: Callable[[], None] = lambda: None) -> None:
        super().__init__(measured_bytes_per_s=1e9)
        self.at, self.event = size * share, event

    def passed(self, count: int) -> None:
        super().passed(count)
        if self.at and self.sent_bytes >= self.at:
            self.at = 0
            self.event()


def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains are always tried, and give up soon."""
    monkeypatch.setattr(push_chain, "MIN_SAVED_S", 0.0)
    monkeypatch.setattr(push_chain, "MIN_STALL_S", 1.0)
    monkeypatch.setattr(push_chain, "MAX_STALL_S", 2.0)
    monkeypatch.setattr(push_chain, "LAST_WORDS_S", 2.0)
    monkeypatch.setattr(rsync, "local_rsync", lambda: None)
