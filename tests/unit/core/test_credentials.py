"""A provider's keys: where they may come from, and where they never go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuops.cli.request import parse_environment
from gpuops.core.account_variables import OURS
from gpuops.core.errors import UsageError
from gpuops.core.settings import (
    FROM_ENVIRONMENT,
    KEYS,
    Settings,
    dotenv_values,
    load,
    load_leniently,
    surroundings,
    with_keys,
)

RUNPOD = "RUNPOD_API_KEY"
ID, SECRET, SESSION = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"


@pytest.mark.parametrize("environ", [{}, {RUNPOD: "mine", SESSION: ""}, {RUNPOD: " "}])
def test_a_key_of_the_project_is_kept_apart(tmp_path: Path, environ: dict[str, str]) -> None:
    (tmp_path / ".env").write_text(f"{RUNPOD}=file\n{ID}=\n{SECRET}= \nAWS_REGION=eu-west-1\n")
    before = dict(os.environ)
    for found in (load(tmp_path, environ, {}), load_leniently(tmp_path, environ, {})[0]):
        seen = surroundings(found, {**environ, "PATH": "/bin"})
        exported = {name: value for name, value in environ.items() if value}
        assert seen == {**exported, "PATH": "/bin", "AWS_REGION": "eu-west-1"}
        assert found.dotenv == dotenv_values(tmp_path, KEYS) == {RUNPOD: "file"}
    assert dict(os.environ) == before, "nothing is exported"


def test_what_cannot_be_read_has_no_keys(tmp_path: Path) -> None:
    assert dotenv_values(tmp_path, KEYS) == {}
    (tmp_path / ".env").write_bytes(b"RUNPOD_API_KEY=\xff\n")
    assert dotenv_values(tmp_path, KEYS) == {}


@pytest.mark.parametrize(
    ("provider", "env", "keys", "insist", "expected"),
    [
        ("runpod", {}, {RUNPOD: "f"}, False, {RUNPOD: "f"}),
        ("runpod", {RUNPOD: "e"}, {RUNPOD: "f"}, False, {RUNPOD: "e"}),
        ("runpod", {RUNPOD: "e"}, {RUNPOD: "f"}, True, {RUNPOD: "f"}),
        # Of one account: a session of the one would not fit the other's key.
        ("aws", {ID: "e", SECRET: "e", SESSION: "e"}, {ID: "f", SECRET: "f"}, True, {ID: "f", SECRET: "f"}),
        ("aws", {ID: "e"}, {ID: "f", SECRET: "f"}, False, {ID: "e"}),
        ("aws", {RUNPOD: "e"}, {RUNPOD: "f"}, True, {RUNPOD: "e"}),  # another's
        ("aws", {"PATH": "/bin"}, {}, True, {"PATH": "/bin"}),
    ],
)
def test_a_key_that_a_cluster_was_rented_with_goes_first(
    provider: str, env: dict[str, str], keys: dict[str, str], insist: bool, expected: dict[str, str]
) -> None:
    assert with_keys(env, keys, OURS[provider].credentials, insist=insist) == expected


def test_a_command_in_no_project_has_the_keys_of_its_environment() -> None:
    assert surroundings(Settings(), {RUNPOD: "mine", SESSION: ""}) == {RUNPOD: "mine"}


@pytest.mark.parametrize("name", FROM_ENVIRONMENT)
def test_where_a_key_is_sent_no_project_decides(tmp_path: Path, name: str) -> None:
    (tmp_path / ".env").write_text(f"{RUNPOD}=k\n{name}=http://203.0.113.9/v2\n")
    with pytest.raises(UsageError) as caught:
        load(tmp_path, {}, {})
    assert caught.value.message == f"{name} has no effect in .env"
    assert caught.value.hint == f"remove it there, and export {name} in your shell instead"
    lenient, wrong = load_leniently(tmp_path, {}, {})
    assert (lenient.env_values, lenient.dotenv, wrong) == ({}, {RUNPOD: "k"}, [f"{name} has no effect in .env"])
    (tmp_path / ".env").unlink()
    assert load(tmp_path, {name: "http://mine"}, {}).env_values == {name: "http://mine"}


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("word", ["{}", "{}=sk"])
def test_no_key_is_recorded_with_a_run(name: str, word: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_environment([word.format(name)], {name: "sk"})
    assert caught.value.message == f"--env {name} would write a provider's key down with the run"
    assert f"--secret {name}" in caught.value.hint
