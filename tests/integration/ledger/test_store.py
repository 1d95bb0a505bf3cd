"""What tests/unit/ledger/test_store.py leaves to real processes or sockets."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuops.core.processes import Identity, myself, started
from gpuops.ledger import FILE
from gpuops.ledger.store import Ledger
from tests.unit.ledger.test_store import intend, overwrite

ROOT = Path(__file__).parents[3]
PROCESSES = 8
CLUSTERS_EACH = 3

WRITER = """
import sys
from pathlib import Path
from gpuops.ledger.store import Ledger, LedgerJournal
from gpuops.core.models import Lease, Resource
from gpuops.core.processes import myself
home, count = Path(sys.argv[1]), int(sys.argv[2])
for _ in range(count):
    ledger = Ledger.open(home)
    row = ledger.intend(provider="local", name=None, folder=home, ephemeral=True, token="t", request={},
                        boot_deadline=0.0, lease=Lease(), owner_process=myself(), now=0.0)
    journal = LedgerJournal(ledger, row.id)
    journal.will("machine", f"gpuops-x-{row.name}-0", "t", "r")
    journal.got(Resource("machine", row.name, "r", f"gpuops-x-{row.name}-0", False))
    run = ledger.add_run(stem="toy", cluster=row.id, folder=home, tree="project", request={}, facts={},
                         owner_process=myself(), now=0.0)
    ledger.add_notice(f"{row.name} {run.name}")
    ledger.close()
"""


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    one = Ledger.open(tmp_path)
    yield one
    one.close()


def test_only_one_keeper(ledger: Ledger) -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        other = Identity(sleeper.pid, started(sleeper.pid))
        row = intend(ledger, owner_process=other)
        assert not ledger.take_ownership(row, myself())
    finally:
        sleeper.kill()
        sleeper.wait()
    assert ledger.take_ownership(row, myself()), "a dead process owns nothing"
    assert ledger.take_ownership(row, myself()), "and to take what one has is no quarrel"


def test_eight_processes_at_once(tmp_path: Path) -> None:
    """No name twice, no line lost, no error; the first of them creates the file."""
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), str(CLUSTERS_EACH)], cwd=ROOT,
                         stderr=subprocess.PIPE, text=True)
        for _ in range(PROCESSES)
    ]  # fmt: skip
    said = [writer.communicate(timeout=600)[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * PROCESSES, said
    ledger = Ledger.open(tmp_path)
    rows = ledger.clusters()
    total = PROCESSES * CLUSTERS_EACH
    assert {row.name for row in rows} == {f"local-{n}" for n in range(1, total + 1)}
    assert {run.name for run in ledger.runs()} == {f"toy-{n}" for n in range(1, total + 1)}
    assert all([one.id for one in ledger.resources(row.id)] == [row.name] for row in rows)
    assert len(ledger.take_notices()) == total
    assert ledger.take_notices() == [], "each is given once"
    assert not list(tmp_path.glob("*damaged*"))


def test_a_killed_writer_leaves_the_last_commit(tmp_path: Path) -> None:
    """SIGKILL inside a transaction: its change is undone by whoever opens the ledger next."""
    code = WRITER.split("for _ in")[0] + (
        "import os, signal\nledger = Ledger.open(home)\nledger.add_notice('whole')\n"
        "ledger.db.execute('PRAGMA cache_spill = 1'); ledger.db.execute('PRAGMA cache_size = 1')\n"
        "with ledger._transaction() as db:\n"
        "    for n in range(400): db.execute('INSERT INTO notices (at, say) VALUES (0, ?)', ('x' * 4000,))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path), "1"], cwd=ROOT, timeout=600, check=False)
    assert done.returncode == -9
    assert (tmp_path / f"{FILE}-journal").exists(), "the kill came in the middle"
    assert [say for _, say in Ledger.open(tmp_path).take_notices()] == ["whole"]


def test_many_commands_meet_the_damage_at_once(tmp_path: Path) -> None:
    """One keeps it aside; none of the others takes the new one for the old one."""
    Ledger.open(tmp_path).close()
    overwrite(tmp_path / FILE)
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), "1"], cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        for _ in range(PROCESSES)
    ]
    said = [writer.communicate(timeout=600)[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * PROCESSES, said
    assert len(list(tmp_path.glob(f"{FILE}.damaged-*"))) == 1
    assert len(Ledger.open(tmp_path).clusters()) == PROCESSES
