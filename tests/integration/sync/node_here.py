"""A node whose wire alone is a stand-in: verbs are called in this process, `send` is a program, `tail` can be cut."""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpuops.agent.files import output_files
from gpuops.agent.node import Node, Refusal, write_json
from gpuops.core.errors import ConnectionLost, NodeRefused
from gpuops.core.timings import Whose
from gpuops.sync.download import DEFAULT_OUTS, FetchReport, fetch
from gpuops.sync.merged_outputs_journal import JOURNAL_FILE
from gpuops.sync.run_folder import RunHome
from gpuops.transport.connection import ProcessChannel
from gpuops.transport.rpc import Items, Stream
from tests.fakes.inprocess import heard

RUN = "digits-1"
REPOSITORY = Path(__file__).parents[3]
SEND = "import sys, gpuops.agent.__main__ as agent; sys.exit(agent.main(sys.argv))"


class NodeHere:
    """A node's folder in tmp_path and the client that talks to it."""

    def __init__(self, folder: Path, index: int) -> None:
        self.label = f"node{index}"
        self.node = Node(str(folder / f"n{index}"))
        self.tree = Path(self.node.tree("project"))
        self.run = Path(self.node.run(RUN))
        self.tree.mkdir(parents=True)
        (self.run / "ranks").mkdir(parents=True)
        write_json(str(self.run / "spec.json"), {"tree": "project"})
        write_json(str(self.run / "inventory.json"), {})
        self.sent: list[list[str]] = []
        self.before: dict[str, Callable[[], None]] = {}
        """Something that happens on the node when a verb (or `send`) is asked for, once."""
        self.cut_after: int | None = None
        self.result: dict[str, Any] | None = None

    def put(self, path: str, data: bytes, mtime_ns: int | None = None) -> Path:
        file = self.tree / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
        if mtime_ns is not None:
            os.utime(file, ns=(mtime_ns, mtime_ns))
        return file

    def call(self, verb: str, timeout: float = 60.0, **args: Any) -> Any:
        stream = self.stream(verb, timeout, **args)
        for _ in stream:
            pass
        return stream.answer

    def stream(self, verb: str, timeout: float | None = None, within: float = 0.0, **args: Any) -> Stream:
        assert (within > 0) is (verb == "sums"), "what may say for long that it is busy has an end"
        return Stream(self._items(verb, timeout, args))

    def _items(self, verb: str, timeout: float | None, args: dict[str, Any]) -> Items:
        self.before.pop(verb, lambda: None)()
        if verb == "tail":
            assert timeout
            assert (args["run"], args["follow"]) == (RUN, True)
            for piece in self._tail(args["offsets"]):
                yield heard(self.label, verb, "item", piece)
            return heard(self.label, verb, "ok", {"result": self.result})
        items: list[dict[str, Any]] = []
        try:
            answer: dict[str, Any] = {"outs": output_files.outs, "sums": output_files.sums}[verb](
                self.node, args, items.append
            )
        except Refusal as refusal:
            raise NodeRefused(refusal.say, refusal.hint, refusal.kind) from None
        for item in items:
            yield heard(self.label, verb, "item", item)
        return heard(self.label, verb, "ok", answer)

    def _tail(self, offsets: dict[str, int]) -> Iterator[dict[str, Any]]:
        """Streams in slices of odd sizes, from the client's offsets, until the cut."""
        left = self.cut_after
        for stream in sorted(path.name for path in (self.run / "ranks").iterdir()):
            data = (self.run / "ranks" / stream).read_bytes()
            offset = offsets.get(stream, 0)
            while offset < len(data):
                piece = data[offset : offset + 37]
                if left is not None and len(piece) > left:
                    raise ConnectionLost(f"the connection to {self.label} ended")
                left = None if left is None else left - len(piece)
                yield {"s": stream, "o": offset, "b64": base64.b64encode(piece).decode()}
                offset += len(piece)

    def bulk(self, mode: str, *arguments: str) -> ProcessChannel:
        self.before.pop(mode, lambda: None)()
        assert mode == "send"
        channel = ProcessChannel(self.send_argv(*arguments))
        wrapped = channel.stdin.write
        channel.stdin.write = lambda data: self._note(data, wrapped)  # type: ignore[method-assign]
        return channel

    def send_argv(self, *arguments: str) -> list[str]:
        return [
            "env",
            f"PYTHONPATH={REPOSITORY}",
            sys.executable,
            "-c",
            SEND,
            "send",
            "--node",
            self.node.dir,
            *arguments,
        ]

    def _note(self, data: Any, write: Callable[[Any], int]) -> int:
        self.sent.append(json.loads(bytes(data)))
        return write(data)


class Words:
    """A Progress that remembers."""

    def __init__(self) -> None:
        self.phases: list[str] = []
        self.said: list[str] = []
        self.done = 0

    def phase(self, text: str, whose: Whose = Whose.GPUOPS) -> None:  # noqa: ARG002
        self.phases.append(text)

    def advance(self, done_bytes: int, total_bytes: int, label: str) -> None:
        assert 0 < done_bytes <= total_bytes
        assert label
        self.done = done_bytes

    def say(self, text: str) -> None:
        self.said.append(text)

    def close(self) -> None:
        pass


class Scene:
    """Two nodes and a home."""

    def __init__(self, tmp_path: Path) -> None:
        self.nodes = [NodeHere(tmp_path, 0), NodeHere(tmp_path, 1)]
        self.home = RunHome(tmp_path / "laptop" / "runs" / RUN)
        self.words = Words()

    def fetch(self, *, final: bool = False, patterns: tuple[str, ...] = DEFAULT_OUTS) -> FetchReport:
        clients: Any = dict(enumerate(self.nodes))
        return fetch(clients, RUN, "project", patterns, self.home, final=final, progress=self.words)

    def out(self) -> dict[str, bytes]:
        """Every file in out/ but our memory, and incoming/ may not be left."""
        assert not (self.home.path / "incoming").exists()
        files = [path for path in self.home.out.rglob("*") if path.is_file() and path.name != JOURNAL_FILE]
        return {path.relative_to(self.home.out).as_posix(): path.read_bytes() for path in files}
