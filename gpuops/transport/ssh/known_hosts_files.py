"""What the user's known_hosts files say of a host."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuops.core.errors import NodeError
from gpuops.core.platform import HERE
from gpuops.transport.ssh import host_keys


@dataclass(frozen=True)
class Entry:
    """One line of a known_hosts file."""

    marker: str
    names: str
    key: str


def default_files() -> tuple[Path, ...]:
    """Where OpenSSH looks unless it is told otherwise."""
    home = Path.home() / ".ssh"
    system = HERE.ssh_folder(os.environ)
    return (
        home / "known_hosts",
        home / "known_hosts2",
        system / "ssh_known_hosts",
        system / "ssh_known_hosts2",
    )


def known_keys(host: str, port: int = 22, files: Sequence[Path | str] | None = None) -> tuple[str, ...]:
    """The keys that the files name for a host, without those that were revoked. Missing files say nothing."""
    name = host_name(host, port)
    found = [entry for entry in _entries(files) if matches(entry.names, name)]
    revoked = {entry.key for entry in found if entry.marker == "@revoked"}
    return tuple(dict.fromkeys(entry.key for entry in found if not entry.marker and entry.key not in revoked))


def revoked_keys(host: str, port: int = 22, files: Sequence[Path | str] | None = None) -> tuple[str, ...]:
    """The keys that the files forbid for a host."""
    name = host_name(host, port)
    found = (entry for entry in _entries(files) if entry.marker == "@revoked" and matches(entry.names, name))
    return tuple(dict.fromkeys(entry.key for entry in found))


def host_name(host: str, port: int) -> str:
    """How a file names a host: the port counts."""
    return host.lower() if port == 22 else f"[{host.lower()}]:{port}"


def matches(names: str, name: str) -> bool:
    """Whether a line's first field (names, patterns with * ? and !, or a hash) means `name`."""
    if names.startswith("|1|"):
        return _hash_matches(names, name)
    patterns = names.lower().split(",")
    if any(pattern.startswith("!") and _like(pattern[1:], name) for pattern in patterns):
        return False
    return any(_like(pattern, name) for pattern in patterns if not pattern.startswith("!"))


def _hash_matches(names: str, name: str) -> bool:
    try:
        _, _, salt, digest = names.split("|")
        wanted = base64.b64decode(digest)
        made = hmac.new(base64.b64decode(salt), name.encode(), hashlib.sha1).digest()
    except (ValueError, binascii.Error):
        return False
    return hmac.compare_digest(wanted, made)


def _like(pattern: str, name: str) -> bool:
    """OpenSSH's patterns: only * and ? are special (fnmatch would read the brackets of [host]:port as well)."""
    regex = "".join({"*": ".*", "?": "."}.get(char, re.escape(char)) for char in pattern)
    return re.fullmatch(regex, name, re.DOTALL) is not None


def _entries(files: Sequence[Path | str] | None) -> Iterator[Entry]:
    for file in default_files() if files is None else files:
        try:
            text = Path(file).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        for line in text.splitlines():
            if entry := _entry(line):
                yield entry


def _entry(line: str) -> Entry | None:
    """A line's content; None for a comment, and for what cannot be read, as OpenSSH has it."""
    words = line.split()
    marker = words.pop(0) if words and words[0].startswith("@") else ""
    if len(words) < 3 or words[0].startswith("#"):
        return None
    try:
        return Entry(marker, words[0], host_keys.canonical(f"{words[1]} {words[2]}"))
    except NodeError:
        return None
