"""Whose account it is, where it is asked, and how: by the keys and files that AWS's own tools use."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse

from gpuops.core.errors import AuthFailed, NotSetUp, Rejected, UsageError
from gpuops.core.models import Request
from provisioners.aws import credentials
from provisioners.aws.account import PROFILES, Account
from provisioners.aws.api import pages
from tests.fakes.aws import FakeAWS
from tests.fakes.provider import FakeClock


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """Keys and files, and nobody who would answer."""
    keys = "aws_access_key_id = AKIAFILE\naws_secret_access_key = x\n"
    (tmp_path / "credentials").write_text(f"[default]\n{keys}\n[work]\n{keys}")
    (tmp_path / "config").write_text("[default]\nregion = us-east-1\n\n[profile work]\nregion = us-west-2\n")
    return {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_ACCESS_KEY_ID": "AKIATEST",
        "AWS_SECRET_ACCESS_KEY": "x",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": str(tmp_path / "config"),
        "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
        "HOME": str(tmp_path),
    }


@pytest.fixture
def account(fake: FakeAWS, tmp_path: Path) -> Account:
    """Where somebody answers."""
    return Account({**fake.env, "HOME": str(tmp_path)}, tmp_path)


def without(env: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in names}


def test_every_answer_tells_what_time_it_is_there(env: dict[str, str], tmp_path: Path) -> None:
    account = Account(env, tmp_path, clock=FakeClock())
    assert account.server_clock.now() is None
    for client in (account.client("ec2", "us-east-1"), account.launcher("us-west-2")):
        for date, moment in (
            ("Tue, 24 Nov 2026 15:30:00 GMT", 1_795_534_200.0),
            ("Tue, 24 Nov 2026 15:30:07 GMT", 1_795_534_207.0),
        ):
            answer = AWSResponse("https://x", 503, {"Date": date}, None)
            client.meta.events.emit(
                "after-call.ec2.DescribeRegions", http_response=answer, parsed={}, model=None, context={}
            )
            assert account.server_clock.now() == moment


KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


def test_without_credentials_it_is_not_set_up(env: dict[str, str], tmp_path: Path) -> None:
    nothing = {**without(env, *KEYS), "AWS_CONFIG_FILE": "/nonexistent", "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent"}
    with pytest.raises(NotSetUp) as caught:
        Account(nothing, tmp_path).client("ec2", "us-east-1")
    assert caught.value.message == "there are no AWS credentials"
    assert "aws configure" in caught.value.hint


def test_the_environment_that_counts_is_the_one_that_was_given(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAELSEWHERE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    nothing = {**without(env, *KEYS), "AWS_CONFIG_FILE": "/nonexistent", "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent"}
    with pytest.raises(NotSetUp):
        Account(nothing, tmp_path).client("ec2", "us-east-1")


def test_this_computer_is_never_asked_whether_it_is_an_instance(env: dict[str, str]) -> None:
    core = credentials._core(without(env, *KEYS), "")
    methods = {one.METHOD for one in core.get_component("credential_provider").providers}
    assert "iam-role" not in methods
    assert "shared-credentials-file" in methods


def test_half_a_key_is_said(env: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(AuthFailed, match=r"AWS_ACCESS_KEY_ID is set, and AWS_SECRET_ACCESS_KEY, .* is not$"):
        Account(without(env, "AWS_SECRET_ACCESS_KEY"), tmp_path).client("ec2", "us-east-1")


def test_without_boto3_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], tmp_path: Path
) -> None:
    monkeypatch.setattr(credentials.importlib.util, "find_spec", lambda _name: None)
    credentials.known_regions.cache_clear()
    for ask_it in (
        lambda: Account(env, tmp_path).client("ec2", "us-east-1"),
        lambda: Account(env, tmp_path).regions(None),
    ):
        with pytest.raises(NotSetUp) as caught:
            ask_it()
        assert (caught.value.message, caught.value.hint) == ("AWS needs the package boto3", "pip install 'gpuops[aws]'")


def test_a_profile_that_is_not_there(env: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(AuthFailed) as caught:
        Account(env, tmp_path).identity("us-east-1@gone")
    assert "gone" in caught.value.message
    assert caught.value.hint == "aws configure list-profiles shows what there is"


@pytest.mark.parametrize(
    ("more", "less", "request_", "regions"),
    [
        ({}, (), None, ["us-east-1"]),
        ({"AWS_REGION": "eu-west-1"}, (), None, ["eu-west-1"]),
        ({}, ("AWS_DEFAULT_REGION",), None, ["us-east-1"]),
        ({}, (), Request("aws", region="us-west-2, eu-west-1,us-west-2"), ["us-west-2", "eu-west-1"]),
        ({}, (), Request("aws", options={"profile": "work"}), ["us-east-1@work"]),
        ({}, ("AWS_DEFAULT_REGION",), Request("aws", options={"profile": "work"}), ["us-west-2@work"]),
        ({"AWS_PROFILE": "work"}, ("AWS_DEFAULT_REGION", *KEYS), None, ["us-west-2@work"]),
        ({"AWS_PROFILE": "work"}, (), None, ["us-east-1"]),
        ({}, (), Request("aws", region="eu-west-1@work"), ["eu-west-1@work"]),
    ],
)
def test_where_it_looks(
    env: dict[str, str], tmp_path: Path, more: dict[str, str], less: tuple[str, ...], request_: Request | None,
    regions: list[str],
) -> None:  # fmt: skip
    assert Account({**without(env, *less), **more}, tmp_path).regions(request_) == regions


@pytest.mark.parametrize(
    ("region", "hint"),
    [
        ("us-est-1", "us-east-1"),
        ("us-east-9", "Where it is new: pip install -U boto3"),
        ("nowhere", "write it like us-east-1, several by commas"),
    ],
)
def test_a_region_that_is_none(env: dict[str, str], tmp_path: Path, region: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        Account(env, tmp_path).regions(Request("aws", region=region))
    assert caught.value.message == f"AWS has no region '{region}' that this computer knows"
    assert hint in caught.value.hint


def test_a_profile_that_is_in_use_anyway_is_not_asked_twice(env: dict[str, str], tmp_path: Path) -> None:
    account = Account({**without(env, *KEYS), "AWS_PROFILE": "work"}, tmp_path)
    account.record_profile("us-west-2@work")
    assert account.profiles() == ["work"]


def test_a_profile_that_cannot_be_noted_stops_whatever_would_be_made(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / PROFILES).mkdir()
    with pytest.raises(Rejected, match="cannot note the profile"):
        Account(env, tmp_path).record_profile("us-east-1@work")


def test_every_request_has_a_time_limit(env: dict[str, str], tmp_path: Path) -> None:
    account = Account(env, tmp_path)
    for client in (
        account.client("ec2", "us-east-1"),
        account.launcher("us-east-1"),
        account.client("sts", "us-east-1"),
    ):
        settings = client.meta.config
        assert settings.connect_timeout + settings.read_timeout <= 60


def test_all_pages_are_read() -> None:
    class Paged:
        def get_paginator(self, _operation: str) -> Any:
            return self

        def paginate(self, **parameters: Any) -> Any:
            assert parameters == {"Filters": []}
            return iter([{"Things": [1, 2]}, {}, {"Things": [3]}])

    assert pages("list", Paged(), "describe_things", "Things", Filters=[]) == [1, 2, 3]


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("", None),
        ("https://ec2.example.com/", "https://ec2.example.com"),
        ("http://127.0.0.1:5000", "http://127.0.0.1:5000"),
    ],
)
def test_where_aws_is(given: str, found: str | None) -> None:
    assert credentials.endpoint({"AWS_ENDPOINT_URL": given}) == found


@pytest.mark.parametrize("given", ["http://ec2.example.com", "ftp://x", "nonsense", "http://[x"])
def test_an_address_that_is_not_safe(given: str) -> None:
    with pytest.raises(UsageError, match="AWS_ENDPOINT_URL"):
        credentials.endpoint({"AWS_ENDPOINT_URL": given})


def settings(tmp_path: Path, env: dict[str, str], text: str) -> dict[str, str]:
    """These surroundings with another file of profiles."""
    (tmp_path / "profiles").write_text(text)
    return {**env, "AWS_CONFIG_FILE": str(tmp_path / "profiles")}


@pytest.mark.parametrize(
    ("text", "named", "say"),
    [
        ("", "gone", "AWS is not set up for that here: The config profile (gone) could not be found"),
        ("no profiles at all [", "", "the AWS credentials cannot be read: Unable to parse config file"),
    ],
)
def test_files_that_are_of_no_use_are_no_bug(
    env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, named: str, say: str
) -> None:
    for name, value in (settings(tmp_path, env, text) | {"AWS_PROFILE": named}).items():
        monkeypatch.setenv(name, value)
    if not named:
        monkeypatch.delenv("AWS_PROFILE")
    credentials.known_regions.cache_clear()
    account = Account(dict(os.environ), tmp_path)
    with pytest.raises(AuthFailed) as caught:
        account.identity(account.regions(Request("aws", region="us-east-1"))[0])
    assert caught.value.message.startswith(say)


ROLE = """
[profile boss]
role_arn = arn:aws:iam::123456789012:role/boss
source_profile = default
mfa_serial = arn:aws:iam::123456789012:mfa/me
"""


def test_a_code_that_nobody_can_type_is_not_asked_for(
    env: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credentials.sys, "stdin", io.StringIO("123456\n"))
    monkeypatch.setattr(credentials.getpass, "getpass", lambda _: pytest.fail("it was asked for"))
    account = Account(settings(tmp_path, env, ROLE), tmp_path)
    for _ in range(2):  # the second time botocore itself says so
        with pytest.raises(AuthFailed) as caught:
            account.identity("us-east-1@boss")
        assert caught.value.message == "the profile wants an MFA code, and it cannot be asked for here"
        assert "aws configure export-credentials" in caught.value.hint


def test_a_code_is_asked_for_where_somebody_can_type_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(credentials.sys, "stdin", Terminal())
    monkeypatch.setattr(credentials.getpass, "getpass", lambda question: f"{question}123456")
    assert credentials._mfa("code: ") == "code: 123456"
