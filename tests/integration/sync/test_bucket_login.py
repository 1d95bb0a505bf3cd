"""Whose keys a bucket is asked with, where they are had only when they are needed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpuops.cli.terminal.output import Output
from gpuops.core.context import Context
from gpuops.core.errors import AuthFailed
from gpuops.core.signals import Signals
from gpuops.core.sink import BucketSink
from gpuops.guard.services import SERVICES
from gpuops.sync import bucket, object_store

CONFIG = """
[profile sso]
sso_session = mine
sso_account_id = 123456789012
sso_role_name = Dev
[sso-session mine]
sso_start_url = https://example.awsapps.com/start
sso_region = us-east-1
[profile broken]
credential_process = false
[profile lasting]
aws_access_key_id = AKIACANARY
aws_secret_access_key = secret
[profile brief]
credential_process = cat {}/brief.json
"""
SINK = BucketSink("results")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Context]:
    (tmp_path / "config").write_text(CONFIG.format(tmp_path))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "AWS_DEFAULT_PROFILE"):
        monkeypatch.delenv(name, raising=False)

    def of(profile: str) -> Context:
        env = {"AWS_PROFILE": profile, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
        return Context(tmp_path, "o", tmp_path, env, Output(), Signals(), SERVICES)

    return of


ASKED: list[Callable[[Context], Any]] = [
    lambda world: bucket.check_bucket(world, SINK),
    lambda world: bucket.create_upload_grant(world, SINK, "r-1", 1, None),
    lambda world: object_store.session_end(world, SINK),
]


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize(
    ("profile", "say", "hint"),
    [
        ("sso", "the login at AWS is over: Error loading SSO Token", "sign in again (aws sso login"),
        ("broken", "AWS's credentials cannot be read: ", "see ~/.aws"),
    ],
)
def test_nobody_to_ask_as(
    world: Callable[[str], Context], asked: Callable[[Context], Any], profile: str, say: str, hint: str
) -> None:
    with pytest.raises(AuthFailed) as error:
        asked(world(profile))
    assert error.value.message.startswith(say)
    assert error.value.hint.startswith(hint)


def test_when_they_end(world: Callable[[str], Context], tmp_path: Path) -> None:
    ends = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    (tmp_path / "brief.json").write_text(
        '{"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "s", "SessionToken": "t", '
        f'"Expiration": "{ends.isoformat()}"}}'
    )
    assert object_store.session_end(world("brief"), SINK) == ends.timestamp()
    assert object_store.session_end(world("lasting"), SINK) is None
