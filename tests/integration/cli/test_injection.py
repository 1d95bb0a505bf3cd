"""Whatever a user types arrives at the program byte for byte, and no shell on the way runs any of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Shell
from tests.integration.cli.counting import MEETS

CANARY = "canary"
NASTY = [
    "",
    " ",
    "two  spaces",
    'it\'s "quoted"',
    "line\nbreak\n",
    "tab\tand\\back\\slash",
    f"$(touch {CANARY})",
    f"`touch {CANARY}`",
    f"; touch {CANARY} #",
    f"'; touch {CANARY}; '",
    f"| touch {CANARY} &",
    "${HOME} $HOME ~ * ? [a-z] {a,b} !!",
    "{run} {python} {agent} {0} %s %(x)s",
    "żółć 漢字 🚀 e\u0301",
    "-n",
    "--help",
    "--nodes=9",
    "--",
    "-",
    "#comment",
    "a=b",
    "\x01\x1b[31m\x7f",
]
SAY = """
import json, os, sys
if __name__ == "__main__":
    names = [name for name in os.environ if name.startswith("NASTY_")]
    rank = os.environ.get("RANK", "0")
    said = {"argv": sys.argv[1:], "env": {name: os.environ[name] for name in names}, "here": sorted(os.listdir("."))}
    said["data"] = os.environ.get("GPUOPS_DATA")
    print(rank, json.dumps(said), flush=True)
"""
VALUES = {f"NASTY_{index}": value for index, value in enumerate(NASTY)}


def said(out: str) -> dict[int, Any]:
    """What each rank says it was given."""
    found = {}
    for line in out.splitlines():
        rank, _, text = line[line.index("{") - 2 :].partition(" ")
        found[int(rank)] = json.loads(text)
    return found


def expect_no_canary(shell: Shell) -> None:
    assert not list(shell.folder.parent.rglob(CANARY))
    assert not Path(CANARY).exists()


def env_flags() -> list[str]:
    return [word for name, value in VALUES.items() for word in ("--env", f"{name}={value}")]


def test_a_command_its_variables_and_files(shell: Shell) -> None:
    shell.folder = shell.folder.parent / f'it\'s a "project"\n$(touch {CANARY}) {{run}} żółć'
    shell.folder.mkdir()
    shell.write("say.py", SAY)
    names = [value.replace("/", "") for value in NASTY if value.strip() not in ("", "-", "--")]
    for name in names:
        shell.write(f"files/{name}", name)
    shell.write("list.py", "import os, json\nprint(json.dumps(sorted(os.listdir('files'))))\n")
    data = shell.folder.parent / f"data $(touch {CANARY}) 'x' {{run}}"
    data.mkdir()
    done = shell.run("run", *env_flags(), "--data", str(data), "--", "python3", "say.py", *NASTY)
    assert done.returncode == 0, done.stderr
    (one,) = said("0 " + done.stdout.partition(" ")[2]).values()
    assert one["argv"] == NASTY
    assert one["env"] == VALUES
    assert one["data"] == str(data)
    listed = shell.run("run", "--", "python3", "list.py")
    assert json.loads(listed.stdout) == sorted(names), listed.stderr
    expect_no_canary(shell)


def test_a_script_on_two_nodes(shell: Shell) -> None:
    name = f"it's $(touch {CANARY}) `touch {CANARY}` {{run}}.py"
    shell.write(f"a folder/{name}", MEETS + SAY)
    done = shell.run("train", "multinode", "--gpus", "1", *env_flags(), f"a folder/{name}", "--", *NASTY)
    assert done.returncode == 0, done.stderr
    ranks = said(done.stdout)
    assert sorted(ranks) == [0, 1]
    for one in ranks.values():
        assert (one["argv"], one["env"]) == (NASTY, VALUES)
    expect_no_canary(shell)


def test_a_script_whose_name_starts_with_a_dash(shell: Shell) -> None:
    shell.write("-c.py", SAY)
    done = shell.run("train", "single", "./-c.py", "--", "-c", "print(1)")
    assert done.returncode == 0, done.stderr
    assert said(done.stdout)[0]["argv"] == ["-c", "print(1)"]


@pytest.mark.parametrize("kind", ["run", "train"])
def test_secrets_and_preludes(shell: Shell, kind: str) -> None:
    shell.env |= VALUES | {"NASTY_0": "not empty"}
    secrets = [word for name in VALUES for word in ("--secret", name) if VALUES[name] or name == "NASTY_0"]
    shell.write("say.py", SAY)
    prelude = [
        "--prelude",
        'export NASTY_PRELUDE="it\'s $((1 + 1))"',
        "--prelude",
        "if true\nthen export NASTY_B=b; fi",
    ]
    words = ["run", *secrets, *prelude, "--", "python3", "say.py", *NASTY]
    if kind == "train":
        words = ["train", "single", *secrets, *prelude, "say.py", "--", *NASTY]
    done = shell.run(*words)
    assert done.returncode == 0, done.stderr
    (one,) = said(done.stdout if kind == "train" else "0 " + done.stdout.partition(" ")[2]).values()
    assert one["argv"] == NASTY
    # The prelude is the user's own shell, and the only one.
    assert one["env"] == VALUES | {"NASTY_0": "not empty", "NASTY_PRELUDE": "it's 2", "NASTY_B": "b"}
    expect_no_canary(shell)


def test_a_script_gets_its_own_dashes_and_help(shell: Shell) -> None:
    shell.write("say.py", SAY)
    words = ["--help", "--nodes", "3", "--", "-m", "--json", "--", "--version"]
    done = shell.run("train", "single", "say.py", "--", *words)
    assert done.returncode == 0, done.stderr
    assert said(done.stdout)[0]["argv"] == words


@pytest.mark.proof  # tests/system/lab/test_virtual.py has them on two machines
@pytest.mark.real_torch
def test_the_tutorials_numbers_behind_the_workload(shell: Shell) -> None:
    done = shell.run("train", "multinode", "--gpus", "1", "--workload", "toy", "--", "2", "1")
    assert done.returncode == 0, done.stderr
    assert "Epoch 1" in done.stdout
    assert "Epoch 2" not in done.stdout
    assert "code     gpuops 0.1.0, workload toy" in done.stderr
