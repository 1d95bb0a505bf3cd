"""Going on from a run whose results were, or might have been, in a bucket alone."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from gpuops.cli.terminal.output import Output
from gpuops.core.context import Context
from gpuops.core.errors import AuthFailed, GpuopsError, LocalDisk, NodeError
from gpuops.core.models import Lease
from gpuops.core.reporting import Silent
from gpuops.core.run_models import RunRequest
from gpuops.core.sink import BucketSink
from gpuops.ledger.rows import RunRow
from gpuops.runs import finish
from gpuops.sync.archive import FetchedNode
from gpuops.sync.merged_outputs import OutFolder
from gpuops.sync.merged_outputs_record import Arrival
from gpuops.sync.run_folder import RunHome, read_json

BROKEN = NodeError("what node0 kept could not be verified: out/a.pt", "`gpuops pull` tries again")


def row_in(world: Context, *, saved: bool = False, nodes: int = 1) -> RunRow:
    cluster = world.ledger.intend(
        provider="local", name=None, folder=world.folder, ephemeral=False, token="t", request={}, boot_deadline=60.0,
        lease=Lease(), owner_process=world.me, now=0.0,
    )  # fmt: skip
    request = RunRequest(kind="command", mode="run", nodes=nodes, gpus=None, argv=["x"], sink=BucketSink("results"))
    row = world.ledger.add_run(
        stem="r", cluster=cluster.id, folder=world.folder, tree="project", request=request.document(),
        facts={"bucket": {"place": "s3://results/r"}, "in_bucket": [*range(nodes)]}, owner_process=world.me, now=0.0,
    )  # fmt: skip
    home = RunHome(row.home)
    home.create()
    if saved:
        out = OutFolder(home)
        with out.staging() as staging:
            staging.create("a", io.BytesIO(b"a"), 1)
            out.publish([Arrival(0, "a.pt", (1, 0), "ca978112ca1bbdca", "a")], staging)
    return row


@pytest.mark.parametrize(("errors", "said"), [([], "left is in s3://results/r"), ([BROKEN], "kept")])
def test_what_is_home_does_where_the_bucket_has_nothing_more(
    world: Context, monkeypatch: pytest.MonkeyPatch, errors: list[GpuopsError], said: str
) -> None:
    monkeypatch.setattr("gpuops.sync.archive.fetch_archives", lambda *_: ({}, errors))
    err = io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)
    world.out = Output()
    finish.finish_before_resume(world, row_in(world, saved=True))
    assert err.getvalue().startswith("note: ")
    assert said in err.getvalue()
    assert err.getvalue().endswith("; going on from what is home\n")
    with pytest.raises(NodeError, match=said):
        finish.finish_before_resume(world, row_in(world))


def test_what_could_not_be_asked_may_have_something_newer(world: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = AuthFailed("the session of these AWS credentials has ended", "sign in again")
    monkeypatch.setattr("gpuops.sync.archive.fetch_archives", lambda *_: ({}, [refused]))
    with pytest.raises(AuthFailed, match="has ended"):
        finish.finish_before_resume(world, row_in(world, saved=True))


def test_what_has_come_in_part_is_not_fetched_again(world: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is too small for all: the next time there is room for the rest."""
    row = row_in(world, nodes=3)
    asked: list[list[int]] = []

    def bring(_world: Any, _row: Any, nodes: list[int], _progress: Any) -> Any:
        asked.append(list(nodes))
        came = (
            {2: FetchedNode({"outcome": "done", "reason": {"kind": "command"}, "ranks": []}, 0)} if 2 in nodes else {}
        )
        return came, [LocalDisk("what node0 (9 GB) and node1 (9 GB) kept stays in s3://results/r-1", "free space")]

    monkeypatch.setattr("gpuops.sync.archive.fetch_archives", bring)
    for _ in range(2):
        with pytest.raises(LocalDisk, match="stays in"):
            finish.finish_late(world, row, Silent())
        row = world.ledger.run(row.id)
    assert asked == [[0, 1, 2], [0, 1]]
    assert (row.facts["in_bucket"], list(row.facts["told"])) == ([0, 1], ["2"])


def test_what_a_node_could_not_keep_is_told_also_when_the_rest_comes_later(
    world: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = row_in(world, nodes=2)
    ended = {"outcome": "done", "reason": {"kind": "command"}, "ranks": []}
    answers = [({0: FetchedNode(ended, 2)}, [BROKEN]), ({1: FetchedNode(ended, 0)}, [])]
    monkeypatch.setattr("gpuops.sync.archive.fetch_archives", lambda *_: answers.pop(0))
    with pytest.raises(NodeError, match="could not be verified"):
        finish.finish_late(world, row, Silent())
    finish.finish_late(world, world.ledger.run(row.id), Silent())
    kept = read_json(RunHome(row.home).path / "run.json")["kept"]
    assert kept == "not all in s3://results/r (node0: 2 files could not be kept)"
