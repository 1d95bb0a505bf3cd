"""Real nodes on this machine: watchdog and agent as processes, reached as a client reaches them."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuops.agent.process_table import is_living, list_processes
from gpuops.core.models import Resource
from gpuops.nodes import bootstrap
from gpuops.transport.connection import ProcessConnection
from gpuops.transport.rpc import AgentClient, NodePaths

HANG_S = 300.0
"""Beyond this a test is hanging; nothing is measured with it."""
PYTHON = os.environ.get("GPUOPS_TEST_AGENT_PYTHON", sys.executable)
"""The Python that runs the agent; any from 3.8 must do."""


def until(condition: Callable[[], Any], what: str) -> Any:
    """The condition's value once it is true."""
    deadline = time.monotonic() + HANG_S
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"still not: {what}")


def alive(pid: int) -> bool:
    return pid in list_processes()


def carrying(text: str) -> set[int]:
    """Living processes with `text` in their command line."""
    found = set()
    for pid in list_processes():
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue
        if text.encode() in line and pid != os.getpid():
            found.add(pid)
    return found


class RealNode:
    """One node. `client` is a fresh conversation each time it is asked for."""

    def __init__(self, root: Path, cluster: str, index: int) -> None:
        agent, sha = bootstrap.build_agent(root / "agent")
        machine = Resource(
            "machine", "x", "", "", False, data={"root": str(root), "python": PYTHON, "connection": "process"}
        )
        self.index = index
        self.cluster = cluster
        self.artefact = agent
        self.connection = ProcessConnection(f"node{index}")
        self.paths = NodePaths(machine, cluster, index, sha)
        self.folder = Path(self.paths.node)

    def mode(self, *arguments: str, stdin: str = "") -> tuple[int, str, str]:
        """Run one of the agent's modes to its end: exit code, stdout, stderr."""
        channel = self.connection.open(self.paths.argv(*arguments))
        channel.stdin.write(stdin.encode())
        channel.stdin.close()
        out = channel.stdout.read()
        code = channel.wait(HANG_S)
        errors = channel.errors()
        channel.close()
        return code, out.decode(), errors

    def init(self, **lease: float) -> dict[str, int]:
        document = {"node": {"cluster": self.cluster, "index": self.index, "end": None}, "lease": lease}
        code, out, errors = self.mode("init", stdin=json.dumps(document))
        assert code == 0, errors
        return dict(json.loads(out))

    def end(self, *flags: str) -> dict[str, Any]:
        code, out, errors = self.mode("end", *flags)
        assert code == 0, out + errors
        return dict(json.loads(out))

    def client(self) -> AgentClient:
        return AgentClient(self.connection, self.paths)

    def says(self, verb: str, **args: Any) -> dict[str, Any]:
        """The agent's own last message about a request, whatever a client makes of it."""
        channel = self.connection.open(self.paths.argv("connect"))
        channel.stdin.write(json.dumps({"id": 1, "verb": verb, "args": args}).encode() + b"\n")
        lines = iter(channel.stdout.readline, b"")
        assert next(lines) == b"gpuops-agent 1\n"
        message = next(message for message in map(json.loads, lines) if "item" not in message)
        channel.close()
        return dict(message)

    def process(self, name: str) -> int:
        """The number of the living `watchdog` or `agent`."""

        def look() -> int:
            try:
                noted = json.loads((self.folder / f"{name}.json").read_text())
            except (OSError, ValueError):
                return 0
            return int(noted["pid"]) if is_living(noted["pid"], noted["start"]) else 0

        return int(until(look, f"a {name} lives"))

    def spec(self, run: str, argv: list[str], **more: Any) -> dict[str, Any]:
        tree = self.folder / "project"
        tree.mkdir(exist_ok=True)
        return {
            "schema": 1, "run": run, "cluster": self.cluster, "node": self.index, "nodes": 1, "tree": "project",
            "kind": "command", "argv": argv, "env": {}, "scrub": [], "ranks": 1, "rank_base": 0, "world": 1,
            "master": None, "gang": None, "prelude": [], "outs": ["*.pt"], "grace_s": 2.0, **more,
        }  # fmt: skip

    def start(
        self, run: str, argv: list[str], secrets: dict[str, str] | None = None, secret: str = "", **more: Any
    ) -> None:
        client = self.client()
        client.call("start", spec=self.spec(run, argv, **more), secrets=secrets or {}, gang_secret=secret)
        client.close()

    def python(self, run: str, source: str, *arguments: str, **more: Any) -> None:
        """Start a command: this Python program."""
        self.start(run, [sys.executable, "-c", source, *arguments], **more)

    def result(self, run: str) -> dict[str, Any]:
        """The run's result, as soon as there is one."""

        def look() -> Any:
            try:
                return json.loads((self.folder / "runs" / run / "result.json").read_text())
            except (OSError, ValueError):
                return None

        return dict(until(look, f"the run {run} has ended"))

    def file(self, run: str, name: str) -> bytes:
        try:
            return (self.folder / "runs" / run / name).read_bytes()
        except FileNotFoundError:
            return b""


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[..., RealNode]]:
    nodes: list[RealNode] = []

    def make(index: int = 0, under: str = "", init: bool = True, **lease: float) -> RealNode:
        node = RealNode(tmp_path / under, "lab", index)
        nodes.append(node)
        if init:
            node.init(**lease)
        return node

    yield make
    for node in nodes:
        if node.folder.exists():
            assert node.end()["left"] == 0
        node.connection.close()
    left = carrying(str(tmp_path))
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, f"processes of the test's nodes are left: {left}"


@pytest.fixture
def node(make_node: Callable[..., RealNode]) -> RealNode:
    return make_node()
