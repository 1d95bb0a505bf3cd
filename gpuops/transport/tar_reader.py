"""Reading the tar streams that our agent writes, and no others.

They come from `agent.files.tar_streams` and `agent.result_storage.streamed_archive`.

Plain files and symbolic links with POSIX headers (IEEE Std 1003.1, "pax Interchange Format") is all that it sends.
Python's `tarfile` reads a header of any length into memory and fills sparse files with zeros: what a node announces
here has a limit, and its members have the bytes that are in the stream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpuops.core.safe_folder import Readable

BLOCK = 512
READ = 1 << 20
HEADER_LIMIT = 1 << 16
"""Bytes of a member's extended header: a path and a link's target, of 4,096 bytes each, need a sixth of it."""
FILES = 500_000
"""The most files that one node may send, or offer, at once."""
REST_LIMIT = 1 << 20
"""What may follow the end of an archive, in bytes: zeros up to a multiple of its block (10,240 by default)."""
DIGITS = 19
"""Of a number: a file has less than 2^63 bytes."""
FILE, LINK, EXTENDED = (b"0", b"\0"), b"2", b"x"


class TarError(Exception):
    """A stream that is none of ours: the message says what is wrong with it."""


class Torn(TarError):
    """It ends early."""


@dataclass(frozen=True)
class Member:
    """What a header says. `link`: where a symbolic link leads; None for a file."""

    name: str
    size: int
    mode: int
    mtime: int
    link: str | None


class Content:
    """The bytes of one member, not one less. Raises Torn."""

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
        """Whatever of it was not read, and what fills its last block."""
        while self.read(READ):
            pass
        _exactly(self._source, -self._size % BLOCK)


def members(source: Readable) -> Iterator[tuple[Member, Content]]:
    """Each member with its bytes, to be read before the next is asked for; then the stream's rest, to its end.

    Raises TarError.
    """
    count = 0
    while (header := _exactly(source, BLOCK)) != bytes(BLOCK):
        member = _parsed(source, header)
        count += 1
        if count > FILES:
            raise TarError(f"it has more than {FILES:,} files")
        content = Content(source, member.size)
        yield member, content
        content.skip()
    rest = 0
    while data := source.read(READ):
        rest += len(data)
        if rest > REST_LIMIT or data.strip(b"\0"):
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
        if size > HEADER_LIMIT:
            raise TarError(f"a header of it has {size:,} bytes")
        more = _records(_exactly(source, size))
        _exactly(source, -size % BLOCK)
        header = _exactly(source, BLOCK)
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
    if not (digits.isascii() and digits.isdigit() and len(digits) <= DIGITS):
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
