"""`--retries`: machines that their provider takes back, and what becomes of the run (tests/fakes/fair.py)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import HANG_S, Shell, until
from tests.fakes import fair
from tests.integration.cli.heard import spoken

ROOT = str(Path(__file__).parents[3])
PROGRAM = """
import json, os, pathlib, signal, sys, time
saved = pathlib.Path("saved.txt")
resumed = saved.exists()
done = int(saved.read_text()) if resumed else 0
print("began at", done, flush=True)
def tell(step, saved_at):
    path = os.environ["GPUOPS_PROGRESS"]
    with open(path + ".new", "w") as file:
        json.dump({"step": step, "saved": saved_at}, file)
    os.replace(path + ".new", path)
tell(done, done)
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
for step in range(done + 1, done + 8):
    time.sleep(0.3)
    if step == done + 5:
        pathlib.Path("draft").write_text(str(step))
        os.replace("draft", saved)  # it is fetched meanwhile
    tell(step, done + 5 if step >= done + 5 else done)
if resumed and len(sys.argv) == 1:
    time.sleep(2.5)
    sys.exit(0)
print("waits", flush=True)
time.sleep(600)
"""


DETACHED = (
    "--detach and --retries 2 exclude each other: the guard downloads results and ends machines, and starts no run"
)
WOULD = "replace machines that are taken back up to 2 times, elsewhere first and within the same limits, and resume"
NONE = (
    "error: none of 3 offers could be had: no capacity: no tent is left in the east; "
    "beyond the quota: the quota of the west is used up"
)


@pytest.fixture
def fairground(shell: Shell, tmp_path: Path) -> Shell:
    """A shell in which tents of the fair can be rented, and a project whose run goes on from what it saved."""
    shell.env["PYTHONPATH"] = os.pathsep.join([*fair.settle(tmp_path / "site"), ROOT])
    shell.write("job.py", PROGRAM)
    return shell


def tents(shell: Shell) -> Path:
    return shell.home / "tent"


def begin(shell: Shell, *words: str, program: str = "job.py") -> subprocess.Popen[str]:
    argv = ["run", "--on", "fair", "--yes", "--out", "saved.txt", *words, "--", "python3", *program.split()]
    return shell.start(*argv)


def home_by(shell: Shell, run: str) -> None:
    """What the run has saved is home, while it goes on."""
    until(lambda: (shell.folder / "runs" / run / "out" / "saved.txt").exists(), f"the snapshot of {run}, at home")


def record(shell: Shell, run: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((shell.folder / "runs" / run / "run.json").read_text())
    return found


def test_it_goes_on_elsewhere_from_what_came_home(fairground: Shell) -> None:
    command = begin(fairground, "--retries", "2", "--json")
    home_by(fairground, "python3-1")
    assert fair.take_back(tents(fairground))
    out, err = command.communicate(timeout=HANG_S)
    assert command.returncode == 0, err
    assert "node0 was reclaimed; retry 1 of 2: looking for machines elsewhere than east\n" in err
    assert f"node0 is gone: {fair.WHY}\n" in err
    assert "the top one is tried first: the best elsewhere than east" in err
    assert "1 file of python3-1 put back on every node\n" in err
    assert fair.asked(tents(fairground)) == ["east", "west"]
    document = json.loads(out)
    (loss,) = document["retries"]
    assert (loss["run"], loss["place"], loss["node"]) == ("python3-1", "east", 0)
    assert loss["cost"] > 0
    assert document["run"] == "python3-2"
    assert document["verdict"]["outcome"] == "done"
    assert record(fairground, "python3-1")["verdict"]["outcome"] == "reclaimed"
    assert record(fairground, "python3-2")["retries"] == document["retries"]
    assert "began at 5" in (fairground.folder / "runs" / "python3-2" / "logs" / "node0" / "launcher.out").read_text()
    assert fairground.clusters() == []
    fairground.expect_clean()


class Notices(BaseHTTPRequestHandler):
    """The metadata service of a machine: a notice in each place of `server.going`, which has an address of its own."""

    def do_PUT(self) -> None:
        self._answer(200, b"token")

    def do_GET(self) -> None:
        place = [*fair.PLACES][int(self.connection.getsockname()[0].rpartition(".")[2]) - 1]
        if self.path.endswith("spot/instance-action") and place in self.server.going:  # type: ignore[attr-defined]
            at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 120))
            return self._answer(200, json.dumps({"action": "terminate", "time": at}).encode())
        return self._answer(404, b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def notices(fairground: Shell) -> Iterator[set[str]]:
    """The places whose tents hear that they are taken back."""
    with ThreadingHTTPServer(("", 0), Notices) as server:
        server.going = set()  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        fairground.env["FAIR_NOTICES"] = f"http://127.0.0.PLACE:{server.server_port}"
        yield server.going  # type: ignore[attr-defined]
        server.shutdown()


def test_a_notice_and_what_it_cost(fairground: Shell, notices: set[str]) -> None:
    """The steps that no snapshot had, and the seconds from the notice to the first new step."""
    command = begin(fairground, "--retries", "1", "--json")
    log = fairground.folder / "runs" / "python3-1" / "logs" / "node0" / "launcher.out"
    until(lambda: log.exists() and "waits" in log.read_text(), "a run that has done its steps")
    notices.add("east")
    out, err = command.communicate(timeout=HANG_S)
    assert command.returncode == 0, err
    assert "node0 was reclaimed at step 7; retry 1 of 1: looking for machines elsewhere than east\n" in err
    (loss,) = json.loads(out)["retries"]
    assert (loss["step"], loss["saved"], loss["steps_lost"]) == (7, 5, 2)
    assert loss["gap_s"] > 0
    assert "before   python3-1 was reclaimed in east at step 7: 2 steps lost, " in err
    assert " from the notice to the first new step\n" in err
    assert " with what was reclaimed before\n" in err
    fairground.expect_clean()


@pytest.fixture
def reclaimed(fairground: Shell, notices: set[str]) -> Shell:
    """A fairground where every tent is taken back as soon as a run is in it."""
    notices.update(fair.PLACES)
    tents(fairground).mkdir(parents=True)
    return fairground


def nowhere_else(shell: Shell) -> None:
    """One tent can be had, in the east, and no other one."""
    (tents(shell) / "once").write_text("east")
    (tents(shell) / "full").write_text("west north")


def fragile(shell: Shell, *places: str) -> None:
    tents(shell).mkdir(parents=True)
    (tents(shell) / "fragile").write_text(" ".join(places))


def test_taken_back_before_it_was_ready(fairground: Shell) -> None:
    """It is a retry like any other: nothing is left of it, the next place is tried, and the receipt has it."""
    fragile(fairground, "east")
    fairground.write("job.py", "print('done')")
    done = fairground.run("run", "--on", "fair", "--yes", "--retries", "1", "--json", "--", "python3", "job.py")
    assert done.returncode == 0, done.stderr
    assert fair.asked(tents(fairground)) == ["east", "west"]
    ended = f"ended before it was ready: {fair.WHY}; retry 1 of 1: looking for machines elsewhere than east\n"
    assert ended in done.stderr
    assert "fair-1 is undone, nothing of it is left\n" in done.stderr
    assert "before   fair-1 was lost in east before its run began" in done.stderr
    document = json.loads(done.stdout)
    (loss,) = document["retries"]
    assert (loss["run"], loss["cluster"], loss["place"], loss["node"]) == ("", "fair-1", "east", 0)
    assert (loss["started"], loss["warned"], loss["resumable"]) == (False, False, False)
    assert loss["cost"] > 0
    assert document["run"] == "python3-1"
    assert record(fairground, "python3-1")["retries"] == document["retries"]
    assert fairground.clusters() == []
    fairground.expect_clean()


def test_taken_back_while_it_is_made_ready(fairground: Shell, tmp_path: Path) -> None:
    """What it was ready for had not begun."""
    begun = tmp_path / "begun"
    fairground.write("job.py", "print('done')")
    setup = f"test -e {begun} || {{ touch {begun}; sleep 600; }}"
    words = ("run", "--on", "fair", "--yes", "--retries", "1", "--json", "--setup", setup, "--", "python3", "job.py")
    command = fairground.start(*words)
    until(begun.exists, "the setup has begun")
    fair.take_back(tents(fairground))
    out, err = command.communicate(timeout=HANG_S)
    assert command.returncode == 0, err
    assert f"ended before its run began: {fair.WHY}; retry 1 of 1: looking for machines elsewhere than east\n" in err
    assert fair.asked(tents(fairground)) == ["east", "west"]
    (loss,) = json.loads(out)["retries"]
    assert (loss["started"], loss["place"]) == (False, "east")
    assert fairground.clusters() == []
    fairground.expect_clean()


@pytest.mark.parametrize(
    ("words", "why"), [((), ""), (("--retries", "1"), "; not tried again: --retries 1 is used up")]
)
def test_no_more_often_than_was_said_before_there_is_a_run(fairground: Shell, words: tuple[str, ...], why: str) -> None:
    fragile(fairground, "east", "west")
    done = fairground.run("run", "--on", "fair", "--yes", *words, "--", "true")
    assert done.returncode == 4, done.stderr
    assert fair.asked(tents(fairground)) == ["east", "west"][: 1 + bool(words)]
    *_, cost, said, hint = done.stderr.splitlines()
    in_vain = re.fullmatch(r"cost     about \$\d+\.\d\d, for machines that went before there was a run", cost)
    assert bool(in_vain) == bool(words), done.stderr
    assert said.endswith(f"-0 ended before it was ready: {fair.WHY}{why}")
    assert said.startswith("error: ")
    assert hint == "hint: try again, or look at the provider's console"
    assert fairground.clusters() == []
    fairground.expect_clean()


def test_taken_back_with_a_run_and_then_without_one(fairground: Shell) -> None:
    """The last one's gap goes on to the first step after both; what is told at the end is of the last run there was."""
    command = begin(fairground, "--retries", "2", "--json")
    home_by(fairground, "python3-1")
    (tents(fairground) / "fragile").write_text("west")
    assert fair.take_back(tents(fairground))
    out, err = command.communicate(timeout=HANG_S)
    assert command.returncode == 0, err
    assert fair.asked(tents(fairground)) == ["east", "west", "north"]
    first, second = json.loads(out)["retries"]
    assert (first["run"], first["started"], second["run"], second["started"]) == ("python3-1", True, "", False)
    assert first["gap_s"] > second["gap_s"] > 0
    assert "1 file of python3-1 put back on every node\n" in err
    fairground.expect_clean()


def test_nothing_is_left_to_try_after_a_run(fairground: Shell) -> None:
    command = begin(fairground, "--retries", "1", "--json")
    home_by(fairground, "python3-1")
    (tents(fairground) / "fragile").write_text("west")
    assert fair.take_back(tents(fairground))
    out, err = command.communicate(timeout=HANG_S)
    assert command.returncode == 4, err
    document = json.loads(out)
    assert (document["run"], document["exit_code"]) == ("python3-1", 4)
    assert document["error"]["say"].endswith(f"ended before it was ready: {fair.WHY}")
    assert document["error"]["hint"].endswith("; go on from what is home: --resume python3-1")
    assert "\nnot tried again: --retries 1 is used up\n" in err
    fairground.expect_clean()


def test_nothing_can_be_had_any_more(reclaimed: Shell) -> None:
    nowhere_else(reclaimed)
    command = begin(reclaimed, "--retries", "3", "--wait", "1s", "--json", program="job.py for-ever")
    out, err = command.communicate(timeout=HANG_S)
    assert command.returncode == 3, err
    document = json.loads(out)
    assert (document["run"], document["exit_code"]) == ("python3-1", 3)
    assert document["error"]["say"].startswith("none of 3 offers could be had: no tent is left in the west")
    assert len(document["retries"]) == 1
    first, *again = fair.asked(tents(reclaimed))
    rounds = len(again) // 3  # two, unless the second of waiting is over before all have been asked
    assert first == "east"
    assert again == ["west", "north", "east"] * rounds != [], "where it was reclaimed comes last, and all are asked"
    assert reclaimed.clusters() == []
    reclaimed.expect_clean()


def test_no_more_often_than_was_said(reclaimed: Shell) -> None:
    command = begin(reclaimed, "--retries", "1", program="job.py for-ever")
    _, err = command.communicate(timeout=HANG_S)
    assert command.returncode == 4, err
    assert fair.asked(tents(reclaimed)) == ["east", "west"]
    assert "\nnot tried again: --retries 1 is used up\n" in err
    reclaimed.expect_clean()


def test_the_limits_are_the_jobs(reclaimed: Shell) -> None:
    """Less than ten minutes are left of the hours: no second machine, and the verdict stands."""
    command = begin(reclaimed, "--retries", "2", "--max-hours", "0.15", program="job.py for-ever")
    _, err = command.communicate(timeout=HANG_S)
    assert command.returncode == 4, err
    assert fair.asked(tents(reclaimed)) == ["east"]
    assert "\nnot tried again: the job may go on for less than 10 min: --max-hours counts" in err
    assert reclaimed.clusters() == []


def test_interrupted_while_it_looks(reclaimed: Shell) -> None:
    """It goes on asking for half an hour, where nobody has said how long."""
    nowhere_else(reclaimed)
    command = begin(reclaimed, "--retries", "2", program="job.py for-ever")
    assert command.stderr
    assert any(re.search(r"asking again for (29:\d\d|30) min", line) for line in iter(command.stderr.readline, "")), (
        "a retry that waits"
    )
    until(lambda: [one["state"] for one in reclaimed.clusters()] == ["creating"], "a cluster that waits")
    command.send_signal(signal.SIGINT)
    _, err = command.communicate(timeout=HANG_S)
    assert command.returncode == 130, err
    assert reclaimed.clusters() == []
    reclaimed.expect_clean()


def test_killed_while_it_looks(reclaimed: Shell) -> None:
    """The guard undoes what the retry had begun; the first run is home."""
    nowhere_else(reclaimed)
    command = begin(reclaimed, "--retries", "2", "--wait", "2h", program="job.py for-ever")
    asked = tents(reclaimed) / "asked"
    until(lambda: asked.exists() and len(fair.asked(tents(reclaimed))) >= 4, "a retry that waits")
    command.kill()
    command.wait()
    until(lambda: not reclaimed.cluster_states(), "an end to what the killed command had begun")
    assert record(reclaimed, "python3-1")["verdict"]["outcome"] == "reclaimed"
    reclaimed.expect_clean()


@pytest.mark.parametrize(
    ("words", "say", "hint"),
    [
        (["--on", "fair", "--retries", "-1"], "--retries -1 is less than none", "--retries takes a number from 0"),
        (["--on", "fair", "--retries", "2", "--detach"], DETACHED, "leave out one of them"),
    ],
)  # fmt: skip
def test_where_there_is_nothing_to_replace(fairground: Shell, words: list[str], say: str, hint: str) -> None:
    done = fairground.run("run", *words, "--yes", "--", "true")
    assert (done.returncode, spoken(done.stderr)) == (2, [f"error: {say}", f"hint: {hint}"])


DIES_ONCE = """
import os, sys
if not os.path.exists("snapshot.pt"):
    open("snapshot.pt", "w").write("half of it")
    sys.exit("a bad batch")
print("goes on from", open("snapshot.pt").read())
"""


def test_a_run_that_fails_on_nodes_of_ones_own_is_started_again_with_what_it_left(shell: Shell) -> None:
    shell.write("once.py", DIES_ONCE)
    done = shell.run("run", "--retries", "2", "--", "python3", "once.py")
    assert done.returncode == 0, done.stderr
    assert "goes on from half of it" in done.stdout
    (again,) = (line for line in done.stderr.splitlines() if "retry" in line)
    assert (
        again == "the command failed with exit code 1: a bad batch; retry 1 of 2 on local-1, from what python3-1 left"
    )
    assert "1 file of python3-1 put back on every node" in done.stderr
    assert [row["outcome"] for row in shell.json("runs")["runs"]] == ["failed", "done"]
    shell.expect_clean()


def test_a_dry_run_and_the_projects_file(fairground: Shell) -> None:
    fairground.write("gpuops.toml", "[run]\nretries = 2\n")
    assert fairground.run("trust", "--yes").returncode == 0
    done = fairground.run("run", "--on", "fair", "--dry-run", "--", "true")
    assert done.stdout.splitlines()[-1] == f"would {WOULD}"
    own = fairground.run("run", "--dry-run", "--", "true").stdout.splitlines()[-1]
    assert own == "would start a run that fails again up to 2 times, on the same nodes and with what it left"


def test_a_quota_takes_its_own_offers_out(fairground: Shell) -> None:
    tents(fairground).mkdir(parents=True)
    (tents(fairground) / "full").write_text("east")
    (tents(fairground) / "short").write_text("west north")
    done = fairground.run("run", "--on", "fair", "--yes", "--", "true")
    assert done.returncode == 3
    assert fair.asked(tents(fairground)) == ["east", "west"]
    assert done.stderr.splitlines()[-2:] == [
        NONE,
        "hint: for the capacity: wait, or go elsewhere; for the quota: file a request",
    ]


def test_taken_back_while_nobody_looks(fairground: Shell) -> None:
    """The guard finds the machine gone, and says how, in the verdict and to the next command."""
    command = begin(fairground)
    home_by(fairground, "python3-1")
    command.kill()
    command.wait()
    fair.take_back(tents(fairground))
    until(lambda: not fairground.cluster_states(), "the guard's end of it")
    kept = record(fairground, "python3-1")
    assert kept["verdict"]["outcome"] == "reclaimed"
    assert kept["nodes_ended"]["0"]["reason"] == {"kind": "gone", "reclaimed": True, "say": fair.WHY}
    fairground.expect_clean()
