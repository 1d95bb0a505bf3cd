"""A push, the node's side: the verbs `plan`, `commit` and `edits`, the bulk mode `receive`.

    plan     compares the client's list with the tree; answers what must be sent, and whether rsync may bring it
    receive  stores the requested contents in incoming/<tree>/, as the mode `rsync-receive` does; few bytes as a verb
    commit   compares again, then removes, renames and records

A push may be interrupted at any byte. Files that were received whole are not sent again. `commit` records what it is
about to write before the first rename, so that the next push recognises the files of a killed one as ours. One push of
a tree at a time: a new `plan` invalidates the older push.
"""

from __future__ import annotations

import base64
import contextlib
import io
import os
import secrets
from typing import Any, BinaryIO, Mapping

from gpuops.agent import wire_format
from gpuops.agent.files.contents_here import Changed, ContentsHere, copied
from gpuops.agent.files.folder import (
    FULL_DISK_ERRORS,
    TreeFolder,
    apply_stat,
    check_room,
    disk_full,
    parent_paths,
    path_bytes,
    stat_entry,
)
from gpuops.agent.files.incoming import COPY, Incoming, Plan, superseded, tree_lock
from gpuops.agent.files.push_comparison import (
    Record,
    Survey,
    is_as_pushed,
    is_settled,
    load_document,
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
from gpuops.agent.files.rsync_receiver import end_rsync, find_version
from gpuops.agent.node import Emit, Node, Refusal, parse_options


def plan(node: Node, args: dict[str, Any], emit: Emit) -> dict[str, Any]:  # noqa: ARG001
    """Verb: what a push of `files` needs. `sums` ({index: SHA-256}) answers an earlier `ask`. `rsync`: whether to tell
    the version of this node's rsync. `adds`: the tree keeps what it has besides; these files are another node's.

    Changes nothing in the tree. Raises Refusal(`bad-path`, `outside`, `in-the-way`, `disk`).
    """
    name = args["tree"]
    folder = TreeFolder(node.tree(name))
    adds = bool(args.get("adds"))
    with tree_lock(node, name):
        end_rsync(node, name)
        if not adds and is_as_pushed(folder, load_document(node, name), args["files"]):
            return _nothing_to_do(node, name, adds, [])
        files = parse_files(args["files"])
        paths = list(files)
        sums = {paths[int(index)]: value for index, value in (args.get("sums") or {}).items()}
        push = (COPY if adds else "") + secrets.token_hex(8)
        push_plan = Plan(push, files, bool(args.get("overwrite")), sums, adds)
        record, _ = _read_records(node, name, push_plan)
        state = survey(folder, record, files, push_plan.overwrite, sums)
        if is_settled(record, state) and os.path.isdir(folder.folder):
            return _nothing_to_do(node, name, adds, state.having(KEPT) + state.edited)
        incoming = Incoming(node, name, push_plan.push)
        has_contents = incoming.open(files)
        incoming.store(push_plan)
    index = {path: number for number, path in enumerate(paths)}
    need = [path for path in to_write(state) if files[path].link is None]
    if has_contents:
        need = [path for path in need if not incoming.has(path, files[path])]
    missing = {path: incoming.missing_bytes(path, files[path]) if has_contents else files[path].size for path in need}
    size = sum(missing.values())
    check_room(incoming.folder, size, "the push", "free some space there, or send less with .gpuopsignore")
    here = ContentsHere(node, [files[path] for path in need])
    asked = [path for path in need if path not in sums and here.may_have(files[path], folder.at(path))]
    copies = _stage_copies(incoming, here, {path: files[path] for path in need if path in sums}, sums)
    need = [path for path in need if path not in copies]
    return {
        "push": push_plan.push,
        "need": [index[path] for path in need],
        "ask": [index[path] for path in state.having(ASK) + asked],
        "stale": state.stale,
        "kept": state.having(KEPT) + state.edited,
        "conflicts": state.having(CONFLICT),
        "adds": push_plan.adds,
        "messages": True,
        "rsync": find_version() if need and args.get("rsync") else "",
        "inplace": True,
        "replaces": sum(files[path].size - (0 if path in record.files else missing[path]) for path in need),
    }


def _nothing_to_do(node: Node, tree: str, adds: bool, kept: list[str]) -> dict[str, Any]:
    Incoming(node, tree).close()  # invalidates an older push
    return {"push": "", "need": [], "ask": [], "stale": [], "conflicts": [], "rsync": "", "replaces": 0,
            "adds": adds, "messages": True, "kept": kept}  # fmt: skip


def _read_records(node: Node, tree: str, push_plan: Plan) -> tuple[Record, Record]:
    """The record that a push compares with, and what of it the push leaves as it is. Raises Refusal(`in-the-way`) for
    another node's file in the place of one that the client has pushed."""
    record = load_record(node, push_plan.record_name(tree))
    if not push_plan.adds:
        return record, Record({}, {}, [])
    pushed = [path for path in load_record(node, tree).paths() if path in push_plan.files]
    if pushed:
        raise Refusal("in-the-way", f"'{pushed[0]}' was pushed here by the client", "bring it home, then push it")
    return record.part(push_plan.files), record.part(set(record.paths()) - set(push_plan.files))


def _stage_copies(
    incoming: Incoming, here: ContentsHere, wanted: dict[str, Entry], sums: Mapping[str, str]
) -> set[str]:
    """Stage what lies elsewhere on this node. Returns the paths."""
    staged = set()
    for digest, place in here.find({sums[path]: entry for path, entry in wanted.items()}):
        for path in [path for path in wanted if sums[path] == digest]:
            with contextlib.suppress(OSError, Changed):  # then it is sent
                incoming.write(path, wanted[path], copied(place, digest))
                staged.add(path)
    return staged


def commit(node: Node, args: dict[str, Any], emit: Emit) -> dict[str, Any]:  # noqa: ARG001
    """Verb: move a received push into the tree. Raises Refusal(`superseded`, `incomplete`, `edited`), and as `plan`."""
    name = args["tree"]
    folder = TreeFolder(node.tree(name))
    with tree_lock(node, name):
        incoming = Incoming(node, name, args["push"])
        push_plan = incoming.load()
        end_rsync(node, name)  # the client has given it up
        record, others = _read_records(node, name, push_plan)
        record_name = push_plan.record_name(name)
        state = survey(folder, record, push_plan.files, push_plan.overwrite, push_plan.sums)
        _refuse_edited(state)
        os.makedirs(folder.folder, exist_ok=True)  # also for a project without files: runs need a working directory
        node.show_tree(name)
        pending = {path: _stage(incoming, path, push_plan.files[path]) for path in to_write(state)}
        store_record(node, record_name, Record(state.settled, pending, state.stale + state.gone).merged(others))
        for path in state.stale:
            folder.remove(path)
        for path in state.stale + state.gone:
            folder.prune(path)
        contents = {path for path in pending if push_plan.files[path].link is None}
        moved = folder.place_folders(os.fsencode(incoming.files), contents)
        for path in pending:
            if path not in contents or moved.isdisjoint(parent_paths(path)):
                folder.place(path, incoming.at(path, push_plan.files[path]))
        store_record(node, record_name, Record(_new_record(folder, push_plan, state, pending), {}, []).merged(others))
        incoming.close()
    return {"written": len(pending), "removed": len(state.stale)}


def _refuse_edited(state: Survey) -> None:
    """The tree may have changed since the plan. Raises Refusal."""
    edited = state.having(CONFLICT) + state.having(ASK)
    if edited:
        raise Refusal("edited", f"'{edited[0]}' was edited here during the push", "push again", paths=edited)


def _stage(incoming: Incoming, path: str, entry: Entry) -> Written:
    """Give a staged content its mode and time, or make its link: the rename changes neither.

    Raises Refusal(`incomplete`) for a content that is not whole, or another than the plan's.
    """
    staged = incoming.at(path, entry)
    if entry.link is None:
        present = incoming.whole_or_rounded(staged, entry)
        if present is None:
            raise Refusal("incomplete", f"'{path}' has not arrived", "push again")
        return Written(entry, apply_stat(staged, entry, present))
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
        at = folder.at(path)
        here = wanted if wanted.link is not None else apply_stat(at, wanted, stat_entry(at).entry)
        files[path] = Written(wanted, here)
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


def open_push(node: Node, arguments: list[str]) -> tuple[Incoming, list[tuple[str, Entry]]]:
    """The push that a transfer (`--tree T --push P`) is for, and its files. Raises Refusal(`superseded`, `busy`)."""
    flags = parse_options(arguments)
    incoming = Incoming(node, flags["tree"], flags["push"])
    with tree_lock(node, flags["tree"]):
        files = list(incoming.load().files.items())
        end_rsync(node, flags["tree"])  # the client has given it up
    return incoming, files


def receive_message(node: Node, args: dict[str, Any], emit: Emit) -> dict[str, Any]:  # noqa: ARG001
    """Verb `receive`: what the mode reads, in one message: a small push needs no program. Raises as the mode does, and
    Refusal(`disk`)."""
    stream = io.BytesIO(base64.b64decode(args["stream"]))
    try:
        receive(node, ["--tree", args["tree"], "--push", args["push"]], stream, stream)
    except OSError as error:
        if error.errno in FULL_DISK_ERRORS:
            raise disk_full() from error
        raise
    return {}


def receive(node: Node, arguments: list[str], stdin: BinaryIO, stdout: BinaryIO) -> int:  # noqa: ARG001
    """Mode, `--tree T --push P`: a stream of files on stdin, named by their index in the plan.

    Raises Refusal(`superseded`, `torn`), and OSError; `torn`: the stream ended early or does not fit the plan.
    """
    incoming, files = open_push(node, arguments)
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
