"""The ledger's file: opened, made, checked, and set aside where it is damaged.

`journal_mode=DELETE` and `synchronous=EXTRA`: homes may lie on NFS.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from contextlib import closing
from functools import partial
from pathlib import Path

from gpuops.core.errors import LocalDisk, UsageError
from gpuops.ledger import FILE

SCHEMA = 1
BUSY_S = 30.0
"""How long another command's change is waited for."""

LOCAL_DISK_ERRORS = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
"""SQLite's codes for a disk, or another command, that is in the way: exit code 4, since nothing was typed wrongly.
A used-up quota of the disk is IOERR to it."""

TABLES = """
CREATE TABLE clusters (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL, provider TEXT NOT NULL, folder TEXT NOT NULL,
    state TEXT NOT NULL, ephemeral INTEGER NOT NULL, token TEXT NOT NULL, request TEXT NOT NULL,
    offer TEXT, boot_deadline REAL NOT NULL, hard_end REAL, idle_s REAL, money_end REAL,
    keeper_pid INTEGER, keeper_start REAL, created REAL NOT NULL, ready REAL, ended REAL, why TEXT);
CREATE UNIQUE INDEX one_live_cluster_per_name ON clusters (name) WHERE state != 'gone';
CREATE TABLE resources (
    id INTEGER PRIMARY KEY, cluster INTEGER NOT NULL REFERENCES clusters, state TEXT NOT NULL,
    kind TEXT NOT NULL, mark TEXT NOT NULL, token TEXT NOT NULL, region TEXT NOT NULL, resource TEXT);
CREATE TABLE runs (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, cluster INTEGER NOT NULL REFERENCES clusters,
    folder TEXT NOT NULL, home TEXT NOT NULL, tree TEXT NOT NULL, request TEXT NOT NULL,
    state TEXT NOT NULL, facts TEXT NOT NULL, verdict TEXT, keeper_pid INTEGER, keeper_start REAL,
    created REAL NOT NULL, started REAL, ended REAL);
CREATE TABLE notices (id INTEGER PRIMARY KEY, at REAL NOT NULL, say TEXT NOT NULL, shown INTEGER NOT NULL DEFAULT 0);
"""

WANTED = {
    table: set(re.findall(r"(\w+) (?:INTEGER|TEXT|REAL)", columns))
    for table, columns in re.findall(r"CREATE TABLE (\w+) \((.*?)\);", TABLES, re.DOTALL)
}
"""Table to columns: a torn schema shows in them."""


class LedgerTooNew(UsageError):
    """A later gpuops wrote this ledger; `down`, `reap` and `status --cloud` work without it."""


class LedgerUnwritable(UsageError):
    """The disk is full, read-only or gone, or another command holds the ledger for too long."""


class Damaged(sqlite3.DatabaseError):
    """SQLite can open the file, but what is in it is no ledger."""


def is_damage(error: Exception) -> bool:
    """Whether the file itself is at fault, not the disk, the permissions or another command."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return isinstance(error, Damaged | UnicodeDecodeError) or code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def unwritable(path: Path, error: Exception) -> LedgerUnwritable:
    say, hint = f"the ledger {path} cannot be used: {error}", "check the folder's permissions and free space"
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        say = f"another command holds the ledger {path}: {error}"
        hint = f"end it, or wait until it has ended (`lsof {path}` names it)"
    elif code == sqlite3.SQLITE_FULL:
        hint = f"free some space in {path.parent}: what goes on is followed, and ended, from here again"
    found = LedgerUnwritable(say, hint)
    if code in LOCAL_DISK_ERRORS:
        found.exit_code = LocalDisk.exit_code
    return found


def damaged(path: Path) -> LedgerUnwritable:
    """What only shows when a row is read."""
    return LedgerUnwritable(
        f"the ledger {path} is damaged: a row of it cannot be read",
        f"keep it aside (mv {path} {path}.damaged-by-hand), then take back what lives: gpuops reap --adopt",
    )


def set_aside(path: Path) -> Path:
    """Move a ledger away, and its journal with it, which would be played into a new one. Returns its new place."""
    aside = path.with_name(f"{FILE}.damaged-{int(time.time())}-{os.getpid()}")
    os.replace(path, aside)
    journal = path.with_name(f"{FILE}-journal")
    if journal.exists():
        os.replace(journal, aside.with_name(f"{aside.name}-journal"))
    return aside


def connect(path: Path) -> sqlite3.Connection:
    if not path.exists():
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    db = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
    try:
        _make_ready(db, path)
    except BaseException:
        db.close()
        raise
    return db


def open_for_reading(path: Path) -> sqlite3.Connection:
    """The file as it is: nothing is written, beside it neither. Raises sqlite3.Error, OSError."""
    db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_S, isolation_level=None)
    try:
        db.execute("PRAGMA user_version")
    except sqlite3.Error as error:
        db.close()
        if getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_READONLY_ROLLBACK:
            raise
        return _roll_back_copy(path)
    return db


def _roll_back_copy(path: Path) -> sqlite3.Connection:
    """The ledger in memory, as it was before a change that a crash has cut off, as where a disk fails and is read-only
    from then on: what the journal beside it undoes cannot be undone there."""
    import shutil
    import tempfile

    db = sqlite3.connect(":memory:", isolation_level=None)
    with tempfile.TemporaryDirectory() as folder:
        for name in (path.name, f"{path.name}-journal"):
            shutil.copyfile(path.with_name(name), os.path.join(folder, name))
        with closing(sqlite3.connect(os.path.join(folder, path.name))) as copy:
            copy.backup(db)
    return db


def connect_read_only(path: Path) -> sqlite3.Connection:
    """The ledger, for reading alone; an empty one in memory where there is none."""
    db = open_for_reading(path) if path.exists() else sqlite3.connect(":memory:", isolation_level=None)
    try:
        _check_ready(db, path)
        db.execute("PRAGMA query_only=1")
    except BaseException:
        db.close()
        raise
    return db


def _make_ready(db: sqlite3.Connection, path: Path) -> None:
    """Set what NFS needs, and as `_check_ready`."""
    db.execute("PRAGMA journal_mode=DELETE")
    db.execute("PRAGMA synchronous=EXTRA")
    _check_ready(db, path)


def _check_ready(db: sqlite3.Connection, path: Path) -> None:
    """Check version and health, make the tables in an empty file."""
    db.row_factory = sqlite3.Row
    db.text_factory = partial(str, encoding="utf-8", errors="replace")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > SCHEMA:
        raise LedgerTooNew(
            f"{path} was written by a newer gpuops (schema {version}, this one knows {SCHEMA})",
            "upgrade gpuops; `gpuops down` and `gpuops reap` work all the same",
        )
    if version == 0:
        _create(db)
    # A torn file shows here, not in mid-story.
    if db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
        raise Damaged("it fails SQLite's own check")
    for table, columns in WANTED.items():
        if not columns <= {row[1] for row in db.execute(f"PRAGMA table_info({table})")}:
            raise Damaged(f"the table {table} is not whole")


def _create(db: sqlite3.Connection) -> None:
    db.execute("BEGIN IMMEDIATE")
    if db.execute("PRAGMA user_version").fetchone()[0] == 0:  # another command may have been quicker
        for statement in TABLES.split(";"):
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {SCHEMA}")
    db.execute("COMMIT")
