"""Download of a run's results: `fetch` brings files and verifies them.

It lists each node's outputs, decides what must travel (`download_plan`), receives it into a staging folder and
publishes it in `out/` (`merged_outputs`). A final fetch compares checksums of everything. The files of the other nodes
are fetched even where one node is lost.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from gpuops.core.errors import LocalDisk, MalformedAnswer, NodeError
from gpuops.core.format import amount, first_few, plural
from gpuops.core.parallel import on_each
from gpuops.core.safe_folder import SafeFolder, local_errors
from gpuops.core.safe_paths import may_come
from gpuops.core.timings import Whose
from gpuops.sync.download_plan import (
    Listing,
    Sums,
    Todo,
    batches,
    choose_transfers,
    complete_arrivals,
    possible_duplicates,
    split_by_room,
)
from gpuops.sync.log_mirror import STREAM_SILENCE_S
from gpuops.sync.merged_outputs import OutFolder
from gpuops.sync.merged_outputs_record import Arrival, Stamp
from gpuops.sync.project_files import printable_path
from gpuops.sync.run_folder import RunHome
from gpuops.transport.bulk_transfer import read_files, transfer
from gpuops.transport.rpc import AgentClient

if TYPE_CHECKING:
    from gpuops.core.reporting import Progress
    from gpuops.transport.file_schemas import Checksum, OutputListing


class UnreadableFiles(NodeError):
    """Files that their nodes list and cannot read: another try brings them only once they can be. `files`: (node,
    path)."""

    def __init__(self, files: Sequence[tuple[int, str]]) -> None:
        super().__init__(
            f"{_count_files(files)} cannot be read on the nodes: {_first_names(files)}",
            "make them readable there, then: gpuops pull",
        )
        self.files = files


Received = dict[tuple[int, str], Arrival]
"""Files that were received completely, by node and path."""
DEFAULT_OUTS = (
    "*.pt",
    "*.pth",
    "*.pth.tar",  # PyTorch's ImageNet example, and what was made after it
    "*.ckpt",
    "*.safetensors",
    "*.distcp",
    ".metadata",  # written last by torch's distributed checkpoint: without it the shards cannot be read
    "**/checkpoints/**",
    "**/checkpoint-*/**",  # Transformers' Trainer: its weights cannot be resumed without the JSON beside them
    "**/snapshots/**",
    "**/outputs/**",
    "**/results/**",
    "**/lightning_logs/**",
    "**/events.out.tfevents*",
)
"""Patterns of results without `--out`: what PyTorch, its libraries and Lightning write by default."""
LIST_TIMEOUT_S = 600.0
"""How long a node may take to list its tree."""
MIN_READ_BYTES_PER_S = 20_000_000
"""Every node reads faster from its disk: checksums that take longer are given up."""
MAX_SHOWN_CHARS = 200
"""A node's file name is cut to this length in messages."""
T = TypeVar("T")


@dataclass(frozen=True)
class Reception:
    """Where received files go."""

    folder: SafeFolder
    on_bytes: Callable[[int], None]
    """Called with the number of bytes of each block."""
    received: Received = field(default_factory=dict)
    """Complete files only."""


def receive_files(client: AgentClient, run: str, node: int, files: Mapping[str, Stamp], reception: Reception) -> None:
    """Receive files of a run by the agent's `send`, a tar stream. A file whose size is no longer as in `files` is
    skipped.

    Raises ConnectionLost when the stream is cut, NodeRefused, NodeError for a malformed stream, and LocalDisk when this
    computer cannot write.
    """
    folder, on_bytes = reception.folder, reception.on_bytes
    with transfer(client.bulk("send", "--run", run), client.label) as channel:
        for number, (member, content) in enumerate(read_files(channel, list(files))):
            stamp = files[member.name]
            if member.link is None and stamp[0] == member.size:
                temp = f"{node}-{number}"
                with local_errors(folder.path / temp):
                    sha256 = folder.create(temp, content, member.size, mtime_ns=stamp[1], on_bytes=on_bytes)
                reception.received[node, member.name] = Arrival(node, member.name, stamp, sha256, temp)


@dataclass(frozen=True)
class FetchReport:
    """What one fetch transferred."""

    files: int
    bytes: int
    conflicts: Sequence[str]
    """A sentence for each file that lies under another name than its own, mostly because a person had changed the file
    of that name; it has been said."""


def fetch(
    clients: Mapping[int, AgentClient],
    run: str,
    tree: str,
    patterns: Sequence[str],
    home: RunHome,
    *,
    final: bool,
    progress: Progress,
) -> FetchReport:
    """Fetch the latest version of every output of a run that is not home yet.

    While the run lives (`final=False`), a file that changes during its transfer waits for the next call. `final=True`
    compares checksums of everything with the bytes at home, fetches again what differs, and raises NodeError, naming
    files, when that fails twice. The error of a lost node is raised after the other nodes' files are home. LocalDisk is
    raised at once, but for files that the disk has no room for: those are reported after the rest is home.
    """
    home.create()
    fetching = _Fetch(clients, run, tree, patterns, home, progress)
    fetching.out.clear_dead()
    listing = fetching.fetch_round(live=not final)
    try:
        if final:
            _verify(fetching, listing)
    finally:
        for conflict in fetching.conflicts:
            progress.say(conflict)
    for error in sorted(fetching.errors.values(), key=lambda error: isinstance(error, MalformedAnswer)):
        raise error  # one that a retry may cure goes first
    if final and fetching.too_big:
        raise _disk_full_error(fetching.too_big, home)
    return FetchReport(fetching.files, fetching.bytes, tuple(fetching.conflicts))


def _verify(fetching: _Fetch, listing: Listing) -> None:
    """Compare checksums of everything; fetch what differs once more. Raises NodeError for what differs then, and
    UnreadableFiles where that is all that nodes cannot read."""
    wrong = fetching.find_unverified(listing)
    if wrong:
        if changed := wrong - fetching.without_sum:
            fetching.progress.say(f"{_count_files(changed)} changed on the way home: fetching again")
        fetching.out.forget(wrong)
        listing = fetching.fetch_round(live=False, only=wrong)
        wrong = fetching.find_unverified(listing, only=wrong)
    if wrong and wrong <= fetching.without_sum:
        raise UnreadableFiles(sorted(wrong))
    if wrong and all(isinstance(error, MalformedAnswer) for error in fetching.errors.values()):
        raise NodeError(
            f"{_count_files(wrong)} could not be verified: {_first_names(sorted(wrong))}",
            "`gpuops pull` tries again; nothing is deleted on the nodes before that",
        )


def _count_files(files: Iterable[object]) -> str:
    return plural(len(list(files)), "file")


def _first_names(files: Sequence[tuple[int, str]]) -> str:
    return first_few([f"{printable_path(path[:MAX_SHOWN_CHARS])} (node{node})" for node, path in files], 3)


def _disk_full_error(files: Mapping[tuple[int, str], int], home: RunHome) -> LocalDisk:
    (_, path), largest = max(files.items(), key=lambda item: item[1])
    total = amount(sum(files.values()))
    return LocalDisk(
        f"this computer's disk has no room for {_count_files(files)} of {home.path.name} ({total}; "
        f"the largest is {printable_path(path[:MAX_SHOWN_CHARS])}, {amount(largest)})",
        "free some space, then run `gpuops pull`",
    )


def _describe_refused(label: str, paths: Sequence[str]) -> str:
    """The sentence for paths that a genuine agent never offers: outside the run's folder, or git's own."""
    names = first_few([printable_path(path[:MAX_SHOWN_CHARS]) for path in paths], 1)
    return f"{label} offers {names}: not brought home"


class _Fetch:
    """The state of one `fetch`: what it has transferred so far, and the errors of lost nodes."""

    def __init__(
        self,
        clients: Mapping[int, AgentClient],
        run: str,
        tree: str,
        patterns: Sequence[str],
        home: RunHome,
        progress: Progress,
    ) -> None:
        self.clients = clients
        self.run = run
        self.tree = tree
        self.patterns = list(patterns)
        self.progress = progress
        self.out = OutFolder(home)
        self.errors: dict[int, NodeError] = {}
        self.files = 0
        self.bytes = 0
        self.conflicts: list[str] = []
        self.too_big: dict[tuple[int, str], int] = {}
        """Sizes of the files that this disk has no room for, by node and path."""
        self.without_sum: set[tuple[int, str]] = set()
        """Files that their nodes listed, and of which the last checksums had none: the node cannot read them."""
        self._listing: Listing = {}
        self._latest: Listing = {}
        """What each node had after the batch before, while the run lives."""
        self._disk = shutil.disk_usage(home.path).total
        """Size of this disk in bytes: bounds the sizes that a node announces."""
        self._total = 0
        """Bytes of this round and of those before."""
        self._lock = threading.Lock()

    def fetch_round(self, live: bool, only: set[tuple[int, str]] | None = None) -> Listing:
        """Fetch what is not home, or of that only `only`. Returns what the nodes have."""
        listing = self._listing = self._latest = self._drop_unsafe_paths(self._list_outputs(self.clients))
        todo = self._select_missing(listing, live, only)
        self._total = sum(stamp[0] for stamps in todo.values() for stamp in stamps.values()) + self.bytes
        if todo:
            self.progress.phase("fetching results", Whose.NETWORK)
        room = self.out.folder.room()
        for part in split_by_room(todo, room):
            for batch in batches(part, small_first=self._total - self.bytes > room):
                with self.out.staging() as staging:
                    self._fetch_batch(self._update_stamps(batch), live, staging)
        if self.bytes:
            self.progress.advance(self.bytes, self.bytes, "results")
        return listing

    def _drop_unsafe_paths(self, listing: Listing) -> Listing:
        """The listing without paths that no file here can have; each refused node is reported once."""
        safe = {}
        for node, files in listing.items():
            safe[node] = {path: stamp for path, stamp in files.items() if may_come(path)}
            refused = [path for path in files if path not in safe[node]]
            if refused and (sentence := _describe_refused(self.clients[node].label, refused)) not in self.conflicts:
                self.conflicts.append(sentence)
        return safe

    def find_unverified(self, listing: Listing, only: set[tuple[int, str]] | None = None) -> set[tuple[int, str]]:
        """(node, path) pairs whose bytes at home differ from the node's; both are read again."""
        checked = {
            node: [path for path in files if only is None or (node, path) in only] for node, files in listing.items()
        }
        if any(checked.values()):
            self.progress.phase("comparing checksums", Whose.NODE)
        node_sums = self._request_checksums(checked)
        self.without_sum = {
            (node, path)
            for node, paths in checked.items()
            for path in paths
            if node not in self.errors and (node, path) not in node_sums
        }
        memory = self.out.memory()
        home_sums: dict[str, str | None] = {}
        wrong = set()
        for node, path in ((node, path) for node, paths in checked.items() for path in paths):
            held = memory.held.get(path, {}).get(node)
            if held and held.place not in home_sums:
                home_sums[held.place] = self.out.sha256(held.place)
            if (
                node not in self.errors
                and (node, path) not in self.too_big
                and (held is None or node_sums.get((node, path)) != home_sums[held.place])
            ):
                wrong.add((node, path))
        return wrong

    def _select_missing(self, listing: Listing, live: bool, only: set[tuple[int, str]] | None) -> Todo:
        memory = self.out.memory()
        todo: Todo = {}
        for node, files in listing.items():
            for path, stamp in files.items():
                # An empty file of a living run has mostly just been opened for writing: it must not
                # replace the version before, which may be the last good one.
                skipped = (only is not None and (node, path) not in only) or (live and stamp[0] == 0)
                if not skipped and not self.out.is_home(memory, node, path, stamp):
                    todo.setdefault(path, {})[node] = stamp
        return todo

    def _update_stamps(self, batch: Todo) -> Todo:
        """The batch as its nodes had it after the one before: on a slow line the small files at the end have mostly
        changed since the round began. One that is empty now has just been opened for writing."""

        def latest(node: int, path: str, stamp: Stamp) -> Stamp:
            now = self._latest.get(node, {}).get(path, stamp)
            return now if now[0] else stamp

        return {path: {n: latest(n, path, stamp) for n, stamp in stamps.items()} for path, stamps in batch.items()}

    def _fetch_batch(self, batch: Todo, live: bool, staging: SafeFolder) -> None:
        memory = self.out.memory()
        sums = self._request_checksums(possible_duplicates(batch, memory))
        chosen = self._select_fitting(batch, choose_transfers(batch, sums, memory))
        arrivals = complete_arrivals(batch, sums, self._receive_batch(batch, chosen, staging))
        if live:  # a file that has changed meanwhile waits for the next call
            now = self._list_outputs({arrival.node for arrival in arrivals})
            self._latest = {**self._latest, **now}
            arrivals = [one for one in arrivals if now.get(one.node, {}).get(one.path) == one.stamp]
        self.conflicts += self.out.publish(arrivals, staging)

    def _select_fitting(self, batch: Todo, chosen: Mapping[int, Sequence[str]]) -> dict[int, list[str]]:
        """The files among `chosen` that this disk has room for, the smallest first, so that most of them fit."""
        room = self.out.folder.room()
        fitting: dict[int, list[str]] = {}
        sized = ((batch[path][node][0], node, path) for node, paths in chosen.items() for path in paths)
        for size, node, path in sorted(sized):
            room -= size
            if room < 0:
                self.too_big[node, path] = size
            else:
                fitting.setdefault(node, []).append(path)
        return fitting

    def _receive_batch(self, batch: Todo, chosen: Mapping[int, Sequence[str]], staging: SafeFolder) -> Received:
        """The files that were received completely, also those of a node that was lost meanwhile."""
        reception = Reception(staging, self._count_bytes)

        def receive_node(node: int) -> None:
            files = {path: batch[path][node] for path in chosen[node]}
            receive_files(self.clients[node], self.run, node, files, reception)

        self._on_each_node(chosen, receive_node)
        self.files += len(reception.received)
        return reception.received

    def _count_bytes(self, size: int) -> None:
        with self._lock:
            self.bytes += size
            self.progress.advance(self.bytes, max(self._total, self.bytes), "results")

    def _list_outputs(self, nodes: Iterable[int]) -> dict[int, dict[str, Stamp]]:
        def list_node(node: int) -> dict[str, Stamp]:
            client = self.clients[node]
            answer: OutputListing = client.call("outs", timeout=LIST_TIMEOUT_S, run=self.run, patterns=self.patterns)
            return {path: (size, mtime_ns) for path, size, mtime_ns in answer.files}

        return self._on_each_node(nodes, list_node)

    def _request_checksums(self, paths: Mapping[int, Sequence[str]]) -> Sums:
        """SHA-256 of these files on their nodes; without those of nodes that are lost."""

        def request(node: int) -> Sums:
            if not paths[node]:
                return {}
            client, expected = self.clients[node], set(paths[node])
            size = sum(self._listing[node][path][0] for path in expected)
            within = LIST_TIMEOUT_S + min(size, self._disk) / MIN_READ_BYTES_PER_S
            stream = client.stream(
                "sums", timeout=STREAM_SILENCE_S, within=within, tree=self.tree, paths=list(paths[node])
            )
            sums: Sums = {}
            item: Checksum
            for item in stream:
                if item.path not in expected:
                    raise MalformedAnswer(client.label, "to 'sums': what was not asked for, or twice")
                expected.remove(item.path)
                sums[node, item.path] = item.sha256
            return sums

        return {key: sha256 for sums in self._on_each_node(paths, request).values() for key, sha256 in sums.items()}

    def _on_each_node(self, nodes: Iterable[int], work: Callable[[int], T]) -> dict[int, T]:
        """Run `work` for all nodes at once. A node that fails is recorded in `errors` and skipped from then on."""
        reachable = [node for node in nodes if node not in self.errors]

        def run(node: int) -> tuple[T] | None:
            try:
                return (work(node),)
            except NodeError as error:
                self.errors[node] = error
                return None

        results = on_each(run, reachable)
        return {node: result[0] for node, result in zip(reachable, results, strict=True) if result}
