"""The heartbeat file of each cluster's guard: its last completed round, its process, and fingerprints of its keys;
and a second file with the provider's answer where it refuses those keys.

A held lock or a living process proves that a guard exists, a fresh heartbeat that it works. Its first one comes with
its first round; before that the file says only who has taken the lock, and when. No key is written
anywhere: a guard keeps the environment of the command that started it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuops.core.account_variables import AccountVariables
from gpuops.core.errors import AuthFailed
from gpuops.core.files import write_atomic
from gpuops.core.heartbeat import Pulse, is_alive, pulse
from gpuops.core.installed_code import InstalledCode, installed_code
from gpuops.core.processes import Identity, myself
from gpuops.ledger.rows import ClusterRow
from provisioners import registry

FOLDER = "guards"
BEAT_INTERVAL_S = 10.0
STALE_S = 120.0
"""Many times longer than a round takes, also on a busy machine: a guard whose last one is older hangs."""
FIRST_BEAT_S = 30.0
"""How long a guard may take from its start to the end of its first round."""
KILL_TIMEOUT_S = 5.0
"""How long the death of a killed guard is waited for."""


@dataclass(frozen=True)
class Heartbeat:
    """The last completed round of a guard."""

    process: Identity
    pulse: Pulse
    keys: Mapping[str, str] = field(default_factory=dict)
    """Variable to fingerprint: the account that this guard's environment names."""
    rented: Mapping[str, str] | None = None
    """The same of the cluster's first guard, which had the environment that the cluster was rented with; None before
    that one has completed a round."""
    has_begun: bool = True
    """Whether a round was completed; False: this guard has only taken the lock then."""
    failures: int = 0
    """How many of its attempts have failed in a row."""
    code: InstalledCode | None = None
    """What this guard began with; None: an earlier gpuops, which does not say."""
    token: str = ""
    """The cluster's: in a new ledger another one has its number. Empty before any guard has seen the cluster."""

    @property
    def at(self) -> float:
        return self.pulse.at

    def is_stale(self, now: float) -> bool:
        """`now`: may be from just before the heartbeat was written, which is then read as one from the future."""
        return now - self.at > (STALE_S if self.has_begun else FIRST_BEAT_S)

    def is_of(self, row: ClusterRow) -> bool:
        return self.token in ("", row.token)


def lock_path(home: Path, cluster: int) -> Path:
    """Held by the guard of a cluster while it lives. The folder is made. Raises OSError."""
    (home / FOLDER).mkdir(exist_ok=True)
    return home / FOLDER / f"{cluster}.lock"


def fingerprints(provider: str, environ: Mapping[str, str]) -> dict[str, str]:
    """What tells one account from another, and from which no key can be made again."""
    declared = registry.account_variables(provider)
    return {
        name: hashlib.sha256(environ[name].encode(errors="replace")).hexdigest()[:12]
        for name in (*declared.credentials, *declared.surroundings)
        if environ.get(name)
    }


def claim(home: Path, cluster: int) -> None:
    """Write down that this process is the guard of a cluster from now on, before its first round."""
    rented, token = (former.rented, former.token) if (former := read(home, cluster)) else (None, "")
    last = Heartbeat(myself(), pulse(), rented=rented, has_begun=False, code=installed_code(), token=token)
    beat(home, cluster, last)


def start(home: Path, row: ClusterRow, environ: Mapping[str, str]) -> Heartbeat:
    """The first heartbeat of this process as the guard of a cluster. What a former guard was refused is forgotten."""
    keys = fingerprints(row.provider, environ)
    former = read(home, row.id)
    record_refusal(home, row, None)
    rented = former.rented if former and former.is_of(row) else None
    rented = keys if rented is None else rented
    return beat(home, row.id, Heartbeat(myself(), pulse(), keys, rented, code=installed_code(), token=row.token))


def beat(home: Path, cluster: int, last: Heartbeat) -> Heartbeat:
    """Write down that a round is completed now. A full disk keeps no guard from its work."""
    now = dataclasses.replace(last, pulse=pulse())
    document = {
        "process": [now.process.pid, now.process.start],
        "keys": now.keys,
        "rented": now.rented,
        "has_begun": now.has_begun,
        "failures": now.failures,
        "code": [now.code.folder, now.code.digest] if now.code else None,
        "token": now.token,
        **now.pulse.document(),
    }
    _write(_path(home, cluster), document)
    return now


def read(home: Path, cluster: int) -> Heartbeat | None:
    """None where no guard has written one that can be read."""
    document = _read(_path(home, cluster))
    try:
        pid, started = document["process"]
        rented, code = document["rented"], document.get("code")
        return Heartbeat(
            Identity(int(pid), float(started)),
            Pulse.parse(document),
            dict(document["keys"]),
            None if rented is None else dict(rented),
            has_begun=bool(document.get("has_begun", True)),  # an earlier gpuops writes nothing before that
            failures=int(document.get("failures") or 0),
            code=InstalledCode(*map(str, code)) if code else None,
            token=str(document.get("token") or ""),
        )
    except (KeyError, TypeError, ValueError):
        return None


def works(home: Path, row: ClusterRow, now: float) -> bool:
    """Whether a cluster's guard lives and has just completed a round."""
    last = read(home, row.id)
    if last is None or not last.has_begun or not last.is_of(row):
        return False
    if not last.pulse.place.is_here():
        return is_alive(last.process, last.pulse, now, time.time())
    return not last.is_stale(now) and last.process.alive()


def must_be_replaced(home: Path, row: ClusterRow, environ: Mapping[str, str], now: float) -> bool:
    """Whether the guard of a cluster hangs, runs code that was replaced, is another ledger's, or has keys that do not
    serve while this environment has others: those that the cluster was rented with, or new ones where the guard's are
    refused."""
    last = read(home, row.id)
    if last is None or not last.pulse.place.is_here() or not last.process.alive():
        return False  # the process that holds the lock has just started, or cannot be ended from here
    if last.code is None or last.code.is_outdated(installed_code()) or (last.has_begun and not last.is_of(row)):
        return True
    refused = row.provider in read_refusals(home, [row])
    needless = last.keys == last.rented and not refused  # most often: no provider is imported for it
    if last.is_stale(now) or not last.has_begun or needless:
        return last.is_stale(now)
    keys = fingerprints(row.provider, environ)
    returned = keys == last.rented != last.keys
    return returned or (refused and any(last.keys.get(name) != keys[name] for name in keys))


def describe_renewal(provider: str) -> str:
    """What to type once there are other keys than those that a provider refuses."""
    if registry.account_variables(provider) == AccountVariables():
        return "then end it yourself, `gpuops down NAME`: the guard keeps those that it has"
    return "then type `gpuops status` again: the guard takes over new ones"


def kill_guard(home: Path, cluster: int) -> None:
    """Kill the guard that wrote the last heartbeat, and the child that works for it."""
    import psutil

    last = read(home, cluster)
    if last is None or not last.pulse.place.is_here() or not last.process.alive():
        return
    with suppress(psutil.Error):
        process = psutil.Process(last.process.pid)
        victims = [process, *process.children(recursive=True)]
        for victim in victims:
            with suppress(psutil.Error):
                victim.kill()
        psutil.wait_procs(victims, KILL_TIMEOUT_S)


def remove_files(home: Path, cluster: int) -> None:
    """Remove the guard's files of a cluster that needs no guard any more."""
    for path in (_path(home, cluster), _refusal_path(home, cluster), home / FOLDER / f"{cluster}.lock"):
        with suppress(OSError):
            path.unlink(missing_ok=True)


def record_refusal(home: Path, row: ClusterRow, error: AuthFailed | None) -> None:
    """Note what a provider says of the keys of a cluster's guard; None: it takes them."""
    path = _refusal_path(home, row.id)
    if error:
        _write(path, {"provider": row.provider, "say": error.message, "hint": error.hint})
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def read_refusals(home: Path, rows: Iterable[ClusterRow]) -> dict[str, dict[str, str]]:
    """Provider to `say` and `hint`, where the keys of the guard of one of these clusters are refused: it cannot end
    what is rented there."""
    documents = [_read(_refusal_path(home, row.id)) for row in rows]
    refusals = [document for document in documents if document.keys() >= {"provider", "say", "hint"}]
    return {document["provider"]: {"say": document["say"], "hint": document["hint"]} for document in refusals}


def _path(home: Path, cluster: int) -> Path:
    return home / FOLDER / f"{cluster}.json"


def _refusal_path(home: Path, cluster: int) -> Path:
    return home / FOLDER / f"{cluster}.refused.json"


def _write(path: Path, document: Mapping[str, object]) -> None:
    with suppress(OSError):
        write_atomic(path, json.dumps(document).encode())


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
