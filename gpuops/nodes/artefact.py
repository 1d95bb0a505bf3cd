"""The agent as one file: a zip archive that Python runs, named by its content."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

from gpuops.core.platform import replace

EPOCH = (1980, 1, 1, 0, 0, 0)
"""The same bytes from the same sources, whenever and wherever they are packed."""


def build(cache: Path) -> tuple[Path, str]:
    """The artefact in the folder `cache` and the first 12 hex digits of its SHA-256.

    Made when it is not there, or has other bytes: it runs here and on every node.
    """
    content = pack(sources())
    sha = hashlib.sha256(content).hexdigest()[:12]
    path = cache / f"{sha}.pyz"
    if not path.is_file() or path.read_bytes() != content:
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = cache / f"{sha}.{os.getpid()}.tmp"
        temporary.write_bytes(content)
        replace(temporary, path)
    return path, sha


def sources() -> Iterator[tuple[str, bytes]]:
    """(path in the archive, content) of each member, sorted."""
    agent = resources.files("gpuops") / "agent"
    modules = sorted((entry for entry in agent.iterdir() if entry.name.endswith(".py")), key=lambda entry: entry.name)
    yield "__main__.py", _unix((agent / "__main__.py").read_bytes())
    yield "gpuops/__init__.py", b""
    for module in modules:
        if module.name != "__main__.py":
            yield f"gpuops/agent/{module.name}", _unix(module.read_bytes())


def _unix(source: bytes) -> bytes:
    """As it would be in a checkout on a node: git on Windows may have changed the ends of lines."""
    return source.replace(b"\r\n", b"\n")


def pack(members: Iterator[tuple[str, bytes]]) -> bytes:
    """A zip archive, stored: compressors differ from machine to machine, and Python reads it faster."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in members:
            info = zipfile.ZipInfo(name, EPOCH)
            info.create_system = 3
            info.external_attr = 0o644 << 16
            archive.writestr(info, content)
    return buffer.getvalue()
