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
from gpuops.agent.files.push_comparison import load_record
from gpuops.agent.files.push_decision import matching_record
from gpuops.agent.node import Emit, Node, Refusal, read_json

SKIPPED = {b".git", b"__pycache__"}
ENVIRONMENT_MARKERS = {b"pyvenv.cfg", b"conda-meta"}
"""A folder that has one of these is a Python environment, and no output."""

PATTERN_TOKEN = re.compile(r"\*+|\[!?\]?[^\]]*\]|.", re.DOTALL)
"""A part of a name in a pattern: stars, a set in brackets, or one character."""
HASH_CHUNK_BYTES = 1 << 20
BEAT_INTERVAL_S = 5.0
"""Time between two `beat` items of `sums` while it reads one large file."""


def outs(node: Node, args: dict[str, Any], emit: Emit) -> dict[str, Any]:  # noqa: ARG001 (a verb's signature)
    """Verb: `{files: [[path, size, mtime_ns]]}`, matching files that are new or changed since the run started."""
    spec = run_files.read_spec(node, args["run"])
    if not spec:
        raise run_files.unknown_run(args["run"])
    before = read_json(os.path.join(node.run(args["run"]), "inventory.json")) or {}
    now = list_outputs(node, spec.tree, args["patterns"])
    return {"files": [[path, *stamp] for path, stamp in sorted(now.items()) if before.get(path) != stamp]}


def sums(node: Node, args: dict[str, Any], emit: Emit) -> dict[str, Any]:
    """Verb: an item `{path, sha256, size}` for each file; a file that was removed is left out."""
    tree = os.fsencode(node.tree(args["tree"]))
    for path in args["paths"]:
        hashed = _hash_file(os.path.join(tree, path_bytes(checked_path(path))), emit)
        if hashed is not None:
            emit({"path": path, "sha256": hashed[0], "size": hashed[1]})
    return {}


def list_outputs(node: Node, tree: str, patterns: Sequence[str]) -> dict[str, list[int]]:
    """Matching files of a tree: path (with `/`) -> [size, mtime_ns]. Raises Refusal(`bad-pattern`)."""
    return dict(walk_matching(os.fsencode(node.tree(tree)), compile_patterns(patterns)))


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
    safe = re.sub(r"([\\\[\]^&~|])", r"\\\1", inner[1:] if negated else inner)
    expression = "(?!/)[" + ("^" if negated else "") + safe + "]"
    try:
        re.compile(expression)
    except re.error:
        return re.escape(f"[{inner}]")  # `[z-a]` is a name, not a set
    return expression


def walk_matching(root: bytes, matches: Callable[[str], bool]) -> Iterator[tuple[str, list[int]]]:
    """Matching files below a folder: path (with `/`) and [size, mtime_ns]."""
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
                if not entry.is_symlink() or _should_follow_link(root, path, matches, entered):
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


def _should_follow_link(root: bytes, path: bytes, matches: Callable[[str], bool], entered: set[bytes]) -> bool:
    """Whether to enter a linked folder: `outputs` may be on a larger disk.

    Only if a pattern matches the folder itself (a linked data set is not searched), if its files do not match under
    their real name as well, and once.
    """
    real = os.path.realpath(os.path.join(root, path))
    own_name = path_text(os.path.relpath(real, os.path.realpath(root)))
    if not matches(path_text(path)) or real in entered or (is_inside(own_name) and matches(own_name)):
        return False
    entered.add(real)
    return True


def _stamp(entry: os.DirEntry[bytes]) -> list[int] | None:
    """[size, mtime_ns] of a regular file; None for anything else."""
    try:
        if not entry.is_file():
            return None  # a socket, a pipe, a broken link
        status = entry.stat()
    except OSError:
        return None
    return [status.st_size, status.st_mtime_ns]


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


def list_unnamed(node: Node, args: dict[str, Any]) -> dict[str, Any]:
    """Files that no pattern names and no push wrote as they are: `{files: [[path, size, mtime_ns, edited]]}`.

    `edited`: pushed, and changed since. With `run`, only files of its tree that changed since that run started; else
    all of `tree`. Files on other disks, which are not lost with the node, are left out.
    """
    tree, since = args.get("tree"), 0
    if args.get("run"):
        spec = os.path.join(node.run(args["run"]), "spec.json")
        tree, since = (read_json(spec) or {}).get("tree", tree), os.stat(spec).st_mtime_ns
    folder = TreeFolder(node.tree(str(tree)))
    record, named = load_record(node, str(tree)), compile_mentions(args["patterns"])
    root = os.fsencode(folder.folder)

    mounted = [path_text(os.fsencode(point))[len(os.path.realpath(folder.folder)) + 1 :] + "/"
               for point in mounts_below(os.fsdecode(folder.folder))]  # fmt: skip

    def candidate(path: str) -> bool:
        if any(path.startswith(point) for point in mounted):
            return False
        return not named(path) and not (os.path.islink(folder.at(path)) and os.path.isdir(folder.at(path)))

    files = []
    for path, (size, mtime_ns) in walk_matching(root, candidate):
        pushed, pending = record.files.get(path), record.pending.get(path)
        if mtime_ns >= since and not matching_record(stat_entry(os.path.join(root, path_bytes(path))), pushed, pending):
            files.append([path, size, mtime_ns, pushed is not None])
    return {"files": sorted(files)}
