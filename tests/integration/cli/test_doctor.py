"""`gpuops doctor` as it is typed: where it looks, what it prints, its exit codes and its document."""

from __future__ import annotations

import json
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.conftest import Shell, until
from tests.desk import Desk
from tests.fakes.aws import FakeAWS
from tests.integration.cli.test_json import document

KEYS = {"say", "exit_code", "findings"}
FINDING = {"level", "what", "say", "hint", "where"}


@pytest.fixture(autouse=True)
def keyless(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user without keys."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


MKTEMP = """#!/bin/sh
made=$({} "$@") && echo "$made" | tee -a {}
"""


def test_this_computer_is_examined_and_nothing_is_written(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it carries to its checkup goes with it: others may be examined here at the same time."""
    shim, made = tmp_path / "bin" / "mktemp", tmp_path / "made"
    shim.parent.mkdir()
    shim.write_text(MKTEMP.format(shutil.which("mktemp"), made))
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", f"{shim.parent}:{os.environ['PATH']}")
    said = desk.type("doctor")
    assert said.code == 0, said.out
    lines = said.out.splitlines()
    assert lines[0] == "this computer"
    assert "  note: there is no SSH key here; hosts need one" in lines
    assert lines[lines.index("  note: there is no SSH key here; hosts need one") + 1] == (
        "    hint: ssh-keygen -t ed25519"
    )
    assert [line for line in lines if line.startswith("  ok: ")]
    assert lines[-1].endswith("nothing that keeps a run from starting")
    assert not desk.home.exists(), "it leaves nothing behind"
    assert [Path(line).exists() for line in made.read_text().splitlines()] == [False]


def test_the_document_has_these_keys(desk: Desk) -> None:
    said = desk.type("doctor", "--json", "--python", "/none/python")
    assert said.code == 4
    found = document(said.out, "doctor", KEYS)
    assert found["exit_code"] == 4
    assert all(finding.keys() == FINDING for finding in found["findings"])
    assert [one["say"] for one in found["findings"] if one["level"] == "error"] == [
        "'/none/python' is no Python that runs here"
    ]


def test_of_the_provider_local_it_is_this_computer(desk: Desk) -> None:
    found = document(desk.type("doctor", "local", "--json").out, "doctor", KEYS)
    assert {one["where"] for one in found["findings"]} == {"this computer"}


def test_whose_account_it_is_is_a_note(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeAWS(tmp_path / "aws") as fake:
        for name, value in fake.env.items():
            monkeypatch.setenv(name, value)
        said = desk.type("doctor", "aws")
    assert said.code == 0
    assert "SSH key" not in said.out, "gpuops makes one for what is rented"
    assert f"aws\n  note: AWS account {fake.account}, as gpuops-tester\n    hint: it looks in us-east-1 (" in said.out
    assert "warning" not in said.out.partition("\naws\n")[2]


def test_an_account_that_may_have_nothing_yet_is_told_so(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeAWS(tmp_path / "aws") as fake:
        fake.fresh_account()
        for name, value in fake.env.items():
            monkeypatch.setenv(name, value)
        said = desk.type("doctor", "aws")
    assert said.code == 3
    assert (
        "  error: all quotas of the account are 0 in us-east-1: nothing can be rented there yet\n"
        "    hint: what to ask for: gpuops quota aws\n"
    ) in said.out


@pytest.mark.parametrize(
    ("words", "say", "hint"),
    [
        (["labb"], "'labb' is no provider and no live cluster", "aws, lambda, local, pbs, runpod, slurm, ssh, vast"),
        (["--cluster", "local"], "'local' is no provider and no live cluster", "there are"),
        (["--cluster", ""], "'' is no provider and no live cluster", "there are"),
        (["ssh"], "no host was named", "--host"),
        (["ssh", "--host"], "--host needs a value", "gpuops doctor ssh --help"),
        (["ssh", "--hots", "x"], "there is no option --hots; did you mean --hosts?", "gpuops doctor ssh --help"),
        (["ssh", "--host", "a b"], "'a b' is not a host", "user@host"),
        (["ssh", "more"], "'more' is more than gpuops doctor takes", "--help"),
        (["lab", "more"], "'more' is more than gpuops doctor takes", "--help"),
        (["--host", "x"], "there is no option --host", "follow its name"),
        (["lab", "--cluster", "lab"], "--cluster and a name exclude each other", "leave out"),
    ],
)
def test_what_cannot_be_meant(desk: Desk, words: list[str], say: str, hint: str) -> None:
    said = desk.type("doctor", *words)
    assert said.code == 2, said.out
    assert said.err.startswith(f"error: {say}")
    assert hint in said.err


def kill_all(words: str) -> int:
    """Every process with these in its command line; how many there were. One that sees another die may start anew."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if words in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    for process in found:
        with suppress(psutil.Error):
            process.send_signal(signal.SIGKILL)
    return len(found)


def test_a_local_cluster_is_one_machine_though_its_agents_are_dead(shell: Shell) -> None:
    shell.run("up", "local", "--nodes", "2", "--name", "lab")
    until(lambda: kill_all(f"{shell.home}/local/lab") == 0, "the agents' end")
    done = shell.run("doctor", "lab", "--json")
    found = json.loads(done.stdout)
    assert done.returncode == found["exit_code"] == 4, done.stdout
    assert {one["where"] for one in found["findings"] if one["what"] != "agent"} == {"node0, node1"}
    assert [(one["where"], one["hint"]) for one in found["findings"] if one["what"] == "agent"] == [
        (name, "end it: gpuops down lab") for name in ("node0", "node1")
    ]
    assert shell.run("down", "lab", "--force").returncode == 0


SMI = """#!/bin/sh
[ "$1" = -L ] && exec echo "GPU 0: Tesla V100-SXM2-16GB (UUID: GPU-0)"
echo "0, Tesla V100-SXM2-16GB, 16384, 595.10, 7.0"
"""
PYTHON = """#!/bin/sh
case "$3" in *find_spec*) echo '{answer}' ;; *) exit 1 ;; esac
"""


def test_a_run_whose_torch_has_no_kernels_is_refused_before_the_launch(shell: Shell, tmp_path: Path) -> None:
    site, programs = tmp_path / "site", tmp_path / "bin"
    (site / "torch").mkdir(parents=True)
    (site / "torch" / "version.py").write_text("__version__ = '2.11.0+cu128'\ncuda = '12.8'\n")
    programs.mkdir()
    python = programs / "python3.11"
    answer = {"executable": str(python), "version": [3, 11, 7], "path": [str(site)], "ensurepip": True, "uv": False}
    for path, text in ((python, PYTHON.format(answer=json.dumps(answer))), (programs / "nvidia-smi", SMI)):
        path.write_text(text)
        path.chmod(0o755)
    shell.env["PATH"] = f"{programs}:{os.environ['PATH']}"
    shell.write("train.py", "")
    done = shell.run("train", "multigpu", "--python", str(python), "train.py")
    assert done.returncode == 4, done.stderr
    assert (
        "error: node0: torch 2.11.0+cu128 has no kernels for Tesla V100-SXM2-16GB (compute capability 7.0)\n"
        f"hint: install another: {python} -m pip install --force-reinstall torch --index-url "
        "https://download.pytorch.org/whl/cu126; or train on the CPU: --env CUDA_VISIBLE_DEVICES="
    ) in done.stderr
    shell.expect_clean()
