"""`gpuops push --from node0`: what one node has, to the others, from node to node.

Files that a push wrote come from here, and are left out; all others go, and those of them that were changed on their
target since the last such copy stay there. What is compared, staged and put in its place is a push like any other.
"""

from __future__ import annotations

import dataclasses
import glob
import posixpath
from collections.abc import Sequence, Set
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gpuops.agent.files.folder import parent_paths
from gpuops.core.errors import ConnectionLost, MalformedAnswer, UsageError
from gpuops.core.format import amount, plural
from gpuops.core.parallel import on_each
from gpuops.core.reporting import Progress
from gpuops.core.timings import Whose
from gpuops.sync.chain_links import Chains
from gpuops.sync.download import MIN_READ_BYTES_PER_S
from gpuops.sync.project_files import FileEntry, printable_path
from gpuops.sync.push_chain import Origin
from gpuops.sync.push_transports import Delivery
from gpuops.sync.uplink import Uplink
from gpuops.sync.upload import NodePlan, Push, PushReport, commit, plan_node, refuse_conflicts
from gpuops.transport.rpc import AgentClient

if TYPE_CHECKING:
    from gpuops.transport import file_schemas

LIST_TIMEOUT_S = 600.0
"""How long a node may take to list what it has, and longer than it is silent while it hashes."""
MAX_ROUNDS = 3
"""How often what a node has not got is sent once more."""


@dataclass(frozen=True)
class Copies:
    """What one node has for the others."""

    origin: AgentClient
    tree_name: str
    files: Sequence[FileEntry]
    edited: Sequence[str]
    """Files of the project that were edited there: they come home, and go out from here."""

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def list_copies(origin: AgentClient, tree_name: str, paths: Sequence[str]) -> Copies:
    """What a node has in these files and folders of a tree, and in all of it without any.

    Raises UsageError for a path without files, MalformedAnswer for a node that names others, NodeRefused,
    ConnectionLost.
    """
    places = [path and posixpath.normpath(path) for path in paths]
    patterns = [] if "." in places else ["./" + glob.escape(place) for place in places]
    answer: file_schemas.NodeCopies = origin.call("copies", timeout=LIST_TIMEOUT_S, tree=tree_name, patterns=patterns)
    files = [FileEntry(path, size, mtime_ns, mode) for path, size, mtime_ns, mode in answer.files]
    found = {
        place for path in (*(file.path for file in files), *answer.edited) for place in (path, *parent_paths(path))
    }
    for place in places if patterns else ():
        if place not in found:
            raise UsageError(
                f"{origin.label} has nothing at {printable_path(place)} that is not pushed from here",
                f"look there: gpuops ssh -- ls; paths are relative to the project on {origin.label}",
            )
    if patterns:
        _refuse_unasked(origin.label, files, set(places))
    return Copies(origin, tree_name, files, answer.edited)


def _refuse_unasked(label: str, files: Sequence[FileEntry], places: Set[str]) -> None:
    """A node that was asked for its data does not put programs on the others. Raises MalformedAnswer."""
    for file in files:
        if file.path not in places and places.isdisjoint(parent_paths(file.path)):
            raise MalformedAnswer(label, "to 'copies': it names files that were not asked for")


def copy_to(copies: Copies, targets: Sequence[AgentClient], *, overwrite: bool, progress: Progress) -> list[PushReport]:
    """Bring these files to other nodes. Returns a report for each, in their order.

    Raises UsageError where one was changed there, NodeRefused for one that changes meanwhile and for a full disk, and
    ConnectionLost for the first node that did not get all of them, once the others have.
    """
    push = CopyPush(copies, copies.tree_name, overwrite)
    plans = on_each(partial(plan_node, push), targets)
    refuse_conflicts(plans)
    failed = deliver_copies(copies, [plan.delivery for plan in plans if plan.need], progress)
    reports = on_each(partial(_commit, copies), [plan for plan in plans if plan.client.label not in failed])
    if failed:
        label, why = next(iter(failed.items()))
        rest = f" ({plural(len(reports), 'other node')} got everything)" if reports else ""
        raise ConnectionLost(
            f"{label} did not get what {copies.origin.label} has: {why}{rest}",
            "push again: what arrived is not sent again; `gpuops doctor` tells which nodes reach each other",
        )
    return reports


class CopyPush(Push):
    """A push of another node's files, into a tree of this name."""

    adds = True

    def __init__(self, copies: Copies, tree_name: str, overwrite: bool) -> None:
        super().__init__(tree_name, Path(), copies.files, overwrite, Uplink())
        self._copies = copies

    def hash_files(self, paths: Sequence[str]) -> dict[str, str]:
        """As the node that has them tells it. Raises MalformedAnswer, NodeRefused, ConnectionLost."""
        origin, tree, expected, found = self._copies.origin, self._copies.tree_name, set(paths), dict[str, str]()
        within = LIST_TIMEOUT_S + self._copies.size / MIN_READ_BYTES_PER_S
        item: file_schemas.Checksum
        for item in origin.stream("sums", timeout=LIST_TIMEOUT_S, within=within, tree=tree, paths=paths):
            if item.path not in expected:
                raise MalformedAnswer(origin.label, "to 'sums': what was not asked for, or twice")
            expected.remove(item.path)
            found[item.path] = str(item.sha256)
        return found


def deliver_copies(copies: Copies, deliveries: Sequence[Delivery], progress: Progress) -> dict[str, str]:
    """Send each node what it needs. Returns those that did not get it, and why. Raises NodeRefused, NodeError."""
    failed: dict[str, str] = {}
    why: dict[str, str] = {}
    late: set[str] = set()
    """Nodes that have once not done what they were to do: a program that was killed is begun again, once."""
    show = _Shown(copies, deliveries, progress)
    for _ in range(MAX_ROUNDS * max(1, len(deliveries))):
        if not deliveries:
            break
        origin = Origin(copies.origin, copies.tree_name)
        with closing(Chains(deliveries, Uplink(), origin)) as opened:
            if not opened.chains:
                failed[deliveries[0].client.label] = opened.note
                deliveries = deliveries[1:]
                continue
            [chain] = opened.chains
            outcomes = chain.send(show.add)
        if refusal := chain.refusal or next((one.refusal for one in outcomes if one.refusal), None):
            raise refusal
        served = {one.delivery.client.label for one in outcomes}
        behind = [one for one in deliveries if one.client.label not in served]
        why |= {one.delivery.client.label: one.why for one in outcomes if one.left}
        left = [one.left for one in outcomes if one.left]
        again = [one for one in left if one.may_chain or one.client.label not in late]
        late |= {one.client.label for one in left if not one.may_chain}
        failed |= {one.client.label: why[one.client.label] for one in left if one not in again}
        deliveries = [*(dataclasses.replace(one, may_chain=True) for one in again), *behind]
    return failed | {one.client.label: why.get(one.client.label, "") for one in deliveries}


class _Shown:
    """The bytes that go out of one node, as progress."""

    def __init__(self, copies: Copies, deliveries: Sequence[Delivery], progress: Progress) -> None:
        wanted = {file.path: file.size for one in deliveries for _, file in one.files}
        self._total, self._done, self._progress = sum(wanted.values()), 0, progress
        self._label = plural(len(deliveries), "node")
        if deliveries:
            words = f"{plural(len(wanted), 'file')}, {amount(self._total)}"
            progress.phase(f"copying from {copies.origin.label} to {self._label}: {words}", Whose.NETWORK)

    def add(self, count: int) -> None:
        self._done += count
        self._progress.advance(min(self._done, self._total), self._total, self._label)


def _commit(copies: Copies, plan: NodePlan) -> PushReport:
    commit(plan)
    way = f"from {copies.origin.label}" if plan.need else ""
    return PushReport(plan.client.label, len(plan.need), plan.size, 0, plan.answer.kept, way)
