"""What was edited on a node comes home: only what this computer pushed there, and over no file that changed here."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuops.core.safe_folder import SafeFolder, local_errors
from gpuops.sync.project import FileEntry, entry, shown
from gpuops.sync.pushed import Pushed
from gpuops.transport.bulk import transfer
from gpuops.transport.rpc import AgentClient
from gpuops.transport.tarmembers import Content, Member
from gpuops.transport.tarstream import finish, read_files

if TYPE_CHECKING:
    from gpuops.transport.answers import Edits

VERB_S = 600.0
PLAIN = 0o644
OWN = 0o600
"""What a node cannot take away: that the user can read and write a file that could be."""

Known = Mapping[str, Sequence[FileEntry]]


@dataclass(frozen=True)
class Brought:
    """One edited file that came home: `at` is where it lies; `beside` when ours was left as it is."""

    path: str
    node: str
    at: Path
    beside: bool

    @property
    def say(self) -> str:
        if self.beside:
            beside = shown(self.at.name)
            return f"{shown(self.path)} changed here and on {self.node}: the node's lies beside it as {beside}"
        return f"{shown(self.path)} came home from {self.node}"


def pull_edits(client: AgentClient, tree_name: str, folder: Path, record: Pushed, brought: list[Brought]) -> str:
    """Bring home the pushed files that were edited on a node, each into `brought` once it lies here. Returns a sentence
    on what was refused, empty when nothing was.

    `record` decides what was pushed, not the node. A file that is as it was when pushed is replaced; one that changed
    here stays, and the node's lies beside it as `<name>.node0`. The same bytes on both sides are nothing to bring.
    Raises NodeRefused, ConnectionLost, NodeError for an answer that is none, and LocalDisk when this computer cannot
    write.
    """
    known = record.files(client.label)
    offered = _offered(client, tree_name)
    wanted = [path for path in offered if path in known]
    unknown = [path for path in offered if path not in known]
    bringing = _Bringing(client.label, SafeFolder(folder), known, brought)
    if wanted:
        with transfer(client.bulk("send", "--tree", tree_name), client.label) as channel:
            for member, content in read_files(channel, wanted):
                with local_errors(folder / member.name):
                    bringing.bring(member, content)
            finish(channel, client.label)
    refused = {
        "was not pushed there from this computer": unknown,
        "is a link that was none, or leads out of the project": bringing.astray,
        "lies below a link here": bringing.blocked,
    }
    return "; ".join(_some(paths, why) for why, paths in refused.items() if paths)


def _offered(client: AgentClient, tree_name: str) -> list[str]:
    """The paths that a node calls edited. Raises NodeError."""
    said: Edits = client.call("edits", timeout=VERB_S, tree=tree_name)
    return list(dict.fromkeys(file["path"] for file in said["files"] if file["state"] == "changed"))


def _some(paths: Sequence[str], why: str) -> str:
    more = f" (and {len(paths) - 1} more)" if len(paths) > 1 else ""
    return f"{shown(paths[0][:200])} {why}{more}"


class _Bringing:
    """One node's edits on their way into the project."""

    def __init__(self, label: str, folder: SafeFolder, known: Known, brought: list[Brought]) -> None:
        self._label = label
        self._folder = folder
        self._known = known
        self._brought = brought
        self.astray: list[str] = []
        """Links that the project does not have, or that would lead out of it."""
        self.blocked: list[str] = []

    def bring(self, member: Member, content: Content) -> None:
        """Put one file in its place, or beside it, unless the same lies here already."""
        path, pushed = member.name, self._known[member.name]
        if member.link is not None and not (pushed[0].link and self._folder.stays_inside(path, member.link)):
            self.astray.append(path)
            return
        arrived = self._folder.draft(path)
        try:
            sha256 = self._store(arrived, member, content, pushed[0])
            at = self._place(path, member.link, sha256, pushed)
            if at is not None:
                self._folder.move(self._folder, arrived, at)
                self._brought.append(Brought(path, self._label, self._folder.path / at, at != path))
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
            self.blocked.append(path)
        finally:
            self._folder.remove(arrived)

    def _store(self, arrived: str, member: Member, content: Content, pushed: FileEntry) -> str | None:
        if member.link is not None:
            self._folder.link(arrived, member.link)
            return None
        mode = PLAIN if pushed.link else pushed.mode & (member.mode | OWN)
        return self._folder.create(arrived, content, member.size, mtime_ns=member.mtime * 1_000_000_000, mode=mode)

    def _place(self, path: str, link: str | None, sha256: str | None, pushed: Sequence[FileEntry]) -> str | None:
        """`path`, or `train.py.node0` beside it, or that with a number; None where the same lies there."""
        here = entry(self._folder.path, path)
        unchanged = here is not None and any(here.wire[1:] == one.wire[1:] for one in pushed)
        name, number = path, 0
        while self._folder.look(name) is not None and not (name == path and unchanged):
            if self._same(name, link, sha256):
                return None
            number += 1
            name = f"{path}.{self._label}" + (f"-{number}" if number > 1 else "")
        return None if self._same(name, link, sha256) else name

    def _same(self, path: str, link: str | None, sha256: str | None) -> bool:
        return self._folder.target(path) == link if sha256 is None else self._folder.sha256(path) == sha256
