"""One node's folder on its disk: where each file lies, how files are read and written, how a request is refused.

<root>/agent/<sha>.pyz             this program, named by its content; beside it `<sha>.<python>.code`, compiled
<root>/env/<name>/                 Python environments made here, shared by every node of this root
<root>/data/<name>/                downloads of workloads, shared by every node of this root; `env` and `data` may both
                                   be our links to a local disk (`scratch`, see files.local_disk)
<root>/<cluster>/n<i>/             one node; everything below is ours
    node.json                      who we are and how to end this node (written once, by `init`)
    lease.json  activity           until when we may live; the last sign of use (its mtime)
    watchdog.json  agent.json      {"pid", "start"} of the two processes
    watchdog.lock                  held by the one watchdog
    hold.json  local               of a batch job's machine: the process that holds it, as above; link to a folder
                                   there, with the lock, the socket and the notice that the machine is taken back
    live.json                      exists while a run is on: its name, start and boot
    over.json                      why the node may end early: {"why"}
    ended.json                     how the node's life ended: {"at", "why"}
    image.sh                       the environment of a rented machine's image, read by `gpuops ssh`
    agent.sock                     0600; opened relative to the folder, so that the path may have any length
    watchdog.log  agent.log
    <tree>/                        what was pushed, the working directory of runs: `project` (the user's) or `train`
                                   (ours); `data…`: folders of `--data`, or a link to them on a local disk
    trees/<tree>.json              what we wrote there, to tell our files from edited ones; `.restored.json`: what we
                                   put back of earlier runs; `.fetched`: what came by mode `fetch`
    incoming/                      a push that is being received, data that are being fetched
    runs/<run>/                    spec.json inventory.json events.jsonl result.json home.json sink.json stop
                                   snapshot usage.jsonl launcher.out launcher.err ranks/<rank>.out .err .json
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any, BinaryIO, Callable, Dict, NamedTuple, Sequence

HOLDER = "hold.json"
"""Records the process that holds this machine for a batch job (`daemon.hold_command`)."""
LOCAL = "local"
"""In a node's folder that lies on a shared disk: link to a folder of its machine's own."""
SOCKET = "agent.sock"
"""Relative on purpose, as `local_path` gives it: the path of a Unix socket may have 107 bytes, and a node's folder may
have more."""
Emit = Callable[[Dict[str, Any]], None]
"""Sends one item of a verb's answer to the client. Raises Cancelled."""
BEAT_INTERVAL_S = 5.0
"""Time between two items `beat` of a verb that is at work and has nothing else to send."""
TOUCH_INTERVAL_S = 15.0
"""Time between two signs of use of a run or a transfer that goes on."""


class Refusal(Exception):
    """A request that this node refuses: reaches the user as one sentence and one hint."""

    def __init__(self, kind: str, say: str, hint: str = "", **data: Any) -> None:
        Exception.__init__(self, say)
        self.kind = kind
        self.say = say
        self.hint = hint
        self.data = data


class Cancelled(Exception):
    """Raised by `emit`: the request was cancelled, or its client has disconnected."""


class NoticeService(NamedTuple):
    """Where the machine itself says that its provider takes it back (run.preemption_notices)."""

    kind: str = ""
    url: str = ""
    every_s: float | None = None


class NodeSettings(NamedTuple):
    """What the agent needs of node.json, which the client writes once, at `init`."""

    node_index: int | None = None
    """Of this node in its cluster (`index` in node.json)."""
    on: int | None = None
    """The index of the node whose machine this virtual node shares; None for a node with a machine of its own."""
    end: Sequence[str] = ()
    """The command that ends the machine."""
    contained: bool = False
    """Whether the container's first program starts the watchdog (mode `contain`)."""
    boot_watch: str | None = None
    """The folder of a watchdog that came with the machine."""
    notices: NoticeService = NoticeService()
    rented: bool = False
    scratch: str | None = None
    """Our folder on the machine's local disk, if `init` found one to use (files.local_disk)."""


def local_path(name: str) -> str:
    """Where a socket or a lock lies, for a process in the node's folder: network file systems are bad at both."""
    return os.path.join(LOCAL, name) if os.path.islink(LOCAL) else name


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
        """Folder of a pushed tree; its name is `[a-z]+`, so it cannot lead elsewhere. Raises Refusal(`bad-tree`)."""
        if not (name.isalpha() and name.islower() and name.isascii()):
            raise Refusal("bad-tree", f"'{name}' is not a tree's name")
        return os.path.join(self.large_trees() if name.startswith("data") else self.dir, name)

    def show_tree(self, name: str) -> None:
        """Link to a tree that lies on a local disk from where clients expect it."""
        if not os.path.lexists(self.path(name)):
            os.symlink(self.tree(name), self.path(name))

    def scratch(self) -> str | None:
        """Our folder on the machine's local disk; None where none is used."""
        return self.machine_node().settings().scratch or None

    def large_trees(self) -> str:
        """Folder for this node's large trees, which a client can send again: on the local disk if there is one."""
        return os.path.join(self.scratch() or self.root, self.cluster, os.path.basename(self.dir))

    def data(self, name: str) -> str:
        """Folder for what a program downloads; its name is `[a-z0-9]+`. Raises Refusal(`bad-data`)."""
        if not (name.isalnum() and name.islower() and name.isascii()):
            raise Refusal("bad-data", f"'{name}' is not a data set's name")
        return os.path.join(self.root, "data", name)

    def run(self, name: str) -> str:
        """Folder of a run; a run's name is `[a-z][a-z0-9-]{0,23}`. Raises Refusal(`bad-run`)."""
        if not is_run_name(name):
            raise Refusal("bad-run", f"'{name}' is not a run's name")
        return self.path("runs", name)

    def settings_document(self) -> dict[str, Any]:
        """All of node.json; empty where there is no node."""
        return read_json(self.path("node.json")) or {}

    def settings(self) -> NodeSettings:
        document = self.settings_document()
        document["node_index"] = document.get("index")
        values = {name: document[name] for name in NodeSettings._fields if document.get(name) is not None}
        service = values.pop("notices", None)
        if isinstance(service, dict):  # a provider's own words, handed through
            values["notices"] = NoticeService(service.get("kind", ""), service.get("url", ""), service.get("every_s"))
        return NodeSettings(**values)

    @property
    def cluster(self) -> str:
        return os.path.basename(os.path.dirname(self.dir))

    def runs(self) -> list[str]:
        """Names of all runs started here, the one that began last at the end. What others put beside them (`.nfs…`)
        is left out."""
        try:
            names = filter(is_run_name, os.listdir(self.path("runs")))
        except OSError:
            return []
        # Not by their folders, whose time changes with each file in them, as when a client has the results.
        return sorted(names, key=lambda name: modified_at(self.path("runs", name, "spec.json")))

    def host(self) -> Node | None:
        """The node whose machine this virtual node shares; None for a node with a machine of its own."""
        on = self.settings().on
        return None if on is None else Node(os.path.join(os.path.dirname(self.dir), f"n{on}"))

    def machine_node(self) -> Node:
        """The node that the machine was made for: this one, or the host of a virtual one."""
        return self.host() or self

    def virtual_nodes(self) -> list[Node]:
        """Virtual nodes that share this node's machine and end with it."""
        cluster, own = os.path.split(self.dir)
        try:
            names = [name for name in os.listdir(cluster) if name[:1] == "n" and name[1:].isdigit() and name != own]
        except OSError:
            return []  # removed meanwhile
        own_index = self.settings().node_index
        if own_index is None:
            return []
        others = [Node(os.path.join(cluster, name)) for name in names]
        return [other for other in others if other.settings().on == own_index]

    def touch(self) -> None:
        """Note a sign of use, also for the node whose machine this one shares: the idle end counts from here."""
        host = self.host()
        if host is not None:
            host.touch()
        path = self.path("activity")
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
            os.utime(path)
        except OSError:
            pass  # a full or vanished disk must not break what is being done


def is_run_name(name: str) -> bool:
    """At most 24 of `[a-z0-9-]`; the client's begin with a letter."""
    return bool(name) and not name.strip("abcdefghijklmnopqrstuvwxyz0123456789-") and len(name) <= 24


def parse_node(arguments: Sequence[str]) -> tuple[Node, list[str]]:
    """The node of `--node DIR`, and the other arguments. Raises Refusal(`usage`)."""
    rest = list(arguments)
    try:
        at = rest.index("--node")
        folder = rest[at + 1]
    except (ValueError, IndexError):
        raise Refusal("usage", "the folder of the node is missing", "add --node DIR") from None
    del rest[at : at + 2]
    return Node(folder), rest


def parse_options(arguments: Sequence[str]) -> dict[str, str]:
    """`["--tree", "project"]` as `{"tree": "project"}`."""
    return {name[2:]: value for name, value in zip(arguments[::2], arguments[1::2])}


def program_argv() -> list[str]:
    """The command line that starts this program again, without its mode. It needs no installed packages (`-S`): to look
    for them is a third of Python's start, and more where a `.pth` file imports something."""
    return [sys.executable, "-IS", sys.argv[0]]


def log(text: str) -> None:
    """Write a line to watchdog.log or agent.log, which are the standard error of these processes."""
    try:
        sys.stderr.write(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}\n")
        sys.stderr.flush()
    except OSError:
        pass  # a full disk must not keep a node from ending


def read_text(path: str, limit: int = 1 << 20) -> str:
    """The file's text without surrounding blanks, at most `limit` characters; empty where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(limit).strip()
    except OSError:
        return ""


def read_json(path: str) -> Any:
    """The file's JSON, or None where it is absent or torn."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, ValueError):
        return None


def write_json(path: str, value: Any, mode: int = 0o600) -> None:
    """Write JSON as `write_text` does."""
    write_text(path, json.dumps(value), mode)  # `dump` writes piece by piece and takes ten times as long


def write_text(path: str, text: str, mode: int = 0o600) -> None:
    """Write atomically: a reader sees the old file or the new one, never a part. Threads may write the same file."""
    temporary = f"{path}.{os.getpid()}-{threading.get_ident()}.tmp"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        os.unlink(temporary)
        raise


def open_append(path: str) -> BinaryIO:
    """Open a file to append bytes, unbuffered; a new one only this user may read."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab", buffering=0)


def remove_file(path: str) -> None:
    """Remove a file; one that is absent counts as removed."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def modified_at(path: str) -> float:
    """The file's mtime in UTC seconds; 0 where it cannot be read."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def size_of(path: str) -> int:
    """The file's size in bytes; 0 where it cannot be read."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
