"""What the ledger knows of everything that was asked of a provider for a cluster.

A resource goes `willed -> got -> gone`. It is `refused` where the provider said no, and `left` where the provider still
lists it of a cluster that is gone, and it costs nothing. The columns `mark` and `token` identify it at the provider.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from gpuops.core.errors import Interrupted
from gpuops.core.models import Resource
from gpuops.ledger.database import Database, insert_row, only_row
from gpuops.ledger.rows import ClusterState


class ResourceTable(Database):
    """Records intents, what came of them, and what is left."""

    def will(self, cluster: int, kind: str, mark: str, token: str, region: str) -> None:
        """Record the intent to create something. Until `got` is recorded, it may exist or not.

        Raises Interrupted where another command has begun to end the cluster: it may have listed for the last time,
        and would miss what is created now.
        """
        with self._transaction() as db:
            row = only_row(self._read("SELECT name, state FROM clusters WHERE id = ?", cluster), "cluster")
            if row["state"] in (ClusterState.ENDING, ClusterState.GONE):
                raise Interrupted(f"another command ends {row['name']} while it is being created", "gpuops status")
            db.execute(
                "INSERT INTO resources (cluster, state, kind, mark, token, region) VALUES (?,'willed',?,?,?,?)",
                (cluster, kind, mark, token, region),
            )

    def got(self, cluster: int, resource: Resource) -> None:
        """Record that something exists, once: in the oldest open intent of its kind and mark, or as a new row."""
        document = json.dumps(asdict(resource))
        with self._transaction() as db:
            if line := _find_row(db, cluster, resource):
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
        """What a cluster has, as last described; machines in node order."""
        return self._resources(cluster, "got")

    def list_leftovers(self, cluster: int) -> list[Resource]:
        """What the provider still lists of a cluster that is gone; it costs nothing."""
        return self._resources(cluster, "left")

    def _resources(self, cluster: int, state: str) -> list[Resource]:
        query = "SELECT resource FROM resources WHERE cluster = ? AND state = ? ORDER BY id"
        return self._parse_rows(lambda row: Resource.parse(json.loads(row[0])), self._read(query, cluster, state))

    def mark_refused(self, cluster: int) -> None:
        """Record that the provider refused the open intents: nothing of them exists."""
        with self._transaction() as db:
            db.execute("UPDATE resources SET state = 'refused' WHERE cluster = ? AND state = 'willed'", (cluster,))

    def mark_cleared(self, cluster: int, left: Sequence[Resource] = (), *, keeps_intents: bool = False) -> None:
        """Record that everything of a cluster, or of one attempt to create it, is gone, except for `left`.
        `keeps_intents`: what an open intent made may still show."""
        with self._transaction() as db:
            clear_resources(db, cluster, left, keeps_intents=keeps_intents)

    def has_open_intents(self, cluster: int) -> bool:
        """Whether it is unknown of some intent whether it was carried out."""
        return bool(self._read("SELECT 1 FROM resources WHERE cluster = ? AND state = 'willed'", cluster))

    def update_resource(self, cluster: int, resource: Resource) -> None:
        with self._transaction() as db:
            if line := _find_row(db, cluster, resource):
                db.execute("UPDATE resources SET resource = ? WHERE id = ?", (json.dumps(asdict(resource)), line))

    def add_virtual_nodes(self, cluster: int, machine: Resource, indices: Iterable[int]) -> None:
        """Add virtual nodes to a machine's, which another command may have changed since it was read."""
        with self._transaction() as db:
            if line := _find_row(db, cluster, machine):
                (text,) = db.execute("SELECT resource FROM resources WHERE id = ?", (line,)).fetchone()
                document = json.loads(text)
                document["data"]["virtual"] = sorted({*(document["data"].get("virtual") or ()), *indices})
                db.execute("UPDATE resources SET resource = ? WHERE id = ?", (json.dumps(document), line))

    def regions(self, cluster: int) -> list[str]:
        """Every region in which something of this cluster was ever intended."""
        return [row[0] for row in self._read("SELECT DISTINCT region FROM resources WHERE cluster = ?", cluster)]


def clear_resources(
    db: sqlite3.Connection, cluster: int, left: Sequence[Resource], *, keeps_intents: bool = False
) -> None:
    kept = "willed" if keeps_intents else ""
    db.execute("UPDATE resources SET state = 'gone' WHERE cluster = ? AND state != ?", (cluster, kept))
    for one in left:
        insert_resource(db, cluster, one, "left")


def insert_resource(db: sqlite3.Connection, cluster: int, one: Resource, state: str) -> None:
    given = {"cluster": cluster, "state": state, "kind": one.kind, "mark": one.name, "token": ""}
    insert_row(db, "resources", {**given, "region": one.region, "resource": asdict(one)})


def _find_row(db: sqlite3.Connection, cluster: int, resource: Resource) -> int | None:
    """The row of a resource that is known to exist, by its kind and the provider's id."""
    query = "SELECT id, resource FROM resources WHERE cluster = ? AND state = 'got' AND kind = ?"
    for row in db.execute(query, (cluster, resource.kind)).fetchall():
        if json.loads(row["resource"])["id"] == resource.id:
            return int(row["id"])
    return None
