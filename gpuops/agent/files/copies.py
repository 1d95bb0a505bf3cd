"""This node's own files, for its peers: which they are (verb `copies`), and their content as one stream."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import Any, Iterator, NamedTuple, Sequence

from gpuops.agent import wire_format
from gpuops.agent.files.folder import TreeFolder, checked_path, stat_entry
from gpuops.agent.files.output_files import compile_patterns, walk_matching
from gpuops.agent.files.push_comparison import load_record
from gpuops.agent.files.push_decision import matching_record
from gpuops.agent.node import Emit, Node, Refusal


def copies(node: Node, args: dict[str, Any], emit: Emit) -> dict[str, Any]:  # noqa: ARG001 (a verb's signature)
    """Verb: `{files: [[path, size, mtime_ns, mode]], edited: [path]}`: what matches the patterns, and everything
    without any, of files that no push wrote; `edited`: what a push wrote, and was changed since.

    A link to a file counts as the file. Raises Refusal(`bad-pattern`).
    """
    tree = args["tree"]
    folder, record = TreeFolder(node.tree(tree)), load_record(node, tree)
    matches = compile_patterns(args["patterns"] or ["**"])
    files, edited = [], []
    for path, stamp in walk_matching(folder.folder, matches, follows=matches):
        last, pending = record.files.get(path), record.pending.get(path)
        if last is None and pending is None:
            with contextlib.suppress(FileNotFoundError):  # a run may remove what it has made, at any time
                files.append([path, *stamp[:2], stat.S_IMODE(os.stat(folder.at(path)).st_mode) & 0o777])
        elif not matching_record(stat_entry(folder.at(path)), last, pending):
            edited.append(path)
    return {"files": sorted(files), "edited": sorted(edited)}


class Listed(NamedTuple):
    """A file that is to be read as it was listed."""

    number: int
    """Its name in the stream."""
    path: str
    size: int
    mtime_ns: int


def parse_listed(rows: Sequence[Sequence[Any]]) -> list[Listed]:
    """Raises Refusal(`bad-path`)."""
    return [Listed(int(number), checked_path(path), int(size), int(time)) for number, path, size, time in rows]


def read_stream(folder: TreeFolder, files: Sequence[Listed]) -> Iterator[bytes]:
    """The files as a bulk transfer, in pieces. Raises Refusal(`changed`) for one that is not as it was listed, and
    Refusal(`cannot-read`)."""
    for file in files:
        try:
            fd = os.open(folder.at(file.path), os.O_RDONLY | os.O_NONBLOCK)  # without waiting for the writer of a pipe
        except PermissionError as error:
            raise Refusal(
                "cannot-read", f"'{file.path}' cannot be read", "chmod u+r it there, then push again"
            ) from error
        except OSError as error:
            raise _changed(file) from error
        with open(fd, "rb", buffering=0) as content:
            if not _is_as_listed(fd, file):
                raise _changed(file)
            yield wire_format.head(str(file.number), file.size)
            left = file.size
            while left:
                block = content.read(min(left, wire_format.BLOCK_BYTES))
                if not block:
                    raise _changed(file)
                left -= len(block)
                yield block
            if not _is_as_listed(fd, file):
                raise _changed(file)
    yield wire_format.END


def _is_as_listed(fd: int, file: Listed) -> bool:
    status = os.fstat(fd)
    return stat.S_ISREG(status.st_mode) and (status.st_size, status.st_mtime_ns) == (file.size, file.mtime_ns)


def _changed(file: Listed) -> Refusal:
    return Refusal("changed", f"'{file.path}' changes while it is copied", "stop what writes it, then push again")
