"""What a request that may have created something is taken for, whatever becomes of the key meanwhile."""

from __future__ import annotations

import pytest

from gpuops.core.errors import NotSetUp, Unknown
from provisioners.kit.http_client import NoAnswer, Request
from provisioners.kit.json_api import JsonApi, Service
from provisioners.lambdacloud.errors import failure
from tests.fakes.provider import FakeClock


def test_a_lost_answer_is_unknown_also_where_the_key_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file is being written anew. A refusal would mean that nothing was made."""
    keys = ["a-key"]

    def key() -> str:
        if not keys:
            raise NotSetUp("there is no key", "make one")
        return keys[0]

    def lose(_: Request) -> None:
        keys.clear()
        raise NoAnswer("the connection was cut")

    api = JsonApi(Service("Somebody", lambda: "http://127.0.0.1", key, failure), {}, FakeClock())
    monkeypatch.setattr(api, "_send", lose)
    with pytest.raises(Unknown, match="the connection was cut"):
        api.post("/machines", {}, "start a machine")
