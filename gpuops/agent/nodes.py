"""Mode `nodes`: which nodes of ours a machine has, told from their folders."""

from __future__ import annotations

import glob
import json
import os
from typing import Any, Sequence

from gpuops.agent.connect import watched
from gpuops.agent.node import Node, Refusal


def main(_mode: str, arguments: Sequence[str]) -> int:
    """`--root DIR [--host NAME]`: prints `{"nodes": [{"folder", "state", …node.json…}]}`.

    `NAME` is what the provisioner calls this machine: where several share one home, each tells of its own nodes.
    """
    options = dict(zip(arguments[::2], arguments[1::2]))
    if not options.get("--root"):
        raise Refusal("usage", "the folder of all nodes is missing", "add --root DIR")
    folders = sorted(glob.glob(os.path.join(glob.escape(options["--root"]), "*", "n*")))
    nodes = [look(Node(folder)) for folder in folders if os.path.basename(folder)[1:].isdigit()]
    host = options.get("--host")
    mine = [node for node in nodes if host is None or node.get("host") in (None, host)]
    print(json.dumps({"nodes": mine}), flush=True)
    return 0


def look(node: Node) -> dict[str, Any]:
    """A node whose life is over still lies there until somebody removes it: `ended`. One that a reboot left
    without processes can go on, and is `running`."""
    ended = os.path.exists(node.path("ended.json")) and not watched(node)
    return {**node.settings(), "folder": node.dir, "state": "ended" if ended else "running"}
