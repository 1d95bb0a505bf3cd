"""A push: compare what a folder sends with what all nodes have, send the difference, commit it."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpuops.core.errors import MalformedAnswer, NodeRefused, UsageError
from gpuops.core.parallel import on_each
from gpuops.core.reporting import Progress
from gpuops.sync.project_files import IGNORE_FILE, FileEntry, printable_path, read_entry
from gpuops.sync.push_record import PushRecord
from gpuops.sync.push_rounds import deliver
from gpuops.sync.push_transports import Delivery, Stream, find_changed, may_use_rsync
from gpuops.sync.scan import Tree
from gpuops.sync.uplink import Uplink
from gpuops.transport.rpc import AgentClient, Encoded

if TYPE_CHECKING:
    from gpuops.transport import file_schemas


TREE_TIMEOUT_S = 600.0
"""How long a node may take to compare a large tree."""
MAX_PUSH_ATTEMPTS = 3
"""A push starts again when files changed while they were sent; a file that changes each time is an error."""


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
        push = Push(tree_name, tree.folder, tree.files, overwrite, line)
        plans = on_each(partial(plan_node, push), clients)
        refuse_conflicts(plans)
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


class Push:
    """What every node is to have. `adds`: besides all else that it has."""

    adds = False

    def __init__(
        self, tree_name: str, folder: Path, files: Sequence[FileEntry], overwrite: bool, uplink: Uplink
    ) -> None:
        self.tree_name, self.folder, self.files = tree_name, folder, files
        self.overwrite, self.uplink = overwrite, uplink
        self.list_text = json.dumps([file.wire for file in files])
        """What each node is sent of the files, and what the push record keeps."""
        self.may_use_rsync = not self.adds and may_use_rsync(sum(file.size for file in files))
        self._sums: dict[int, str] = {}
        self._lock = threading.Lock()

    def sums_of(self, indices: Sequence[int]) -> dict[str, str]:
        """SHA-256 of files by their index, computed once for all nodes that ask for it."""
        with self._lock:
            missing = {index: self.files[index].path for index in indices if index not in self._sums}
            found = self.hash_files(list(missing.values())) if missing else {}
            self._sums |= {index: found.get(path, "") for index, path in missing.items()}
            return {str(index): self._sums[index] for index in indices}

    def hash_files(self, paths: Sequence[str]) -> dict[str, str]:
        """SHA-256 by path, without files that were removed since the scan: an empty sum equals no file's."""
        found = {}
        for path in paths:
            with contextlib.suppress(FileNotFoundError), open(self.folder / path, "rb") as file:
                found[path] = hashlib.file_digest(file, "sha256").hexdigest()
        return found


@dataclass(frozen=True)
class NodePlan:
    """One node's answer to the list of files: what it needs."""

    client: AgentClient
    push: Push
    answer: file_schemas.UploadPlan

    @cached_property
    def need(self) -> list[tuple[int, FileEntry]]:
        return [(index, self.push.files[index]) for index in self.answer.need]

    @property
    def delivery(self) -> Delivery:
        push, answer = self.push, self.answer
        # where rsync spares most of it, another node has nothing to add
        may_chain = answer.replaces is not None and not (answer.rsync and 2 * answer.replaces > self.size)
        return Delivery(
            client=self.client,
            tree_name=push.tree_name,
            push=answer.push,
            folder=push.folder,
            files=self.need,
            rsync=answer.rsync,
            inplace=answer.inplace,
            may_chain=may_chain,
            takes_messages=answer.messages,
        )

    @property
    def size(self) -> int:
        return sum(file.size for _, file in self.need)


def plan_node(push: Push, client: AgentClient) -> NodePlan:
    """Ask a node what it needs. Raises NodeRefused, ConnectionLost."""
    request = partial(_request_plan, client, len(push.files), tree=push.tree_name, files=Encoded(push.list_text),
                      overwrite=push.overwrite, rsync=push.may_use_rsync, adds=push.adds)  # fmt: skip
    answer = request()
    if push.adds and not answer.adds:  # its commit would remove all else
        raise NodeRefused(
            f"{client.label} was made by an older gpuops, whose nodes take nothing from each other",
            "end it, and bring up another: gpuops down",
        )
    if answer.ask:
        answer = request(sums=push.sums_of(answer.ask))
    return NodePlan(client, push, answer)


def _request_plan(client: AgentClient, count: int, **arguments: object) -> file_schemas.UploadPlan:
    """The node's answer on a list of `count` files."""
    answer: file_schemas.UploadPlan = client.call("plan", timeout=TREE_TIMEOUT_S, **arguments)
    for numbers in (answer.need, answer.ask):
        if len(set(numbers)) < len(numbers) or max(numbers, default=-1) >= count:
            raise MalformedAnswer(
                client.label, "to 'plan': it needs files that are not on the list, or one of them twice"
            )
    return answer


def refuse_conflicts(plans: Sequence[NodePlan]) -> None:
    """Raises UsageError where a file was edited on a node."""
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


def _commit_push(record: PushRecord | None, progress: Progress, ways: Mapping[str, str], plan: NodePlan) -> PushReport:
    label = plan.client.label
    key = record.begin_push(label, plan.push.list_text) if record else ""
    way = ways.get(label, "")
    try:
        removed = commit(plan)
    except NodeRefused as refusal:
        if refusal.kind != "incomplete" or not way:
            raise
        progress.say(f"{label}: the transfer has left something out; sending it as a stream")
        removed = commit(_resend(plan))
        way += " and as a stream"
    if record:
        record.end_push(label, key, plan.answer.kept)
    return PushReport(label, len(plan.need), plan.size, removed, plan.answer.kept, way)


def commit(plan: NodePlan) -> int:
    """Put what has come in its place; how many files were removed. Raises NodeRefused, ConnectionLost."""
    if not plan.answer.push:
        return 0  # everything is there as it should be
    answer: file_schemas.UploadCommit = plan.client.call(
        "commit", timeout=TREE_TIMEOUT_S, tree=plan.push.tree_name, push=plan.answer.push
    )
    return answer.removed


def _resend(plan: NodePlan) -> NodePlan:
    """Send as a stream what the node still needs."""
    again = plan_node(plan.push, plan.client)
    refuse_conflicts([again])
    if again.need:
        Stream(plan.push.uplink).send(again.delivery, lambda _: None)
    if changed := find_changed(plan.push.folder, [file for _, file in again.need]):
        raise _never_rests(changed[0])
    return again
