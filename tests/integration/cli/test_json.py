"""`--json`: one document on stdout and nothing else there, its keys frozen; and what a terminal gets instead."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from provisioners.aws.errors import NO_KEYS
from provisioners.lambdacloud.service import SERVICE as LAMBDA
from provisioners.runpod.service import SERVICE as RUNPOD
from provisioners.vast.service import SERVICE as VAST
from tests.conftest import HANG_S, Shell
from tests.desk import Desk
from tests.integration.cli.counting import MEETS

CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
KEYS = {
    "status": {"clusters", "guard_refused"},
    "cloud": {"resources", "unasked", "not_set_up"},
    "runs": {"runs"},
    "offers": {"offers", "payer"},
    "plan": {"create", "payer", "send", "execute"},
    "cluster": {"name", "provider", "nodes", "payer", "hard_end", "idle_s"},
    "lease": {"name", "hard_end", "idle_s"},
    "push": {"files", "bytes", "held", "nodes"},
    "pull": {"run", "home", "files"},
    "edits": {"files"},
    "stop": {"run", "say"},
    "report": {"report"},
    "top": {"name", "provider", "at", "per_hour", "spent", "hard_end", "run", "run_since", "beside", "nodes"},
    "down": {"gone"},
    "reap": {"ended", "closed", "unasked", "adopted", "other_owners"},
    "run": {
        "run", "verdict", "request", "cluster", "created", "started", "ended", "duration_s", "before_s", "cost",
        "held", "left_behind", "kept", "payer", "progress", "hosts",
        "rented", "home", "report", "missing", "gpuops", "commit", "dirty", "provider", "per_hour", "skews", "nodes",
        "world", "torch", "python", "driver", "image", "nodes_ended", "exit_code",
    },
}  # fmt: skip
"""Within one schema number nothing of this may go; fields may be added here."""
IN_LISTS = {
    "clusters": {"name", "provider", "state", "nodes", "run", "folder", "created", "age_s", "ephemeral", "per_hour",
                 "hard_end", "idle_s", "lease", "spent", "virtual", "doing", "beside", "why_ended", "urls", "report",
                 "phase"},
    "runs": {"run", "array_index", "state", "outcome", "say", "created", "ended", "folder", "home"},
    "resources": {"provider", "mark", "id", "kind", "state", "per_hour", "bills", "known", "owner"},
    "offers": {"provider", "id", "say", "nodes", "gpus", "region", "prices", "data", "notes", "per_hour"},
}  # fmt: skip


def document(text: str, kind: str, keys: set[str]) -> dict[str, Any]:
    """The one document on stdout, with exactly these keys."""
    assert text.count("\n") == 1
    found: dict[str, Any] = json.loads(text)
    assert (found.pop("schema"), found.pop("kind")) == (1, kind)
    assert found.keys() == keys
    for name, rows in found.items():
        for row in rows if name in IN_LISTS else ():
            assert row.keys() == IN_LISTS[name]
    return found


NOT_SET_UP = [
    f"aws is not set up here: there are no AWS credentials; {NO_KEYS}",
    f"lambda is not set up here: there is no Lambda API key: LAMBDA_API_KEY is not set; {LAMBDA.no_key}",
    f"runpod is not set up here: there is no RunPod API key: RUNPOD_API_KEY is not set; {RUNPOD.no_key}",
    f"vast is not set up here: there is no Vast.ai API key: VAST_API_KEY is not set; {VAST.no_key}",
]


def test_before_anything_was_done(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "LAMBDA_", "RUNPOD_", "VAST_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(desk.folder))
    for words, kind, expected in [
        (("status",), "status", {"clusters": [], "guard_refused": {}}),
        (("status", "--cloud"), "cloud", {"resources": [], "unasked": [], "not_set_up": NOT_SET_UP}),
        (("runs",), "runs", {"runs": []}),
        (("down", "--all"), "down", {"gone": []}),
        (("reap",), "reap", {"ended": [], "closed": [], "unasked": [], "adopted": [], "other_owners": []}),
    ]:
        said = desk.type(*words, "--json")
        assert (said.code, {line.partition(" is a new home")[0] for line in said.err.splitlines()}) in (
            (0, set()), (0, {f"note: {desk.home}"}),
        )  # fmt: skip
        assert document(said.out, kind, KEYS[kind]) == expected
    nobody = ["no provider that is set up here lists anything of ours", *NOT_SET_UP]
    assert desk.type("status", "--cloud").out.splitlines() == nobody


def test_plans(desk: Desk) -> None:
    offers = desk.type("up", "local", "--nodes", "2", "--dry-run", "--json")
    assert [offer["nodes"] for offer in document(offers.out, "offers", KEYS["offers"])["offers"]] == [2]
    desk.write("a.py", "")
    plan = document(desk.type("train", "multinode", "a.py", "--dry-run", "--json").out, "plan", KEYS["plan"])
    assert plan["send"] == {"tree": "project", "files": ["a.py"], "bytes": 0, "held": []}
    assert [argv[-2:] for argv in plan["execute"]] == [["<python>", "a.py"]] * 2


def test_each_command_on_a_live_cluster(shell: Shell) -> None:
    def typed(kind: str, *words: str, keys: str = "", code: int = 0) -> dict[str, Any]:
        done = shell.run(*words, "--json") if "--" not in words else shell.run(words[0], "--json", *words[1:])
        assert done.returncode == code, done.stderr
        assert not CONTROL.search(done.stderr), done.stderr
        return document(done.stdout, kind, KEYS[keys or kind])

    shell.write("a.txt", "a")
    typed("cluster", "up", "local", "--name", "lab")
    typed("lease", "lease", "lab", "--extend", "2h")
    typed("push", "push")
    assert [row["nodes"] for row in typed("status", "status")["clusters"]] == [["running"]]
    assert [row["known"] for row in typed("cloud", "status", "--cloud")["resources"]] == [True]
    ran = typed("run", "run", "--", "sh", "-c", "echo out; echo err >&2; echo x > a.pt")
    assert (ran["verdict"]["outcome"], ran["exit_code"]) == ("done", 0)
    failed = typed("run", "run", "--", "sh", "-c", "exit 3", code=1)
    assert (failed["verdict"]["outcome"], failed["exit_code"]) == ("failed", 1)
    assert typed("pull", "pull", "sh-1")["files"] == ["a.pt"]
    assert typed("pull", "pull", "--edits", keys="edits") == {"files": []}
    assert [row["outcome"] for row in typed("runs", "runs")["runs"]] == ["done", "failed"]
    assert typed("report", "report")["report"].endswith("/runs/sh-2/report.html")
    assert len(typed("top", "top")["nodes"]) == 1
    assert typed("stop", "stop", "sh-1")["say"] == "sh-1 has ended already"
    lines = [json.loads(line) for line in shell.run("logs", "sh-1", "--json").stdout.splitlines()]
    assert sorted(line["line"] for line in lines) == ["err", "out"]
    assert all(line.keys() == {"schema", "kind", "line"} and line["kind"] == "log" for line in lines)
    assert typed("down", "down")["gone"] == ["lab"]
    shell.expect_clean()


def test_a_runs_output_leaves_stdout_to_the_document(shell: Shell) -> None:
    done = shell.run("run", "--json", "--", "sh", "-c", "echo out; echo '{}'")
    document(done.stdout, "run", KEYS["run"])
    assert {"out", "{}"} <= set(done.stderr.splitlines())


def test_without_a_terminal_there_is_no_colour_and_no_control_character(shell: Shell) -> None:
    shell.write("a.py", MEETS + "print('hello')")
    for words in (["train", "multinode", "a.py"], ["logs"], ["runs"], ["status"], ["--help"], ["train", "--help"]):
        done = shell.run(*words)
        assert done.returncode == 0
        assert not CONTROL.search(done.stdout + done.stderr)


def on_a_terminal(shell: Shell, *words: str, gates: Mapping[str, Path] | None = None) -> tuple[int, str]:
    """Type a command at a terminal: its exit code and what the terminal was sent. `gates`: files that are made once
    it was sent what these patterns find."""
    ours, theirs = pty.openpty()
    shell.env |= {"TERM": "xterm-256color", "COLUMNS": "100"}
    process = shell.start(*words, stdin=theirs, stdout=theirs, stderr=subprocess.STDOUT)
    os.close(theirs)
    sent = bytearray()

    def read() -> None:
        try:
            while chunk := os.read(ours, 4096):
                sent.extend(chunk)
                for pattern, gate in (gates or {}).items():
                    if re.search(pattern, sent.decode(errors="replace")):
                        gate.touch()
        except OSError:
            pass  # how Linux says that nobody holds the other end any more

    reader = threading.Thread(target=read)
    reader.start()
    code = process.wait(HANG_S)
    reader.join(HANG_S)
    assert not reader.is_alive(), "somebody holds the terminal"
    os.close(ours)
    return code, sent.decode()


def test_a_terminal_gets_whole_lines_and_colour_only_where_wanted(shell: Shell) -> None:
    shell.write("big.bin", "x" * 3_000_000)
    shell.write("a.py", MEETS + "print('rank', os.environ['RANK'], 'says hello')\n")
    for no_colour in (False, True):
        if no_colour:
            shell.env["NO_COLOR"] = "1"
        code, sent = on_a_terminal(shell, "train", "multinode", "--gpus", "1", "a.py")
        assert code == 0, sent
        coloured = re.compile(r"\x1b\[[0-9;]*3[0-9;]*m")
        assert bool(coloured.search(sent)) != no_colour
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", sent).replace("\r\n", "\n")
        lines = [line.rpartition("\r")[2] for line in plain.splitlines()]
        assert "[n0 r0] rank 0 says hello" in lines
        assert "[n1 r1] rank 1 says hello" in lines
