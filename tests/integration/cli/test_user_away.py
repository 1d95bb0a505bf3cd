"""Runs on rented nodes whose user is away: who is asked, what is said, and what becomes of the results."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from gpuops.agent.client_activity import is_person_logged_in
from tests.conftest import Shell, until
from tests.files import change
from tests.integration.cli.heard import at_terminal
from tests.system.chaos.hits import guards, kill

SINK = ("--sink", "volume:data")
WORLD_SEES = "somebody is logged in here by SSH: no rented node ends under them"
MAKES = "echo made > made.pt; echo done"


def tents(camp: Shell) -> list[Path]:
    return sorted((camp.home / "tent" / "ground").glob("*.json"))


def nodes(camp: Shell) -> list[Path]:
    return sorted((camp.home / "tent" / "nodes").glob("*/n[0-9]*"))


def leave(camp: Shell) -> None:
    """This computer is shut: nothing of ours goes on here, and nobody on the nodes is told."""
    for guard in guards(camp):
        kill(guard)


def detach(camp: Shell, *flags: str, script: str = MAKES, idle_s: float | None = None) -> str:
    """Start a run and shut this computer while it goes on. `idle_s`: what its nodes bear from then on without use; they
    would not bear so little while a busy machine prepares the run."""
    away = camp.home / "away"
    wait = f"until [ -e '{away}' ]; do sleep 0.1; done; "
    done = camp.run("run", "--on", "tent", "--detach", "--yes", *flags, "--", "sh", "-c", wait + script)
    assert done.returncode == 0, done.stderr
    leave(camp)
    for node in nodes(camp) if idle_s is not None else ():
        change(node / "lease.json", idle_s=idle_s)
    away.touch()
    return done.stderr


def ended(camp: Shell, node: int = 0) -> Any:
    """The result of the one run, as its node knows it."""
    path = nodes(camp)[node] / "runs" / "sh-1" / "result.json"
    until(path.exists, "the run's end")
    return json.loads(path.read_text())


def runs(camp: Shell) -> dict[str, Any]:
    """The one run, once somebody has concluded it."""
    assert camp.run("runs").returncode == 0  # any command starts the guard
    until(lambda: camp.run_states() == ["home"], "the guard's work")
    found: dict[str, Any] = camp.json("runs")["runs"][0]
    return found


def gone(camp: Shell) -> None:
    """A rented machine goes with its disk."""
    until(lambda: not camp.processes(), "every process on it has ended")
    shutil.rmtree(camp.home / "tent" / "nodes")


@pytest.mark.parametrize("yes", [[], ["--yes"]])
def test_who_detaches_must_say_who_keeps_the_results(camp: Shell, yes: list[str]) -> None:
    done = camp.run("run", "--on", "tent", "--detach", *yes, "--", "true")
    assert done.returncode == 2
    assert done.stderr.endswith(
        "error: with --detach results are lost where this computer is away when the run ends\n"
        "hint: say --grace 2 (the nodes wait 2 h 00 min for it, for at most $0.72), "
        "or --sink s3://BUCKET/PREFIX or volume:NAME (which keeps them)\n"
    )
    assert not tents(camp)
    assert camp.run("run", "--on", "local", "--detach", "--", "true").returncode == 0, "one's own machines stay"


def test_on_a_terminal_it_is_asked(camp: Shell) -> None:
    code, _, shown = at_terminal(camp, "n\n", "run", "--on", "tent", "--detach", "--", "true")
    assert code == 2
    assert "wait up to 2 h 00 min for this computer to fetch the results, for at most $0.72? [y/N]" in shown
    assert not tents(camp)
    code, _, shown = at_terminal(camp, "y\ny\n", "run", "--on", "tent", "--detach", "--", "true")
    assert code == 0, shown
    assert "detached: the guard brings the results home" in shown


@pytest.mark.parametrize("hours", ["0", "-1", "nan", "inf"])
def test_a_wait_that_is_none(camp: Shell, hours: str) -> None:
    done = camp.run("run", "--grace", hours, "--", "true")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: --grace {float(hours):g} is no time to wait\n")


def test_results_wait_for_the_computer_longer_than_a_node_stands_idle(camp: Shell) -> None:
    said = detach(camp, "--grace", "1", "--idle", "60", idle_s=1.2)
    assert "note: results are lost unless this computer is back within 1 h 00 min after the run's end, and " in said
    ended(camp)
    with pytest.raises(AssertionError):
        until(lambda: not tents(camp), "it has ended", hang_s=5.0)
    found = runs(camp)
    assert found["say"] == "the command ended well"
    assert (Path(found["home"]) / "out" / "made.pt").read_text() == "made\n"
    until(lambda: not tents(camp), "the tent is struck once they are home")
    camp.expect_clean()


@pytest.mark.skipif(is_person_logged_in(), reason=WORLD_SEES)
def test_a_wait_ends_too(camp: Shell) -> None:
    detach(camp, "--grace", "0.0005", "--idle", "60")
    until(lambda: not tents(camp), "the node has ended itself")
    gone(camp)
    assert runs(camp)["outcome"] == "lost"
    camp.expect_clean()


def test_the_nodes_are_told_that_the_results_are_home(camp: Shell) -> None:
    assert camp.run("up", "tent", "--name", "lab", "--yes").returncode == 0
    done = camp.run("run", "--grace", "1", "--", "sh", "-c", MAKES)
    assert done.returncode == 0, done.stderr
    assert (nodes(camp)[0] / "runs" / "sh-1" / "home.json").exists()


@pytest.fixture
def chest(camp: Shell) -> Path:
    """A network volume, as tents have them."""
    folder = camp.home / "tent" / "chests" / "data"
    folder.mkdir(parents=True)
    return folder


def test_with_this_computer_on_results_come_home_as_usual_and_are_kept_as_well(camp: Shell, chest: Path) -> None:
    done = camp.run("run", "--on", "tent", "--yes", *SINK, "--", "sh", "-c", MAKES)
    assert done.returncode == 0, done.stderr
    assert "note: results are kept on the network volume data, in gpuops/sh-1 as well" in done.stderr
    assert "kept     safe on the network volume data, in gpuops/sh-1" in done.stderr
    assert (camp.folder / "runs/sh-1/out/made.pt").read_text() == "made\n"
    assert (chest / "gpuops/sh-1/node0/out/made.pt").read_text() == "made\n"
    assert (chest / "gpuops/sh-1/node0/safe.json").exists()
    assert not tents(camp)
    camp.expect_clean()


@pytest.mark.skipif(is_person_logged_in(), reason=WORLD_SEES)
def test_away_the_nodes_keep_the_results_and_end_themselves(camp: Shell, chest: Path) -> None:
    """The machines go with their disks long before anybody is back."""
    said = detach(camp, *SINK, "--nodes", "2", "--all-nodes", script="echo $GPUOPS_NODE > made.pt; echo done")
    assert "results are lost" not in said
    until(lambda: not tents(camp), "both nodes have ended themselves")
    gone(camp)
    for node in (0, 1):
        assert (chest / f"gpuops/sh-1/node{node}/out/made.pt").read_text() == f"{node}\n"
        assert (chest / f"gpuops/sh-1/node{node}/logs/launcher.out").read_text() == "done\n"
    found = runs(camp)
    assert (found["outcome"], found["say"]) == (
        "unclear",
        "its nodes ended while this computer was away; what they kept is on the network volume data, in gpuops/sh-1",
    )
    until(lambda: not camp.cluster_states(), "the ledger to know")
    camp.expect_clean()


def test_a_cluster_that_stays_has_what_was_mounted_when_it_came_up(camp: Shell, chest: Path) -> None:
    assert camp.run("up", "tent", "--name", "lab", "--yes", "--volume", "data").returncode == 0
    assert camp.run("run", *SINK, "--", "sh", "-c", MAKES).returncode == 0
    assert (chest / "gpuops/sh-1/node0/safe.json").exists()
    missing = camp.run("run", "--sink", "volume:other", "--", "true")
    assert missing.returncode == 2
    assert "error: the network volume other is not mounted on lab\nhint: " in missing.stderr
    assert [one["state"] for one in camp.clusters()] == ["up"]
    chest.rename(chest.with_name("away"))
    lost = camp.run("run", *SINK, "--", "true")
    assert lost.returncode == 4, lost.stderr
    assert f"{chest}/gpuops/true-1 cannot keep this run's results: No such file or directory" in lost.stderr


@pytest.mark.parametrize(
    ("words", "say"),
    [
        (["--sink", "s3://Bucket/x"], "--sink s3://Bucket/x names no bucket"),
        (["--sink", "volume"], "--sink volume names no place for results"),
        (["--sink", "volume:"], "--sink volume: names no place for results"),
        (["--sink", "data"], "--sink data names no place for results"),
        (["--sink", ""], "--sink is empty"),
        (["--sink", "volume:data"], "local mounts no network volume that --sink could keep results on"),
        (
            ["--on", "local", "--sink", "volume:data"],
            "local mounts no network volume that --sink could keep results on",
        ),
        (["--on", "tent", "--volume", "a", "--sink", "volume:b"], "--sink volume:b and --volume a name two volumes"),
    ],
)
def test_a_sink_that_is_none(camp: Shell, words: list[str], say: str) -> None:
    done = camp.run("run", *words, "--", "true")
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, f"error: {say}")
    assert not tents(camp)
