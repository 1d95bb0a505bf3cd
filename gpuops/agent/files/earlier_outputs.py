"""Files of earlier runs in a tree, that a further run may go on from: which they are (verb `made`), those that are put
back (mode `restore`), and those that are removed (verb `discard`).

`trees/<tree>.restored.json` holds what `restore` put back: path -> [size, mtime_ns, run]. Every other file is of the
latest run whose inventory has it not.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
import secrets
import shutil
from typing import Any, BinaryIO, Iterator, Mapping, Sequence

from gpuops.agent import run_files, wire_format
from gpuops.agent.files import output_files
from gpuops.agent.files.folder import TreeFolder, blocked, checked_path, path_bytes, stat_entry
from gpuops.agent.files.inventory import Inventory, read_inventory
from gpuops.agent.files.push_comparison import load_record
from gpuops.agent.files.push_decision import BLOCKED, matching_record
from gpuops.agent.node import Emit, Node, parse_options, read_json, remove_file, write_json


def made(node: Node, args: dict[str, Any], emit: Emit) -> dict[str, Any]:  # noqa: ARG001 (a verb's signature)
    """Verb: `{files: [[path, size, mtime_ns, run, restored]]}`: files that match the patterns and are not as pushed.

    `run`: the one of `runs` (names, the oldest first) that made the file, or, where it was put back (`restored`), the
    run that it was put back from; empty where neither is known.
    """
    tree = args["tree"]
    record = load_record(node, tree)
    put_back = _read_restored(node, tree)
    found = output_files.list_outputs(node, tree, args["patterns"])
    root = os.fsencode(node.tree(tree))
    stamps = {}
    for path, stamp in sorted(found.items()):
        entry = stat_entry(os.path.join(root, path_bytes(path)))
        if not matching_record(entry, record.files.get(path), record.pending.get(path)):
            stamps[path] = stamp
    restored = {path: put_back[path][2] for path in stamps if put_back.get(path, [])[:2] == stamps[path][:2]}
    rest = {path: stamp for path, stamp in stamps.items() if path not in restored}
    makers = _find_makers(rest, _inventories(node, tree, args["runs"]))
    return {"files": [[path, *stamp[:2], restored.get(path) or makers.get(path, ""), path in restored]
                      for path, stamp in stamps.items()]}  # fmt: skip


def _inventories(node: Node, tree: str, runs: Sequence[str]) -> Iterator[tuple[str, Inventory]]:
    """Of the runs that worked in this tree, the latest first."""
    for run in reversed(runs):
        spec = run_files.read_spec(node, run)
        if spec is not None and spec.tree == tree:
            yield run, read_inventory(node.run(run))


def _find_makers(stamps: Mapping[str, Sequence[int]], inventories: Iterator[tuple[str, Inventory]]) -> dict[str, str]:
    """Path -> the latest run at whose start the file was not there as it is now. Old inventories are read as needed."""
    makers: dict[str, str] = {}
    left = set(stamps)
    while left:
        run, before = next(inventories, ("", None))
        if before is None:
            break
        its = {path for path in left if not before.has(path, stamps[path])}
        makers.update(dict.fromkeys(its, run))
        left -= its
    return makers


def remove_unchanged(node: Node, tree: str, files: Sequence[Sequence[Any]]) -> int:
    """Remove files ([path, size, mtime_ns]) of a tree, and folders left empty. A file that has changed stays.

    Returns how many were removed. Raises Refusal(`bad-path`).
    """
    folder = TreeFolder(node.tree(tree))
    removed = 0
    for path, *stamp in [(checked_path(path), size, mtime_ns) for path, size, mtime_ns in files]:
        try:
            status = os.stat(folder.at(path))
            if [status.st_size, status.st_mtime_ns] != stamp:
                continue
            os.unlink(folder.at(path))
        except FileNotFoundError:
            continue
        removed += 1
        folder.prune(path)
    return removed


def restore(node: Node, arguments: list[str], stdin: BinaryIO, stdout: BinaryIO) -> int:  # noqa: ARG001
    """Mode, `--tree T --of RUN`: a stream of a run's files on stdin, named by their path, put into the tree over
    existing files; below a linked folder (`outputs` on a larger disk) over those alone that were put back before.

    Raises Refusal(`bad-path`, `torn`, `outside`, `in-the-way`), and OSError.
    """
    options = parse_options(arguments)
    tree = options["tree"]
    folder = TreeFolder(node.tree(tree))
    incoming = node.path("incoming")
    os.makedirs(incoming, exist_ok=True)
    staged = os.path.join(incoming, f"restore.{os.getpid()}").encode()
    placed, put_back = [], _read_restored(node, tree)
    try:
        for name, _size, blocks in wire_format.members(stdin):
            path = checked_path(name)
            with open(staged, "wb") as file:
                for block in blocks:
                    file.write(block)
            found = folder.look(path)
            if found.kind == BLOCKED and os.path.isdir(folder.at(found.blocker)):
                if not _may_replace(folder.at(path), staged, put_back.get(path)):
                    raise blocked(path, found)
                _copy_into_place(staged, folder.at(path))
            else:
                folder.place(path, staged)
            placed.append(path)
    finally:  # what was placed of a stream that was cut is no later run's work either
        remove_file(os.fsdecode(staged))
        _note_restored(node, tree, options.get("of", ""), placed)
    return 0


def _may_replace(target: bytes, staged: bytes, put_back: Sequence[Any] | None) -> bool:
    """Whether nothing else is lost with a file below a linked folder: the link may lead to files of no run of ours."""
    if not os.path.lexists(target):
        return True
    entry = stat_entry(target).entry
    return [entry.size, entry.mtime_ns] == list(put_back or [])[:2] or filecmp.cmp(target, staged, shallow=False)


def _copy_into_place(staged: bytes, target: bytes) -> None:
    """As a move, to another disk."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    draft = target + f".gpuops-{secrets.token_hex(8)}".encode()
    try:
        shutil.copyfile(staged, draft)
        os.replace(draft, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise


def _note_restored(node: Node, tree: str, run: str, paths: Sequence[str]) -> None:
    """Record that `restore` has put back these files of a run."""
    folder = TreeFolder(node.tree(tree))
    restored = _read_restored(node, tree)
    for path in paths:
        entry = stat_entry(folder.at(path)).entry
        restored[path] = [entry.size, entry.mtime_ns, run]
    os.makedirs(node.path("trees"), exist_ok=True)
    write_json(_restored_path(node, tree), {"schema": 1, "files": restored})


def _read_restored(node: Node, tree: str) -> dict[str, list[Any]]:
    """What `restore` put into a tree: path -> [size, mtime_ns, run]."""
    return dict((read_json(_restored_path(node, tree)) or {}).get("files") or {})


def _restored_path(node: Node, tree: str) -> str:
    return node.path("trees", tree + ".restored.json")
