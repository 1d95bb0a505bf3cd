"""The clusters of the ledger.

A cluster goes `creating -> up -> ending -> gone`. Each change of state names the states that it may start from, so that
of two commands at once only one succeeds.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuops.core.errors import UsageError
from gpuops.core.models import Lease
from gpuops.core.processes import Identity
from gpuops.ledger.database import Database, insert_row, next_free_name, only_row
from gpuops.ledger.rows import ClusterRow, ClusterState, parse_cluster, to_columns


class ClusterTable(Database):
    """Records, reads and changes clusters."""

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
                name = next_free_name(provider, {row[0] for row in db.execute("SELECT name FROM clusters")})
            refuse_live_name(db, name)
            columns = {
                "name": name,
                "provider": provider,
                "folder": folder,
                "state": ClusterState.CREATING,
                "ephemeral": ephemeral,
                "token": token,
                "request": request,
                "boot_deadline": boot_deadline,
                "lease": lease,
                "owner_process": owner_process,
                "created": now,
            }
            row_id = insert_row(db, "clusters", columns)
        return self.cluster(row_id)

    def check_name_free(self, name: str) -> None:
        """Raises UsageError where a live cluster has this name; `intend` asks again."""
        with self._report_failures():
            refuse_live_name(self.db, name)

    def cluster(self, row_id: int) -> ClusterRow:
        """One cluster. Raises RowGone."""
        return self._parse_rows(
            self._cluster_of, [only_row(self._read("SELECT * FROM clusters WHERE id = ?", row_id), "cluster")]
        )[0]

    def _cluster_of(self, row: sqlite3.Row) -> ClusterRow:
        return parse_cluster(row, self.beats)

    def clusters(self, *, live: bool = True) -> list[ClusterRow]:
        where = "WHERE state != 'gone'" if live else ""
        return self._parse_rows(self._cluster_of, self._read(f"SELECT * FROM clusters {where} ORDER BY id"))

    def set_cluster(self, row_id: int, **columns: Any) -> None:
        """Change columns by name; see `rows.to_columns`."""
        self._set("clusters", row_id, columns)

    def mark_up(self, cluster: int, lease: Lease, now: float) -> bool:
        """creating -> up. False where another command has begun to end the cluster."""
        up = {"state": ClusterState.UP, "ready": now, "lease": lease}
        return self._set("clusters", cluster, up, "state = 'creating'")

    def begin_end(self, cluster: int, *, lease: Lease | None = None) -> bool:
        """any but gone -> ending. False where it is gone already: another cluster may have its name by now.

        `lease`: the lease that has ended; False where the cluster has another one by now.
        """
        same = to_columns({"lease": lease}) if lease is not None else {}
        only_if = " AND ".join(["state != 'gone'", *(f"{name} IS ?" for name in same)])
        return self._set("clusters", cluster, {"state": ClusterState.ENDING}, only_if, [*same.values()])

    def set_lease(self, cluster: int, lease: Lease) -> bool:
        """Replace a cluster's lease. False where another command has begun to end the cluster."""
        return self._set("clusters", cluster, {"lease": lease}, "state NOT IN ('ending', 'gone')")

    def take_ownership(self, cluster: int, owner_process: Identity) -> bool:
        """Become the owner of a cluster, unless another owner process lives. Raises RowGone."""
        with self._transaction():
            if self.cluster(cluster).has_live_owner(besides=owner_process):
                return False
            self.db.execute(
                "UPDATE clusters SET keeper_pid = ?, keeper_start = ? WHERE id = ? AND state != 'gone'",
                (owner_process.pid, owner_process.start, cluster),
            )
        return True

    def release_ownership(self, cluster: int, owner_process: Identity) -> None:
        """Stop being the owner of a cluster; no other owner process is removed."""
        with self._transaction() as db:
            db.execute(
                "UPDATE clusters SET keeper_pid = NULL, keeper_start = NULL"
                " WHERE id = ? AND keeper_pid = ? AND keeper_start = ?",
                (cluster, owner_process.pid, owner_process.start),
            )


def refuse_live_name(db: sqlite3.Connection, name: str) -> None:
    """Raises UsageError where a live cluster has this name."""
    if db.execute("SELECT 1 FROM clusters WHERE name = ? AND state != 'gone'", (name,)).fetchone():
        raise UsageError(
            f"a cluster named {name} exists already", f"choose another --name, or end it: gpuops down {name}"
        )
