"""A run's outputs: which files match its patterns, which are new, and their checksums.

Patterns follow git's ignore rules: `*` and `?` stay within one name, `**` crosses folders, a pattern without a slash
matches at any depth, one with a slash is relative to the tree, and a pattern that matches a folder means everything in
it. A pattern that begins with `!` declares that what it matches is no output.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from typing import Any, BinaryIO, Callable, Iterator, Sequence

from gpuops.agent import run_files
from gpuops.agent.files.folder import (
    TreeFolder,
    checked_path,
    is_inside,
    mounts_below,
    path_bytes,
    path_text,
    stat_entry,
)
from gpuops.agent.files.inventory import inventory_document, read_inventory
from gpuops.agent.files.push_comparison import load_record
from gpuops.agent.files.push_decision import matching_record
from gpuops.agent.node import BEAT_INTERVAL_S, Emit, Node, Refusal, read_json

SKIPPED = {b".git", b"__pycache__"}
ENVIRONMENT_MARKERS = {b"pyvenv.cfg", b"conda-meta"}
"""A folder that has one of these is a Python environment, and no output."""

PATTERN_TOKEN = re.compile(r"\*+|\[!?\]?[^\]]*\]|.", re.DOTALL)
"""A part of a name in a pattern: stars, a set in brackets, or one character."""
SET_MEMBER = re.compile("(.)-(.)|.", re.DOTALL)
"""A part of a set: a range, or one character. A dash elsewhere stands for itself."""
HASH_CHUNK_BYTES = 1 << 20
MAX_LISTED_FILES = 100_000
"""More files than this a verb does not list in its one message."""


def outs(node: Node, args: dict[str, Any], emit: Emit) -> dict[str, Any]:  # noqa: ARG001 (a verb's signature)
    """Verb: `{files: [[path, size, mtime_ns]]}`, matching files that are new or changed since the run started."""
    spec = run_files.known_spec(node, args["run"])
    before = read_inventory(node.run(args["run"]))
    now = list_outputs(node, spec.tree, args["patterns"])
    return {"files": [[path, *stamp[:2]] for path, stamp in sorted(now.items()) if not before.has(path, stamp)]}


def sums(node: Node, args: dict[str, Any], emit: Emit) -> dict[str, Any]:
    """Verb: an item `{path, sha256, size}` for each file; a file that was removed is left out."""
    tree = os.fsencode(node.tree(args["tree"]))
    for path in args["paths"]:
        hashed = _hash_file(os.path.join(tree, path_bytes(checked_path(path))), emit)
        if hashed is not None:
            emit({"path": path, "sha256": hashed[0], "size": hashed[1]})
    return {}


def list_outputs(node: Node, tree: str, patterns: Sequence[str]) -> dict[str, list[int]]:
    """Matching files of a tree: path (with `/`) -> [size, mtime_ns, ctime_ns]. Raises Refusal(`bad-pattern`)."""
    matches = compile_patterns(patterns)
    return dict(walk_matching(os.fsencode(node.tree(tree)), matches, follows=matches))


def take_inventory(node: Node, tree: str, patterns: Sequence[str]) -> dict[str, Any]:
    """The document of all files of a tree that `outs` or `list_unnamed` may be asked about after a run.

    On other disks, which `list_unnamed` leaves out, those that match the patterns. Raises Refusal(`bad-pattern`).
    """
    folder, named = os.fsencode(node.tree(tree)), compile_patterns(patterns)
    is_mounted = _mounted_below(folder)
    files = walk_matching(folder, lambda path: not is_mounted(path) or named(path), follows=named)
    return inventory_document(dict(files))


def compile_patterns(patterns: Sequence[str]) -> Callable[[str], bool]:
    """A function: whether a path, or a folder above it, matches one of the patterns and none of those with `!`."""
    included = _any_of([pattern for pattern in patterns if not pattern.startswith("!")])
    excluded = _any_of([pattern[1:] for pattern in patterns if pattern.startswith("!")])
    return lambda path: included(path) and not excluded(path)


def compile_mentions(patterns: Sequence[str]) -> Callable[[str], bool]:
    """A function: whether a path, or a folder above it, matches any pattern, with or without `!`."""
    return _any_of([pattern[pattern.startswith("!") :] for pattern in patterns])


def _any_of(patterns: Sequence[str]) -> Callable[[str], bool]:
    expressions = [translate_pattern(pattern) for pattern in patterns if pattern.strip("/")]
    alternatives = "|".join(expressions) or "(?!)"
    joined = re.compile(f"(?:{alternatives})(?:/.*)?", re.DOTALL)
    return lambda path: joined.fullmatch(path) is not None


def translate_pattern(pattern: str) -> str:
    """The regular expression of one pattern, for a whole path. Raises Refusal(`bad-pattern`)."""
    if pattern.startswith(("/", "~")) or ".." in pattern.split("/"):
        raise Refusal(
            "bad-pattern", f"'{pattern}' leads out of the run's folder", "give `--out` a pattern relative to it"
        )
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    while len(parts) > 1 and parts[-1] == "**":
        parts.pop()  # a folder means everything in it, so `x/**` means `x/`
    anchored = len(parts) > 1 or pattern.startswith("./")
    expression = "" if anchored else "(?:.*/)?"
    for index, part in enumerate(parts):
        if part == "**":
            expression += ".*" if index == len(parts) - 1 else "(?:.*/)?"
        else:
            expression += _translate_name(part) + ("/" if index < len(parts) - 1 else "")
    return expression


def _translate_name(part: str) -> str:
    """`*`, `?` and `[...]` within one name; anything else stands for itself."""
    return "".join(_translate_token(token) for token in PATTERN_TOKEN.findall(part))


def _translate_token(token: str) -> str:
    if token.startswith("*"):
        return "[^/]*"
    if token == "?":
        return "[^/]"
    return _translate_set(token[1:-1]) if len(token) > 2 else re.escape(token)


def _translate_set(inner: str) -> str:
    negated = inner.startswith("!") and len(inner) > 1
    members = SET_MEMBER.sub(_translate_member, inner[1:] if negated else inner)
    expression = "(?!/)[" + ("^" if negated else "") + members + "]"
    try:
        re.compile(expression)
    except re.error:
        return re.escape(f"[{inner}]")  # `[z-a]` is a name, not a set
    return expression


def _translate_member(member: re.Match[str]) -> str:
    first, last = member.groups()
    return re.escape(member[0]) if first is None else f"{re.escape(first)}-{re.escape(last)}"


def walk_matching(
    root: bytes, matches: Callable[[str], bool], follows: Callable[[str], bool]
) -> Iterator[tuple[str, list[int]]]:
    """Matching files below a folder: path (with `/`) and [size, mtime_ns, ctime_ns]. `follows`: whether a linked
    folder is entered."""
    entered = {os.path.realpath(root)}
    folders = [b""]
    while folders:
        folder = folders.pop()
        entries = _entries(os.path.join(root, folder))
        if folder and ENVIRONMENT_MARKERS & {entry.name for entry in entries}:
            continue
        for entry in entries:
            path = folder + entry.name
            if entry.name in SKIPPED:  # a submodule's `.git` is a file
                continue
            if _is_folder(entry):
                if not entry.is_symlink() or _should_follow_link(root, path, follows, entered):
                    folders.append(path + b"/")
            elif matches(path_text(path)):
                stamp = _stamp(entry)
                if stamp is not None:
                    yield path_text(path), stamp


def _entries(folder: bytes) -> list[os.DirEntry[bytes]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []  # removed meanwhile, or not readable


def _is_folder(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # a circular link


def _should_follow_link(root: bytes, path: bytes, follows: Callable[[str], bool], entered: set[bytes]) -> bool:
    """Whether to enter a linked folder: `outputs` may be on a larger disk.

    Only if a pattern matches the folder itself (a linked data set is not searched), if its files do not match under
    their real name as well, and once.
    """
    real = os.path.realpath(os.path.join(root, path))
    own_name = path_text(os.path.relpath(real, os.path.realpath(root)))
    if not follows(path_text(path)) or real in entered or (is_inside(own_name) and follows(own_name)):
        return False
    entered.add(real)
    return True


def _stamp(entry: os.DirEntry[bytes]) -> list[int] | None:
    """[size, mtime_ns, ctime_ns] of a regular file; None for anything else."""
    try:
        if not entry.is_file():
            return None  # a socket, a pipe, a broken link
        status = entry.stat()
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _hash_file(path: bytes, emit: Emit) -> tuple[str, int] | None:
    """SHA-256 and number of bytes of a file; None where it cannot be read."""
    digest, size, last_beat = hashlib.sha256(), 0, time.monotonic()
    try:
        with open(path, "rb") as file:
            for chunk in iter(lambda: file.read(HASH_CHUNK_BYTES), b""):
                digest.update(chunk)
                size += len(chunk)
                if time.monotonic() - last_beat > BEAT_INTERVAL_S:
                    last_beat = time.monotonic()
                    emit({"beat": time.time()})
    except OSError:
        return None
    return digest.hexdigest(), size


def left(node: Node, arguments: Sequence[str], stdin: BinaryIO, stdout: BinaryIO) -> int:  # noqa: ARG001 (a mode's signature)
    """Mode: arguments as JSON on stdin (read to its end), the answer of `list_unnamed` as a line of JSON on stdout."""
    stdout.write(json.dumps(list_unnamed(node, json.loads(stdin.read()))).encode() + b"\n")
    stdout.flush()
    return 0


def left_here(node: Node, args: dict[str, Any], emit: Emit) -> dict[str, Any]:  # noqa: ARG001 (a verb's signature)
    """Verb `left`: as the mode, without the start of a program. Raises Refusal(`many`)."""
    listing = list_unnamed(node, args)
    if len(listing["files"]) > MAX_LISTED_FILES:
        raise Refusal("many", f"these are more than {MAX_LISTED_FILES} files", "use the mode `left`")
    return listing


def list_unnamed(node: Node, args: dict[str, Any]) -> dict[str, Any]:
    """Files that no pattern names and no push wrote as they are: `{files: [[path, size, mtime_ns, edited]]}`.

    `edited`: pushed, and changed since. With `run`, only files of its tree that the run made; else all of `tree`. Files
    on other disks, which are not lost with the node, are left out.
    """
    tree = args.get("tree")
    tree, is_made = _made_by_run(node.run(args["run"]), tree) if args.get("run") else (tree, _anything)
    folder = TreeFolder(node.tree(str(tree)))
    record, named = load_record(node, str(tree)), compile_mentions(args["patterns"])
    is_mounted = _mounted_below(folder.folder)
    files = []
    candidates = walk_matching(
        folder.folder, lambda path: not is_mounted(path) and not named(path), follows=lambda _path: False
    )
    for path, stamp in candidates:
        pushed, pending = record.files.get(path), record.pending.get(path)
        if is_made(path, stamp) and not matching_record(stat_entry(folder.at(path)), pushed, pending):
            files.append([path, *stamp[:2], pushed is not None])
    return {"files": sorted(files)}


def _anything(_path: str, _stamp: Sequence[int]) -> bool:
    return True


def _made_by_run(folder: str, tree: str | None) -> tuple[str | None, Callable[[str, Sequence[int]], bool]]:
    """The tree of the run in `folder`, and whether that run made a file of it (path and stamp)."""
    spec = os.path.join(folder, "spec.json")
    since, before = os.stat(spec).st_mtime_ns, read_inventory(folder)
    tree = (read_json(spec) or {}).get("tree", tree)
    if not before.is_whole:  # of an older agent
        return tree, lambda _path, stamp: stamp[1] >= since
    return tree, lambda path, stamp: not before.has(path, stamp)


def _mounted_below(folder: bytes) -> Callable[[str], bool]:
    """Whether a path of a tree lies on another disk that is mounted in it."""
    start = len(os.path.realpath(folder)) + 1
    points = tuple(path_text(os.fsencode(point)[start:]) + "/" for point in mounts_below(os.fsdecode(folder)))
    return lambda path: path.startswith(points)
