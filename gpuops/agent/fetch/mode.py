"""Mode `fetch`: what the client says on stdin and is told on stdout, a JSON document on each line.

<- {"tree": "data…", "overwrite": false, "files": [[path, size or null, etag, sha256]…]}
-> {"at": bytes, "total": bytes, "waits": "why"}      every second; it is also the sign of life
-> {"need": [index…]}                                 addresses are wanted
<- {"urls": [[index, url, {header: value}]…]}         they may be used until the next question for the same
-> {"done": {"fetched": files, "bytes": bytes, "version": [etag, modified, size] or null}}

All is in its place then; `version`: of the only file, where no listing has told it.

A node that gets from another one what that has fetched is told so by `"asks": true` and `"md5_tags"` (whether ETags of
MD5's form are such) in the first line, and before it wants addresses:

-> {"asks": true}                                     it waits
<- {"version": as above}                              the other node has fetched
-> {"lacks": [index…]}                                what is not here; a line with fewer than 1,000 is the last one
<- {"copied": push or ""}                             what could come has come, as that push of the tree `<tree>copies`

The end of stdin is the end of the client: the program ends at once. What has arrived is where the next one goes on. A
program that is done waits for it: other nodes may still fetch, and this one is in use for as long.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from io import FileIO
from typing import Any, BinaryIO, Sequence

from gpuops.agent.fetch.addresses import Addresses
from gpuops.agent.fetch.copied import take_copies
from gpuops.agent.fetch.download import Download, Flow, is_same
from gpuops.agent.fetch.store import Known, Store, Wanted
from gpuops.agent.fetch.web import Address, Version
from gpuops.agent.files.folder import check_room, checked_path
from gpuops.agent.files.transfer_modes import run
from gpuops.agent.node import Node, Refusal
from gpuops.agent.wire_format import Whole

AT_ONCE = 8
"""How many files come at the same time."""
LACKS_PER_LINE = 1000
MAX_TAG_LENGTH = 1000
REPORT_INTERVAL_S = 1.0
READ_BYTES = 1 << 18


def main(mode: str, arguments: Sequence[str]) -> int:  # noqa: ARG001
    return run(fetch, arguments)


class Conversation:
    """The client's lines and ours; several threads may write.

    Without Python's buffers: a thread that holds the lock of one while the program ends brings it down.
    """

    def __init__(self, stdin: BinaryIO, stdout: BinaryIO) -> None:
        self._stdin = FileIO(stdin.fileno(), closefd=False)
        self._stdout = Whole(FileIO(stdout.fileno(), "w", closefd=False))
        self._read = b""
        self._lock = threading.Lock()
        self._is_over = False

    def read(self) -> dict[str, Any]:
        """The next line. Raises Refusal(`torn`) at the end."""
        blocks = [self._read]
        while b"\n" not in blocks[-1]:
            blocks.append(self._stdin.read(READ_BYTES))
            if not blocks[-1]:
                raise Refusal("torn", "the client has left", "run it again")
        line, _, self._read = b"".join(blocks).partition(b"\n")
        document: dict[str, Any] = json.loads(line)
        return document

    def write(self, document: dict[str, Any]) -> None:
        line = json.dumps(document).encode() + b"\n"
        with self._lock:
            self._stdout.write(line)

    def hear(self, addresses: Addresses, files: Sequence[Wanted]) -> None:
        """Take in addresses until the client leaves, which ends this program before its time: nobody waits for it."""
        try:
            while True:
                for index, url, headers in self.read()["urls"]:
                    addresses.put(index, Address(url, headers, bool(files[index].sha256)))
        except Exception:
            if not self._is_over:
                os._exit(1)

    def report(self, flow: Flow) -> None:
        """Tell how far it is, again and again."""
        try:
            while not self._is_over:
                time.sleep(REPORT_INTERVAL_S)
                done, total = flow.progress
                self.write({"at": done, "total": total, "waits": flow.trouble})
        except OSError:
            os._exit(1)

    def tell_lacking(self, indices: Sequence[int]) -> None:
        for first in range(0, len(indices) + 1, LACKS_PER_LINE):
            self.write({"lacks": indices[first : first + LACKS_PER_LINE]})

    def end(self, fetched: int, size: int, version: Version | None) -> None:
        """Say that everything is in its place."""
        self._is_over = True
        self.write({"done": {"fetched": fetched, "bytes": size, "version": version}})


def fetch(node: Node, arguments: list[str], stdin: BinaryIO, stdout: BinaryIO) -> int:  # noqa: ARG001
    """Bring the files of one source in. Raises Refusal, OSError."""
    conversation = Conversation(stdin, stdout)
    document = conversation.read()
    files = [Wanted(checked_path(path), size, etag, sha256) for path, size, etag, sha256 in document["files"]]
    store, flow = Store(node, document["tree"], bool(document.get("overwrite"))), Flow()
    threading.Thread(target=conversation.report, args=(flow,), daemon=True).start()
    with store.opened():
        store.remove_stale({wanted.path for wanted in files})
        copied = _take_from_other(node, conversation, store, files, document) if document.get("asks") else set()
        known = [store.find(wanted.path) for wanted in files]
        pending = [
            index
            for index, wanted in enumerate(files)
            if index not in copied and not _is_settled(wanted, known[index], None)
        ]
        _survey(store, flow, [files[index] for index in pending])
        addresses = Addresses(lambda indices: conversation.write({"need": list(indices)}), pending)
        hearing = threading.Thread(target=conversation.hear, args=(addresses, files), daemon=True)
        hearing.start()
        fetched = _fetch_all(
            [(Download(store, addresses, flow, index, files[index]), known[index]) for index in pending]
        )
        store.close()
        version = _told_version(store, files)
    conversation.end(fetched, flow.progress[0], version)
    hearing.join()
    return 0


def _take_from_other(
    node: Node, conversation: Conversation, store: Store, files: Sequence[Wanted], document: dict[str, Any]
) -> set[int]:
    """Take in what another node has fetched and sent. Returns the files that no server need be asked for."""
    conversation.write({"asks": True})
    told = conversation.read()["version"]
    version = Version(*told) if told else None
    settled = [_is_settled(wanted, store.find(wanted.path), version) for wanted in files]
    conversation.tell_lacking([index for index, is_here in enumerate(settled) if not is_here])
    here = {index for index, is_here in enumerate(settled) if is_here}
    push = conversation.read()["copied"]
    return here | take_copies(node, store, push, files, version, bool(document["md5_tags"])) if push else here


def _told_version(store: Store, files: Sequence[Wanted]) -> Version | None:
    """What the server has said of the only file, unless a listing has; None for what no server says."""
    known = store.find(files[0].path) if len(files) == 1 and not files[0].etag else None
    if known is None or max(len(known.version.etag), len(known.version.modified)) > MAX_TAG_LENGTH:
        return None
    return known.version


def _is_settled(wanted: Wanted, known: Known | None, version: Version | None) -> bool:
    """Whether a file that is here is the one that is wanted, and no server need be asked. `version`: what the server
    has just said of it to another node."""
    if known is None:
        return False
    if wanted.sha256:
        return known.sha256 == wanted.sha256
    if version:
        return is_same(known, version)
    return bool(wanted.etag) and (known.version.etag, known.size) == (wanted.etag, wanted.size)


def _survey(store: Store, flow: Flow, files: Sequence[Wanted]) -> None:
    """What is to come, and whether it has room. Raises Refusal(`disk`)."""
    for wanted in files:
        partial = store.partial(wanted.path)
        if wanted.size is not None:
            flow.sizes[wanted.path] = wanted.size
        if partial and (wanted.size is None or partial.size <= wanted.size):
            flow.done[wanted.path] = partial.size
    flow.had = sum(flow.done.values())
    missing = sum(flow.sizes.values()) - sum(flow.done.get(path, 0) for path in flow.sizes)
    check_room(store.incoming, missing, "what is to be fetched", "take a node with a larger disk, or name less data")


def _fetch_all(downloads: Sequence[tuple[Download, Known | None]]) -> int:
    """Fetch several files at once. How many came; raises the first failure, without waiting for the others."""
    waiting: queue.Queue[tuple[Download, Known | None]] = queue.Queue()
    results: queue.Queue[BaseException | bool] = queue.Queue()
    for item in downloads:
        waiting.put(item)

    def work() -> None:
        try:
            while True:
                download, known = waiting.get_nowait()
                results.put(download.fetch(known))
        except queue.Empty:
            pass
        except BaseException as error:
            results.put(error)

    for _ in range(min(AT_ONCE, len(downloads))):
        threading.Thread(target=work, daemon=True).start()
    fetched = 0
    for _ in downloads:
        result = results.get()
        if isinstance(result, BaseException):
            raise result
        fetched += result
    return fetched
