"""docs/verified.md and the records beside it: in step, complete, and silent about whoever made them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuops.commands.prove.proof_record import KIND, ProofRecord

DOCS = Path(__file__).parents[4] / "docs"
PAGE = (DOCS / "verified.md").read_text()
RECORDS = {path.name: json.loads(path.read_text()) for path in sorted((DOCS / "verified").glob("*.json"))}
ROWS = [row for row in PAGE.splitlines() if "](verified/" in row]


def table_row(record: ProofRecord, machine: str, file: str) -> str:
    """The row of a record in docs/verified.md. `machine`: a description by the person who ran the proof."""
    cost = f"${record.cost:.4f}" if record.per_hour else "free"
    cells = [record.provider, record.date[:10], record.gpuops, machine, record.count_outcomes(), cost]
    return f"| {' | '.join(cells)} | [{file}](verified/{file}) |"


def test_each_record_has_its_row_and_each_row_its_record() -> None:
    linked = [re.findall(r"\(verified/([^)]+)\)", row) for row in ROWS]
    assert sorted(name for names in linked for name in names) == sorted(RECORDS)
    assert {record["provider"] for record in RECORDS.values()} >= {"local", "ssh"}


@pytest.mark.parametrize("name", RECORDS)
def test_a_row_says_what_its_record_says(name: str) -> None:
    record = RECORDS[name]
    assert (record["schema"], record["kind"]) == (1, KIND)
    (row,) = [row for row in ROWS if f"(verified/{name})" in row]
    assert row == table_row(msgspec.convert(record, ProofRecord), row.split(" | ")[3], name)
    assert name.startswith(f"{record['provider']}-{record['date'][:10]}")


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_tells_nothing_of_whoever_made_it(name: str) -> None:
    def texts(value: Any) -> list[str]:
        if isinstance(value, dict):
            return [text for one in value.values() for text in texts(one)]
        if isinstance(value, list):
            return [text for one in value for text in texts(one)]
        return [str(value)]

    for text in texts(RECORDS[name]):
        assert not re.search(r"(^|\s)(/|~/|[A-Z]:\\)\w", text), f"a path of somebody's computer: {text}"
        assert not re.search(r"\bgpuops-[0-9a-f]{8}-", text), f"a mark tells the owner: {text}"
        for address in re.findall(r"\b\d+\.\d+\.\d+\.\d+\b", text):
            assert address.startswith(("10.", "127.", "192.168.")), f"an address that is somebody's: {text}"


def test_what_was_never_run_is_said() -> None:
    never = PAGE.partition("## Never run live")[2].partition("\n## ")[0]
    rented = {record["provider"] for record in RECORDS.values() if record["per_hour"]}
    for what, run in (
        ("Everything rented", rented),
        ("GPUs", [r for r in RECORDS.values() if "GPU each" in r["machine"]]),
    ):
        assert bool(run) != (f"**{what}.**" in never), f"{what}: said to have never been run, and run, or neither"
