"""A node without a server: verbs are called directly, bulk modes run as real processes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gpuops.agent.files import push_steps
from gpuops.agent.files.copies import copies
from gpuops.agent.files.output_files import left_here, sums
from gpuops.agent.node import Node, Refusal
from gpuops.core.errors import NodeRefused
from gpuops.transport import validation
from gpuops.transport.connection import ProcessChannel
from gpuops.transport.rpc import encode_request

SOURCE = str(Path(__file__).parents[2])
AGENT_PYTHON = os.environ.get("GPUOPS_TEST_AGENT_PYTHON", sys.executable)
"""The interpreter of the node's side; another one shows that the agent runs there too."""

PROGRAM = f"""
import sys
sys.path.insert(0, {SOURCE!r})
import importlib
from gpuops.agent.__main__ import MODES, refuse
from gpuops.agent.node import Refusal
try:
    sys.exit(importlib.import_module("gpuops.agent." + MODES[sys.argv[1]]).main(sys.argv[1], sys.argv[2:]))
except Refusal as refusal:
    sys.exit(refuse(refusal.kind, refusal.say, refusal.hint, 1))
"""

Verb = Callable[[Node, dict[str, Any], Callable[[dict[str, Any]], None]], dict[str, Any]]
VERBS: dict[str, Verb] = {
    "plan": push_steps.plan,
    "receive": push_steps.receive_message,
    "commit": push_steps.commit,
    "edits": push_steps.edits,
    "copies": copies,
    "sums": sums,
    "left": left_here,
}


def heard(label: str, verb: str, kind: str, said: Any) -> Any:
    """What a client makes of an agent's `item` or `ok`. Raises MalformedAnswer."""
    return validation.parse_message(label, verb, json.dumps({"id": 1, kind: said}).encode())[1]


class InProcessClient:
    """What `AgentClient` offers, for the verbs of a tree."""

    def __init__(self, folder: Path, label: str = "node0") -> None:
        self.label = label
        self.node = Node(str(folder))
        folder.mkdir(parents=True, exist_ok=True)
        self.asked: list[str] = []
        self.connection = SimpleNamespace(label=label, open=self.open)
        self.items: list[dict[str, Any]] = []

    def call(self, verb: str, timeout: float = 60.0, **args: Any) -> Any:  # noqa: ARG002
        self.asked.append(verb)
        args = json.loads(encode_request(1, verb, args))["args"]
        try:
            return heard(self.label, verb, "ok", VERBS[verb](self.node, args, self.items.append))
        except Refusal as refusal:
            raise NodeRefused(f"{self.label}: {refusal.say}", refusal.hint, refusal.kind, refusal.data) from None

    def stream(self, verb: str, timeout: float = 60.0, within: float = inf, **args: Any) -> Iterator[Any]:  # noqa: ARG002
        self.asked.append(verb)
        items: list[dict[str, Any]] = []
        VERBS[verb](self.node, args, items.append)
        return iter([heard(self.label, verb, "item", item) for item in items])

    def argv(self, mode: str, *arguments: str) -> list[str]:
        return [AGENT_PYTHON, "-I", "-c", PROGRAM, mode, "--node", self.node.dir, *arguments]

    def bulk(self, mode: str, *arguments: str) -> ProcessChannel:
        self.asked.append(mode)
        return self.start(self.argv(mode, *arguments))

    def open(self, argv: Sequence[str]) -> ProcessChannel:
        """As its connection does: a program of the node's, such as rsync."""
        self.asked.append(Path(argv[0]).name)
        return self.start(argv)

    def start(self, argv: Sequence[str]) -> ProcessChannel:
        return ProcessChannel(argv)
