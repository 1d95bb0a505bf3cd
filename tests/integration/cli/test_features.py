"""What each flag promises, on real local nodes."""

from __future__ import annotations

import json
import os
import sys
import venv
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.conftest import HANG_S, Shell, until
from tests.files import written_in
from tests.integration.cli.counting import MEETS
from tests.integration.cli.heard import spoken

SECRET = "hush-4f1d9c7e"
"""Nothing else in the world reads like this."""


@pytest.fixture
def lab(shell: Shell) -> Shell:
    """A shell with a live cluster of one node for its folder."""
    assert shell.run("up", "local", "--name", "lab").returncode == 0
    return shell


def good(shell: Shell, *words: str) -> str:
    """Type a command that must end well; its stdout."""
    done = shell.run(*words)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def node_file(shell: Shell, name: str, node: int = 0) -> Path:
    return shell.home / "local" / "lab" / f"n{node}" / "project" / name


# Environment and secrets.


def test_env_takes_a_value_or_yours(shell: Shell) -> None:
    shell.env |= {"MINE": "from here", "NOT_SENT": "stays"}
    words = ["--env", "GIVEN=a=b c", "--env", "MINE", "--env", "EMPTY="]
    out = good(shell, "run", *words, "--", "sh", "-c", 'echo "$GIVEN|$MINE|${EMPTY-unset}"')
    assert out == "a=b c|from here|\n"


def places_of(secret: str, folders: list[Path]) -> list[str]:
    """Files, command lines and environments of nobody but the run that hold a text."""
    found = [str(path) for path, data in written_in(*folders).items() if secret.encode() in data]
    for process in psutil.process_iter():
        try:
            if any(secret in word for word in process.cmdline()):
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize("source", ["environment", ".env"])
def test_a_secret_is_in_the_runs_environment_and_nowhere_else(shell: Shell, source: str) -> None:
    if source == ".env":
        shell.write(".env", f"TOKEN={SECRET}\n")
    else:
        shell.env["TOKEN"] = SECRET
    shell.write("a.py", "import os, time\nprint(len(os.environ['TOKEN']), flush=True)\n"
                "while not os.path.exists(os.environ['GPUOPS_STOP_FILE']): time.sleep(0.1)\n")  # fmt: skip
    process = shell.start("run", "--secret", "TOKEN", "--", "python3", "a.py")
    home = shell.folder / "runs" / "python3-1" / "logs" / "node0" / "launcher.out"
    until(lambda: home.exists() and home.read_text() == f"{len(SECRET)}\n", "the run to have its secret")
    folders = [shell.home, shell.folder / "runs"]
    assert places_of(SECRET, folders) == []
    assert any("a.py" in line for line in holders_of("TOKEN", SECRET))
    assert shell.run("stop").returncode == 0
    process.communicate(timeout=HANG_S)
    assert places_of(SECRET, folders) == []


def holders_of(name: str, value: str) -> Iterator[list[str]]:
    """Command lines of the processes, none of them ours, that have this in their environment."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(name) == value and process.ppid() != os.getpid():
                yield process.cmdline()


def test_the_prelude_runs_in_every_ranks_shell(shell: Shell) -> None:
    shell.write("a.py", MEETS + "print(os.environ['LOADED'], os.environ['RANK'])\n")
    words = ["--prelude", "load() { export LOADED=$1-$RANK; }", "--prelude", "load cuda"]
    out = good(shell, "train", "multinode", "--gpus", "1", *words, "a.py")
    assert sorted(out.splitlines()) == ["[n0 r0] cuda-0 0", "[n1 r1] cuda-1 1"]


# Which cluster, and how long.


def test_queue_waits_for_its_turn(lab: Shell) -> None:
    lab.write("wait.sh", 'echo first; until [ -e "$GPUOPS_STOP_FILE" ]; do sleep 0.1; done; echo end')
    first = lab.start("run", "--", "sh", "wait.sh")
    log = lab.folder / "runs/sh-1/logs/node0/launcher.out"
    until(lambda: log.exists() and log.read_text() == "first\n", "the first to run")
    second = lab.start("run", "--queue", "--", "echo", "second")
    assert second.stderr
    said = iter(second.stderr.readline, "")
    assert any(line == "waiting for sh-1 on lab\n" for line in said)
    assert good(lab, "stop", "sh-1") == f"sh-1 is stopped; its results are in {lab.folder}/runs/sh-1\n"
    assert first.communicate(timeout=HANG_S)[0] == "first\nend\n"
    assert second.communicate(timeout=HANG_S)[0] == "second\n"
    assert second.returncode == 0


def test_detach_returns_and_the_guard_finishes(shell: Shell) -> None:
    done = shell.run("run", "--detach", "--", "sh", "-c", "sleep 2; echo late; echo made > made.pt")
    assert done.returncode == 0
    assert done.stderr.splitlines()[-1] == (
        "detached: the guard brings the results home, then ends the nodes; follow it with: gpuops logs sh-1 -f"
    )
    assert done.stdout == ""
    assert good(shell, "logs", "-f") == "late\n"
    until(lambda: not shell.cluster_states(), "the guard's end of the cluster")
    assert (shell.folder / "runs/sh-1/out/made.pt").read_text() == "made\n"
    assert shell.json("runs")["runs"][0]["outcome"] == "done"
    shell.expect_clean()


def test_keep_leaves_the_cluster_for_the_next_run(shell: Shell) -> None:
    done = shell.run("run", "--keep", "--", "true")
    assert done.stderr.splitlines().count("local-1 is kept: `gpuops down local-1` ends it") == 1
    assert [one["name"] for one in shell.clusters()] == ["local-1"]
    again = shell.run("run", "--", "true")
    assert again.stderr.startswith("using local-1, this folder's cluster\n")
    assert good(shell, "down") == ""
    shell.expect_clean()


def test_all_nodes_each_know_their_place(shell: Shell) -> None:
    script = 'echo "$GPUOPS_NODE_RANK of $GPUOPS_NODES, head $GPUOPS_HEAD"'
    out = good(shell, "run", "--nodes", "2", "--all-nodes", "--", "sh", "-c", script)
    assert sorted(out.splitlines()) == ["[n0] 0 of 2, head 127.0.0.1", "[n1] 1 of 2, head 127.0.0.1"]
    assert good(shell, "run", "--nodes", "2", "--", "sh", "-c", script) == "0 of 1, head 127.0.0.1\n"


def test_toml_fills_what_was_not_typed(shell: Shell) -> None:
    shell.write("gpuops.toml", "[train]\nnodes = 3\ngpus = 1\nenv = ['WORD=toml']\n\n[run]\nout = ['*.txt']\n")
    shell.write("a.py", MEETS + "print(os.environ['WORLD_SIZE'], os.environ['WORD'])\n")
    good(shell, "trust", "--yes")
    plan = shell.json("train", "multinode", "a.py", "--dry-run")
    assert (plan["create"]["nodes"], len(plan["execute"])) == (3, 3)
    assert "--nproc-per-node=1" in plan["execute"][0]
    out = good(shell, "train", "multinode", "--nodes", "2", "a.py")
    assert sorted(out.splitlines()) == ["[n0 r0] 2 toml", "[n1 r1] 2 toml"]
    good(shell, "run", "--", "sh", "-c", "echo 1 > a.txt; echo 2 > a.pt")
    assert json.loads((shell.folder / "runs/sh-1/run.json").read_text())["request"]["outs"] == ["*.txt"]


# What travels.


def made(shell: Shell, run: str) -> list[str]:
    """What came home of a run, and nothing else may lie in its folder."""
    home = shell.folder / "runs" / run
    assert {path.name for path in home.iterdir()} == {"logs", "out", "run.json", "report.html"}
    out = home / "out"
    return sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file() and path.name[0] != ".")


def test_out_says_what_comes_home(shell: Shell) -> None:
    make = "mkdir -p deep/er; echo 1 > a.pt; echo 2 > b.log; echo 3 > deep/er/c.csv"
    good(shell, "run", "--out", "*.log", "--out", "deep/**", "--", "sh", "-c", make)
    assert made(shell, "sh-1") == ["a.pt", "b.log", "deep/er/c.csv"], "what no pattern names would go with the node"
    good(shell, "up", "local")
    good(shell, "run", "--out", "*.log", "--", "sh", "-c", "truncate -s 101M a.log b.bin")
    assert made(shell, "sh-2") == ["a.log"]


def test_data_in_the_project_and_beside_it(shell: Shell) -> None:
    shell.write("data/x.txt", "inside")
    (shell.folder.parent / "far").mkdir()
    (shell.folder.parent / "far" / "x.txt").write_text("outside")
    show = 'cat "$GPUOPS_DATA/x.txt"'
    assert good(shell, "run", "--data", "data", "--", "sh", "-c", f"{show}; cat data/x.txt") == "insideinside\n"
    assert good(shell, "run", "--data", "../far", "--", "sh", "-c", show) == "outside\n"
    assert (shell.folder / "data/x.txt").read_text() == "inside"


def test_the_second_push_sends_changes_removes_what_is_stale_and_keeps_what_runs_made(lab: Shell) -> None:
    for name in ("same.txt", "changed.txt", "stale.txt"):
        lab.write(name, name)
    good(lab, "run", "--", "sh", "-c", "echo made > made.txt")
    lab.write("changed.txt", "anew")
    lab.write("more.txt", "more")
    (lab.folder / "stale.txt").unlink()
    dry = lab.json("push", "--dry-run")
    assert sorted(dry["paths"]) == ["changed.txt", "more.txt", "same.txt"]
    assert node_file(lab, "stale.txt").exists()
    assert good(lab, "push") == "node0: 2 files sent as a stream, 1 removed\n"
    assert good(lab, "push") == "node0: up to date\n"
    assert good(lab, "run", "--", "sh", "-c", "ls").split() == ["changed.txt", "made.txt", "more.txt", "same.txt"]


def test_a_file_edited_on_the_node_is_never_overwritten_unasked(lab: Shell) -> None:
    lab.write("a.py", "first")
    good(lab, "push")
    node_file(lab, "a.py").write_text("edited there")
    lab.write("a.py", "edited here")
    for words in (["push"], ["run", "--", "true"]):
        refused = lab.run(*words)
        assert refused.returncode == 2
        assert refused.stderr.splitlines()[-2:] == [
            "error: a.py was edited on node0 since the last push and differs here",
            "hint: `gpuops pull --edits` brings it home, beside yours; `--overwrite` sends yours",
        ]
    assert node_file(lab, "a.py").read_text() == "edited there"
    assert [row["outcome"] for row in lab.json("runs")["runs"]] == ["failed"]
    assert not (lab.folder / "runs" / "true-1").exists()
    out = good(lab, "pull", "--edits")
    assert out == "a.py changed here and on node0: the node's lies beside it as a.py.node0\n"
    assert (lab.folder / "a.py").read_text() == "edited here"
    assert (lab.folder / "a.py.node0").read_text() == "edited there"
    good(lab, "push", "--overwrite")
    assert node_file(lab, "a.py").read_text() == "edited here"


def test_resume_puts_each_nodes_own_files_back(shell: Shell) -> None:
    shell.write(
        "count.py",
        MEETS + "import pathlib\n"
        "rank, all = os.environ['RANK'], pathlib.Path('count.pt')\n"
        "mine = pathlib.Path(f'rank{rank}.pt')\n"
        "print('before', all.read_text() if all.exists() else '-', mine.read_text() if mine.exists() else '-')\n"
        "all.write_text(f'node of {rank}')\n"
        "mine.write_text(f'mine {rank}')\n",
    )
    train = ["train", "multinode", "--gpus", "1"]
    first = good(shell, *train, "count.py")
    assert sorted(first.splitlines()) == ["[n0 r0] before - -", "[n1 r1] before - -"]
    assert made(shell, "count-1") == ["count.pt", "node1/count.pt", "rank0.pt", "rank1.pt"]
    done = shell.run(*train, "--resume", "count-1", "count.py")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "[n0 r0] before node of 0 mine 0", "[n1 r1] before node of 1 mine 1",
    ]  # fmt: skip
    assert "3 files of count-1 put back on every node" in done.stderr.splitlines()


# What is run.


def test_a_notebook_is_run_as_a_script(shell: Shell) -> None:
    cells = [{"cell_type": "code", "source": "!ls\nprint('from', 'a notebook')"}]
    shell.write("a.ipynb", json.dumps({"nbformat": 4, "cells": cells}))
    done = shell.run("train", "single", "a.ipynb", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "a.ipynb: its code cells are a_ipynb.py; left out: cell 1: !ls" in done.stderr.splitlines()
    assert "would send: 2 files, " in done.stdout
    assert " a_ipynb.py" in done.stdout


def test_dry_run_says_it_all_and_creates_nothing(shell: Shell) -> None:
    shell.write("a.py", "open('ran', 'w')")
    words = ["train", "multinode", "--gpus", "1", "--setup", "touch set-up", "a.py"]
    done = shell.run(*words, "--dry-run")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[1].startswith("would create: 2 nodes on this machine")
    assert lines[2] == "would send: 1 file, 16 B"
    assert lines[3].startswith("would execute on node0: <python> -m torch.distributed.run --nnodes=2 --node-rank=0 ")
    assert lines[3].endswith(" --node-run <run> -- <python> a.py")
    assert lines[5] == "would set up: touch set-up"
    assert shell.run("up", "local", "--dry-run").stdout.startswith("would create: 1 node on this machine")
    assert shell.clusters() == []
    assert shell.json("runs")["runs"] == []
    assert shell.processes() == []
    assert [path.name for path in shell.folder.iterdir()] == ["a.py"]
    assert not (shell.home / "local").exists()


def own_environment(folder: Path) -> Path:
    """Another environment with torch, and a `torchrun` that nobody else has; its Python."""
    venv.create(folder)
    (site,) = folder.glob("lib/python3*/site-packages")
    (site / "torch.pth").write_text(next(path for path in sys.path if (Path(path) / "torch").is_dir()) + "\n")
    torchrun = folder / "bin" / "torchrun"
    run = "runpy.run_module('torch.distributed.run', run_name='__main__')"
    torchrun.write_text(f"#!{folder}/bin/python3\nimport runpy\nprint('our own', flush=True)\n{run}\n")
    torchrun.chmod(0o755)
    return folder / "bin" / "python3"


@pytest.mark.real_torch
def test_run_finds_the_torchrun_of_the_chosen_python(shell: Shell, tmp_path: Path) -> None:
    python = own_environment(tmp_path / "other")
    shell.write("a.py", "import os, sys\nos.write(1, f\"{os.environ['RANK']} {sys.prefix}\\n\".encode())\n")
    words = ["--python", str(python), "--", "torchrun", "--standalone", "--nproc_per_node=2", "a.py"]
    out = good(shell, "run", *words)
    assert {f"0 {tmp_path}/other", f"1 {tmp_path}/other", "our own"} <= set(out.splitlines())


def test_modules_and_scripts_in_subfolders(shell: Shell) -> None:
    shell.write("pack/__init__.py", "")
    shell.write("pack/go.py", "import sys\nprint(__name__, __package__, sys.argv[1:])\n")
    shell.write("pack/helper.py", "WORD = 'helped'\n")
    shell.write("pack/plain.py", "import helper, os\nprint(helper.WORD, os.path.isdir('pack'))\n")
    assert good(shell, "train", "single", "-m", "pack.go", "--", "-m", "x") == "__main__ pack ['-m', 'x']\n"
    assert good(shell, "train", "single", "pack/plain.py") == "helped True\n"
    assert [row["run"] for row in shell.json("runs")["runs"]] == ["go-1", "plain-1"]


def test_with_nothing_named_the_default_workload_is_meant(shell: Shell) -> None:
    plan = shell.json("train", "multinode", "--dry-run")
    assert plan["send"]["tree"] == "train"
    assert [argv[-1] for argv in plan["execute"]] == ["digits.py", "digits.py"]


# What is said.


def said(lines: list[str]) -> Iterator[str]:
    """Lines with numbers, versions and paths made alike."""
    for line in lines:
        yield line if not line.startswith(("python:", "with ", "time ")) else line.split()[0]


def test_the_whole_of_what_a_newcomer_reads(shell: Shell) -> None:
    done = shell.run("run", "--", "sh", "-c", "echo hello; echo x > a.pt")
    assert done.stdout == "hello\n"
    lines = list(said(spoken(done.stderr)))
    assert lines[0] == "no cluster here: this machine plays the nodes (free)"
    assert lines[1].startswith("local-1: 1 node on this machine (")
    assert lines[2:5] == [
        "code: 0 files, 0 B",
        "python:",
        f"sh-1 runs on 1 node; results come to {shell.folder}/runs/sh-1",
    ]
    assert lines[5].startswith("1 node of local-1 ended, nothing left (")
    assert lines[6:] == [
        "run      sh-1",
        "code     no git commit",
        "where    1 node on local",
        "with",
        "time",
        "cost     free: this machine",
        f"results  {shell.folder}/runs/sh-1",
        f"report   {shell.folder}/runs/sh-1/report.html",
        "the command ended well",
    ]
    record = json.loads((shell.folder / "runs/sh-1/run.json").read_text())
    assert (record["verdict"]["outcome"], record["provider"]) == ("done", "local")


def test_what_was_pushed_is_no_result(shell: Shell) -> None:
    shell.write("pretrained.pt", "from before")
    shell.write("results/old.txt", "from before")
    good(shell, "run", "--", "sh", "-c", "echo made > made.pt")
    out = shell.folder / "runs" / "sh-1" / "out"
    assert sorted(path.name for path in out.iterdir() if path.name != ".gpuops.jsonl") == ["made.pt"]


def test_what_no_pattern_names_comes_home_before_its_node_goes(shell: Shell) -> None:
    shell.write("log.csv", "0\n")
    script = "echo 1 > metrics.json; echo 2 >> log.csv; echo 3 > model.pt; echo no > junk.bin; truncate -s 101M big.bin"
    out = shell.run("run", "--out", "*.json", "--out", "!junk.*", "--", "sh", "-c", script)
    home = shell.folder / "runs" / "sh-1" / "out"
    assert sorted(path.name for path in home.iterdir() if path.is_file()) == [
        ".gpuops.jsonl", "big.bin", "log.csv", "metrics.json", "model.pt",
    ]  # fmt: skip
    assert (home / "log.csv").read_text() == "0\n2\n"
    assert "bringing home 105.9 MB that no --out names: big.bin (105.9 MB, node0)" in out.stderr


def test_what_is_large_stays_on_a_cluster_that_stays_until_down(shell: Shell) -> None:
    assert shell.run("up", "local", "--name", "lab").returncode == 0
    ran = shell.run("run", "--out", "!junk.*", "--", "sh", "-c", "echo no > junk.bin; truncate -s 101M big.bin")
    assert "left     still on lab: big.bin (105.9 MB, node0); `gpuops down` brings them home" in ran.stderr
    assert not (shell.folder / "runs" / "sh-1" / "out" / "big.bin").exists()
    assert shell.run("down", "lab").returncode == 0
    saved = shell.folder / "runs" / "lab-left" / "node0"
    assert {path.name: path.stat().st_size for path in saved.iterdir()} == {"big.bin": 101 << 20}


def test_down_saves_what_was_edited_on_a_node(shell: Shell) -> None:
    shell.write("train.py", "print(1)\n")
    assert shell.run("up", "local", "--name", "lab").returncode == 0
    assert shell.run("run", "--", "sh", "-c", "echo made > made.pt").returncode == 0
    project = shell.home / "local" / "lab" / "n0" / "project"
    (project / "train.py").write_text("print(1)  # precious\n")
    (project / "helper.py").write_text("x = 1\n")
    done = shell.run("down", "lab")
    assert done.returncode == 0
    saved = shell.folder / "runs" / "lab-left" / "node0"
    assert {path.name: path.read_text() for path in saved.iterdir()} == {
        "train.py": "print(1)  # precious\n",
        "helper.py": "x = 1\n",
    }
    assert f"saved in {saved}" in done.stderr
    assert (shell.folder / "train.py").read_text() == "print(1)\n"


def test_a_module_that_was_held_back_is_not_to_be_installed(shell: Shell) -> None:
    shell.write("conf.py", f"KEY = 'rpa_{'A1b2C3d4E5' * 4}'\n")
    shell.write("leak.py", "import conf\n")
    done = shell.run("train", "single", "leak.py")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "hint: conf.py was held back: move the key to .env and use --secret, or send it: --send-anyway conf.py"
    )


def test_all_nodes_means_all_that_are_there(shell: Shell) -> None:
    assert shell.run("up", "local", "--nodes", "2").returncode == 0
    done = shell.run("run", "--all-nodes", "--max-hours", "1", "--", "sh", "-c", "echo I am $GPUOPS_NODE")
    assert sorted(done.stdout.splitlines()) == ["[n0] I am 0", "[n1] I am 1"]
    assert "note: limits belong to a new cluster, local-1 keeps its own: gpuops lease local-1" in done.stderr
    asked = shell.run("logs", "--node", "2")
    assert (asked.returncode, asked.stdout) == (2, "")
    assert asked.stderr.startswith("error: sh-1 has nodes 0 to 1, not node 2\n")


def test_the_guard_brings_what_no_pattern_names(shell: Shell) -> None:
    assert shell.run("run", "--detach", "--", "truncate", "-s", "101M", "big.bin").returncode == 0
    until(lambda: not shell.cluster_states(), "the guard's end of the cluster")
    shell.expect_clean()  # the guard writes the run's document anew, with its final cost, after the cluster's end
    assert made(shell, "truncate-1") == ["big.bin"]


def test_a_project_that_is_renamed_under_its_run_is_told_of(lab: Shell, tmp_path: Path) -> None:
    """The folder of a run is known by its path: what comes after goes to a new one there, and nothing is lost."""
    go_on = tmp_path / "go-on"
    lab.write("wait.sh", f"echo first; until [ -e {go_on} ]; do sleep 0.1; done; echo last; echo 1 > a.pt\n")
    running = lab.start("run", "--", "sh", "wait.sh")
    until(lambda: any("first" in path.read_text() for path in lab.folder.glob("runs/*/logs/node0/*")), "its first line")
    moved = lab.folder.with_name("renamed")
    lab.folder.rename(moved)
    go_on.touch()
    _, err = running.communicate(timeout=HANG_S)
    assert running.returncode == 0, err
    (note,) = [line for line in err.splitlines() if "was moved or removed" in line]
    home = lab.folder / "runs/sh-1"
    assert note.startswith(
        f"note: {lab.folder} was moved or removed after {home.name} began; what came home since is in {home}"
    )
    assert (home / "out/a.pt").read_text() == "1\n"
    logs = [path.read_text() for root in (moved, lab.folder) for path in root.glob("runs/*/logs/node0/*")]
    assert any("first" in text for text in logs)
    assert any("last" in text for text in logs)
