"""A cloned project's `gpuops.toml` reaches beyond the project only once its user has trusted what it says."""

from __future__ import annotations

import dataclasses
import json
import os
import pty
import stat
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from gpuops.cli import flags
from gpuops.cli.flags import Free, LaunchFlags, MachineFlags, flag_freedom
from gpuops.cli.trust import reaches
from gpuops.core.settings import Toml
from tests.conftest import HANG_S, Shell
from tests.sshd import can_serve, serving

GROUPS = (MachineFlags, LaunchFlags)
REACHING: dict[str, Any] = {
    "image": "evil/image", "max-price": 9e5, "max-hours": 9e5, "max-cost": 9e5, "idle": 9e5, "wait": "30h",
    "cluster": "lab", "env": ["LD_PRELOAD=./evil.so"], "secret": ["HF_TOKEN"], "prelude": ["touch ../ran"],
    "python": "./evil", "setup": "touch ../ran", "resume": "toy-1", "keep": True, "detach": True, "grace": 99.0,
    "sink": "s3://attacker/runs", "retries": 9, "overwrite": True, "send-anyway": ["*"], "data": "~/.ssh",
    "fresh": True, "join-timeout": 0.0, "bwlimit": "1k",
}  # fmt: skip
RENTING: dict[str, Any] = {
    "nodes": 99, "gpus": 8, "gpu-type": "b200", "gpu-mem": 192, "spot": True, "region": "moon", "timeout": 9e5,
    "on": "runpod",
}  # fmt: skip
WITHIN: dict[str, Any] = {"out": ["*.pt"], "queue": True, "timings": True}


def toml(table: str, **options: Any) -> str:
    lines = (f"{name} = {json.dumps(value)}" for name, value in options.items())
    return "\n".join([f"[{table}]", *lines, ""])


def refusal(shell: Shell, table: str, *names: str) -> list[str]:
    return [
        f"error: {shell.folder}/gpuops.toml, [{table}]: you have not trusted this file with {', '.join(names)}",
        "hint: read it, since that reaches beyond the project; where it says what you want: gpuops trust",
    ]


def at_a_terminal(shell: Shell, typed: str, *words: str) -> tuple[int, str]:
    """Exit code, and all that the terminal showed. What is typed waits there from the beginning."""
    ours, theirs = pty.openpty()
    os.write(ours, typed.encode())
    process = shell.start(*words, stdin=theirs, stdout=theirs, stderr=subprocess.STDOUT)
    os.close(theirs)
    shown = bytearray()

    def read() -> None:
        try:
            while chunk := os.read(ours, 4096):
                shown.extend(chunk)
        except OSError:
            pass  # how Linux says that nobody holds the other end any more

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    code = process.wait(HANG_S)
    reader.join(HANG_S)
    os.close(ours)
    return code, shown.decode().replace("\r\n", "\n")


def test_every_flag_is_thought_of_and_a_new_one_is_not_free() -> None:
    free = flag_freedom(*GROUPS)
    assert {name for name, mark in free.items() if mark is None or mark is Free.INSIDE} == set(REACHING)
    assert {name for name, mark in free.items() if mark is Free.ASKED} == set(RENTING)
    assert {name for name, mark in free.items() if mark is Free.ALWAYS} == set(WITHIN)

    @dataclasses.dataclass(frozen=True)
    class Later:
        shiny: flags.Annotated[str | None, flags._option("Something new.")] = None

    assert flag_freedom(Later) == {"shiny": None}


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("run", ("run", "--", "true")),
        ("train", ("train", "single", "train.py")),
        ("train", ("train", "single", "train.py", "--dry-run")),
        ("up", ("up", "local", "--yes")),
    ],
)
def test_what_reaches_beyond_the_project_is_refused(shell: Shell, table: str, words: tuple[str, ...]) -> None:
    shell.write("train.py", "print('trained')\n")
    known = [name for name in REACHING if table != "up" or name in flag_freedom(MachineFlags)]
    shell.write("gpuops.toml", toml(table, **{name: REACHING[name] for name in known}))
    done = shell.run(*words)
    assert (done.returncode, done.stdout, done.stderr.splitlines()) == (2, "", refusal(shell, table, *known))
    assert not (shell.folder.parent / "ran").exists()
    assert not (shell.home / "ledger.db").exists(), "nothing was begun"


def test_what_is_rented_counts_where_somebody_is_asked_for_the_price(shell: Shell) -> None:
    """`--yes` answers that question before anybody saw the file; what is local costs nothing."""
    shell.env |= {"RUNPOD_API_KEY": "rpa_none", "RUNPOD_API_URL": "http://127.0.0.1:9"}
    shell.write("gpuops.toml", toml("run", **RENTING))
    done = shell.run("run", "--yes", "--", "true")
    assert (done.returncode, done.stderr.splitlines()) == (2, refusal(shell, "run", *RENTING))
    done = shell.run("run", "--dry-run", "--", "true")
    assert "not trusted" not in done.stderr, "it goes on to ask the provider"
    assert done.returncode in (2, 3)
    shell.write("gpuops.toml", toml("run", nodes=2))
    assert shell.run("run", "--yes", "--dry-run", "--", "true").returncode == 0


def test_sizes_patterns_and_data_inside_need_no_word(shell: Shell) -> None:
    shell.write("set/x", "x")
    shell.write("gpuops.toml", toml("run", nodes=2, gpus=1, data="set", out=["*.txt"], queue=True))
    done = shell.run("run", "--yes", "--", "cat", "set/x")
    assert (done.returncode, done.stdout) == (0, "x\n"), done.stderr


def away(folder: Path) -> None:
    """Data that only seem to lie in the project."""
    (folder.parent / "private").mkdir()
    (folder.parent / "private" / "x").write_text("mine\n")
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "hop").symlink_to("deep/er")
    (folder / "private").mkdir()
    (folder / "link").symlink_to("../private")
    (folder / ".git").mkdir()
    (folder / "dots").symlink_to(".git")


@pytest.mark.parametrize(
    "data",
    ["../private", "link", "link/x", "hop/../../private", ".git", "dots", "~/x", "/", "runs", "a/../..",
     "link/../private", "s3://hers/set", "https://hers/set", "node:/etc"],
)  # fmt: skip
def test_data_that_only_seem_to_be_inside(shell: Shell, data: str) -> None:
    away(shell.folder)
    for folder in ("s3:/hers", "https:/hers", "node:"):
        (shell.folder / folder).mkdir(parents=True)
    file = Toml(shell.folder / "gpuops.toml", {"run": {"data": data}}, "x")
    inside = data == "link/../private"  # which is read as `private`
    assert [one.option for one in reaches(file)] == ([] if inside else ["data"])


def test_a_word_is_for_one_content_of_one_file(shell: Shell) -> None:
    shell.write("gpuops.toml", toml("run", setup="touch ../ran", env=["WORD=one"]))
    command = ("run", "--", "sh", "-c", "echo $WORD")
    assert shell.run(*command).returncode == 2
    done = shell.run("trust")
    assert (done.returncode, done.stderr.splitlines()[-2:]) == (
        2,
        ["error: cannot ask for confirmation: no terminal", "hint: read the file, then: gpuops trust --yes"],
    )
    done = shell.run("trust", "--yes")
    assert (done.returncode, done.stdout) == (0, f"{shell.folder}/gpuops.toml is trusted until it changes\n")
    asked = [f"{shell.folder}/gpuops.toml asks for:", '  [run] setup = "touch ../ran"', '  [run] env = ["WORD=one"]']
    assert done.stderr.splitlines() == asked
    assert shell.run(*command).stdout == "one\n"
    (word,) = (shell.home / "trusted").iterdir()
    assert (stat.S_IMODE(word.stat().st_mode), stat.S_IMODE(word.parent.stat().st_mode)) == (0o600, 0o700)

    shell.write("gpuops.toml", toml("run", setup="touch ../ran", env=["WORD=two"]))
    assert shell.run(*command).returncode == 2, "another content"
    shell.write("gpuops.toml", toml("run", setup="touch ../ran", env=["WORD=one"]))
    assert shell.run(*command).returncode == 0, "the first again"

    elsewhere = shell.folder.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "gpuops.toml").symlink_to(shell.folder / "gpuops.toml")
    here, shell.folder = shell.folder, elsewhere
    assert shell.run(*command).returncode == 2, "the same words mean something else in another project"
    shell.folder = here

    assert shell.json("trust", "--revoke") == {
        "schema": 1, "kind": "trust", "path": f"{here}/gpuops.toml", "trusted": False, "options": []}  # fmt: skip
    assert shell.run(*command).returncode == 2


def test_a_flag_that_was_typed_needs_nothing_of_the_file(shell: Shell) -> None:
    shell.write("gpuops.toml", toml("run", env=["WORD=theirs"], setup="touch ../ran") + toml("train", python="./evil"))
    done = shell.run("run", "--env", "WORD=mine", "--setup", "", "--", "sh", "-c", "echo $WORD")
    assert (done.returncode, done.stdout) == (0, "mine\n"), done.stderr
    assert not (shell.folder.parent / "ran").exists()


def test_other_commands_do_not_ask(shell: Shell) -> None:
    shell.write("gpuops.toml", toml("run", setup="touch ../ran"))
    for words in (("status",), ("runs",), ("push", "--dry-run"), ("down",), ("up", "local", "--dry-run")):
        assert shell.run(*words).returncode == 0, words


@pytest.mark.parametrize(("typed", "code"), [("y\n", 0), ("n\n", 2), ("\n", 2), ("\x04", 2)])
def test_the_question(shell: Shell, typed: str, code: int) -> None:
    nasty = "true \x1b[2K\x1b[1A \u202e \u2028 [y/N] y\n"
    shell.write("gpuops.toml", toml("run", setup=nasty) + toml("train", secret=["HF_TOKEN"]) + toml("up", nodes=3))
    done, shown = at_a_terminal(shell, typed, "run", "--dry-run", "--", "true")
    assert done == code, shown
    head, question, *_ = shown.partition("a project may be somebody else's")
    assert question
    lines = head.splitlines()[-4:]
    assert lines[0] == f"{shell.folder}/gpuops.toml asks for:"
    assert lines[1].startswith('  [run] setup = "true \\u001b[2K\\u001b[1A ? ? [y/N] y\\n"')
    assert lines[2:] == ['  [train] secret = ["HF_TOKEN"]', "  [up] nodes = 3"], "the word is for the whole file"
    assert ("gpuops.toml is not trusted: nothing was done" in shown) == (code == 2)
    done, again = at_a_terminal(shell, "", "run", "--dry-run", "--", "true") if code == 0 else (0, "")
    assert (done, "somebody else's" in again) == (0, False), "once is enough"


def test_yes_answers_for_money_alone(shell: Shell) -> None:
    shell.write("gpuops.toml", toml("run", setup="true"))
    code, shown = at_a_terminal(shell, "y\n", "run", "--yes", "--", "true")
    assert code == 2
    assert "you have not trusted this file with setup" in shown


def test_where_there_is_nothing_to_trust(shell: Shell) -> None:
    done = shell.run("trust", "--yes")
    none = [f"error: there is no {shell.folder}/gpuops.toml", "hint: name the project's folder: gpuops trust PATH"]
    assert (done.returncode, done.stderr.splitlines()) == (2, none)
    shell.write("gpuops.toml", toml("run", out=["*.pt"]))
    done = shell.run("trust", str(shell.folder / "gpuops.toml"))
    line = "reaches for nothing beyond its project: nothing is to be trusted"
    assert (done.returncode, done.stdout) == (0, f"{shell.folder}/gpuops.toml {line}\n")
    shell.write("gpuops.toml", toml("run", secret=["A"]))
    assert shell.json("trust", ".", "--yes")["options"] == [{"table": "run", "option": "secret", "value": ["A"]}]


def test_the_names_of_secrets_are_told(shell: Shell) -> None:
    shell.env["FROM_SHELL"] = "shell-value"
    shell.write(".env", "FROM_FILE=file-value\n")
    words = ("run", "--secret", "FROM_SHELL", "--secret", "FROM_FILE")
    told = "secrets: FROM_SHELL (from the environment), FROM_FILE (from .env)"
    done = shell.run(*words, "--", "sh", "-c", 'test "$FROM_FILE" = file-value')
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines().count(told) == 1
    assert f"would send: {told}" in shell.run(*words, "--dry-run", "--", "true").stdout.splitlines()
    plan = shell.run(*words, "--dry-run", "--json", "--", "true").stdout
    assert json.loads(plan)["secrets"] == [
        {"name": "FROM_SHELL", "from": "the environment"}, {"name": "FROM_FILE", "from": ".env"}]  # fmt: skip
    assert "-value" not in done.stderr + plan


def test_no_key_reaches_a_host(shell: Shell) -> None:
    """A private key, `.env` and an exported key, all asked for by a cloned project: none is on the host afterwards."""
    if why := can_serve():
        pytest.skip(why)
    canaries = {"private": "canary-one", "dotenv": "canary-two", "exported": "canary-three"}
    home = shell.folder.parent / "user"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id_work").write_text(canaries["private"])
    shell.env |= {"HOME": str(home), "OPENAI_API_KEY": canaries["exported"]}
    shell.env.pop("SSH_AUTH_SOCK", None)
    shell.write(".env", f"KEY={canaries['dotenv']}\n")
    shell.write("gpuops.toml", toml("run", **{"data": "~/.ssh", "send-anyway": ["*"], "env": ["OPENAI_API_KEY"]}))
    with serving() as server:
        host = ("--host", f"{server.user}@127.0.0.1:{server.port}", "--identity", str(server.identity), "--accept-new")
        up = shell.run("up", "ssh", "--name", "lab", *host)
        assert up.returncode == 0, up.stderr
        done = shell.run("run", "--cluster", "lab", "--yes", "--", "sh", "-c", "env; cat $GPUOPS_DATA/*")
        assert (done.returncode, done.stderr.splitlines()) == (2, refusal(shell, "run", "data", "send-anyway", "env"))
        found = [path for path in server.home.rglob("*") if path.is_file()]
        assert found
        assert not [path for path in found for word in canaries.values() if word.encode() in path.read_bytes()]
        assert shell.run("down", "lab").returncode == 0
