"""Which key is used, and where it may be sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.core.errors import AuthFailed, UsageError
from provisioners.base import Context
from provisioners.runpod.service import SERVICE, graphql_base


def key(env: dict[str, str]) -> str:
    return SERVICE.find_key(Context("0a1b2c3d", Path("/nowhere"), env)).values["RUNPOD_API_KEY"]


def stored(home: Path, text: str) -> dict[str, str]:
    (home / ".runpod").mkdir()
    (home / ".runpod/config.toml").write_text(text)
    return {"HOME": str(home)}


def test_the_environment_comes_before_what_runpods_tools_have_stored(tmp_path: Path) -> None:
    env = stored(tmp_path, 'apiKey = "stored"\n')
    assert key({**env, "RUNPOD_API_KEY": " given\n"}) == "given"
    assert key({**env, "RUNPOD_API_KEY": ""}) == "stored"


@pytest.mark.parametrize(
    "text", ['apiKey = "k1"\n', '[default]\napi_key = "k1"\n', 'apiKey = ""\n[default]\napi_key = "k1"\n']
)
def test_both_of_runpods_tools_are_understood(tmp_path: Path, text: str) -> None:
    assert key(stored(tmp_path, text)) == "k1"


@pytest.mark.parametrize("text", ["", "default = 3\n", "apiKey = 3\n", "not toml"])
def test_no_key_is_said_with_the_way_to_one(tmp_path: Path, text: str) -> None:
    with pytest.raises(AuthFailed) as caught:
        key(stored(tmp_path, text))
    assert "RUNPOD_API_KEY is not set" in caught.value.message
    assert "console.runpod.io" in caught.value.hint


@pytest.mark.parametrize("secret", ["two words", "line\nbreak", "schlüssel"])
def test_what_cannot_be_a_key_is_not_repeated(secret: str) -> None:
    with pytest.raises(AuthFailed) as caught:
        key({"RUNPOD_API_KEY": secret})
    assert secret not in caught.value.message + caught.value.hint


@pytest.mark.parametrize("url", [
    "https://api.runpod.io/v2", "https://v2-rest.runpod.io/v2/", "http://127.0.0.1:80/v2", "http://localhost:1/v2",
    "http://[::1]:8/v2", "http://10.1.2.3/v2", "http://192.168.1.1/v2",
])  # fmt: skip
def test_addresses_that_a_key_may_be_sent_to(url: str) -> None:
    assert SERVICE.find_address({"RUNPOD_API_URL": url}) == url.rstrip("/")


@pytest.mark.parametrize(("url", "say"), [
    ("http://api.runpod.io/v2", "would travel unencrypted"),
    ("http://8.8.8.8/v2", "would travel unencrypted"),
    ("http://localhost.evil.com/v2", "would travel unencrypted"),
    ("https://rest.runpod.io/v1", "is not RunPod's REST API v2"),
    ("https://api.runpod.io/graphql", "is not RunPod's REST API v2"),
    ("https://api.runpod.io", "is not RunPod's REST API v2"),
    ("file:///etc/passwd/v2", "no address of an API"),
    ("api.runpod.io/v2", "no address of an API"),
    ("https://user:pass@api.runpod.io/v2", "no address of an API"),
    ("https://[x/v2", "no address of an API"),
])  # fmt: skip
def test_addresses_that_it_may_not(url: str, say: str) -> None:
    with pytest.raises(UsageError, match=say):
        SERVICE.find_address({"RUNPOD_API_URL": url})


def test_the_balance_is_asked_for_where_the_api_is() -> None:
    assert graphql_base({}) == "https://api.runpod.io"
    assert graphql_base({"RUNPOD_API_URL": "http://127.0.0.1:7/v2"}) == "http://127.0.0.1:7"
    assert graphql_base({"RUNPOD_API_BASE_URL": "https://x.org/"}) == "https://x.org"
    with pytest.raises(UsageError):
        graphql_base({"RUNPOD_API_BASE_URL": "http://x.org"})
