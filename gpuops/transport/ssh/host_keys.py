"""Host keys as text: `ssh-ed25519 AAAA…`, without a comment. Comparing and showing them."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re

from gpuops.core.errors import NodeError

TYPE = re.compile(r"[a-z0-9][a-z0-9@.-]*")


def parse(key: str) -> tuple[str, bytes]:
    """Type and bytes of a key line. Raises NodeError where it is none."""
    words = key.split()
    try:
        blob = base64.b64decode(words[1], validate=True)
        length = int.from_bytes(blob[:4], "big")
        if TYPE.fullmatch(words[0]) and blob[4 : 4 + length] == words[0].encode():
            return words[0], blob
    except (IndexError, ValueError, binascii.Error):
        pass
    raise NodeError(f"not a host key: {key[:60]!r}", "expected is a line like `ssh-ed25519 AAAA...`")


def canonical(key: str) -> str:
    """The line without comment. Raises NodeError."""
    kind, blob = parse(key)
    return f"{kind} {base64.b64encode(blob).decode()}"


def host_key_kind(key: str) -> str:
    """The type that a line names; a bare type names itself."""
    return key.split()[0] if key.split() else ""


def fingerprint(key: str) -> str:
    """`SHA256:…`, as OpenSSH prints it. Raises NodeError."""
    digest = hashlib.sha256(parse(key)[1]).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")
