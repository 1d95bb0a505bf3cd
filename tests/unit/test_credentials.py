"""A provider's keys: where they may come from, and where they never go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuops.cli.request import environment
from gpuops.errors import UsageError
from gpuops.settings import FROM_ENVIRONMENT, KEYS, Settings, load, load_leniently, surroundings
from tests.conftest import Shell

RUNPOD = "RUNPOD_API_KEY"
ID, SECRET, SESSION = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"


@pytest.mark.parametrize(
    ("dotenv", "environ", "expected"),
    [
        ({RUNPOD: "file"}, {}, {RUNPOD: "file"}),
        ({RUNPOD: "file"}, {RUNPOD: "mine"}, {RUNPOD: "mine"}),
        ({RUNPOD: "file"}, {RUNPOD: ""}, {RUNPOD: "file"}),
        ({RUNPOD: ""}, {RUNPOD: "mine"}, {RUNPOD: "mine"}),
        ({RUNPOD: ""}, {}, {}),
        ({}, {RUNPOD: ""}, {}),
        ({ID: "f", SECRET: "f", SESSION: "f"}, {}, {ID: "f", SECRET: "f", SESSION: "f"}),
        # Of one account: a session of the file's would not fit the environment's key.
        ({ID: "f", SECRET: "f", SESSION: "f"}, {ID: "e", SECRET: "e"}, {ID: "e", SECRET: "e"}),
        ({ID: "f", SECRET: "f", RUNPOD: "f"}, {ID: "e", SECRET: "e"}, {ID: "e", SECRET: "e", RUNPOD: "f"}),
        ({ID: "f", SECRET: "f", SESSION: ""}, {SESSION: ""}, {ID: "f", SECRET: "f"}),
    ],
)
def test_which_key_is_used(
    tmp_path: Path, dotenv: dict[str, str], environ: dict[str, str], expected: dict[str, str]
) -> None:
    (tmp_path / ".env").write_text("".join(f"{name}={value}\n" for name, value in dotenv.items()))
    before = dict(os.environ)
    seen = surroundings(load(tmp_path, environ, {}), {**environ, "PATH": "/bin"})
    assert {name: value for name, value in seen.items() if name in KEYS} == expected
    assert seen["PATH"] == "/bin"
    assert dict(os.environ) == before, "nothing is exported"
    assert surroundings(load_leniently(tmp_path, environ, {})[0], environ) == expected


def test_a_command_in_no_project_has_the_keys_of_its_environment() -> None:
    assert surroundings(Settings(), {RUNPOD: "mine", SESSION: ""}) == {RUNPOD: "mine"}


@pytest.mark.parametrize("name", FROM_ENVIRONMENT)
def test_where_a_key_is_sent_no_project_decides(tmp_path: Path, name: str) -> None:
    (tmp_path / ".env").write_text(f"{RUNPOD}=k\n{name}=http://203.0.113.9/v2\n")
    with pytest.raises(UsageError) as caught:
        load(tmp_path, {}, {})
    assert caught.value.say == f"{name} has no effect in .env"
    assert caught.value.hint == f"remove it there, and export {name} in your shell instead"
    lenient, wrong = load_leniently(tmp_path, {}, {})
    assert (lenient.env_values, wrong) == ({RUNPOD: "k"}, [f"{name} has no effect in .env"])
    (tmp_path / ".env").unlink()
    assert load(tmp_path, {name: "http://mine"}, {}).env_values == {name: "http://mine"}


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("word", ["{}", "{}=sk"])
def test_no_key_is_recorded_with_a_run(name: str, word: str) -> None:
    with pytest.raises(UsageError) as caught:
        environment([word.format(name)], {name: "sk"})
    assert caught.value.say == f"--env {name} would write a provider's key down with the run"
    assert f"--secret {name}" in caught.value.hint


def test_a_key_of_the_project_reaches_no_node(shell: Shell) -> None:
    """Neither the environment of what runs, nor any file of it, nor this computer's other processes."""
    key = "rpa_" + "W8y" * 14
    shell.write(".env", f"{RUNPOD}={key}\n")
    found = shell.run("run", "--", "sh", "-c", "env; cat .env; echo the end")
    assert "the end" in found.stdout
    assert key not in found.stdout + found.stderr
    elsewhere = [path for path in [*shell.home.rglob("*"), *(shell.folder / "runs").rglob("*")] if path.is_file()]
    assert [path for path in elsewhere if key.encode() in path.read_bytes()] == []
