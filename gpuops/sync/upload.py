"""A push: scan what a folder sends, compare it with what the nodes have, send the difference, commit it.

`scan` and `scan_data` decide what is sent and what is held back, `push_many` brings all nodes up to date at once.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpuops.core.errors import MalformedAnswer, NodeRefused, UsageError
from gpuops.core.format import amount, plural
from gpuops.core.git import commit_of, lies_here
from gpuops.core.parallel import on_each
from gpuops.core.reporting import Progress
from gpuops.sync.project_files import (
    IGNORE_FILE,
    FileEntry,
    file_entry,
    is_in_project,
    list_files,
    printable_path,
    project_files,
    read_entry,
    refuse_escaping_links,
)
from gpuops.sync.push_record import PushRecord
from gpuops.sync.push_rounds import deliver
from gpuops.sync.push_transports import Delivery, Stream, find_changed, may_use_rsync
from gpuops.sync.secret_scan import MAX_WHOLE_BYTES, find_keys
from gpuops.sync.uplink import Uplink
from gpuops.transport.rpc import AgentClient

if TYPE_CHECKING:
    from gpuops.transport import schemas


TREE_TIMEOUT_S = 600.0
"""How long a node may take to compare a large tree."""
MAX_PUSH_ATTEMPTS = 3
"""A push starts again when files changed while they were sent; a file that changes each time is an error."""
EDITED_COPY = re.compile(r"(.+)\.node\d+(?:-\d+)?", re.DOTALL)
"""The name under which `pull_edits` puts a node's version beside a file, such as `train.py.node0`."""
MIN_NAMED_TREE_BYTES = 10_000_000
"""From this size on the biggest files are listed before a push."""


@dataclass(frozen=True)
class HeldBack:
    """A file that is not sent, and why: `a secret of the kind runpod-api-key`."""

    path: str
    why: str


@dataclass(frozen=True)
class Tree:
    """A scanned folder: what a push sends and what it holds back."""

    folder: Path
    files: Sequence[FileEntry]
    held: Sequence[HeldBack] = ()
    commit: str | None = None
    """What git has checked out; None outside a repository or before the first commit."""
    dirty: bool = False
    """Whether the folder differs from that commit."""

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


@dataclass(frozen=True)
class PushReport:
    """What one push did on one node. `kept`: files that were edited there and not here, which stay as they are; `way`:
    what carried the bytes, empty where nothing was sent."""

    node: str
    files_sent: int
    bytes_sent: int
    removed: int
    kept: Sequence[str] = ()
    way: str = ""


def scan(folder: Path, cache: Path, allow: Sequence[str] = ()) -> Tree:
    """What a push of `folder` sends. `allow`: paths or globs that are sent even where they hold keys.

    Raises UsageError for an unreadable folder or file, for a key in a file that git tracks, and for a
    folder that is no project: the root, or a home folder without a word on what to leave out.
    """
    _refuse_non_project(folder, cache.parent)
    home_prefix = _home_prefix(folder, cache.parent)
    try:
        listing = project_files(folder)
        paths = [path for path in listing.paths if not (home_prefix and path.startswith(home_prefix))]
        files = [file for path in paths if (file := read_entry(folder, path))]
        keys = find_keys(folder, [file for file in files if not is_allowed(file.path, allow)], cache)
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}", f"list it in {IGNORE_FILE}") from error
    _refuse_tracked_keys([path for path in keys if path in listing.tracked], keys)
    copies = {
        path: why for path, why in _find_edited_copies(paths, listing.tracked).items() if not is_allowed(path, allow)
    }
    reasons = {**copies, **keys}
    held = [HeldBack(path, why) for path, why in reasons.items()]
    commit, dirty = commit_of(folder) if listing.in_git else (None, False)
    return Tree(folder, [file for file in files if file.path not in reasons], held, commit, dirty)


def scan_data(data: Path, cache: Path, allow: Sequence[str] = (), project: Path | None = None) -> Tree:
    """What `--data` sends: a file, or a whole folder without files that hold keys, under its own name.

    A link may lead inside the data, or to an absolute path among `allow`. Raises UsageError for any other link, also
    for data whose path lies in `project` and leads out of it.
    """
    places, real = allowed_places(allow), data.resolve()
    if project and data.is_relative_to(project):
        path = data.relative_to(project).as_posix()
        is_inside = lies_here(project, path) or is_in_project(project, path)
        if not is_inside and not any(map(real.is_relative_to, places)):
            refuse_escaping_links([(path, real)])
    try:
        is_folder = data.is_dir()
        files = list_files(data, places) if is_folder else [file_entry(data)]
        searched = [file for file in files if not is_allowed(file.path, allow)]
        keys = find_keys(data if is_folder else data.parent, searched, cache)
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}", "move it out of the data") from error
    base = f"{data.name}/" if is_folder else ""
    sent = [dataclasses.replace(file, path=base + file.path) for file in files if file.path not in keys]
    return Tree(data.parent, sent, [HeldBack(base + path, why) for path, why in keys.items()])


def allowed_places(allow: Sequence[str]) -> list[Path]:
    """The absolute paths in `--send-anyway`, where links of the data may lead."""
    return [Path(os.path.realpath(path)) for path in map(os.path.expanduser, allow) if os.path.isabs(path)]


def _home_prefix(folder: Path, home: Path) -> str:
    """The prefix of project paths that lie in gpuops' own folder; empty where that lies outside the project."""
    try:
        return home.resolve().relative_to(folder.resolve()).as_posix() + "/"
    except ValueError:
        return ""


def _find_edited_copies(paths: Sequence[str], tracked: Collection[str]) -> dict[str, str]:
    """Path to reason, for nodes' versions that `pull --edits` has put beside files of the project."""
    known = set(paths)
    originals = {path: match[1] for path in paths if (match := EDITED_COPY.fullmatch(path)) and path not in tracked}
    return {
        path: f"a node's version of {printable_path(original)}"
        for path, original in originals.items()
        if original in known
    }


def _refuse_non_project(folder: Path, home: Path) -> None:
    """Raises UsageError for a root, a home folder without ignore rules, and gpuops' own folder."""
    if folder.resolve() == home.resolve() and (home / "owner").exists():
        raise UsageError(f"{folder} is gpuops' own folder, not a project", "start gpuops in your project's folder")
    is_everything = folder == Path(folder.anchor) or folder == Path.home()
    if is_everything and not (folder / ".git").exists() and not (folder / IGNORE_FILE).exists():
        raise UsageError(
            f"{folder} is not a project: all of it would be sent",
            f"start gpuops in your project's folder, or say in {folder / IGNORE_FILE} what to leave out",
        )


def is_allowed(path: str, allow: Sequence[str]) -> bool:
    """Whether a path is among the paths and globs that `--send-anyway` names."""
    return any(fnmatchcase(path, item) or path.startswith(item.rstrip("/") + "/") for item in allow)


def _refuse_tracked_keys(paths: Sequence[str], keys: dict[str, str]) -> None:
    if not paths:
        return
    named = "; ".join(f"{printable_path(path)} ({keys[path]})" for path in paths[:3])
    more = f"; {len(paths) - 3} more" if len(paths) > 3 else ""
    raise UsageError(
        f"git tracks files that should not leave this computer: {named}{more}",
        f"remove them from git or list them in {IGNORE_FILE}; `--send-anyway {paths[0]}` sends one all the same",
    )


def summary(tree: Tree) -> list[str]:
    """The lines to print before a push."""
    count = len(tree.files)
    lines = [f"{plural(count, 'file')}, {amount(tree.size)}"]
    if tree.size > MIN_NAMED_TREE_BYTES:
        biggest = sorted(tree.files, key=lambda file: file.size, reverse=True)[:5]
        lines.append("biggest: " + ", ".join(f"{printable_path(file.path)} ({amount(file.size)})" for file in biggest))
    if large := sum(file.size > MAX_WHOLE_BYTES for file in tree.files):
        files = f"{plural(large, 'file')} above {amount(MAX_WHOLE_BYTES)}"
        lines.append(f"{files} searched for keys at the beginning and the end only")
    lines += [f"held back: {printable_path(held.path)} ({held.why})" for held in tree.held[:10]]
    if len(tree.held) > 10:
        lines.append(f"held back: {len(tree.held) - 10} more")
    return lines


def push_many(
    clients: Sequence[AgentClient],
    tree_name: str,
    tree: Tree,
    *,
    overwrite: bool = False,
    progress: Progress,
    record: PushRecord | None = None,
    uplink: Uplink | None = None,
) -> list[PushReport]:
    """Bring every node's copy of a tree up to date, all nodes at once. Returns reports in the clients' order.

    `record` notes what each node gets, for trees whose edits may be pulled. Raises UsageError when a file was edited on
    a node and differs here (then nothing is sent), or keeps changing while it is sent; NodeRefused, ConnectionLost.
    """
    line = uplink or Uplink()
    for _ in range(MAX_PUSH_ATTEMPTS):
        push = _Push(tree_name, tree, overwrite, line)
        plans = on_each(partial(_plan_node, push), clients)
        _refuse_conflicts(plans)
        ways = deliver([plan.delivery for plan in plans if plan.need], len(plans), line, progress)
        sent = dict(item for plan in plans for item in plan.need)
        changed = find_changed(tree.folder, sent.values())
        if not changed:
            return on_each(partial(_commit_push, record, progress, ways), plans)
        tree = _rescan(tree, changed)
    raise _never_rests(changed[0])


def _never_rests(path: str) -> UsageError:
    return UsageError(f"{printable_path(path)} keeps changing while it is sent",
                      f"stop what writes it, or list it in {IGNORE_FILE}")  # fmt: skip


class _Push:
    """What every node is to have."""

    def __init__(self, tree_name: str, tree: Tree, overwrite: bool, uplink: Uplink) -> None:
        self.tree_name, self.tree, self.overwrite, self.uplink = tree_name, tree, overwrite, uplink
        self._sums: dict[int, str] = {}
        self._lock = threading.Lock()

    def sum_of(self, index: int) -> str:
        """A file's SHA-256, computed once for all nodes that ask for it."""
        with self._lock:
            if index not in self._sums:
                self._sums[index] = _hash_file(self.tree.folder / self.tree.files[index].path)
            return self._sums[index]


@dataclass(frozen=True)
class _NodePlan:
    """One node's answer to the list of files: what it needs."""

    client: AgentClient
    push: _Push
    answer: schemas.UploadPlan

    @cached_property
    def need(self) -> list[tuple[int, FileEntry]]:
        return [(index, self.push.tree.files[index]) for index in self.answer.need]

    @property
    def delivery(self) -> Delivery:
        push, answer = self.push, self.answer
        # where rsync spares most of it, another node has nothing to add
        may_chain = answer.replaces is not None and not (answer.rsync and 2 * answer.replaces > self.size)
        return Delivery(self.client, push.tree_name, answer.push, push.tree.folder, self.need, answer.rsync, may_chain)

    @property
    def size(self) -> int:
        return sum(file.size for _, file in self.need)


def _plan_node(push: _Push, client: AgentClient) -> _NodePlan:
    files = push.tree.files
    request = partial(_request_plan, client, len(files), tree=push.tree_name,
                      files=[file.wire for file in files], overwrite=push.overwrite,
                      rsync=may_use_rsync(push.tree.size))  # fmt: skip
    answer = request()
    if answer.ask:
        answer = request(sums={str(index): push.sum_of(index) for index in answer.ask})
    return _NodePlan(client, push, answer)


def _request_plan(client: AgentClient, count: int, **arguments: object) -> schemas.UploadPlan:
    """The node's answer on a list of `count` files."""
    answer: schemas.UploadPlan = client.call("plan", timeout=TREE_TIMEOUT_S, **arguments)
    for numbers in (answer.need, answer.ask):
        if len(set(numbers)) < len(numbers) or max(numbers, default=-1) >= count:
            raise MalformedAnswer(
                client.label, "to 'plan': it needs files that are not on the list, or one of them twice"
            )
    return answer


def _hash_file(path: Path) -> str:
    """SHA-256 of a file; empty for one that was removed since the scan, which equals no file."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return ""


def _refuse_conflicts(plans: Sequence[_NodePlan]) -> None:
    edited = [(path, plan.client.label) for plan in plans for path in plan.answer.conflicts]
    if not edited:
        return
    path, label = edited[0]
    more = f" (and {len(edited) - 1} more)" if len(edited) > 1 else ""
    raise UsageError(f"{printable_path(path)} was edited on {label} since the last push and differs here{more}",
                     "`gpuops pull --edits` brings it home, beside yours; `--overwrite` sends yours")  # fmt: skip


def _rescan(tree: Tree, changed: Sequence[str]) -> Tree:
    """The tree with `changed` files read again."""
    files = [read_entry(tree.folder, file.path) if file.path in changed else file for file in tree.files]
    return dataclasses.replace(tree, files=[file for file in files if file])


def _commit_push(record: PushRecord | None, progress: Progress, ways: Mapping[str, str], plan: _NodePlan) -> PushReport:
    label = plan.client.label
    key = record.begin_push(label, plan.push.tree.files) if record else ""
    way = ways.get(label, "")
    try:
        removed = _commit(plan)
    except NodeRefused as refusal:
        if refusal.kind != "incomplete" or not way:
            raise
        progress.say(f"{label}: the transfer has left something out; sending it as a stream")
        removed = _commit(_resend(plan))
        way += " and as a stream"
    if record:
        record.end_push(label, key, plan.answer.kept)
    return PushReport(label, len(plan.need), plan.size, removed, plan.answer.kept, way)


def _commit(plan: _NodePlan) -> int:
    """How many files were removed."""
    if not plan.answer.push:
        return 0  # everything is there as it should be
    answer: schemas.UploadCommit = plan.client.call(
        "commit", timeout=TREE_TIMEOUT_S, tree=plan.push.tree_name, push=plan.answer.push
    )
    return answer.removed


def _resend(plan: _NodePlan) -> _NodePlan:
    """Send as a stream what the node still needs."""
    again = _plan_node(plan.push, plan.client)
    _refuse_conflicts([again])
    if again.need:
        Stream(plan.push.uplink).send(again.delivery, lambda _: None)
    if changed := find_changed(plan.push.tree.folder, [file for _, file in again.need]):
        raise _never_rests(changed[0])
    return again
