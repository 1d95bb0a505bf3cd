"""Results that are nowhere else yet: a node waits longer for whoever fetches them than for its next use.

Kept in files, since neither the agent nor the watchdog may have lived all the while: a run is held from its
`result.json` on, until `home.json` says that its results are where its user wants them.
"""

from __future__ import annotations

import os
import time
from typing import Any, Mapping

from gpuops.agent.node import Node, Refusal, read_json, write_json
from gpuops.agent.retain import bucket

HOME = "home.json"


class Held:
    """The runs of one node, looked at again and again; what is settled once is not read again."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._spans: dict[str, float] = {}
        """Runs that are held, and for how long each asks to be (seconds)."""
        self._settled: set[str] = set()

    def hold_s(self) -> float | None:
        """For how long what is held waits for someone; the most patient run decides. None: nothing is held."""
        for name in self._node.runs():
            if name not in self._settled:
                self._look(name)
        return max(self._spans.values(), default=None)

    def _look(self, name: str) -> None:
        folder = self._node.run(name)
        if os.path.exists(os.path.join(folder, HOME)):
            self._spans.pop(name, None)  # for now: what another node hands over is waited for again
        elif name not in self._spans and (result := read_json(os.path.join(folder, "result.json"))):
            span = held_for(read_json(os.path.join(folder, "spec.json")) or {}, result)
            if span is None:
                self._settled.add(name)
            else:
                self._spans[name] = span


def held_for(spec: Mapping[str, Any], result: Mapping[str, Any]) -> float | None:
    """How long the results of a run that has ended are held; None where it never began, or asks for nothing."""
    if (result.get("reason") or {}).get("kind") == "start":
        return None
    span = spec.get("hold_s")
    return float(span) if isinstance(span, (int, float)) else None


def home(node: Node, args: dict[str, Any], _emit: Any) -> dict[str, Any]:
    """Verb: everything that a run left here is at home; the node holds it no longer."""
    folder = node.run(args["run"])
    if not os.path.isdir(folder):
        raise Refusal("no-run", f"no run '{args['run']}' was started on this node", "`gpuops runs` lists them")
    settled(folder)
    bucket.forget(folder)
    return {}


def settled(folder: str) -> None:
    """Note that a run's results are safe elsewhere."""
    write_json(os.path.join(folder, HOME), {"at": time.time()})
