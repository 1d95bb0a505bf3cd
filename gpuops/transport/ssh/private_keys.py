"""Files of private keys: whether a passphrase locks one, and which public key and type it has. None is decrypted."""

from __future__ import annotations

import base64
import binascii
from pathlib import Path

MAGIC = b"openssh-key-v1\0"
BEGIN = b"-----BEGIN OPENSSH PRIVATE KEY-----"
END = b"-----END OPENSSH PRIVATE KEY-----"


def is_locked(path: str) -> bool:
    """Whether a passphrase is needed to use it. What cannot be read is not locked."""
    data = _read(path)
    if unpacked := _unpacked(data):
        return _field(unpacked, len(MAGIC))[0] != b"none"
    return b"ENCRYPTED" in data and b"PRIVATE KEY-----" in data


def public_blob(path: str) -> bytes:
    """The public key's bytes, from the file itself or from the `.pub` beside it; empty where neither tells."""
    data = _read(path)
    if unpacked := _unpacked(data):
        at = len(MAGIC)
        for _ in range(3):  # cipher, key derivation, its options
            _, at = _field(unpacked, at)
        blob, _ = _field(unpacked, at + 4)  # after the number of keys
        return blob
    return _public_line(data) or _public_line(_read(path + ".pub"))


def file_kind(path: str) -> str:
    """The key's type, `ssh-ed25519`; empty where that cannot be told."""
    return _field(public_blob(path), 0)[0].decode("ascii", "replace")


def _read(path: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            return file.read(1 << 16)
    except OSError:
        return b""


def _unpacked(data: bytes) -> bytes:
    """The inside of OpenSSH's own format, or nothing."""
    _, begin, rest = data.partition(BEGIN)
    if not begin:
        return b""
    try:
        inside = base64.b64decode(b"".join(rest.partition(END)[0].split()))
    except (ValueError, binascii.Error):
        return b""
    return inside if inside.startswith(MAGIC) else b""


def _field(data: bytes, at: int) -> tuple[bytes, int]:
    length = int.from_bytes(data[at : at + 4], "big")
    return data[at + 4 : at + 4 + length], at + 4 + length


def _public_line(data: bytes) -> bytes:
    words = data.split(None, 2)
    if len(words) < 2 or b"-----" in data:
        return b""
    try:
        return base64.b64decode(words[1], validate=True)
    except (ValueError, binascii.Error):
        return b""
