"""Which providers' keys the guard has: it keeps the environment of the command that started it, and no key is written
anywhere. A command that rents with a key the guard has not starts another guard, which relieves the first."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gpuops.settings import KEYS

FILE = "guard.keys"
"""Name to fingerprint, of the guard that is there."""
RELIEF = "guard.relief"
"""There is one that waits to take over."""


def fingerprints(environ: Mapping[str, str]) -> dict[str, str]:
    """What tells one key from another, and from which none can be made again."""
    return {
        name: hashlib.sha256(environ[name].encode(errors="replace")).hexdigest()[:12]
        for name in KEYS
        if environ.get(name)
    }


def note(home: Path, environ: Mapping[str, str]) -> None:
    """This guard is the guard from now on, with the keys of its environment."""
    with suppress(OSError):  # a full disk keeps no guard from its work
        (home / RELIEF).unlink(missing_ok=True)
        draft = home / f"{FILE}.{os.getpid()}.tmp"
        draft.write_text(json.dumps(fingerprints(environ)))
        draft.replace(home / FILE)


def unfit(home: Path, environ: Mapping[str, str], used: Mapping[str, str] | None = None) -> bool:
    """Whether the guard that is there lacks a key of this environment; with `used`, those that machines are about to
    be rented with (a project's `.env` may bring some): whether it would use another instead."""
    theirs, exported = _theirs(home), fingerprints(environ)
    if used is None:
        return not exported.keys() <= theirs.keys()
    return any(
        theirs.get(name) != print_ if name in exported else theirs.get(name, print_) != print_
        for name, print_ in fingerprints(used).items()
    )


def ask_relief(home: Path) -> None:
    with suppress(OSError):
        (home / RELIEF).touch()


def relieved(home: Path) -> bool:
    return (home / RELIEF).exists()


def _theirs(home: Path) -> dict[str, str]:
    try:
        found = json.loads((home / FILE).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
