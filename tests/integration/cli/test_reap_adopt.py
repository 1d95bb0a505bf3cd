"""A lost ledger: what lives is seen, named, and taken back with the run that goes on there."""

from __future__ import annotations

import os
from pathlib import Path

from tests.conftest import HANG_S, Shell, until
from tests.integration.cli.heard import at_terminal, spoken
from tests.sshd import Sshd

COUNT = "for i in $(seq 1 6000); do echo $i; sleep 0.1; [ -e {go} ] && break; done; echo end > result.pt"
"""Counts until a file appears, for ten minutes at most, then leaves a result."""
BACK = "`gpuops reap --adopt` takes back what does, `gpuops reap` ends it"
TAKE = "`gpuops reap --adopt` takes it back, `gpuops reap` ends it"


def count_on(shell: Shell, *words: str) -> Path:
    """Start the counting; the file that ends it."""
    go = shell.home / "go"
    done = shell.run("run", "--detach", *words, "--", "sh", "-c", f"echo edited > notes.txt; {COUNT.format(go=go)}")
    assert done.returncode == 0, done.stderr
    log = shell.folder / "runs/sh-1/logs/node0/launcher.out"
    until(lambda: log.exists() and log.read_bytes().startswith(b"1\n"), "the first line at home")
    return go


def expect_whole(shell: Shell, go: Path, nodes: int) -> None:
    """From here to the end: every byte of the log, the results, then nothing is left."""
    follow = shell.start("logs", "-f")
    go.touch()
    out, err = follow.communicate(timeout=HANG_S)
    assert follow.returncode == 0, err
    lines = [line.rpartition(" ")[2] for line in out.splitlines()]
    assert lines.count("1") == nodes
    assert sorted({int(line) for line in lines}) == list(range(1, max(map(int, lines)) + 1))
    until(lambda: shell.run_states() == ["home"], "the results at home")
    assert (shell.folder / "runs/sh-1/out/result.pt").read_text() == "end\n"
    down = shell.run("down", "lab")
    assert (down.returncode, down.stderr.splitlines()[-1]) == (0, "lab is gone"), down.stderr


def damage(shell: Shell) -> None:
    """A ledger that is none, from one moment to the next; the first to see it is the next command, and no guard."""
    until(lambda: not [line for line in shell.processes() if "gpuops.guard.daemon" in line], "the guard to leave")
    (shell.home / "damaged").write_bytes(b"no database " * 400)
    os.replace(shell.home / "damaged", shell.home / "ledger.db")


def answered(shell: Shell, answer: str, *words: str) -> str:
    """What a command prints, typed in a terminal where its questions are answered."""
    code, out, shown = at_terminal(shell, answer, *words)
    assert code == 0, shown
    assert "lab at local (1 node): end, adopt or leave? [leave] " in shown
    return out


def test_a_ledger_that_was_removed_under_a_run(shell: Shell) -> None:
    assert shell.run("up", "local", "--name", "lab", "--nodes", "2", "--max-hours", "2").returncode == 0
    go = count_on(shell, "--all-nodes")
    (shell.home / "ledger.db").unlink()

    said = shell.run("status")
    assert said.stdout == "nothing is up\n"
    assert spoken(said.stderr) == [f"note: lab may still live, and the ledger does not know of it: {BACK}"]
    cloud = shell.run("status", "--cloud")
    assert cloud.stdout.splitlines()[-1] == f"not in the ledger: {TAKE}"
    unasked = shell.run("reap")
    assert (unasked.returncode, unasked.stdout) == (5, "")
    assert spoken(unasked.stderr) == [
        "found lab at local (2 nodes), sh-1 is going on there",
        "error: cannot ask what to do with 1 orphaned cluster: no terminal",
        "hint: take back what still lives: gpuops reap --adopt; or end it: gpuops reap --yes",
    ]
    other = shell.run("up", "local", "--name", "lab")
    assert other.returncode == 3, other.stderr
    assert "belongs to a node of lab that was made before" in other.stderr
    assert "hint: take back what is there: gpuops reap --adopt" in other.stderr
    for words in ("down",), ("down", "lab"), ("down", "--all"):
        down = shell.run(*words)
        assert (down.returncode, down.stdout) == (5, ""), words
        assert "error: lab may still live, and the ledger does not know of it\n" in down.stderr

    back = shell.run("reap", "--adopt")
    assert back.returncode == 0, back.stderr
    lease, run = back.stdout.splitlines()
    assert lease.startswith("lab is back: 2 nodes on local; ends in 1 h 5")
    assert run == f"sh-1 is followed again; its results come to {shell.folder}/runs/sh-1"
    assert [(one["name"], one["run"], one["nodes"]) for one in shell.clusters()] == [("lab", "sh-1", ["running"] * 2)]
    assert shell.run("lease", "lab", "--extend", "1h").stdout.startswith("lab: ends in 2 h 5")
    assert shell.run("reap", "--adopt").stdout == "nothing left over\n"
    expect_whole(shell, go, 2)
    shell.expect_clean()


def test_a_ledger_that_was_damaged(shell: Shell) -> None:
    """Runs of the past come back as well, with their verdicts; what is new is asked for under the old name."""
    assert shell.run("up", "local", "--name", "lab").returncode == 0
    assert shell.run("run", "--", "sh", "-c", "echo x > a.pt; exit 3").returncode == 1
    damage(shell)
    said = shell.run("runs")
    (aside,) = shell.home.glob("ledger.db.damaged-*")
    assert f"the ledger was damaged and is kept as {aside}; `gpuops reap --adopt` takes back" in said.stderr
    assert answered(shell, "what?\n\n", "reap") == "1 left as they are\n"
    assert answered(shell, "a\n", "reap").startswith("lab is back: 1 node on local; ")
    (run,) = shell.json("runs")["runs"]
    assert (run["run"], run["state"], run["say"]) == ("sh-1", "home", "the command failed with exit code 3")
    assert shell.run("run", "--", "true").returncode == 0
    assert [one["run"] for one in shell.json("runs")["runs"]] == ["sh-1", "true-1"]
    assert shell.run("down").returncode == 0
    shell.expect_clean()


def test_on_a_host_of_ones_own(shell: Shell, host: Sshd) -> None:
    """The book of hosts is what finds it again; `stop` works on what was taken back; edits are home before it goes."""
    where = f"{host.user}@127.0.0.1:{host.port}"
    up = shell.run("up", "ssh", "--name", "lab", "--host", where, "--identity", str(host.identity), "--accept-new")
    assert up.returncode == 0, up.stderr
    go = count_on(shell)
    (shell.home / "ledger.db").unlink()
    back = shell.run("reap", "--adopt")
    assert back.returncode == 0, back.stderr
    assert back.stdout.splitlines()[0] == "lab is back: 1 node on ssh; no end: `gpuops down` ends it"
    assert shell.run("ssh", "lab", "--", "cat", "notes.txt").stdout == "edited\n"
    expect_whole(shell, go, 1)
    assert not list(host.home.glob(".gpuops-*"))
    shell.expect_clean()
