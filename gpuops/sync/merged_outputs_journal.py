"""The file of the record of `runs/<run>/out/`: a journal (`.gpuops.jsonl`) that only grows.

Its first line names it; each other line has all that is known of one path from then on. Lines are appended under the
folder's lock, and are on the disk when `append` returns; one that a crash has cut off was not written. Who has read it
reads on where it ended. With many more lines than paths it is rewritten, under another name of its own. Earlier
versions wrote one document, `.gpuops.json`, which is read where there is no journal.
"""

from __future__ import annotations

import io
import json
import os
import secrets
from collections.abc import Callable, Iterable
from io import BufferedReader

from gpuops.core.safe_folder import SafeFolder
from gpuops.sync.merged_outputs_record import Memory

JOURNAL_FILE = ".gpuops.jsonl"
DOCUMENT_FILE = ".gpuops.json"
"""What earlier versions wrote."""
DRAFT = ".publish.tmp"
SCHEMA = 1
LINES_PER_PATH_MAX, LINES_MIN = 3, 1000
"""A journal with more lines is rewritten: fetching a file takes two."""
SPOILT = b"~\n"
"""What ends a line that a crash has cut off: none with it can be read, also where only its end was missing."""
UNREADABLE = (ValueError, TypeError, AttributeError, KeyError, RecursionError)
"""What the parsers of a damaged line or document raise."""


class Journal:
    """The record of one `out/` as its file has it. Construction touches nothing."""

    def __init__(self, home: SafeFolder, key: Callable[[str], str]) -> None:
        self._home = home
        """The run's folder; a draft lies there, since names in `out/` are the run's."""
        self._out = home.below("out")
        self._key = key
        self._memory = Memory(key=key)
        self._name = ""
        """Of the journal that was read; empty: there is none that can be read, and the next line begins one."""
        self._end = 0
        """Where the last complete line ends that was read, in bytes."""
        self._lines = 0
        self._is_torn = False
        """Whether a line without an end follows there."""

    def read(self) -> Memory:
        """The record as it is now. It stays the same object, and changes, until `reset`; empty where its file is
        damaged."""
        try:
            with self._out.reading(JOURNAL_FILE) as file:
                self._read_on(file)
        except FileNotFoundError:
            self.reset()
            self._memory = self._read_document()
        except OSError:
            self.reset()
        return self._memory

    def append(self, paths: Iterable[str]) -> None:
        """Record what is known of these paths now. `read` comes before, under the same lock. Raises OSError."""
        lines = [_line(self._memory.describe(path)) for path in paths]
        if not lines:
            return
        if not self._name or self._lines + len(lines) > LINES_PER_PATH_MAX * len(self._memory.held) + LINES_MIN:
            self._rewrite()
            return
        self._end = self._out.append(JOURNAL_FILE, SPOILT * self._is_torn + b"".join(lines))
        self._lines += len(lines)
        self._is_torn = False

    def reset(self) -> None:
        """Read all of it the next time: what is in memory may be more than the disk has."""
        self._memory = Memory(key=self._key)
        self._name, self._end, self._lines, self._is_torn = "", 0, 0, False

    def _read_on(self, file: BufferedReader) -> None:
        header = file.readline()
        name = _parse_header(header)
        if not name or name != self._name or os.fstat(file.fileno()).st_size < self._end:
            self.reset()
            self._name, self._end = name, len(header)
        if not name:
            return
        file.seek(self._end)
        self._is_torn = False
        for line in file:
            if not line.endswith(b"\n"):
                self._is_torn = True
                break
            self._end += len(line)
            self._lines += 1
            try:
                self._memory.apply(json.loads(line))
            except UNREADABLE:
                pass  # cut off by a crash, and followed by others: what it announced was not done

    def _read_document(self) -> Memory:
        try:
            with self._out.reading(DOCUMENT_FILE) as file:
                return Memory.parse(json.load(file), self._key)
        except (OSError, *UNREADABLE):
            return Memory(key=self._key)

    def _rewrite(self) -> None:
        name = secrets.token_hex(8)
        paths = self._memory.paths()
        lines = [_line({"schema": SCHEMA, "journal": name}), *(_line(self._memory.describe(path)) for path in paths)]
        data = b"".join(lines)
        # One name is enough under the lock, and what a crash leaves there is overwritten.
        self._home.write(f"out/{JOURNAL_FILE}", io.BytesIO(data), 0, draft=DRAFT)  # 0: it may use the disk's reserve
        self._out.remove(DOCUMENT_FILE)
        self._name, self._end, self._lines, self._is_torn = name, len(data), len(paths), False


def _line(document: object) -> bytes:
    return json.dumps(document).encode() + b"\n"


def _parse_header(line: bytes) -> str:
    """The name of a journal; empty for a first line that this gpuops did not write."""
    try:
        header = json.loads(line)
        return str(header["journal"]) if header["schema"] == SCHEMA and line.endswith(b"\n") else ""
    except UNREADABLE:
        return ""
