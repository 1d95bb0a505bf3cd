"""The ledger: a SQLite file that records what is wanted of a provider before the provider is asked for it.

Many commands use it at once. Every change is one transaction that is on disk when the method returns. A cluster goes

    creating -> up -> ending -> gone

and has an owner process (pid and start time), which is responsible for it. When that process is dead, the guard or the
next command finishes or undoes what it began. The columns are called `keeper_pid` and `keeper_start`.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuops.core.file_lock import file_lock
from gpuops.core.models import Lease, Resource
from gpuops.ledger import FILE
from gpuops.ledger.clusters import ClusterTable, refuse_live_name
from gpuops.ledger.database import RowGone as RowGone
from gpuops.ledger.database import insert_row
from gpuops.ledger.resources import ResourceTable, clear_resources, insert_resource
from gpuops.ledger.rows import ClusterRow as ClusterRow
from gpuops.ledger.rows import ClusterState, RunState, check_number, check_text, fields_of
from gpuops.ledger.rows import RunRow as RunRow
from gpuops.ledger.runs import RunTable
from gpuops.ledger.schema import (
    BUSY_S,
    connect,
    connect_read_only,
    damaged,
    is_damage,
    open_for_reading,
    set_aside,
    unwritable,
)
from gpuops.ledger.schema import LedgerTooNew as LedgerTooNew
from gpuops.ledger.schema import LedgerUnwritable as LedgerUnwritable


class Ledger(ClusterTable, ResourceTable, RunTable):
    """The whole ledger; its own methods change or read several tables at once."""

    @classmethod
    def open(cls, home: Path) -> Ledger:
        """Open or create. A damaged file is kept beside a new one. Raises LedgerTooNew, LedgerUnwritable."""
        path = home / FILE
        try:
            return cls(path, connect(path))
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            if not is_damage(error):
                raise unwritable(path, error) from error
        return cls._replace_damaged(path)

    @classmethod
    def open_read_only(cls, home: Path) -> Ledger:
        """Open what nothing is written to: its folder may be read-only; where it has no ledger, it counts as empty.
        Raises LedgerTooNew, LedgerUnwritable."""
        path = home / FILE
        try:
            return cls(path, connect_read_only(path))
        except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
            raise damaged(path) if is_damage(error) else unwritable(path, error) from error

    @classmethod
    def _replace_damaged(cls, path: Path) -> Ledger:
        """Put an empty ledger in the place of a damaged one. Of several commands that see the damage, one does it."""
        try:
            with file_lock(path.with_suffix(".lock"), BUSY_S):
                try:
                    return cls(path, connect(path))  # another command was quicker
                except (sqlite3.Error, UnicodeDecodeError) as error:
                    if not is_damage(error):
                        raise
                aside = set_aside(path)
                ledger = cls(path, connect(path))
        except (sqlite3.Error, OSError) as error:
            raise unwritable(path, error) from error
        ledger.add_notice(
            f"the ledger was damaged and is kept as {aside}; `gpuops reap --adopt` takes back what still lives"
        )
        return ledger

    def adopt(self, row: ClusterRow, resources: Sequence[Resource], runs: Sequence[RunRow]) -> list[str]:
        """Take back a cluster that another ledger knew, with its runs, in one commit; ids are given here.

        Returns the names of runs that this ledger knows already, which are left out. Raises UsageError where a
        live cluster has its name.
        """
        with self._transaction() as db:
            refuse_live_name(db, row.name)
            cluster = insert_row(db, "clusters", fields_of(row))
            for one in resources:
                insert_resource(db, cluster, one, "got")
            taken = {name for (name,) in db.execute("SELECT name FROM runs")}
            for run in runs:
                if run.name not in taken:
                    insert_row(db, "runs", {**fields_of(run), "cluster": cluster})
        return [run.name for run in runs if run.name in taken]

    def mark_gone(
        self,
        cluster: int,
        now: float,
        why: str,
        *,
        notice: str = "",
        left: Sequence[Resource] = (),
        keeps_intents: bool = False,
    ) -> None:
        """Record that nothing of a cluster costs money any more, and that its runs change no more.

        `notice` is added in the same transaction. `left`: what the provider still lists, at no cost. `keeps_intents`:
        as for `mark_cleared`.
        """
        with self._transaction() as db:
            clear_resources(db, cluster, left, keeps_intents=keeps_intents)
            db.execute(
                "UPDATE clusters SET state = 'gone', ended = ?, why = ?, keeper_pid = NULL"
                " WHERE id = ? AND state != 'gone'",
                (now, why, cluster),
            )
            db.execute(
                "UPDATE runs SET state = 'home', keeper_pid = NULL, ended = coalesce(ended, ?)"
                " WHERE cluster = ? AND state != 'home'",
                (now, cluster),
            )
            if notice:
                _insert_notice(db, notice)

    def list_gone_with_leftovers(self) -> list[ClusterRow]:
        """Clusters that are gone while their provider still lists something of theirs, or may come to."""
        some = "SELECT cluster FROM resources WHERE state IN ('left', 'willed')"
        query = f"SELECT * FROM clusters WHERE state = 'gone' AND id IN ({some}) ORDER BY id"
        return self._parse_rows(self._cluster_of, self._read(query))

    def needs_guard(self, row: ClusterRow) -> bool:
        """Whether a live cluster, or a run of it, is to be ended by a process of this computer: all but an idle cluster
        that was brought up to stay and has no lease."""
        settled = row.state is ClusterState.UP and not row.ephemeral and row.lease == Lease()
        return not settled or any(run.state is not RunState.HOME for run in self.runs(cluster=row.id))

    def list_guarded(self) -> list[ClusterRow]:
        """The clusters that need a guard: gone ones with leftovers, and live ones by `needs_guard`."""
        return [*self.list_gone_with_leftovers(), *(row for row in self.clusters() if self.needs_guard(row))]

    def add_notice(self, say: str) -> None:
        """Leave a sentence about something that a background process did; the next command shows it once."""
        with self._transaction() as db:
            _insert_notice(db, say)

    def take_notices(self) -> list[tuple[float, str]]:
        """The notices that no command has shown yet; each is returned once."""
        if not self._read("SELECT 1 FROM notices WHERE shown = 0"):
            return []
        with self._transaction() as db:
            rows = db.execute("SELECT at, say FROM notices WHERE shown = 0 ORDER BY id").fetchall()
            found = self._parse_rows(lambda row: (check_number(row["at"]), check_text(row["say"])), rows)
            db.execute("UPDATE notices SET shown = 1")
        return found


@dataclass(frozen=True)
class LedgerJournal:
    """The journal that a provisioner writes to while it creates one cluster."""

    ledger: Ledger
    cluster: int

    def will(self, kind: str, mark: str, token: str, region: str) -> None:
        self.ledger.will(self.cluster, kind, mark, token, region)

    def got(self, resource: Resource) -> None:
        self.ledger.got(self.cluster, resource)


def providers_in(home: Path) -> set[str] | None:
    """The providers named by a ledger that is too new for this gpuops; None where the file cannot be read."""
    try:
        db = open_for_reading(home / FILE)
        try:
            return {check_text(row[0]) for row in db.execute("SELECT DISTINCT provider FROM clusters")}
        finally:
            db.close()
    except (sqlite3.Error, OSError, ValueError, TypeError):
        return None


def _insert_notice(db: sqlite3.Connection, say: str) -> None:
    unsaid = "NOT EXISTS (SELECT 1 FROM notices WHERE say = ? AND shown = 0)"
    db.execute(f"INSERT INTO notices (at, say) SELECT ?, ? WHERE {unsaid}", (time.time(), say, say))
