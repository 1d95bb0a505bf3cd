"""What a request that may have created something is taken for, whatever becomes of the key meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.core.errors import Unknown
from provisioners.base import Context
from provisioners.kit.http_client import NoAnswer, Request
from provisioners.kit.json_api import JsonApi
from provisioners.kit.service import Service
from tests.fakes.provider import FakeClock


def test_a_lost_answer_is_unknown_also_where_the_key_has_gone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its file is being written anew. A refusal would mean that nothing was made."""
    env = {"A_KEY": "a-key", "HOME": str(tmp_path)}
    service = Service("Somebody", "http://127.0.0.1", "A_URL", "A_KEY", "somewhere")
    api = JsonApi(service, Context("0a1b2c3d", tmp_path, env, clock=FakeClock()))

    def lose(_: Request) -> None:
        env.clear()
        raise NoAnswer("the connection was cut")

    monkeypatch.setattr(api, "_send", lose)
    with pytest.raises(Unknown, match="the connection was cut"):
        api.post("/machines", {}, "start a machine")
