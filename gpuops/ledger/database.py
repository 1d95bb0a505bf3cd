"""The database behind the ledger: changed in transactions, read as typed rows.

Whatever SQLite meets outside itself (a full disk, another command that holds the file, damage) is raised as
LedgerUnwritable; a wrong statement stays an error of this program.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from gpuops.core import heartbeat
from gpuops.core.errors import GpuopsError
from gpuops.ledger.rows import to_columns
from gpuops.ledger.schema import damaged, is_damage, unwritable

T = TypeVar("T")


class RowGone(GpuopsError):
    """A row is no longer in the ledger: the file was damaged or removed after the row was read."""


@dataclass
class Database:
    """One connection to the ledger's file; cheap to open, safe beside others, not shared by threads."""

    path: Path
    db: sqlite3.Connection = field(repr=False)

    @property
    def beats(self) -> Path:
        """Where the processes that own rows write their heartbeats."""
        return self.path.parent / heartbeat.FOLDER

    def close(self) -> None:
        self.db.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """One transaction. Raises LedgerUnwritable where the disk or another command prevents it."""
        with self._report_failures():
            try:
                self.db.execute("BEGIN IMMEDIATE")
                yield self.db
                self.db.execute("COMMIT")
            finally:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")

    def _read(self, query: str, *values: Any) -> list[sqlite3.Row]:
        """The rows of a SELECT. Raises LedgerUnwritable where the disk or another command prevents it."""
        with self._report_failures():
            return self.db.execute(query, values).fetchall()

    def _parse_rows(self, parse: Callable[[sqlite3.Row], T], rows: Iterable[sqlite3.Row]) -> list[T]:
        """Rows as objects. Raises LedgerUnwritable where a value is damaged in a way that SQLite does not notice."""
        try:
            return [parse(row) for row in rows]
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise damaged(self.path) from error

    @contextmanager
    def _report_failures(self) -> Iterator[None]:
        """Raise what SQLite meets outside itself as LedgerUnwritable; a wrong statement raises its own error."""
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

    def _set(
        self, table: str, row_id: int, columns: Mapping[str, Any], only_if: str = "1", wanted: Sequence[Any] = ()
    ) -> bool:
        """Change columns of a row, by name (`rows.to_columns`). Returns whether the row was there and met `only_if`, an
        SQL condition with the values `wanted`."""
        values = to_columns(columns)
        assignments = ", ".join(f"{name} = ?" for name in values)
        with self._transaction() as db:
            cursor = db.execute(
                f"UPDATE {table} SET {assignments} WHERE id = ? AND {only_if}", (*values.values(), row_id, *wanted)
            )
        return cursor.rowcount == 1


def insert_row(db: sqlite3.Connection, table: str, columns: Mapping[str, Any]) -> int:
    """A new row; its id."""
    values = to_columns(columns)
    places = ", ".join("?" for _ in values)
    cursor = db.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({places})", tuple(values.values()))
    return int(cursor.lastrowid or 0)


def only_row(rows: Sequence[sqlite3.Row], what: str) -> sqlite3.Row:
    """The one row. Raises RowGone where there is none."""
    if not rows:
        raise RowGone(f"that {what} is no longer in the ledger", "gpuops reap --adopt takes back what still lives")
    return rows[0]


def next_free_name(stem: str, taken: set[str], claim: Callable[[str], bool] = lambda _name: True) -> str:
    """`<stem>-<n>`, the first that is not taken and that `claim` gets hold of."""
    names = (f"{stem}-{number}" for number in count(1))
    return next(name for name in names if name not in taken and claim(name))
