"""Mode `left`: what lies in a tree that neither a push put there nor a pattern names.

It would go with the node: edits made by hand, and results under names that nobody thought of. A program of
its own, since an agent may have ended with its node's lease, and the files are still there.
"""

from __future__ import annotations

import json
import os
from typing import Any, BinaryIO, Sequence

from gpuops.agent.filestate import ours
from gpuops.agent.node import Node, read_json
from gpuops.agent.outs import mentioned, walk
from gpuops.agent.survey import load_record
from gpuops.agent.treefolder import TreeFolder, mounts_below, raw, stat_entry, text


def left(node: Node, arguments: Sequence[str], stdin: BinaryIO, stdout: BinaryIO) -> int:  # noqa: ARG001 (a mode's signature)
    """The mode: arguments as JSON on stdin (read to its end), the answer as one line of JSON on stdout."""
    stdout.write(json.dumps(listing(node, json.loads(stdin.read()))).encode() + b"\n")
    stdout.flush()
    return 0


def listing(node: Node, args: dict[str, Any]) -> dict[str, Any]:
    """`{files: [[path, size, mtime_ns, edited]]}`; `edited`: pushed, and changed since.

    With `run`, only what changed since that run started, in its tree; else all of `tree`.
    """
    tree, since = args.get("tree"), 0
    if args.get("run"):
        spec = os.path.join(node.run(args["run"]), "spec.json")
        tree, since = (read_json(spec) or {}).get("tree", tree), os.stat(spec).st_mtime_ns
    folder = TreeFolder(node.tree(str(tree)))
    record, named = load_record(node, str(tree)), mentioned(args["patterns"])
    root = os.fsencode(folder.folder)

    mounted = [text(os.fsencode(point))[len(os.path.realpath(folder.folder)) + 1 :] + "/"
               for point in mounts_below(os.fsdecode(folder.folder))]  # fmt: skip

    def candidate(path: str) -> bool:
        if any(path.startswith(point) for point in mounted):
            return False  # of another disk, which does not go with the node
        return not named(path) and not (os.path.islink(folder.at(path)) and os.path.isdir(folder.at(path)))

    files = []
    for path, (size, mtime_ns) in walk(root, candidate):
        pushed, pending = record.files.get(path), record.pending.get(path)
        if mtime_ns >= since and not ours(stat_entry(os.path.join(root, raw(path))), pushed, pending):
            files.append([path, size, mtime_ns, pushed is not None])
    return {"files": sorted(files)}
