"""What tests/unit/provisioners/aws/test_account.py leaves to real processes or sockets."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from gpuops.core.errors import AuthFailed, Unknown
from provisioners.aws.account import MAX_ATTEMPTS, Account
from provisioners.aws.api import ask, pages
from tests.fakes.aws import FakeAWS, Fault
from tests.unit.provisioners.aws.test_account import KEYS, without


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


def test_who_this_is_is_asked_once(fake: FakeAWS, account: Account) -> None:
    threads = [threading.Thread(target=account.identity, args=("us-east-1",)) for _ in range(2)]
    found = account.identity("us-east-1")
    for thread in threads:
        thread.start()
        thread.join()
    assert (found.account, found.name) == (fake.account, "gpuops-tester")
    assert len(fake.asked("GetCallerIdentity")) == 1


def test_keys_that_are_void(fake: FakeAWS, account: Account) -> None:
    fake.wrong_keys()
    with pytest.raises(AuthFailed, match="AWS does not accept the credentials"):
        account.identity("us-east-1")


def test_credentials_that_have_expired(fake: FakeAWS, account: Account) -> None:
    fake.expired = True
    with pytest.raises(AuthFailed, match="the AWS credentials have expired"):
        account.identity("us-east-1")


@pytest.mark.parametrize(
    ("region", "login"),
    [("us-east-1@my work", "aws sso login --profile 'my work'"), ("us-east-1@work", "aws sso login --profile work"),
     ("us-east-1", "aws sso login")],
)  # fmt: skip
def test_a_login_that_is_over_is_the_profiles(fake: FakeAWS, tmp_path: Path, region: str, login: str) -> None:
    """Whether one thing is asked for, or pages of them."""
    path = tmp_path / "profiles"
    path.write_text("".join(f"[{name}]\naws_access_key_id = {fake.key}\naws_secret_access_key = {fake.secret}\n"
                            for name in ("work", "my work", "default")))  # fmt: skip
    account = Account({**without(fake.env, *KEYS), "AWS_SHARED_CREDENTIALS_FILE": str(path), "AWS_CONFIG_FILE": ""},
                      tmp_path)  # fmt: skip
    fake.expired = True
    client = account.client("ec2", region)
    for asked in (
        lambda: ask("list regions", client.describe_regions),
        lambda: pages("list machines", client, "describe_instances", "Reservations"),
        lambda: account.identity(region),
    ):
        with pytest.raises(AuthFailed) as caught:
            asked()
        assert f"log in again ({login}), or export fresh keys" in caught.value.hint


def test_every_profile_that_something_was_made_with_is_asked_for_ever(fake: FakeAWS, tmp_path: Path) -> None:
    env = {**fake.env, "HOME": str(tmp_path)}
    account = Account(env, tmp_path)
    assert account.profiles() == [""]
    for _ in range(2):
        account.record_profile("us-east-1@work")
    account.record_profile("us-east-1")
    assert account.profiles() == ["work", ""]
    assert Account(without(env, *KEYS), tmp_path).profiles() == ["work", ""]  # the file has a default profile
    assert {"us-east-1", "us-east-1@work"} <= {
        region for profile in account.profiles() for region in account.opted_in(profile)
    }


def test_what_creates_is_asked_once_and_what_looks_again(fake: FakeAWS, account: Account) -> None:
    fake.play(Fault("DescribeVpcs", times=None, what="500"))
    with pytest.raises(Unknown):
        ask("look", account.launcher("us-east-1").describe_vpcs)
    assert len(fake.asked("DescribeVpcs")) == 1
    with pytest.raises(Unknown):
        ask("look", account.client("ec2", "us-east-1").describe_vpcs)
    assert len(fake.asked("DescribeVpcs")) == 1 + MAX_ATTEMPTS
