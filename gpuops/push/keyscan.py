"""Keys that must not leave this computer: found by file name, by header, by shape.

The patterns are those of the issuers, precise enough that ordinary code never hits; what looks like a
key but is plainly a placeholder does not count. Only the reason is ever kept or shown, never the text.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

from gpuops.push.files import FileEntry
from gpuops.system import replace

LIMIT = 1 << 20
"""So much of a file is read: keys stand near its beginning. Bytes."""
SETTLED_NS = 2_000_000_000
"""A file younger than this may change again without its time showing it: not cached."""

ENV_FILE = re.compile(r"\.env(\..+)?", re.IGNORECASE)
ENV_TEMPLATE = re.compile(r"\.env\.(.*\.)?(example|sample|template|dist)", re.IGNORECASE)
CREDENTIALS = re.compile(
    r"(.*/)?(\.netrc|_netrc|\.pypirc|\.aws/credentials|kaggle\.json|id_(rsa|dsa|ecdsa|ed25519)(_sk)?)",
    re.IGNORECASE,
)
"""Files that programs keep credentials in, by the names those programs give them."""

SHAPES: dict[str, str] = {
    "a RunPod API key": r"\brpa_[A-Za-z0-9]{32,}",
    "a GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59})",
    "a Hugging Face token": r"\bhf_[A-Za-z0-9]{34,}",
    "an Anthropic API key": r"\bsk-ant-[a-z]+\d\d-[A-Za-z0-9_-]{60,}",
    "an OpenAI API key": r"\bsk-(?:(?:proj|svcacct|admin)-[A-Za-z0-9_-]{40,}|[A-Za-z0-9]{48})(?![A-Za-z0-9])",
    "a Slack token": r"\bxox[abeoprs]-[0-9]{8,}-[A-Za-z0-9-]{16,}",
    "a Google API key": r"\bAIza[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])",
    "a Lambda API key": r"\bsecret_[A-Za-z0-9-]+_[0-9a-f]{32}\.[A-Za-z0-9]{32}",
    "a Vast API key": r"\bVAST_?(?:AI_)?API_KEY['\"]?\s*[:=]\s*['\"]?[0-9a-fA-F]{64}(?![0-9a-fA-F])",
    "a Weights & Biases API key": r"\bWANDB_API_KEY['\"]?\s*[:=]\s*['\"]?[0-9a-f]{40}(?![0-9a-f])",
    "a private key": r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----(?:\s|\\[rn])+(?:[\w-]+: [^\n]*\s+)*[A-Za-z0-9+/=]{60}",
    "an AWS secret access key": r"(?i)\baws_secret_access_key['\"]?\s*[:=]\s*['\"]?[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])",
    "a PuTTY private key": r"^PuTTY-User-Key-File-\d: ",
}
AWS_ID = r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
AWS_SECRET = (
    r"(?<![A-Za-z0-9/+=_-])(?=[^\s]{0,39}[a-z])(?=[^\s]{0,39}[A-Z])(?=[^\s]{0,39}[0-9])"
    r"[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=_-])"
)
PLACEHOLDER = re.compile(
    r"(?i)example|placeholder|change_?me|your[-_]|yourkey|yourtoken|x{5,}|0{8,}|\.\.\.|1234567890|abcdefgh|redacted|dummy"
)

Remembered = dict[str, tuple[list[int], str | None]]
"""Path to ([size, mtime_ns, inode], reason or None)."""

_SHAPES = {why: re.compile(pattern, re.MULTILINE) for why, pattern in SHAPES.items()}
_AWS_ID, _AWS_SECRET = re.compile(AWS_ID), re.compile(AWS_SECRET)
_VERSION = hashlib.sha256(json.dumps([SHAPES, AWS_ID, AWS_SECRET, PLACEHOLDER.pattern]).encode()).hexdigest()[:16]


def by_name(path: str) -> str | None:
    """Why a file is held back for its name alone."""
    name = path.rpartition("/")[2]
    if ENV_FILE.fullmatch(name) and not ENV_TEMPLATE.fullmatch(name):
        return "a file of secrets by its name"
    return "a file of credentials by its name" if CREDENTIALS.fullmatch(path) else None


def by_content(data: bytes) -> str | None:
    """The first kind of key found in a file's bytes, or None; binary files hold none."""
    text = _text(data)
    if text is None:
        return None
    if _real(_AWS_ID, text) and _real(_AWS_SECRET, text):
        return "an AWS access key with its secret"
    return next((why for why, shape in _SHAPES.items() if _real(shape, text)), None)


def _real(shape: re.Pattern[str], text: str) -> bool:
    return any(not PLACEHOLDER.search(hit.group()) and len(set(hit.group())) > 8 for hit in shape.finditer(text))


def _text(data: bytes) -> str | None:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):  # what `>` in PowerShell writes
        return data.decode("utf-16", "replace")
    return None if b"\0" in data[:8192] else data.decode("utf-8", "replace")


def find_keys(folder: Path, files: Iterable[FileEntry], cache: Path) -> dict[str, str]:
    """Path to reason, for every file that holds a key. `cache` is a folder of gpuops' own.

    A file of the same size, time and inode as last time is not read again. Raises OSError for a file
    that cannot be read.
    """
    store = cache / f"keys-{hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]}.json"
    known = _load(store)
    now = time.time_ns()
    seen: Remembered = {}
    found: dict[str, str] = {}
    for file in files:
        why = by_name(file.path)
        if why is None and file.link is None and file.size:
            where = f"{folder}/{file.path}"
            stamp = [file.size, file.mtime_ns, os.stat(where).st_ino]
            last = known.get(file.path)
            why = last[1] if last and last[0] == stamp else by_content(_start(where))
            if now - file.mtime_ns > SETTLED_NS:
                seen[file.path] = (stamp, why)
        if why:
            found[file.path] = why
    if seen != known:
        _save(store, seen)
    return found


def _start(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read(LIMIT)


def _load(store: Path) -> Remembered:
    """What an earlier scan found; empty when there was none, by other patterns, or torn."""
    try:
        document = json.loads(store.read_text("utf-8"))
        known = document["files"] if document["version"] == _VERSION else {}
        return {path: (stamp, why) for path, (stamp, why) in known.items()}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _save(store: Path, seen: Remembered) -> None:
    try:
        store.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = store.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps({"version": _VERSION, "files": seen}), "utf-8")
        replace(temporary, store)
    except OSError:
        pass  # the next scan reads the files again
