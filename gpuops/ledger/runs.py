"""The runs of the ledger: `starting -> running -> ended -> home`."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpuops.core.processes import Identity
from gpuops.ledger.database import Database, insert_row, next_free_name, only_row
from gpuops.ledger.rows import RunRow, RunState, parse_run


class RunTable(Database):
    """Records, reads and changes runs."""

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
        claim: Callable[[Path], bool] = lambda home: not home.exists(),
    ) -> RunRow:
        """Record a run before anything is started; its name is `<stem>-<n>`, the next free.

        `claim`: makes the run's folder, and returns whether it was not there yet. Another ledger (of another home, or
        one that was lost) may have given its name in the same project.
        """
        with self._transaction() as db:
            taken = {row[0] for row in db.execute("SELECT name FROM runs")}
            name = next_free_name(stem, taken, lambda name: claim(folder / "runs" / name))
            columns = {
                "name": name,
                "cluster": cluster,
                "folder": folder,
                "home": folder / "runs" / name,
                "tree": tree,
                "request": request,
                "state": RunState.STARTING,
                "facts": facts,
                "owner_process": owner_process,
                "created": now,
            }
            row_id = insert_row(db, "runs", columns)
        return self.run(row_id)

    def run(self, row_id: int) -> RunRow:
        """One run. Raises RowGone."""
        rows = self._read("SELECT * FROM runs WHERE id = ?", row_id)
        return self._parse_rows(self._run_of, [only_row(rows, "run")])[0]

    def _run_of(self, row: sqlite3.Row) -> RunRow:
        return parse_run(row, self.beats)

    def runs(self, *, cluster: int | None = None) -> list[RunRow]:
        """Runs, oldest first; of one cluster or of all."""
        where, values = ("WHERE cluster = ?", [cluster]) if cluster is not None else ("", [])
        return self._parse_rows(self._run_of, self._read(f"SELECT * FROM runs {where} ORDER BY id", *values))

    def set_run(self, row_id: int, **columns: Any) -> None:
        """Change columns by name; see `rows.to_columns`."""
        self._set("runs", row_id, columns)

    def take_run_ownership(self, row_id: int, owner_process: Identity) -> bool:
        """Become the owner of a run that is not home yet, unless another owner process lives. Raises RowGone."""
        with self._transaction() as db:
            row = self.run(row_id)
            if row.state is RunState.HOME or row.has_live_owner(besides=owner_process):
                return False
            db.execute(
                "UPDATE runs SET keeper_pid = ?, keeper_start = ? WHERE id = ?",
                (owner_process.pid, owner_process.start, row_id),
            )
        return True
