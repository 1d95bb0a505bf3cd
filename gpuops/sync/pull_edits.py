"""Download of files that were edited or made on nodes.

`pull_edits` (`gpuops pull --edits`) brings edited files into the project: only files that this computer pushed there,
and never over a file that changed here. `save_cluster_edits` saves edited and new files of nodes that are about to end,
in `runs/<cluster>-left/`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

from gpuops.core.context import Context
from gpuops.core.errors import ConnectionLost, GpuopsError, NodeError, NodeRefused, RefusalKind
from gpuops.core.models import Resource
from gpuops.core.reporting import Progress
from gpuops.core.safe_folder import SafeFolder, local_errors
from gpuops.core.timings import Whose
from gpuops.ledger.store import ClusterRow
from gpuops.nodes.has_ended import host_node_ended
from gpuops.nodes.session import is_agent_removed, nodes_of, open_programs, rented_machine_ended, restore_agents
from gpuops.sync.merged_outputs import OutFolder
from gpuops.sync.merged_outputs_record import Held
from gpuops.sync.project_files import FileEntry, printable_path, read_entry
from gpuops.sync.push_record import PushRecord
from gpuops.sync.run_folder import RunHome, make_ignored_folder, read_json
from gpuops.sync.unmatched_files import (
    UnmatchedFile,
    describe_unmatched_files,
    find_already_home,
    list_unmatched_files,
    save_unmatched_files,
)
from gpuops.transport.bulk_transfer import read_files, transfer
from gpuops.transport.rpc import AgentClient, Programs
from gpuops.transport.tar_reader import Content, Member

if TYPE_CHECKING:
    from gpuops.transport.file_schemas import NodeEdits


EDITS_TIMEOUT_S = 600.0
"""How long a node may take to look for edits in a large tree."""
PLAIN_MODE = 0o644
"""Permission bits of a file that was pushed as a link."""
OWNER_MODE = 0o600
"""Permission bits that a node cannot take away: the user reads and writes a file as before."""

PushedFiles = Mapping[str, Sequence[FileEntry]]
"""The versions of each path that this computer pushed to a node."""
PROJECT_TREE = "project"
Version = tuple[str, int, int]
"""Path, size in bytes and time of a file."""
CLUSTER_FILE = ".gpuops.json"
"""Says whose a folder of saved edits is."""


@dataclass(frozen=True)
class PulledEdit:
    """One edited file that was downloaded."""

    path: str
    node: str
    target: Path
    """Where it lies here."""
    beside: bool
    """Whether the file of that path had changed here, too: it stays as it is."""

    @property
    def say(self) -> str:
        if self.beside:
            name = printable_path(self.target.name)
            return f"{printable_path(self.path)} changed here and on {self.node}: the node's lies beside it as {name}"
        return f"{printable_path(self.path)} came home from {self.node}"


def pull_edits(client: AgentClient, tree_name: str, folder: Path, record: PushRecord, pulled: list[PulledEdit]) -> str:
    """Fetch the pushed files that were edited on a node; each is appended to `pulled` once it lies here. Returns a
    sentence on refused files, empty without any.

    `record`, and not the node, decides what was pushed. A file that is unchanged here since the push is replaced; a
    changed one stays, and the node's version is put beside it as `<name>.node0`. Equal files are skipped. Raises
    NodeRefused, ConnectionLost, NodeError for a malformed answer, and LocalDisk when this computer cannot write.
    """
    pushed = record.files(client.label)
    edited = _list_edits(client, tree_name)
    requested = [path for path in edited if path in pushed]
    receiver = _EditReceiver(client.label, SafeFolder(folder), pushed, pulled)
    if requested:
        with transfer(client.bulk("send", "--tree", tree_name), client.label) as channel:
            for member, content in read_files(channel, requested):
                with local_errors(folder / member.name):
                    receiver.receive(member, content)
    refused = {
        "was not pushed there from this computer": [path for path in edited if path not in pushed],
        "is a link that was none, or leads out of the project": receiver.unsafe_links,
        "lies below a link here": receiver.below_links,
    }
    return "; ".join(_describe_refused(paths, why) for why, paths in refused.items() if paths)


def _list_edits(client: AgentClient, tree_name: str) -> list[str]:
    """The paths that a node lists as edited. Raises NodeError."""
    answer: NodeEdits = client.call("edits", timeout=EDITS_TIMEOUT_S, tree=tree_name)
    return list(dict.fromkeys(file.path for file in answer.files if file.state == "changed"))


def _describe_refused(paths: Sequence[str], why: str) -> str:
    more = f" (and {len(paths) - 1} more)" if len(paths) > 1 else ""
    return f"{printable_path(paths[0][:200])} {why}{more}"


class _EditReceiver:
    """The state of one node's `pull_edits`."""

    def __init__(self, label: str, folder: SafeFolder, pushed: PushedFiles, pulled: list[PulledEdit]) -> None:
        self._label = label
        self._folder = folder
        self._pushed = pushed
        self._pulled = pulled
        self.unsafe_links: list[str] = []
        """Links that were not pushed, or that lead out of the project."""
        self.below_links: list[str] = []
        """Paths below a link of this computer."""

    def receive(self, member: Member, content: Content) -> None:
        """Put one file in its place or beside it, unless an equal one lies here."""
        path, pushed = member.name, self._pushed[member.name]
        if member.link is not None and not (pushed[0].link and self._folder.stays_inside(path, member.link)):
            self.unsafe_links.append(path)
            return
        draft = self._folder.draft(path)
        try:
            sha256 = self._store_draft(draft, member, content, pushed[0])
            name = self._choose_name(path, member.link, sha256, pushed)
            if name is not None:
                self._folder.move(self._folder, draft, name)
                self._pulled.append(PulledEdit(path, self._label, self._folder.path / name, beside=name != path))
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            self.below_links.append(path)
        finally:
            self._folder.remove(draft)

    def _store_draft(self, draft: str, member: Member, content: Content, pushed: FileEntry) -> str | None:
        if member.link is not None:
            self._folder.link(draft, member.link)
            return None
        mode = PLAIN_MODE if pushed.link else pushed.mode & (member.mode | OWNER_MODE)
        return self._folder.create(draft, content, member.size, mtime_ns=member.mtime * 1_000_000_000, mode=mode)

    def _choose_name(self, path: str, link: str | None, sha256: str | None, pushed: Sequence[FileEntry]) -> str | None:
        """`path`, or `train.py.node0` beside it, or that with a number; None where an equal file lies there."""
        here = read_entry(self._folder.path, path)
        unchanged = here is not None and any(here.wire[1:] == entry.wire[1:] for entry in pushed)
        name, number = path, 0
        while self._folder.look(name) is not None and not (name == path and unchanged):
            if self._is_equal(name, link, sha256):
                return None
            number += 1
            name = f"{path}.{self._label}" + (f"-{number}" if number > 1 else "")
        return None if self._is_equal(name, link, sha256) else name

    def _is_equal(self, path: str, link: str | None, sha256: str | None) -> bool:
        return self._folder.target(path) == link if sha256 is None else self._folder.sha256(path) == sha256


def save_cluster_edits(ctx: Context, row: ClusterRow, progress: Progress) -> Iterator[str]:
    """Save edited and new files of every node in `runs/<cluster>-left/node<i>/` of the cluster's folder, or in
    `<cluster>-left-2` where an earlier cluster of that name has the folder. Yields a sentence per node that had some.

    Files that the cluster's runs excluded (`--out '!GLOB'`) are skipped. Every node is tried; then the first error is
    raised: NodeError, LocalDisk. A machine that has ended is an error only where all have.
    """
    first_error: GpuopsError | None = None
    ended: dict[int, GpuopsError] = {}
    nodes = nodes_of(ctx, row)
    safe: set[Version] = set()
    for index, machine in enumerate(nodes):
        try:
            sentence = _save_with_new_agent(ctx, row, machine, index, safe, progress)
        except GpuopsError as error:
            if isinstance(error, NodeError) and rented_machine_ended(ctx, row, machine):
                ended[index] = error
            else:
                first_error = first_error or error
            continue
        if sentence:
            yield sentence
    if first_error is None and len(ended) == len(nodes) and ended:
        first_error = ended[min(ended)]
    if first_error is not None:
        raise first_error
    for index in ended:
        yield f"node{index} has ended: what was edited or made there outside of runs is gone with it"


def _save_with_new_agent(
    ctx: Context, row: ClusterRow, machine: Resource, index: int, safe: set[Version], progress: Progress
) -> str:
    """`save_node_edits`, once more where somebody had removed the node's agent; a sentence where all of the node was
    removed on its host. Raises NodeError, LocalDisk."""
    try:
        return save_node_edits(ctx, row, machine, index, safe, progress)
    except ConnectionLost as error:
        if is_agent_removed(machine, error) and host_node_ended(ctx, row, machine):
            return f"node{index} was removed on its host, and what was edited there with it"
        if not restore_agents(ctx, {index: machine}, error):
            raise
        return save_node_edits(ctx, row, machine, index, safe, progress)


def save_node_edits(
    ctx: Context, row: ClusterRow, machine: Resource, index: int, safe: set[Version], progress: Progress
) -> str:
    """Save one node's files, without those that are `safe`: saved from another node, and added to where they are saved
    from this one. Returns a sentence, empty where it had none. Raises NodeError, LocalDisk."""
    programs = open_programs(row, machine, index)
    try:
        with progress.during(f"looking for what was edited or made on node{index}", whose=Whose.NODE):
            files = _find_unsaved(ctx, row, index, programs)
            # `gpuops pull --edits` may have downloaded some.
            home = find_already_home(programs, PROJECT_TREE, files, SafeFolder(row.folder))
            found = {version for file in files if (version := _version(file))}
            files = [file for file in files if file not in home and _version(file) not in safe]
        if not files:
            safe |= found
            return ""
        folder = _cluster_folder(row)
        target = folder.below(f"node{index}")
        with progress.during(
            f"saving what was edited or made on node{index}: {describe_unmatched_files(files)}", whose=Whose.NETWORK
        ):
            saved = save_unmatched_files(programs, PROJECT_TREE, files, target)
            with local_errors(folder.path):
                folder.flush()
        if saved.missing:
            raise NodeError(
                f"node{index} does not give {describe_unmatched_files(saved.missing)}; "
                f"what else was edited or made is in {target.path}",
                "make it readable for the login on the node, or remove it there",
            )
        safe |= found
        renamed = "".join(f"; {name} is {path}" for path, name in saved.renamed.items())
        return f"edited or made on node{index}, saved in {target.path}: {describe_unmatched_files(files)}{renamed}"
    finally:
        programs.connection.close()


def _version(file: UnmatchedFile) -> Version | None:
    """What `push --from` has copied is the same to the nanosecond on each node; whole seconds may be two programs'."""
    return (file.path, file.size, file.mtime_ns) if file.mtime_ns % 1_000_000_000 and not file.edited else None


def _cluster_folder(row: ClusterRow) -> SafeFolder:
    """The folder for files of this cluster: the same at each attempt, and no other cluster's of that name."""
    first = row.folder / "runs" / f"{row.name}-left"
    with local_errors(first):
        more = (first.with_name(f"{first.name}-{number}") for number in count(2))
        folder = make_ignored_folder(next(path for path in chain([first], more) if _belongs_to(path, row)))
        folder.write_json(CLUSTER_FILE, {"schema": 1, "cluster": row.token})
    return folder


def _belongs_to(path: Path, row: ClusterRow) -> bool:
    return read_json(path / CLUSTER_FILE).get("cluster") == row.token or not any(path.glob("[!.]*"))


def _find_unsaved(ctx: Context, row: ClusterRow, index: int, programs: Programs) -> list[UnmatchedFile]:
    runs = ctx.ledger.runs(cluster=row.id)
    excluded = [pattern for run in runs for pattern in run.request.get("outs") or () if pattern.startswith("!")]
    try:
        files = list_unmatched_files({index: programs}, excluded, tree=PROJECT_TREE)
    except NodeRefused as refusal:
        if refusal.kind == RefusalKind.NO_NODE:
            return []
        raise
    records = [(run.nodes_at, OutFolder(RunHome(run.home)).memory().held) for run in runs]
    return [file for file in files if not any(_is_fetched(file, *record) for record in records)]


def _is_fetched(file: UnmatchedFile, nodes_at: Sequence[int], held: Mapping[str, Mapping[int, Held]]) -> bool:
    """Whether a run has fetched exactly this version of the file. `nodes_at`: as in `RunRequest`."""
    node = file.node
    if nodes_at:
        node = nodes_at.index(node) if node in nodes_at else -1
    version = held.get(file.path, {}).get(node)
    return version is not None and version.stamp == (file.size, file.mtime_ns)
