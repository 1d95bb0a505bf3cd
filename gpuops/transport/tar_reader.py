"""Reads the tar streams that agents write (`agent.files.tar_streams`, `agent.result_storage.streamed_archive`).

They hold plain files and symbolic links with POSIX headers (IEEE Std 1003.1, "pax Interchange Format"); any other
stream is rejected. Python's `tarfile` would read a header of any length into memory and fill sparse files with zeros:
here everything that a node announces has a limit, and a member has the bytes that are in the stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpuops.core.safe_folder import Readable

BLOCK_BYTES = 512
READ_BYTES = 1 << 20
MAX_HEADER_BYTES = 1 << 16
"""Of a member's extended header: a path and a link's target, of 4,096 bytes each, need a sixth of it."""
MAX_FILES = 500_000
"""The most files that one node may send, or offer, at once."""
MAX_REST_BYTES = 1 << 20
"""Of the zeros that may follow the end of an archive, up to a multiple of its block (10,240 bytes by default)."""
MAX_DIGITS = 19
"""Of a number: a file has less than 2^63 bytes."""
FILE, LINK, EXTENDED = (b"0", b"\0"), b"2", b"x"


class TarError(Exception):
    """A stream that no agent writes: the message says what is wrong with it."""


class Torn(TarError):
    """The stream ends early."""


@dataclass(frozen=True)
class Member:
    """A member's header. `link`: where a symbolic link leads; None for a file."""

    name: str
    size: int
    mode: int
    mtime: int
    link: str | None


class Content:
    """The bytes of one member. Reading raises Torn where the stream ends before them."""

    def __init__(self, source: Readable, size: int) -> None:
        self._source = source
        self._size = size
        self.left = size

    def read(self, count: int, /) -> bytes:
        if not self.left:
            return b""
        data = self._source.read(min(count, self.left))
        if not data:
            raise Torn("it ends early")
        self.left -= len(data)
        return data

    def skip(self) -> None:
        """Read the rest of the member, and what fills its last block."""
        while self.read(READ_BYTES):
            pass
        _exactly(self._source, -self._size % BLOCK_BYTES)


def members(source: Readable) -> Iterator[tuple[Member, Content]]:
    """Each member with its bytes, to be read before the next is asked for; then the stream's rest, to its end.

    Raises TarError.
    """
    count = 0
    while (header := _exactly(source, BLOCK_BYTES)) != bytes(BLOCK_BYTES):
        member = _parsed(source, header)
        count += 1
        if count > MAX_FILES:
            raise TarError(f"it has more than {MAX_FILES:,} files")
        content = Content(source, member.size)
        yield member, content
        content.skip()
    rest = 0
    while data := source.read(READ_BYTES):
        rest += len(data)
        if rest > MAX_REST_BYTES or data.strip(b"\0"):
            raise TarError("it goes on after its end")


def _exactly(source: Readable, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        data = source.read(count - len(found))
        if not data:
            raise Torn("it ends early")
        found += data
    return bytes(found)


def _parsed(source: Readable, header: bytes) -> Member:
    """A member's header, the extended one before it included."""
    more: Mapping[str, str] = {}
    if _kind(header) == EXTENDED:
        size = _octal(header[124:136])
        if size > MAX_HEADER_BYTES:
            raise TarError(f"a header of it has {size:,} bytes")
        more = _records(_exactly(source, size))
        _exactly(source, -size % BLOCK_BYTES)
        header = _exactly(source, BLOCK_BYTES)
    kind = _kind(header)
    if kind not in (*FILE, LINK):
        raise TarError(f"a member of it is neither a file nor a link (type {kind!r})")
    if strange := sorted(name for name in more if name not in ("path", "linkpath", "size", "mtime", "hdrcharset")):
        raise TarError(f"a header of it has {strange[0][:40]!r}")  # GNU.sparse among others
    prefix, name = _text(header[345:500]), _text(header[:100])
    size = _number(more["size"]) if "size" in more else _octal(header[124:136])
    mtime = _number(more["mtime"]) if "mtime" in more else _octal(header[136:148])
    link = more.get("linkpath", _text(header[157:257])) if kind == LINK else None
    if size < 0 or (size and link is not None):
        raise TarError(f"a member of it has {size} bytes")
    path = more.get("path", f"{prefix}/{name}" if prefix else name)
    return Member(path, size, _octal(header[100:108]) & 0o777, mtime, link)


def _kind(header: bytes) -> bytes:
    """The type of a block that is a header. Raises TarError for one that is none."""
    if header[257:263] != b"ustar\0" or _octal(header[148:156]) != sum(header) - sum(header[148:156]) + 8 * 0x20:
        raise TarError("it is no tar archive")
    return header[156:157]


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _octal(field: bytes) -> int:
    digits = field.rstrip(b" \0").lstrip(b" ")
    if not digits.isdigit():
        raise TarError("a number of a header of it cannot be read")
    try:
        return int(digits, 8)
    except ValueError as error:
        raise TarError("a number of a header of it cannot be read") from error


def _number(text: str) -> int:
    """Of an extended header: digits; a time may be before 1970 or have a fraction, which is dropped."""
    whole = text.partition(".")[0]
    digits = whole.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= MAX_DIGITS):
        raise TarError("a number of a header of it cannot be read")
    return int(whole)


def _records(data: bytes) -> Mapping[str, str]:
    """`<length> <name>=<value>\\n` for each, the length that of the whole record."""
    found: dict[str, str] = {}
    while data:
        length, blank, _ = data[:8].partition(b" ")
        size = int(length) if blank and length.isdigit() else 0
        name, equals, value = data[len(length) + 1 : size - 1].partition(b"=")
        if not equals or data[size - 1 : size] != b"\n":
            raise TarError("a header of it cannot be read")
        found[name.decode("utf-8", "surrogateescape")] = value.decode("utf-8", "surrogateescape")
        data = data[size:]
    return found
