"""The ledger: what we asked for before we asked for it. SQLite, one file, many commands at once.

Every change is one transaction that is on disk when the method returns. A cluster goes

    creating -> up -> ending -> gone

and has an owner process (pid and start time), which looks after it. Where that process is dead, the guard or the
next command finishes or undoes what it began. The columns are called `keeper_pid` and `keeper_start`.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from gpuops.core.errors import GpuopsError, Interrupted, UsageError
from gpuops.core.models import Lease, Resource
from gpuops.core.processes import Identity
from gpuops.ledger.rows import ClusterRow as ClusterRow
from gpuops.ledger.rows import RunRow as RunRow
from gpuops.ledger.rows import cluster_of, fields_of, flat, number, run_of, word
from gpuops.ledger.schema import BUSY_S, connect, damaged, is_damage, set_aside, unwritable
from gpuops.ledger.schema import FILE as FILE
from gpuops.ledger.schema import LedgerTooNew as LedgerTooNew
from gpuops.ledger.schema import LedgerUnwritable as LedgerUnwritable

T = TypeVar("T")


class RowGone(GpuopsError):
    """What was asked for is not in the ledger any more: the file was damaged, or removed, in between."""


@dataclass
class Ledger:
    """One connection to the ledger; cheap to open, safe beside others, not shared by threads."""

    path: Path
    db: sqlite3.Connection = field(repr=False)

    @classmethod
    def open(cls, home: Path) -> Ledger:
        """Open or create. A damaged file is kept aside and said; raises LedgerTooNew, LedgerUnwritable."""
        path = home / FILE
        try:
            return cls(path, connect(path))
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            if not is_damage(error):
                raise unwritable(path, error) from error
        return cls._renewed(path)

    @classmethod
    def _renewed(cls, path: Path) -> Ledger:
        """A fresh ledger in the place of a damaged one. Of several commands that see the damage, one does it."""
        from filelock import FileLock, Timeout

        try:
            with FileLock(path.with_suffix(".lock"), timeout=BUSY_S):
                try:
                    return cls(path, connect(path))  # another command was quicker
                except (sqlite3.Error, UnicodeDecodeError) as error:
                    if not is_damage(error):
                        raise
                aside = set_aside(path)
                ledger = cls(path, connect(path))
        except (sqlite3.Error, OSError, Timeout) as error:
            raise unwritable(path, error) from error
        ledger.notice(
            f"the ledger was damaged and is kept as {aside}; `gpuops reap --adopt` takes back what still lives"
        )
        return ledger

    def close(self) -> None:
        self.db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """One change. Raises LedgerUnwritable where the disk or another command does not let it be made."""
        with self._in_words():
            try:
                self.db.execute("BEGIN IMMEDIATE")
                yield self.db
                self.db.execute("COMMIT")
            finally:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")

    def _read(self, query: str, *values: Any) -> list[sqlite3.Row]:
        """The rows of a SELECT. Raises LedgerUnwritable where the disk or another command does not let it be read."""
        with self._in_words():
            return self.db.execute(query, values).fetchall()

    def _parsed(self, parse: Callable[[sqlite3.Row], T], rows: Iterable[sqlite3.Row]) -> list[T]:
        """Rows as objects. Raises LedgerUnwritable where a disk has changed what SQLite cannot know to be wrong."""
        try:
            return [parse(row) for row in rows]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise damaged(self.path) from error

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        """What SQLite meets outside itself, as LedgerUnwritable; a wrong statement stays the bug that it is."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_ERROR:
                raise
            raise unwritable(self.path, error) from error
        except sqlite3.DatabaseError as error:
            if not is_damage(error):
                raise
            raise damaged(self.path) from error

    # -- clusters ---------------------------------------------------------------------------

    def intend(
        self,
        *,
        provider: str,
        name: str | None,
        folder: Path,
        ephemeral: bool,
        token: str,
        request: Mapping[str, Any],
        boot_deadline: float,
        lease: Lease,
        owner_process: Identity,
        now: float,
    ) -> ClusterRow:
        """Record that a cluster is about to be created. Without a name: `<provider>-<n>`, the next free."""
        with self._transaction() as db:
            if name is None:
                name = _next_name(provider, {row[0] for row in db.execute("SELECT name FROM clusters")})
            _refuse_second(db, name)
            columns = {
                "name": name,
                "provider": provider,
                "folder": folder,
                "state": "creating",
                "ephemeral": ephemeral,
                "token": token,
                "request": request,
                "boot_deadline": boot_deadline,
                "lease": lease,
                "owner_process": owner_process,
                "created": now,
            }
            row_id = _insert(db, "clusters", columns)
        return self.cluster(row_id)

    def check_free(self, name: str) -> None:
        """Raises UsageError where a live cluster has this name; `intend` asks again."""
        with self._in_words():
            _refuse_second(self.db, name)

    def adopt(self, row: ClusterRow, resources: Sequence[Resource], runs: Sequence[RunRow]) -> list[str]:
        """Take back a cluster that another ledger knew, with its runs, in one commit; ids are given here.

        Returns the names of runs that this ledger knows already, which are left out. Raises UsageError where a
        live cluster has its name.
        """
        with self._transaction() as db:
            _refuse_second(db, row.name)
            cluster = _insert(db, "clusters", fields_of(row))
            for one in resources:
                _insert_resource(db, cluster, one, "got")
            taken = {name for (name,) in db.execute("SELECT name FROM runs")}
            for run in runs:
                if run.name not in taken:
                    _insert(db, "runs", {**fields_of(run), "cluster": cluster})
        return [run.name for run in runs if run.name in taken]

    def cluster(self, row_id: int) -> ClusterRow:
        """One cluster. Raises RowGone."""
        return self._parsed(cluster_of, [_only(self._read("SELECT * FROM clusters WHERE id = ?", row_id), "cluster")])[
            0
        ]

    def clusters(self, *, live: bool = True) -> list[ClusterRow]:
        where = "WHERE state != 'gone'" if live else ""
        return self._parsed(cluster_of, self._read(f"SELECT * FROM clusters {where} ORDER BY id"))

    def set_cluster(self, row_id: int, **columns: Any) -> None:
        """Change columns by name; see `rows.flat`."""
        self._set("clusters", row_id, flat(columns))

    def ready(self, cluster: int, lease: Lease, now: float) -> bool:
        """creating -> up. False where another command has begun to end it meanwhile."""
        columns = {"ready": now, **flat({"lease": lease})}
        assignments = ", ".join(f"{name} = ?" for name in columns)
        with self._transaction() as db:
            cursor = db.execute(
                f"UPDATE clusters SET state = 'up', {assignments} WHERE id = ? AND state = 'creating'",
                (*columns.values(), cluster),
            )
        return cursor.rowcount == 1

    def ending(self, cluster: int, *, lease: Lease | None = None) -> bool:
        """Its end begins, or goes on. False where it is gone already: its name may be another's by now.

        `lease`: the one that has ended; False where it has another meanwhile.
        """
        same = flat({"lease": lease}) if lease is not None else {}
        where = " AND ".join(["id = ?", "state != 'gone'", *(f"{name} IS ?" for name in same)])
        with self._transaction() as db:
            cursor = db.execute(f"UPDATE clusters SET state = 'ending' WHERE {where}", (cluster, *same.values()))
        return cursor.rowcount == 1

    def extend(self, cluster: int, lease: Lease) -> bool:
        """Its lease is another from now on. False where somebody has begun to end it meanwhile."""
        columns = flat({"lease": lease})
        assignments = ", ".join(f"{name} = ?" for name in columns)
        with self._transaction() as db:
            cursor = db.execute(
                f"UPDATE clusters SET {assignments} WHERE id = ? AND state NOT IN ('ending', 'gone')",
                (*columns.values(), cluster),
            )
        return cursor.rowcount == 1

    def take(self, cluster: int, owner_process: Identity) -> bool:
        """Become the owner of a cluster, unless another owner process lives. Raises RowGone."""
        with self._transaction():
            if self.cluster(cluster).has_live_owner(besides=owner_process):
                return False
            self.db.execute(
                "UPDATE clusters SET keeper_pid = ?, keeper_start = ? WHERE id = ? AND state != 'gone'",
                (owner_process.pid, owner_process.start, cluster),
            )
        return True

    def leave(self, cluster: int, owner_process: Identity) -> None:
        """Own a cluster no longer; another process that has become its owner meanwhile stays."""
        with self._transaction() as db:
            db.execute(
                "UPDATE clusters SET keeper_pid = NULL, keeper_start = NULL"
                " WHERE id = ? AND keeper_pid = ? AND keeper_start = ?",
                (cluster, owner_process.pid, owner_process.start),
            )

    # -- resources --------------------------------------------------------------------------

    def will(self, cluster: int, kind: str, mark: str, token: str, region: str) -> None:
        """About to create something: between this commit and `got` it may exist or not.

        Raises Interrupted where another command has begun to end the cluster: what were made now
        might be made after that command's last look.
        """
        with self._transaction() as db:
            row = _only(self._read("SELECT name, state FROM clusters WHERE id = ?", cluster), "cluster")
            if row["state"] in ("ending", "gone"):
                raise Interrupted(f"another command ends {row['name']} while it is being created", "gpuops status")
            db.execute(
                "INSERT INTO resources (cluster, state, kind, mark, token, region) VALUES (?,'willed',?,?,?,?)",
                (cluster, kind, mark, token, region),
            )

    def got(self, cluster: int, resource: Resource) -> None:
        """It exists. Fills the oldest open intent of its kind and mark, or adds a line; said twice, it is one."""
        document = json.dumps(asdict(resource))
        with self._transaction() as db:
            if line := _line_of(db, cluster, resource):
                db.execute("UPDATE resources SET resource = ? WHERE id = ?", (document, line))
                return
            open_line = db.execute(
                "SELECT id FROM resources WHERE cluster = ? AND kind = ? AND mark = ? AND state = 'willed' ORDER BY id",
                (cluster, resource.kind, resource.name),
            ).fetchone()
            if open_line:
                db.execute("UPDATE resources SET state = 'got', resource = ? WHERE id = ?", (document, open_line[0]))
            else:
                db.execute(
                    "INSERT INTO resources (cluster, state, kind, mark, token, region, resource)"
                    " VALUES (?,'got',?,?,'',?,?)",
                    (cluster, resource.kind, resource.name, resource.region, document),
                )

    def resources(self, cluster: int) -> list[Resource]:
        """What a cluster has, as last seen; machines in node order."""
        return self._resources(cluster, "got")

    def left(self, cluster: int) -> list[Resource]:
        """What its provider still listed of a cluster that is gone, and that costs nothing."""
        return self._resources(cluster, "left")

    def parting(self) -> list[ClusterRow]:
        """Clusters that are gone and of which something is still listed."""
        query = "SELECT * FROM clusters WHERE state = 'gone' AND id IN (SELECT cluster FROM resources WHERE state = ?)"
        return self._parsed(cluster_of, self._read(f"{query} ORDER BY id", "left"))

    def wants_guard(self, row: ClusterRow) -> bool:
        """Whether a live cluster has an end that somebody must see to: all but an idle one of the user's own
        machines that was brought up to stay and has no lease."""
        settled = row.state == "up" and not row.ephemeral and row.lease == Lease()
        return not settled or any(run.state != "home" for run in self.runs(cluster=row.id))

    def guarded(self) -> list[ClusterRow]:
        """The clusters that need a guard: those of which something is still listed, and live ones with an end to be
        seen to."""
        return [*self.parting(), *(row for row in self.clusters() if self.wants_guard(row))]

    def _resources(self, cluster: int, state: str) -> list[Resource]:
        query = "SELECT resource FROM resources WHERE cluster = ? AND state = ? ORDER BY id"
        return self._parsed(lambda row: Resource(**json.loads(row[0])), self._read(query, cluster, state))

    def refused(self, cluster: int) -> None:
        """The provider said no: what was intended and not answered for does not exist."""
        with self._transaction() as db:
            db.execute("UPDATE resources SET state = 'refused' WHERE cluster = ? AND state = 'willed'", (cluster,))

    def cleared(self, cluster: int, left: Sequence[Resource] = ()) -> None:
        """What a cluster, or an attempt at one, had made is gone, but for what is `left` of one that is gone itself."""
        with self._transaction() as db:
            db.execute("UPDATE resources SET state = 'gone' WHERE cluster = ?", (cluster,))
            for one in left:
                _insert_resource(db, cluster, one, "left")

    def unanswered(self, cluster: int) -> bool:
        """Whether something was intended of which nobody knows whether it was made."""
        return bool(self._read("SELECT 1 FROM resources WHERE cluster = ? AND state = 'willed'", cluster))

    def update_resource(self, cluster: int, resource: Resource) -> None:
        with self._transaction() as db:
            if line := _line_of(db, cluster, resource):
                db.execute("UPDATE resources SET resource = ? WHERE id = ?", (json.dumps(asdict(resource)), line))

    def virtual(self, cluster: int, machine: Resource, indices: Iterable[int]) -> None:
        """A machine bears these virtual nodes, too; others may have been made on it meanwhile."""
        with self._transaction() as db:
            if line := _line_of(db, cluster, machine):
                (text,) = db.execute("SELECT resource FROM resources WHERE id = ?", (line,)).fetchone()
                document = json.loads(text)
                document["data"]["virtual"] = sorted({*(document["data"].get("virtual") or ()), *indices})
                db.execute("UPDATE resources SET resource = ? WHERE id = ?", (json.dumps(document), line))

    def regions(self, cluster: int) -> list[str]:
        """Every region in which something of this cluster was ever intended."""
        return [row[0] for row in self._read("SELECT DISTINCT region FROM resources WHERE cluster = ?", cluster)]

    def gone(self, cluster: int, now: float, why: str, *, notice: str = "", left: Sequence[Resource] = ()) -> None:
        """Nothing of it costs money any more. `notice`: left in the same commit, for whoever sees it gone; `left`: what
        the provider still lists of it."""
        with self._transaction() as db:
            db.execute("UPDATE resources SET state = 'gone' WHERE cluster = ?", (cluster,))
            for one in left:
                _insert_resource(db, cluster, one, "left")
            db.execute(
                "UPDATE clusters SET state = 'gone', ended = ?, why = ?, keeper_pid = NULL"
                " WHERE id = ? AND state != 'gone'",
                (now, why, cluster),
            )
            # A run of a cluster that is gone can change no more, whatever it was doing.
            db.execute(
                "UPDATE runs SET state = 'home', keeper_pid = NULL, ended = coalesce(ended, ?)"
                " WHERE cluster = ? AND state != 'home'",
                (now, cluster),
            )
            if notice:
                _notice(db, notice)

    # -- runs -------------------------------------------------------------------------------

    def add_run(
        self,
        *,
        stem: str,
        cluster: int,
        folder: Path,
        tree: str,
        request: Mapping[str, Any],
        facts: Mapping[str, Any],
        owner_process: Identity,
        now: float,
    ) -> RunRow:
        """Record a run before anything is started; its name is `<stem>-<n>`, the next free."""
        with self._transaction() as db:
            taken = {row[0] for row in db.execute("SELECT name FROM runs")}
            taken |= {path.name for path in (folder / "runs").glob(f"{stem}-*")}  # of a ledger that was lost
            name = _next_name(stem, taken)
            columns = {
                "name": name,
                "cluster": cluster,
                "folder": folder,
                "home": folder / "runs" / name,
                "tree": tree,
                "request": request,
                "state": "starting",
                "facts": facts,
                "owner_process": owner_process,
                "created": now,
            }
            row_id = _insert(db, "runs", columns)
        return self.run(row_id)

    def run(self, row_id: int) -> RunRow:
        """One run. Raises RowGone."""
        return self._parsed(run_of, [_only(self._read("SELECT * FROM runs WHERE id = ?", row_id), "run")])[0]

    def runs(self, *, cluster: int | None = None) -> list[RunRow]:
        """Runs, oldest first; of one cluster or of all."""
        where, values = ("WHERE cluster = ?", [cluster]) if cluster is not None else ("", [])
        return self._parsed(run_of, self._read(f"SELECT * FROM runs {where} ORDER BY id", *values))

    def set_run(self, row_id: int, **columns: Any) -> None:
        """Change columns by name; see `rows.flat`."""
        self._set("runs", row_id, flat(columns))

    def take_run(self, row_id: int, owner_process: Identity) -> bool:
        """Become the owner of a run that is not home yet, unless another owner process lives. Raises RowGone."""
        with self._transaction() as db:
            row = self.run(row_id)
            if row.state == "home" or row.has_live_owner(besides=owner_process):
                return False
            db.execute(
                "UPDATE runs SET keeper_pid = ?, keeper_start = ? WHERE id = ?",
                (owner_process.pid, owner_process.start, row_id),
            )
        return True

    # -- notices ----------------------------------------------------------------------------

    def notice(self, say: str) -> None:
        """Leave a sentence for the next command to show, once: what happened while nobody looked."""
        with self._transaction() as db:
            _notice(db, say)

    def take_notices(self) -> list[tuple[float, str]]:
        """The sentences nobody has seen yet; each is given once."""
        if not self._read("SELECT 1 FROM notices WHERE shown = 0"):
            return []
        with self._transaction() as db:
            rows = db.execute("SELECT at, say FROM notices WHERE shown = 0 ORDER BY id").fetchall()
            found = self._parsed(lambda row: (number(row["at"]), word(row["say"])), rows)
            db.execute("UPDATE notices SET shown = 1")
        return found

    def _set(self, table: str, row_id: int, columns: Mapping[str, Any]) -> None:
        assignments = ", ".join(f"{name} = ?" for name in columns)
        with self._transaction() as db:
            db.execute(f"UPDATE {table} SET {assignments} WHERE id = ?", (*columns.values(), row_id))


@dataclass(frozen=True)
class LedgerJournal:
    """The journal a provisioner writes to while it creates one cluster."""

    ledger: Ledger
    cluster: int

    def will(self, kind: str, mark: str, token: str, region: str) -> None:
        self.ledger.will(self.cluster, kind, mark, token, region)

    def got(self, resource: Resource) -> None:
        self.ledger.got(self.cluster, resource)


def providers_in(home: Path) -> set[str] | None:
    """The providers that a ledger names which this gpuops is too old for; None where it cannot be known."""
    try:
        db = sqlite3.connect(f"{(home / FILE).absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_S)
        try:
            return {word(row[0]) for row in db.execute("SELECT DISTINCT provider FROM clusters")}
        finally:
            db.close()
    except (sqlite3.Error, ValueError, TypeError):
        return None


def _notice(db: sqlite3.Connection, say: str) -> None:
    unsaid = "NOT EXISTS (SELECT 1 FROM notices WHERE say = ? AND shown = 0)"
    db.execute(f"INSERT INTO notices (at, say) SELECT ?, ? WHERE {unsaid}", (time.time(), say, say))


def _line_of(db: sqlite3.Connection, cluster: int, resource: Resource) -> int | None:
    """The row of a resource that is known to exist, by its kind and the provider's id."""
    query = "SELECT id, resource FROM resources WHERE cluster = ? AND state = 'got' AND kind = ?"
    for row in db.execute(query, (cluster, resource.kind)).fetchall():
        if json.loads(row["resource"])["id"] == resource.id:
            return int(row["id"])
    return None


def _insert(db: sqlite3.Connection, table: str, columns: Mapping[str, Any]) -> int:
    """A new row; its id."""
    values = flat(columns)
    places = ", ".join("?" for _ in values)
    cursor = db.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({places})", tuple(values.values()))
    return int(cursor.lastrowid or 0)


def _insert_resource(db: sqlite3.Connection, cluster: int, one: Resource, state: str) -> None:
    given = {"cluster": cluster, "state": state, "kind": one.kind, "mark": one.name, "token": ""}
    _insert(db, "resources", {**given, "region": one.region, "resource": asdict(one)})


def _refuse_second(db: sqlite3.Connection, name: str) -> None:
    """Raises UsageError where a live cluster has this name."""
    if db.execute("SELECT 1 FROM clusters WHERE name = ? AND state != 'gone'", (name,)).fetchone():
        raise UsageError(
            f"a cluster named {name} exists already", f"choose another --name, or end it: gpuops down {name}"
        )


def _only(rows: Sequence[sqlite3.Row], what: str) -> sqlite3.Row:
    """The one row. Raises RowGone where there is none."""
    if not rows:
        raise RowGone(f"that {what} is no longer in the ledger", "gpuops reap --adopt takes back what still lives")
    return rows[0]


def _next_name(stem: str, taken: set[str]) -> str:
    number = 1
    while f"{stem}-{number}" in taken:
        number += 1
    return f"{stem}-{number}"
