"""What is in a bucket alone when a run ends, and whether nodes that live bill while it is fetched."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import threading
from contextlib import suppress

import psutil
import pytest

from tests.conftest import Shell, until
from tests.fakes.bucket import FakeBucket
from tests.integration.cli.test_user_away import nodes, tents

PLACE = "s3://results/lab/sh-1"
FETCH = f"gpuops pull sh-1 fetches what is in {PLACE}"


def take_back(camp: Shell, node: int) -> None:
    """A tent is gone in this instant, with its disk."""
    tent, folder = tents(camp)[node], nodes(camp)[node]
    tent.replace(camp.home / "tent" / "struck" / tent.name)

    def inside() -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                words = [process.cwd(), *process.cmdline(), *process.environ().values()]
                ours = process.cmdline()[1:3] == ["-m", "gpuops"]
                if not ours and any(f"{word}/".startswith(f"{folder}/") for word in words):
                    found.append(process)
        return found

    def killed() -> bool:
        there = inside()
        for process in there:
            with suppress(psutil.Error):
                process.kill()
        return not there

    until(killed, "nothing of it goes on")
    shutil.rmtree(folder)


@pytest.fixture
def standing(camp: Shell, store: FakeBucket) -> list[int]:
    """How many tents stand each time that the lost one's archive is asked for."""
    found: list[int] = []

    def look(method: str, address: str) -> None:
        if method == "GET" and "node1.tar" in address:
            found.append(len(tents(camp)))

    store.before = look
    return found


def begin(camp: Shell, store: FakeBucket, *words: str) -> subprocess.Popen[str]:
    """A run on two tents of which one has made all it makes, has kept it in the bucket, and is gone; the other waits
    for `away`."""
    script = f"echo $GPUOPS_NODE > made.pt; until [ $GPUOPS_NODE = 1 -o -e '{camp.home / 'away'}' ]; do sleep 0.1; done"
    sink = ("--sink", "s3://results/lab")
    process = camp.start(
        "run", "--on", "tent", "--yes", "--nodes", "2", "--all-nodes", *sink, *words, "--", "sh", "-c", script
    )
    until(lambda: "lab/sh-1/node1.tar" in store.names(), "what node1 made is in the bucket")
    take_back(camp, 1)
    return process


def expect_all_home(camp: Shell) -> None:
    home = camp.folder / "runs" / "sh-1"
    assert (home / "out/made.pt").read_text() == "0\n"
    assert (home / "out/node1/made.pt").read_text() == "1\n"
    record = json.loads((home / "run.json").read_text())
    assert (record["verdict"]["outcome"], record["missing"]) == ("done", "")
    assert record["kept"] == f"safe in {PLACE}"
    assert sorted(record["nodes_ended"]) == ["0", "1"]
    assert "told" not in record


@pytest.mark.parametrize("keep", [pytest.param(False, marks=pytest.mark.proof), True])
def test_nodes_that_live_are_ended_before_it_is_fetched(
    camp: Shell, store: FakeBucket, standing: list[int], keep: bool
) -> None:
    process = begin(camp, store, *(["--keep"] if keep else []))
    (camp.home / "away").touch()
    _, err = process.communicate()
    assert process.returncode == 0, err
    later = "it is fetched once tent-1 has ended (or later: gpuops pull sh-1)"
    assert (f"what lost nodes of sh-1 kept is in {PLACE}: {later}\n" in err) is not keep
    assert set(standing) == ({1} if keep else {0})
    if keep:
        assert camp.run("down", "tent-1").returncode == 0
    else:
        assert err.index(later) < err.index("2 nodes of tent-1 ended, nothing left (")
        assert err.count("nothing left (") == 1
    expect_all_home(camp)
    camp.expect_clean()


def test_interrupted_meanwhile_it_stays_in_the_bucket(camp: Shell, store: FakeBucket) -> None:
    process = begin(camp, store)
    asked, let_go = threading.Event(), threading.Event()

    def hang(method: str, address: str) -> None:
        if method == "GET" and "node1.tar" in address:
            asked.set()
            let_go.wait(600.0)

    store.before = hang
    try:
        (camp.home / "away").touch()
        until(asked.is_set, "it is fetched")
        assert not tents(camp)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    finally:
        store.before = None
        let_go.set()
    assert (process.returncode, err.splitlines()[-2:]) == (130, ["error: interrupted", f"hint: {FETCH}"])
    home = camp.folder / "runs" / "sh-1"
    missing = json.loads((home / "run.json").read_text())["missing"]
    assert missing == (
        f"node1 ended before all results were home; what node1 kept is in {PLACE}; `gpuops pull sh-1` fetches it"
    )
    assert (home / "out/made.pt").read_text() == "0\n"
    store.asked.clear()
    done = camp.run("pull", "sh-1")
    assert done.returncode == 0, done.stderr
    assert not [one for one in store.asked if "node0.tar" in one.path], "what is home is not fetched again"
    expect_all_home(camp)
    camp.expect_clean()


def test_the_guard_ends_them_first_as_well(camp: Shell, store: FakeBucket, standing: list[int]) -> None:
    process = begin(camp, store)
    process.kill()
    process.communicate()
    (camp.home / "away").touch()
    until(lambda: camp.json("runs")["runs"][0]["outcome"] == "done", "the guard has all of it")
    assert set(standing) == {0}
    expect_all_home(camp)
    camp.expect_clean()
