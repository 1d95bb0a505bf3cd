"""What a request that may have created something is taken for, whatever becomes of the key meanwhile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import urllib3

from gpuops.core.errors import Rejected, Unknown
from provisioners.base import Context
from provisioners.kit.http_client import Answer, NoAnswer, Request
from provisioners.kit.json_api import JsonApi, RefusedAndMade, path_segment
from provisioners.kit.service import Service
from tests.fakes.provider import FakeClock


def api_of(home: Path, env: dict[str, str]) -> JsonApi:
    service = Service("Somebody", "http://127.0.0.1", "A_URL", "A_KEY", "somewhere")
    return JsonApi(service, Context("0a1b2c3d", home, env, clock=FakeClock()))


def test_a_lost_answer_is_unknown_also_where_the_key_has_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its file is being written anew. A refusal would mean that nothing was made."""
    env = {"A_KEY": "a-key", "HOME": str(tmp_path)}
    api = api_of(tmp_path, env)

    def lose(_: Request) -> None:
        env.clear()
        raise NoAnswer("the connection was cut")

    monkeypatch.setattr(api, "_send", lose)
    with pytest.raises(Unknown, match="the connection was cut"):
        api.post("/machines", {}, "start a machine")


@pytest.fixture
def api(tmp_path: Path) -> JsonApi:
    service = Service("Somebody", "http://127.0.0.1", "A_URL", "A_KEY", "somewhere")
    return JsonApi(service, Context("0a1b2c3d", tmp_path, {"A_KEY": "a-key"}, clock=FakeClock()))


def answers(api: JsonApi, monkeypatch: pytest.MonkeyPatch, document: object) -> None:
    monkeypatch.setattr(api, "_send", lambda _: Answer(200, {}, json.dumps(document).encode()))


def test_success_that_says_it_failed_tells_nothing(api: JsonApi, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty list beside an error is no empty list, and no machine beside one is no end of a machine."""
    document = {"success": False, "error": "internal", "msg": "a shard is down", "instances": []}
    answers(api, monkeypatch, document)
    with pytest.raises(Unknown, match="a shard is down"):
        api.list_objects("/instances", "list instances", "instances")
    answers(api, monkeypatch, {**document, "instances": None})
    with pytest.raises(Unknown, match="a shard is down"):
        api.get_or_none("/instances/7", "look at an instance")
    with pytest.raises(Unknown, match="a shard is down"):
        api.post("/instances", {}, "start a machine")


@pytest.mark.parametrize("name", ["..", ".", "../instances", "a/b", "a b", "a\nb", "7?x=1", "7#x"])
def test_no_id_changes_which_path_is_asked(name: str) -> None:
    """Not even to the folder, which ends all machines at some providers."""
    url = urllib3.util.parse_url(f"http://x/instances/{path_segment(name)}/")
    assert url.path is not None
    assert url.path.startswith("/instances/")
    assert url.path.count("/") == 3
    assert unquote(url.path.split("/")[2]) == name


@pytest.mark.parametrize(
    ("status", "body", "may_make", "outcome"),
    [
        (201, {"id": 7}, False, "7"),
        (201, {"id": ""}, False, Unknown),
        (201, None, True, Unknown),
        (409, {"id": 7, "error": "no"}, False, Rejected),
        (409, {"id": 7, "error": "no"}, True, RefusedAndMade),
        (200, {"success": False, "id": 7}, True, RefusedAndMade),
        (200, {"success": False}, True, Rejected),
        (502, {"id": 7}, True, Unknown),
    ],
)
def test_what_one_request_has_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: int, body: Any, may_make: bool, outcome: Any
) -> None:
    """An id in a refusal may be the request's own; whoever knows that it is not says so."""
    api = api_of(tmp_path, {"A_KEY": "a-key"})
    monkeypatch.setattr(api, "_send", lambda _: Answer(status, {}, json.dumps(body).encode() if body else b""))
    if isinstance(outcome, str):
        assert api.create("/machines", {}, "start a machine", may_make_and_refuse=may_make) == outcome
        return
    with pytest.raises(outcome) as told:
        api.create("/machines", {}, "start a machine", may_make_and_refuse=may_make)
    if outcome is RefusedAndMade:
        assert isinstance(told.value, RefusedAndMade)
        assert told.value.made == "7"
