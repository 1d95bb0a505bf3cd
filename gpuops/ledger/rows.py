"""A cluster and a run as the ledger knows them: rows as objects, objects as columns."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from gpuops.core import heartbeat
from gpuops.core.models import Lease, Payer
from gpuops.core.processes import Identity
from gpuops.core.run_models import Verdict


class ClusterState(StrEnum):
    """What has become of a cluster, in this order. UP is skipped where it is ended before it was up."""

    CREATING = "creating"
    UP = "up"
    ENDING = "ending"
    GONE = "gone"


class RunState(StrEnum):
    """What has become of a run, in this order."""

    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"
    """Its nodes are done, and not everything of it is here."""
    HOME = "home"


class Owned:
    """What a process of this computer looks after: a command, or the guard."""

    owner_process: Identity | None

    def has_live_owner(self, besides: Identity | None = None) -> bool:
        """Whether its owner process lives, by its heartbeat, and is another than `besides`."""
        owner = self.owner_process
        return owner is not None and owner != besides and heartbeat.lives(owner)


@dataclass(frozen=True)
class ClusterRow(Owned):
    """A cluster as the ledger knows it."""

    id: int
    name: str
    provider: str
    folder: Path
    state: ClusterState
    ephemeral: bool
    """Brought up by a command for itself: its end is that command's, or the guard's, duty."""
    token: str
    request: Mapping[str, Any]
    offer: Mapping[str, Any]
    boot_deadline: float
    lease: Lease
    owner_process: Identity | None
    created: float
    ready: float | None
    ended: float | None
    why: str

    @property
    def payer(self) -> Payer | None:
        """Who pays for it; None where that was not noted."""
        return Payer.parse(self.offer.get("payer"))

    @property
    def queue_s(self) -> float:
        """How long its machines may be queued for, as its offer says."""
        return float((self.offer.get("data") or {}).get("queue_s") or 0.0)

    @property
    def offered_per_hour(self) -> float:
        """$/h of its offer; 0 where none was accepted yet."""
        return sum(float(price["per_hour"]) for price in self.offer.get("prices") or ())

    @property
    def spent_before(self) -> float:
        """$ that its command spent before, on machines that were given back before there was a whole cluster."""
        return float(self.offer.get("spent_before") or 0.0)

    @property
    def place(self) -> str:
        """Where its machines are; empty where its provider does not say."""
        return str((self.offer.get("data") or {}).get("place") or "")

    @property
    def end(self) -> float | None:
        """When the cluster's lease ends, or before it is up, its boot lease: UTC seconds; None without a lease."""
        return self.boot_deadline if self.state is ClusterState.CREATING else self.lease.end

    def is_overdue(self, now: float) -> bool:
        """Whether the cluster has outlived its lease."""
        return self.end is not None and now > self.end


class MultipartUpload(NamedTuple):
    """An upload to a bucket that is open: its parts cost money until it is completed or aborted."""

    key: str
    id: str


class RunFacts(dict[str, Any]):
    """What is kept with a run beside its columns: a JSON object, of which keys that this gpuops does not know survive.

    What code decides by has a property here; the rest (commit, torch, driver, ...) goes into `run.json` as it is.
    """

    @property
    def world(self) -> int:
        """Ranks on all nodes; 0 before they were counted."""
        return int(self.get("world") or 0)

    @property
    def folder_id(self) -> int:
        """`RunHome.folder_id` of the folder that was made for it; 0 where it is not known."""
        return int(self.get("folder_id") or 0)

    @property
    def nodes(self) -> int:
        """0 before they were counted."""
        return int(self.get("nodes") or 0)

    @property
    def is_dirty(self) -> bool:
        """Whether something of the project was not committed."""
        return bool(self.get("dirty"))

    @property
    def retries(self) -> list[Mapping[str, Any]]:
        """The preemptions before it (`retries.Loss.document`)."""
        return self.get("retries") or []

    @property
    def hosts(self) -> list[str]:
        """The user's own hosts that its nodes were on; empty for machines that were rented, or this one."""
        hosts = self.get("hosts")
        return [str(host) for host in hosts] if isinstance(hosts, list) else []

    def text(self, name: str) -> str:
        """A fact that is only shown: `commit`, `image`, `torch`; empty where it is not known."""
        return str(self.get(name) or "")

    @property
    def skews(self) -> list[float]:
        """Seconds to add to each node's clock to get ours; empty where they are not known."""
        return self.get("skews") or []

    @property
    def per_hour(self) -> float:
        """$/h of all machines when the run was prepared."""
        return float(self.get("per_hour") or 0.0)

    @property
    def held(self) -> list[str]:
        """Paths of the project that were not sent."""
        return self.get("held") or []

    @property
    def bucket_place(self) -> str:
        """`s3://BUCKET/…` where its nodes write to; empty where they write to no bucket."""
        return str((self.get("bucket") or {}).get("place") or "")

    @property
    def bucket_until(self) -> float | None:
        """Until when its nodes can write there, in UTC seconds."""
        return (self.get("bucket") or {}).get("until")

    def array_holder(self, beats: Path) -> Identity | None:
        """The process of the array that it is of; None for a run of none. `beats`: as for `parse_run`."""
        match self.get("array"):
            case [pid, start]:
                return parse_owner(pid, start, beats)
        return None

    @property
    def array_waiting(self) -> str:
        """The indices of its array that had not begun when it did, as `--array` takes them; empty for none."""
        return self.text("array_waiting")

    @property
    def uploads(self) -> list[MultipartUpload]:
        """The multipart uploads that are open in the bucket."""
        return [MultipartUpload(key, id) for key, id in self.get("uploads") or ()]

    @property
    def in_bucket(self) -> list[int]:
        """Nodes whose results can only be in the bucket."""
        return self.get("in_bucket") or []

    @property
    def documents(self) -> dict[int, Mapping[str, Any]]:
        """The result documents of the other nodes, each with its `sink` (key `told`)."""
        return {int(index): document for index, document in (self.get("told") or {}).items()}


@dataclass(frozen=True)
class RunRow(Owned):
    """A run as the ledger knows it."""

    id: int
    name: str
    cluster: int
    folder: Path
    home: Path
    """Where its results go: `<folder>/runs/<run>`, absolute."""
    tree: str
    request: Mapping[str, Any]
    state: RunState
    facts: RunFacts
    verdict: Verdict | None
    owner_process: Identity | None
    created: float
    started: float | None
    ended: float | None

    @property
    def nodes_at(self) -> Sequence[int]:
        """As in its request; of one that cannot be read, none."""
        numbers = self.request.get("nodes_at")
        return numbers if isinstance(numbers, list) else ()


def fields_of(row: ClusterRow | RunRow) -> dict[str, Any]:
    return {field.name: getattr(row, field.name) for field in fields(row) if field.name != "id"}


def to_columns(given: Mapping[str, Any]) -> dict[str, Any]:
    """Columns as SQLite takes them: documents as JSON, a lease in three columns, an owner process in two."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name == "lease":
            found |= {"hard_end": value.hard_end, "idle_s": value.idle_s, "money_end": value.money_end}
        elif name == "owner_process":
            found |= {"keeper_pid": value.pid if value else None, "keeper_start": value.start if value else None}
        elif isinstance(value, Verdict):
            found[name] = json.dumps(value.document())
        elif name in ("request", "offer", "verdict", "facts", "resource"):
            found[name] = None if value is None else json.dumps(value)
        elif isinstance(value, Path):
            found[name] = str(value)
        else:
            found[name] = value
    for value in found.values():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{value} would make the row unreadable")
    return found


def parse_owner(pid: int | None, start: float | None, beats: Path) -> Identity | None:
    if pid is None:
        return None
    if type(pid) is not int or not 0 < pid < 1 << 31:
        raise ValueError(pid)
    return Identity(pid, check_number(start) or 0.0, beats)


def check_number(value: Any) -> Any:
    """Raises ValueError for what is neither a number nor nothing."""
    if value is not None and not (isinstance(value, int | float) and math.isfinite(value)):
        raise ValueError(value)
    return value


def check_text(value: Any) -> Any:
    """Raises ValueError for what is no text."""
    if not isinstance(value, str):
        raise ValueError(value)
    return value


def _parse_object(text: Any) -> Any:
    """Raises ValueError for what is no JSON object."""
    found = json.loads(check_text(text))
    if not isinstance(found, dict):
        raise ValueError(text)
    return found


def parse_cluster(row: sqlite3.Row, beats: Path) -> ClusterRow:
    """`beats`: where owner processes write their heartbeats, as for `parse_run`."""
    return ClusterRow(
        id=row["id"],
        name=check_text(row["name"]),
        provider=check_text(row["provider"]),
        folder=Path(row["folder"]),
        state=ClusterState(row["state"]),
        ephemeral=bool(row["ephemeral"]),
        token=check_text(row["token"]),
        request=_parse_object(row["request"]),
        offer=_parse_object(row["offer"] or "{}"),
        boot_deadline=check_number(row["boot_deadline"]),
        lease=Lease(check_number(row["hard_end"]), check_number(row["idle_s"]), check_number(row["money_end"])),
        owner_process=parse_owner(row["keeper_pid"], row["keeper_start"], beats),
        created=check_number(row["created"]),
        ready=check_number(row["ready"]),
        ended=check_number(row["ended"]),
        why=row["why"] or "",
    )


def parse_run(row: sqlite3.Row, beats: Path) -> RunRow:
    return RunRow(
        id=row["id"],
        name=check_text(row["name"]),
        cluster=row["cluster"],
        folder=Path(row["folder"]),
        home=Path(row["home"]),
        tree=check_text(row["tree"]),
        request=_parse_object(row["request"]),
        state=RunState(row["state"]),
        facts=RunFacts(_parse_object(row["facts"])),
        verdict=Verdict.parse(json.loads(check_text(row["verdict"]))) if row["verdict"] else None,
        owner_process=parse_owner(row["keeper_pid"], row["keeper_start"], beats),
        created=check_number(row["created"]),
        started=check_number(row["started"]),
        ended=check_number(row["ended"]),
    )
