"""Which providers' keys the guard has: it keeps the environment of the command that started it, and no key is written
anywhere. A command that rents with a key the guard has not starts another guard, which relieves the first and takes
over what that one had for other providers, from its environment."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuops.core.errors import AuthFailed
from gpuops.core.settings import ACCOUNTS, KEYS

if TYPE_CHECKING:
    from gpuops.core.processes import Identity

FILE = "guard.keys"
"""Name to fingerprint, of the guard that is there; under `PROCESS` its pid and start."""
RELIEF = "guard.relief"
"""There is to be one that takes over; under `PROCESS` its pid and start, once it waits for that."""
REFUSED = "guard.refused"
"""Provider to what it says of the guard's keys (`say`, `hint`), where it does not take them any more."""
PROCESS = "process"
CHOOSING = ("AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE")
"""What chooses an account as keys do, and is none."""
NAMES = tuple(dict.fromkeys(name for names in ACCOUNTS.values() for name in names))


_REFUSING = threading.Lock()
"""The guard's threads write one file, each of its own provider."""


def fingerprints(environ: Mapping[str, str]) -> dict[str, str]:
    """What tells one key from another, and from which none can be made again."""
    return {
        name: hashlib.sha256(environ[name].encode(errors="replace")).hexdigest()[:12]
        for name in NAMES
        if environ.get(name)
    }


def note(home: Path, environ: Mapping[str, str]) -> None:
    """This guard is the guard from now on, with the keys of its environment."""
    from gpuops.core.processes import myself

    me = myself()
    with suppress(OSError):  # a full disk keeps no guard from its work
        if _waiting(home) in (None, me):  # who waits for this one already, as the next, goes on to do so
            (home / RELIEF).unlink(missing_ok=True)
        (home / REFUSED).unlink(missing_ok=True)
        _write(home / FILE, {**fingerprints(environ), PROCESS: [me.pid, me.start]})


def unfit(home: Path, environ: Mapping[str, str], provider: str | None = None) -> bool:
    """Whether the guard that is there lacks a key of this environment. Where a `provider` is about to be rented at:
    whether anything that chooses an account there is another than here; keys of a project's `.env` the guard reads
    itself."""
    theirs, exported = _read(home / FILE), fingerprints(environ)
    lacking = {name for name in exported if name in (*KEYS, *CHOOSING)} - theirs.keys()
    if provider is None:
        return bool(lacking) or any(_renewed(one, theirs, exported) for one in refused(home))
    return any(theirs.get(name) != exported.get(name) for name in {*exported, *ACCOUNTS.get(provider, ())})


def joined(home: Path, environ: Mapping[str, str], provider: str | None = None) -> dict[str, str]:
    """The environment of a guard that takes over: this command's, and for each account that it says nothing of all
    that the former guard has. `provider`: the one that is rented from now, whose account is this command's alone."""
    found = dict(environ)
    former: Mapping[str, str] | None = None
    for name, names in ACCOUNTS.items():
        if name == provider or any(environ.get(one) for one in names if one in (*KEYS, *CHOOSING)):
            continue
        former = _environment(home) if former is None else former
        if any(former.get(one) for one in names if one in (*KEYS, *CHOOSING)):
            for one in names:
                found.pop(one, None)
            found |= {one: former[one] for one in names if one in former}
    return found


def refuse(home: Path, provider: str, error: AuthFailed | None) -> None:
    """What a provider says of the guard's keys; None: it takes them."""
    with _REFUSING:
        _refuse(home, provider, error)


def _refuse(home: Path, provider: str, error: AuthFailed | None) -> None:
    known = _read(home / REFUSED)
    told = {"say": error.say, "hint": error.hint} if error else None
    if known.get(provider) == told:
        return
    with suppress(OSError):
        _write(home / REFUSED, {**{one: said for one, said in known.items() if one != provider},
                                **({provider: told} if told else {})})  # fmt: skip


def refused(home: Path) -> dict[str, dict[str, str]]:
    """Provider to `say` and `hint`: for these nobody sees to the ends of what is rented."""
    return {provider: said for provider, said in _read(home / REFUSED).items() if isinstance(said, dict)}


def ask_relief(home: Path) -> None:
    """One is about to be started that takes over."""
    with suppress(OSError):
        (home / RELIEF).touch()


def wait_for_relief(home: Path) -> None:
    """This process takes over once the guard that is there has left."""
    from gpuops.core.processes import myself

    me = myself()
    with suppress(OSError):
        _write(home / RELIEF, {PROCESS: [me.pid, me.start]})


def relief_asked(home: Path) -> bool:
    return (home / RELIEF).exists()


def relieved(home: Path) -> bool:
    """Whether somebody waits to take over."""
    return _waiting(home) is not None


def _waiting(home: Path) -> Identity | None:
    """Who waits to take over; one that died before that relieves nobody."""
    from gpuops.core.processes import Identity

    try:
        pid, start = _read(home / RELIEF)[PROCESS]
        found = Identity(int(pid), float(start))
    except (KeyError, TypeError, ValueError):
        return None
    return found if found.alive() else None


def _renewed(provider: str, theirs: Mapping[str, str], exported: Mapping[str, str]) -> bool:
    """Whether this environment has other keys where the guard's are refused."""
    names = [name for name in ACCOUNTS.get(provider, ()) if name in (*KEYS, *CHOOSING)]
    return any(exported.get(name, theirs.get(name)) != theirs.get(name) for name in names)


def _environment(home: Path) -> Mapping[str, str]:
    """That of the guard that is there; {} where it is gone, or this system does not tell."""
    import psutil

    from gpuops.core.processes import Identity

    try:
        pid, start = _read(home / FILE)[PROCESS]
        return psutil.Process(int(pid)).environ() if Identity(int(pid), float(start)).alive() else {}
    except (KeyError, TypeError, ValueError, OSError, psutil.Error):
        return {}


def _write(path: Path, document: Mapping[str, object]) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        json.dump(document, file)
    draft.replace(path)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
