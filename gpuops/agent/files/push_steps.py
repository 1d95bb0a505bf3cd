"""A push, the node's side: the verbs `plan`, `commit` and `edits`, the bulk mode `receive`.

    plan     compares the client's list with the tree; answers what must be sent, and whether rsync may bring it
    receive  stores the requested contents in incoming/<tree>/files/, as an rsync that the client starts does
    commit   compares again, then removes, renames and records

A push may be interrupted at any byte. Files that were received whole are not sent again. `commit` records what it is
about to write before the first rename, so that the next push recognises the files of a killed one as ours. One push of
a tree at a time: a new `plan` invalidates the older push.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import subprocess
from typing import Any, BinaryIO, Iterable, Iterator, Mapping, NamedTuple

from gpuops.agent import wire_format
from gpuops.agent.files.folder import TreeFolder, apply_stat, free_bytes, path_bytes, stat_entry
from gpuops.agent.files.push_comparison import (
    Record,
    Survey,
    is_settled,
    load_record,
    parse_files,
    store_record,
    survey,
    to_write,
)
from gpuops.agent.files.push_decision import (
    ASK,
    CONFLICT,
    FILE,
    KEPT,
    LINK,
    SAME,
    TOUCH,
    Entry,
    Written,
    matching_record,
)
from gpuops.agent.node import Emit, Node, Refusal, parse_options, read_json, write_json

PARTIAL = b".gpuops-partial"
"""Where rsync leaves the part of a file that it has (`--partial-dir`): a folder beside the file."""
VERSION_BYTES = 4096


class Incoming:
    """A push that is being received: `incoming/<tree>/plan.json`, each file's content under its path in `files/`, and
    links in `links/`, where no content is written through them.

    On the tree's disk, so that contents can be moved into the tree.
    """

    def __init__(self, node: Node, tree: str) -> None:
        self.folder = os.path.join(os.path.dirname(node.tree(tree)), "incoming", tree)
        self.files = os.path.join(self.folder, "files")
        self.tree = tree

    def at(self, path: str, entry: Entry) -> bytes:
        """Where a content is staged."""
        if entry.link is None:
            return os.fsencode(self.files) + b"/" + path_bytes(path)
        return os.fsencode(f"{self.folder}/links/{hashlib.sha256(path_bytes(path)).hexdigest()[:32]}")

    def has(self, path: str, entry: Entry) -> bool:
        """Whether a content has arrived whole: it gets its name, and its time with it, only then."""
        staged = stat_entry(self.at(path, entry))
        if staged.kind != FILE or staged.entry.size != entry.size:
            return False
        return staged.entry.mtime_ns == entry.mtime_ns or staged.entry.mtime_ns == self._kept_time(entry.mtime_ns)

    def _kept_time(self, mtime_ns: int) -> int:
        """What this disk keeps of a file's time: some keep whole seconds or microseconds."""
        probe = os.path.join(self.folder, "time")
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT, 0o600))
        os.utime(probe, ns=(mtime_ns, mtime_ns))
        return os.stat(probe).st_mtime_ns

    def write(self, path: str, entry: Entry, blocks: Iterable[bytes]) -> None:
        """Stage a content. Raises FileNotFoundError where another push has begun, and OSError."""
        part = os.path.join(self.folder, f"part.{os.getpid()}")
        with open(part, "wb") as file:
            for block in blocks:
                file.write(block)
            os.fchmod(file.fileno(), entry.mode)
        os.utime(part, ns=(entry.mtime_ns, entry.mtime_ns))
        staged = self.at(path, entry)
        if not os.path.isdir(os.path.dirname(staged)) and os.path.isdir(self.files):
            os.makedirs(os.path.dirname(staged), exist_ok=True)
        os.replace(part, staged)

    def open(self, files: Mapping[str, Entry]) -> bool:
        """Make the folders, and remove what an older push left and this one cannot use.

        Returns whether this push can use anything. Of a large file, a part may be there (rsync).
        """
        shutil.rmtree(os.path.join(self.folder, "links"), ignore_errors=True)
        for kind in ("files", "links"):
            os.makedirs(os.path.join(self.folder, kind), exist_ok=True)
        root, is_useful = os.fsencode(self.files), False
        useful = {self.at(path, entry) for path, entry in files.items() if entry.link is None}
        for folder, _, names in os.walk(root, topdown=False):  # the names are bytes, as `root` is
            place = os.path.dirname(folder) if os.path.basename(folder) == PARTIAL else folder
            for name in names:
                path = os.path.join(place, name)
                if path in useful:
                    is_useful = True
                    continue
                with contextlib.suppress(FileNotFoundError):  # the older push may still be running
                    os.unlink(os.path.join(folder, name))
            if folder != root:
                with contextlib.suppress(OSError):
                    os.rmdir(folder)  # an empty one may be where a file is to lie
        return is_useful

    def store(self, plan: Plan) -> None:
        write_json(os.path.join(self.folder, "plan.json"), {**plan._asdict(), "files": [
            [path, *entry] for path, entry in plan.files.items()]})  # fmt: skip

    def load(self, push: str) -> Plan:
        """Raises Refusal(`superseded`) where another push has replaced this one."""
        document = read_json(os.path.join(self.folder, "plan.json"))
        if not document or document["push"] != push:
            raise superseded()
        return Plan(push, parse_files(document["files"]), document["overwrite"], document["sums"])

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class Plan(NamedTuple):
    """One push, from its `plan` to its `commit`."""

    push: str
    """Its random id."""
    files: dict[str, Entry]
    """The client's list, by path."""
    overwrite: bool
    """Whether files that were edited on the node are replaced as well."""
    sums: dict[str, str]
    """SHA-256 of the client's files that an earlier plan asked for, by path."""


def superseded() -> Refusal:
    return Refusal("superseded", "another push has begun since", "let it finish, then push again")


@contextlib.contextmanager
def tree_lock(node: Node, tree: str) -> Iterator[None]:
    """Hold the tree's lock file: of all clients' plans and commits, one runs at a time."""
    os.makedirs(node.path("trees"), exist_ok=True)
    with open(node.path("trees", tree + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def plan(node: Node, args: dict[str, Any], emit: Emit) -> dict[str, Any]:  # noqa: ARG001
    """Verb: what a push of `files` needs. `sums` ({index: SHA-256}) answers an earlier `ask`. `rsync`: whether to tell
    of this node's rsync.

    Changes nothing in the tree. Raises Refusal(`bad-path`, `outside`, `in-the-way`, `disk`).
    """
    name = args["tree"]
    folder = TreeFolder(node.tree(name))
    files = parse_files(args["files"])
    paths = list(files)
    sums = {paths[int(index)]: value for index, value in (args.get("sums") or {}).items()}
    push_plan = Plan(secrets.token_hex(8), files, bool(args.get("overwrite")), sums)
    with tree_lock(node, name):
        record = load_record(node, name)
        state = survey(folder, record, files, push_plan.overwrite, sums)
        if is_settled(record, state) and os.path.isdir(folder.folder):
            Incoming(node, name).close()  # invalidates an older push
            return {"push": "", "need": [], "ask": [], "stale": [], "conflicts": [], "rsync": None,
                    "kept": state.having(KEPT) + state.edited}  # fmt: skip
        incoming = Incoming(node, name)
        has_contents = incoming.open(files)
        incoming.store(push_plan)
    index = {path: number for number, path in enumerate(paths)}
    need = [path for path in to_write(state) if files[path].link is None]
    if has_contents:
        need = [path for path in need if not incoming.has(path, files[path])]
    _check_room(incoming.folder, sum(files[path].size for path in need))
    return {
        "push": push_plan.push,
        "need": [index[path] for path in need],
        "ask": [index[path] for path in state.having(ASK)],
        "stale": state.stale,
        "kept": state.having(KEPT) + state.edited,
        "conflicts": state.having(CONFLICT),
        "rsync": find_rsync(incoming.files, folder.folder) if need and args.get("rsync") else None,
    }


def find_rsync(staging: str, tree: bytes) -> dict[str, str] | None:
    """This node's rsync, what it says of itself, and between which folders it is to work; None without one."""
    program = shutil.which("rsync")
    if program is None:
        return None
    try:
        done = subprocess.run([program, "--version"], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = done.stdout[:VERSION_BYTES].decode(errors="replace")
    return {"program": program, "version": version, "staging": staging, "tree": os.fsdecode(tree)}


def _check_room(folder: str, size: int) -> None:
    """Raises Refusal(`disk`)."""
    free = free_bytes(folder)
    if free is not None and size > free:
        raise Refusal(
            "disk",
            f"the push needs {size / 1e6:.0f} MB and the disk has {free / 1e6:.0f} MB left",
            "free some space there, or send less with .gpuopsignore",
        )


def commit(node: Node, args: dict[str, Any], emit: Emit) -> dict[str, Any]:  # noqa: ARG001
    """Verb: move a received push into the tree. Raises Refusal(`superseded`, `incomplete`, `edited`), and as `plan`."""
    name = args["tree"]
    folder = TreeFolder(node.tree(name))
    with tree_lock(node, name):
        incoming = Incoming(node, name)
        push_plan = incoming.load(args["push"])
        record = load_record(node, name)
        state = survey(folder, record, push_plan.files, push_plan.overwrite, push_plan.sums)
        _refuse_unready(state, push_plan, incoming)
        os.makedirs(folder.folder, exist_ok=True)  # also for a project without files: runs need a working directory
        if not os.path.lexists(node.path(name)):
            os.symlink(folder.folder, node.path(name))  # the tree is on a local disk; clients expect it here
        pending = {path: _stage(incoming, path, push_plan.files[path]) for path in to_write(state)}
        store_record(node, name, Record(state.settled, pending, state.stale + state.gone))
        for path in state.stale:
            folder.remove(path)
        for path in state.stale + state.gone:
            folder.prune(path)
        for path in pending:
            folder.place(path, incoming.at(path, push_plan.files[path]))
        store_record(node, name, Record(_new_record(folder, push_plan, state, pending), {}, []))
        incoming.close()
    return {"written": len(pending), "removed": len(state.stale)}


def _refuse_unready(state: Survey, push_plan: Plan, incoming: Incoming) -> None:
    """The tree may have changed since the plan, and the transfer may have been cut. Raises Refusal."""
    edited = state.having(CONFLICT) + state.having(ASK)
    if edited:
        raise Refusal("edited", f"'{edited[0]}' was edited here during the push", "push again", paths=edited)
    for path in to_write(state):
        if push_plan.files[path].link is None and not incoming.has(path, push_plan.files[path]):
            raise Refusal("incomplete", f"'{path}' has not arrived", "push again")


def _stage(incoming: Incoming, path: str, entry: Entry) -> Written:
    """Give a staged content its mode and time, or make its link: the rename changes neither."""
    staged = incoming.at(path, entry)
    if entry.link is None:
        return Written(entry, apply_stat(staged, entry))
    with contextlib.suppress(FileNotFoundError):
        os.unlink(staged)
    os.symlink(path_bytes(entry.link), staged)
    return Written(entry, entry)


def _new_record(folder: TreeFolder, push_plan: Plan, state: Survey, pending: dict[str, Written]) -> dict[str, Written]:
    """The record of a finished commit. Files with the verdict TOUCH get their mode and time here."""
    files = {path: state.settled[path] for path in state.edited + state.having(KEPT)}
    for path in state.having(SAME):
        files[path] = Written(push_plan.files[path], state.settled[path].here)
    for path in state.having(TOUCH):
        wanted = push_plan.files[path]
        files[path] = Written(wanted, wanted if wanted.link is not None else apply_stat(folder.at(path), wanted))
    return {**files, **pending}


def edits(node: Node, args: dict[str, Any], emit: Emit) -> dict[str, Any]:  # noqa: ARG001
    """Verb: pushed files that differ from what was pushed: `{path, state, size, pushed}`.

    `pushed`: the client's `[size, mtime_ns, mode, link]` at the push.
    """
    name = args["tree"]
    folder = TreeFolder(node.tree(name))
    record = load_record(node, name)
    files: list[dict[str, Any]] = []
    for path in record.paths():
        last = record.files.get(path)
        present = folder.look(path)
        if matching_record(present, last, record.pending.get(path)):
            continue
        if present.kind in (FILE, LINK):
            pushed = list(last.sent) if last else None
            files.append({"path": path, "state": "changed", "size": present.entry.size, "pushed": pushed})
        elif last and path not in record.leaving:
            files.append({"path": path, "state": "deleted", "size": 0, "pushed": list(last.sent)})
    return {"files": files}


def receive(node: Node, arguments: list[str], stdin: BinaryIO, stdout: BinaryIO) -> int:  # noqa: ARG001
    """Mode, `--tree T --push P`: a stream of files on stdin, named by their index in the plan.

    Raises Refusal(`superseded`, `torn`), and OSError; `torn`: the stream ended early or does not fit the plan.
    """
    flags = parse_options(arguments)
    incoming = Incoming(node, flags["tree"])
    files = list(incoming.load(flags["push"]).files.items())
    try:
        for index, size, blocks in wire_format.members(stdin):
            path, entry = files[int(index)]
            if size != entry.size:
                raise wire_format.torn()
            incoming.write(path, entry, blocks)
    except (IndexError, ValueError) as error:
        raise wire_format.torn() from error
    except FileNotFoundError as error:
        raise superseded() from error
    return 0
