"""A node's folder on its own disk: where everything lies, and the one way to refuse.

<root>/agent/<sha>.pyz             this program, by content
<root>/env/<name>/                 Python environments made here, for every node of this root
<root>/data/<name>/                what workloads download, for every node of this root; both `env` and `data` may
                                   be links of ours to a local disk (`scratch`)
<root>/<cluster>/n<i>/             one node; everything below is ours
    node.json                      who we are and how to end this node (written once, by `init`)
    lease.json  activity           until when we may live; the last sign of use (mtime)
    watchdog.json  agent.json      {"pid", "start"} of the two processes
    watchdog.lock                  held by the one watchdog
    live.json                      there while a run is on: its name, start and boot
    over.json                      why there is nothing to live for any more: {"why"}
    ended.json                     how the node's life ended: {"at", "why"}
    image.sh                       what `gpuops ssh` reads on a rented machine: the image's own environment
    agent.sock                     0600; reached by chdir, so the path may be any length
    watchdog.log  agent.log
    <tree>/                        what was pushed: `project` (the user's) or `train` (ours), which is
                                   also the working directory of runs; `data…`: what `--data` names, a link
                                   where it lies on a local disk
    trees/<tree>.json              what we wrote there, to tell our files from edited ones
    incoming/                      a push on its way in
    runs/<run>/                    spec.json inventory.json events.jsonl result.json home.json sink.json stop
                                   snapshot launcher.out launcher.err ranks/<rank>.out .err .json
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any, Sequence

PROTOCOL = 2
"""Version of the wire protocol and of the files above."""


class Refusal(Exception):
    """A request that this node will not do: travels to the user as one sentence and one hint."""

    def __init__(self, kind: str, say: str, hint: str = "", **data: Any) -> None:
        Exception.__init__(self, say)
        self.kind = kind
        self.say = say
        self.hint = hint
        self.data = data


class Cancelled(Exception):
    """Raised by `emit`: the request was cancelled, or its client is gone."""


class Node:
    """Paths of one node folder. Construction touches nothing."""

    def __init__(self, folder: str) -> None:
        self.dir = os.path.abspath(folder)

    def path(self, *parts: str) -> str:
        return os.path.join(self.dir, *parts)

    @property
    def root(self) -> str:
        return os.path.dirname(os.path.dirname(self.dir))

    def tree(self, name: str) -> str:
        """Folder of a pushed tree; a name is `[a-z]+`, so it cannot leave the folder that it is in."""
        if not (name.isalpha() and name.islower() and name.isascii()):
            raise Refusal("bad-tree", f"'{name}' is not a tree's name")
        return os.path.join(self.roomy() if name.startswith("data") else self.dir, name)

    def scratch(self) -> str | None:
        """Our folder on the machine's local disk, where `init` has found one (`gpuops.agent.local_disk`)."""
        return (self.host() or self).settings().get("scratch") or None

    def roomy(self) -> str:
        """Folder for this node's large trees, which can be sent again: on the local disk if there is one."""
        return os.path.join(self.scratch() or self.root, self.cluster, os.path.basename(self.dir))

    def data(self, name: str) -> str:
        """Folder for what a program downloads; a name is `[a-z0-9]+`."""
        if not (name.isalnum() and name.islower() and name.isascii()):
            raise Refusal("bad-data", f"'{name}' is not a data set's name")
        return os.path.join(self.root, "data", name)

    def run(self, name: str) -> str:
        """Folder of a run; a run's name is `[a-z][a-z0-9-]{0,23}`."""
        if not name or name.strip("abcdefghijklmnopqrstuvwxyz0123456789-") or len(name) > 24:
            raise Refusal("bad-run", f"'{name}' is not a run's name")
        return self.path("runs", name)

    def settings(self) -> dict[str, Any]:
        return read_json(self.path("node.json")) or {}

    @property
    def cluster(self) -> str:
        return os.path.basename(os.path.dirname(self.dir))

    def runs(self) -> list[str]:
        """Names of the runs that were ever started here, oldest first."""
        try:
            with os.scandir(self.path("runs")) as entries:
                return [entry.name for entry in sorted(entries, key=lambda entry: entry.stat().st_mtime)]
        except OSError:
            return []

    def host(self) -> Node | None:
        """The node whose machine this one shares (`on` in node.json); None for a machine's own."""
        on = self.settings().get("on")
        return None if on is None else Node(os.path.join(os.path.dirname(self.dir), f"n{on}"))

    def beside(self) -> list[Node]:
        """Nodes that share this one's machine, and are gone with it."""
        cluster, own = os.path.split(self.dir)
        try:
            names = [name for name in os.listdir(cluster) if name[:1] == "n" and name[1:].isdigit() and name != own]
        except OSError:
            return []  # somebody removed all of it
        others = [Node(os.path.join(cluster, name)) for name in names]
        return [other for other in others if other.settings().get("on", -1) == self.settings().get("index")]

    def touch(self) -> None:
        """Note a sign of use: the idle end counts from here, and that of the node whose machine this one shares."""
        host = self.host()
        if host is not None:
            host.touch()
        path = self.path("activity")
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
            os.utime(path)
        except OSError:
            pass  # a full or vanished disk must not break what is being done


def node_of(arguments: Sequence[str]) -> tuple[Node, list[str]]:
    """The node of `--node DIR`, and the arguments that are left. Raises Refusal(`usage`)."""
    rest = list(arguments)
    try:
        at = rest.index("--node")
        folder = rest[at + 1]
    except (ValueError, IndexError):
        raise Refusal("usage", "the folder of the node is missing", "add --node DIR") from None
    del rest[at : at + 2]
    return Node(folder), rest


def program() -> list[str]:
    """The command line that starts this program again, without its mode."""
    return [sys.executable, "-I", sys.argv[0]]


def log(text: str) -> None:
    """A line of watchdog.log or agent.log, which are the standard error of these processes."""
    try:
        sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}\n")
        sys.stderr.flush()
    except OSError:
        pass  # a full disk must not keep anybody from ending a node


def read_json(path: str) -> Any:
    """The file's JSON, or None when it is absent or torn."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def write_json(path: str, value: Any, mode: int = 0o600) -> None:
    """Write atomically: a reader sees the old or the new file, never half of one. Two threads may write the same."""
    temporary = f"{path}.{os.getpid()}-{threading.get_ident()}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(json.dumps(value))  # `dump` writes piece by piece, in ten times the time
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise
