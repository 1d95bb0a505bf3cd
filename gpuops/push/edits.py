"""What was edited on a node comes home, and no file here that changed meanwhile is overwritten."""

from __future__ import annotations

import filecmp
import os
import shutil
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from gpuops.agentclient import AgentClient
from gpuops.bulk import transfer
from gpuops.push.files import NEVER, entry, shown
from gpuops.results.home import local_errors
from gpuops.results.plan import is_inside
from gpuops.system import HERE, System, replace
from gpuops.tarstream import finish, read_files

VERB_S = 600.0


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


def pull_edits(clients: Sequence[AgentClient], tree_name: str, folder: Path) -> list[Brought]:
    """Bring home the pushed files that were edited on the nodes.

    A file that is as it was when pushed is replaced; one that changed here stays, and the node's lies beside
    it as `<name>.node0`. The same bytes on both sides are nothing to bring. Raises NodeRefused,
    ConnectionLost, and LocalDisk when this computer cannot write.
    """
    return [brought for client in clients for brought in _from_node(client, tree_name, folder)]


def _from_node(client: AgentClient, tree_name: str, folder: Path) -> list[Brought]:
    answer = client.call("edits", timeout=VERB_S, tree=tree_name)
    pushed = {
        file["path"]: file.get("pushed")
        for file in answer["files"]
        if file["state"] == "changed" and _inside(folder, file["path"])
    }
    if not pushed:
        return []
    brought: list[Brought] = []
    with transfer(client.bulk("send", "--tree", tree_name), client.label) as channel:
        for member, content in read_files(channel, list(pushed)):
            with local_errors(folder / member.name):
                arrived = _bring(client.label, folder, member, content, pushed)
            brought += [arrived] if arrived else []
        finish(channel, client.label)
    return brought


def _inside(folder: Path, path: str, system: System = HERE) -> bool:
    """Whether a path a node names is one of the project's: not above it, not through a link, not git's own."""
    if not is_inside(path) or system.stored(path) != path:
        return False
    root = folder.resolve()
    place = (folder / path).parent.resolve() / path.rpartition("/")[2]  # as the disk has it: `GIT~1` is `.git` as well
    return place.is_relative_to(root) and NEVER.isdisjoint(system.key(place.relative_to(root).as_posix()).split("/"))


def _bring(
    label: str, folder: Path, member: tarfile.TarInfo, content: BinaryIO | None, pushed: Mapping[str, Any]
) -> Brought | None:
    """Put one file in its place, or beside it; None when the same lies here already."""
    path = member.name
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    arrived = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        _store(arrived, member, content)
        here = entry(folder, path)
        if here and _same(target, arrived):
            return None
        unchanged = here is None or here.wire[1:] == pushed[path]
        at = target if unchanged else _free_name(target, label, arrived)
        if at is None:
            return None
        replace(arrived, at)
        return Brought(path, label, at, not unchanged)
    finally:
        arrived.unlink(missing_ok=True)


def _store(arrived: Path, member: tarfile.TarInfo, content: BinaryIO | None) -> None:
    if content is None:
        os.symlink(member.linkname, arrived)
        return
    with open(arrived, "wb") as file:
        shutil.copyfileobj(content, file)
    if arrived.stat().st_size != member.size:
        raise tarfile.ReadError("the stream ended early")
    arrived.chmod(member.mode & 0o777)
    os.utime(arrived, (member.mtime, member.mtime))


def _same(one: Path, other: Path) -> bool:
    if one.is_symlink() or other.is_symlink():
        return one.is_symlink() and other.is_symlink() and os.readlink(one) == os.readlink(other)
    return one.is_file() and filecmp.cmp(one, other, shallow=False)


def _free_name(target: Path, label: str, arrived: Path) -> Path | None:
    """`train.py.node0`, or with a number where another lies there; None where the same lies there."""
    number = 1
    while True:
        name = target.with_name(f"{target.name}.{label}" + (f"-{number}" if number > 1 else ""))
        if not os.path.lexists(name):
            return name
        if _same(name, arrived):
            return None
        number += 1
