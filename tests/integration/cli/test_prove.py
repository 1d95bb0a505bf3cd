"""`gpuops prove` as it is typed: a plan with its price, a record, and nothing left, however it ends."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from gpuops.commands.prove import proof_record
from gpuops.commands.prove.prove import Proof
from gpuops.core.models import Offer, Request
from tests.conftest import Shell, until
from tests.desk import Desk
from tests.fakes.tent import pitch


def standing(camp: Shell) -> list[str]:
    return sorted(path.name for path in (camp.home / "tent" / "ground").glob("*"))


def test_interrupted_it_ends_what_it_made(camp: Shell) -> None:
    done = camp.run(
        "prove", "tent", "--yes", "--json", driver="signal:INT:gpuops.commands.prove.failure_scenarios:ready"
    )
    assert done.returncode == 130, done.stderr
    record = json.loads(done.stdout)
    said = {one["name"]: (one["outcome"], one["said"]) for one in record["scenarios"]}
    assert said["lost-answer"][0] == "proven"
    assert said["watchdog"] == ("skipped", "interrupted")
    assert said["nothing-left"][0] == "proven"
    assert (record["exit_code"], record["left"], standing(camp)) == (130, [], [])
    camp.expect_clean()


def test_killed_the_guard_ends_what_it_made(camp: Shell) -> None:
    died = camp.run("prove", "tent", "--yes", driver="signal:KILL:gpuops.commands.prove.failure_scenarios:ready")
    assert died.returncode == -signal.SIGKILL
    until(lambda: not camp.cluster_states() and not standing(camp), "an end to what the proof had made")
    camp.expect_clean()


@pytest.mark.parametrize(
    ("words", "code", "say"),
    [
        (["nowhere"], 2, "there is no provider named 'nowhere'"),
        (["local", "--spend", "0"], 2, "--spend 0 is no limit that can be kept"),
        (["local", "--spend", "nan"], 2, "--spend nan is no limit that can be kept"),
        (["local", "--spend", "much"], 2, "--spend takes a number, not 'much'"),
        (["local", "--record", "no/such/folder.json"], 2, "there is no folder no/such for the record"),
        (["local", "--crater", "Tycho"], 2, "there is no option --crater"),
        (["local", "--max-hours", "2"], 2, "--max-hours has no meaning here: nothing is kept"),
        (["local", "--spot"], 2, "local cannot do spot: this machine is not rented, so there is no spot price"),
        (["ssh"], 2, "no host was named"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_made(desk: Desk, words: list[str], code: int, say: str) -> None:
    said = desk.type("prove", *words)
    assert (said.code, said.err.splitlines()[0]) == (code, f"error: {say}")
    assert not (desk.home / "ledger.db").exists()


def test_a_record_that_cannot_be_written_is_no_second_document(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    record = proof_record.make_record(
        Request("local"), Offer("local", "x", "1 of 1", 1, 0), [], began=0.0, ended=1.0, spend=0.1,
        balance=proof_record.BalanceRecord(None, None), left=[], exit_code=0,
    )  # fmt: skip

    def prove_and_lose(*_: object) -> Proof:
        desk.write("r.json", "another's by now")
        return Proof(record, [], 0)

    monkeypatch.setattr("gpuops.commands.prove.prove.prove", prove_and_lose)
    said = desk.type("prove", "local", "--json", "--record", "r.json")
    assert (said.code, json.loads(said.out)["kind"]) == (4, "proof")
    assert said.err == "error: the record cannot be written to r.json: File exists\nhint: it is printed with --json\n"


def test_everybodys_options_are_known_to_the_proof() -> None:
    from gpuops.cli.flags import LaunchFlags, MachineFlags, flag_types
    from gpuops.commands.prove.free_scenarios import COMMON_OPTIONS

    assert set(flag_types(MachineFlags, LaunchFlags)) <= COMMON_OPTIONS


def test_money_needs_somebody_who_agrees(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in pitch(tmp_path / "site"):
        monkeypatch.syspath_prepend(path)
    said = desk.type("prove", "tent", "--spend", "0.05")
    assert said.code == 2
    assert "about $0.0300 in all, at most $0.0500" in said.err
    assert "lost-answer    a lost answer is found by its mark, nothing made twice     not run: its machines" in said.err
    assert "error: cannot ask for confirmation: no terminal" in said.err
    refused = desk.type("prove", "tent", "--gpu-type", "h100", "--yes")
    assert (refused.code, refused.err) == (
        3,
        "error: --gpu-type is nothing that a tent has\nhint: leave out --gpu-type\n",
    )
    assert not (desk.home / "tent").exists()
