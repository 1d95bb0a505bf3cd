"""What a provider says of itself as data: where its key lies, and what its failed answers mean."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from gpuops.core.errors import (
    AuthFailed,
    NoCapacity,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Rejected,
    Unknown,
)
from provisioners.base import Context
from provisioners.kit.error_table import STANDARD, Row
from provisioners.kit.service import Service, StoredKey

ROWS = (Row(("sold_out",), NoCapacity, "none is free{why}", "later"), *STANDARD)
STORED = (StoredKey("~/.config/somebody/key"), StoredKey("~/.somebody", lambda text: text.partition("=")[2]))
SERVICE = Service("Somebody", "https://x.example", "A_URL", "A_KEY", "x.example/keys", ROWS, stored_keys=STORED)


def failed(status: int, body: object = "", **headers: str) -> ProviderError:
    text = body if isinstance(body, str) else json.dumps(body)
    return SERVICE.failure(status, headers, text.encode(), "start a machine")


@pytest.mark.parametrize(("status", "kind"), [
    (302, Rejected), (400, Rejected), (401, AuthFailed), (402, QuotaExceeded), (403, AuthFailed), (404, Rejected),
    (409, Rejected), (429, RateLimited), (500, Unknown), (503, Unknown),
])  # fmt: skip
def test_what_a_status_means_wherever_nothing_else_is_said(status: int, kind: type[ProviderError]) -> None:
    error = failed(status)
    assert type(error) is kind
    assert "{" not in error.message + error.hint


@pytest.mark.parametrize("body", [
    {"error": {"code": "sold_out", "message": "All gone."}}, {"error": "sold_out", "msg": "All gone"},
    {"code": "sold_out", "detail": "All gone"},
])  # fmt: skip
def test_codes_and_words_are_found_where_apis_have_them(body: object) -> None:
    error = failed(409, body)
    assert (type(error), error.message) == (NoCapacity, "none is free: All gone")


def test_a_page_of_html_is_no_words() -> None:
    assert failed(502, "<html>Bad Gateway</html>").message == "Somebody failed to start a machine (HTTP 502)"
    assert failed(400, "no such region").message == "Somebody refuses to start a machine: no such region"


def test_how_long_to_wait_is_said_by_a_header_or_in_words() -> None:
    error = failed(429, "", **{"Retry-After": "7"})
    assert isinstance(error, RateLimited)
    assert error.retry_after == 7.0
    told = dataclasses.replace(SERVICE, said_wait=re.compile(r"wait ([\d.]+)"), unsaid_wait_s=9.0)
    error = told.failure(429, {}, b"wait 4.5", "list machines")
    assert isinstance(error, RateLimited)
    assert error.retry_after == 4.5
    error = told.failure(429, {}, b"too often", "list machines")
    assert isinstance(error, RateLimited)
    assert error.retry_after == 9.0


def found(home: Path, **env: str) -> tuple[str, str]:
    key = SERVICE.find_key(Context("0a1b2c3d", home, {"HOME": str(home), **env}))
    return key.values["A_KEY"], key.source


def test_the_first_file_with_a_key_counts(tmp_path: Path) -> None:
    (tmp_path / ".somebody").write_text("key=second\n")
    assert found(tmp_path) == ("second", "~/.somebody")
    config = tmp_path / "elsewhere" / "somebody" / "key"
    config.parent.mkdir(parents=True)
    config.write_text("first\n")
    assert found(tmp_path) == ("second", "~/.somebody")
    assert found(tmp_path, XDG_CONFIG_HOME=str(tmp_path / "elsewhere")) == ("first", "~/.config/somebody/key")


def test_a_file_that_cannot_be_read_does_not_give_way(tmp_path: Path) -> None:
    """It may hold the key of the account that is meant."""
    (tmp_path / ".config" / "somebody" / "key").mkdir(parents=True)
    (tmp_path / ".somebody").write_text("key=second\n")
    with pytest.raises(AuthFailed, match=r"/.config/somebody/key cannot be read"):
        found(tmp_path)
