"""Bulk mode `restore`: an earlier run's files are put back into a tree, over whatever lies there.

The user asked for that run's state by name; what lies there now came home with the run that made it.
"""

from __future__ import annotations

import os
from typing import BinaryIO

from gpuops.agent import filestream, tarpipe
from gpuops.agent.node import Node
from gpuops.agent.treefolder import TreeFolder, checked


def restore(node: Node, arguments: list[str], stdin: BinaryIO, stdout: BinaryIO) -> int:  # noqa: ARG001
    """`--tree T`: a stream of files on stdin that are named by their path. Raises Refusal `bad-path`, `torn`."""
    tree = tarpipe.options(arguments)["tree"]
    folder = TreeFolder(node.tree(tree))
    incoming = node.path("incoming")
    os.makedirs(incoming, exist_ok=True)
    staged = os.path.join(incoming, f"restore.{os.getpid()}").encode()
    for name, _size, blocks in filestream.members(stdin):
        path = checked(name)
        with open(staged, "wb") as file:
            for block in blocks:
                file.write(block)
        folder.place(path, staged)
    return 0
