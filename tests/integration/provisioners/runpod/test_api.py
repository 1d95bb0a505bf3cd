"""One request, one answer: over a real connection, to a server that misbehaves."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuops.core.errors import (
    AuthFailed,
    NoCapacity,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Rejected,
    Unknown,
    UsageError,
)
from gpuops.core.polling import Clock
from provisioners.base import Context
from provisioners.kit import json_api as module
from provisioners.kit.http_client import HttpClient, Request, proxy_for
from provisioners.runpod.api import Api
from provisioners.runpod.service import SERVICE
from tests.conftest import HANG_S
from tests.fakes.provider import FakeClock
from tests.integration.provisioners.runpod.canned import CUT, Asked, Canned, Says, problem

KEY = "rpa_MYSECRETKEY"


def client(server: Canned, clock: Clock | None = None, **env: str) -> Api:
    return api({"RUNPOD_API_KEY": KEY, "RUNPOD_API_URL": server.url, **env}, clock)


def api(env: dict[str, str], clock: Clock | None = None) -> Api:
    return Api(SERVICE, Context("0a1b2c3d", Path("/nowhere"), {"HOME": "/nowhere", **env}, clock=clock or Clock()))


def in_turn(*says: Says) -> Callable[[Asked], Says]:
    """These, one after another; the last for ever."""
    left = list(says)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_DELAYS_S", (0.01, 0.02))


def test_what_a_stream_has_said_is_heard_however_late_it_is_read() -> None:
    """The time was up before the first look: an empty answer would be taken for all that a log holds."""
    said = [b"a line\n", b"another\n"]
    response: Any = SimpleNamespace(connection=None, read1=lambda _: said.pop(0))
    request = Request("GET", "http://x/", KEY, 1.0, is_stream=True)
    assert HttpClient({}, Clock())._read_body(response, request, 0.0) == (b"a line\n", False)


def test_every_request_says_who_asks_and_shows_its_key() -> None:
    with Canned(lambda _: Says(200, {"id": "p1"})) as server:
        api = client(server)
        assert api.create_object("/pods", {"name": "x"}, "create a pod") == {"id": "p1"}
        assert api.get("/pods/p1", "look") == {"id": "p1"}
        assert api.delete("/pods/p1", "end a pod") == 200
    assert server.said == ["POST /v2/pods", "GET /v2/pods/p1", "DELETE /v2/pods/p1"]
    assert server.asked[0].body == {"name": "x"}
    for asked in server.asked:
        assert asked.headers["Authorization"] == f"Bearer {KEY}"
        assert asked.headers["User-Agent"].startswith("gpuops/")


@pytest.mark.parametrize("says", [Says(CUT), problem(500, "oops"), problem(503, ""), Says(201, b"<html>"),
                                  Says(201, []), Says(201, {"pods": []}), Says(200, {"data": {}})])  # fmt: skip
def test_what_creates_is_sent_once_and_what_is_not_known_is_unknown(says: Says) -> None:
    with Canned(lambda _: says) as server, pytest.raises(Unknown):
        client(server).create_object("/pods", {}, "create a pod")
    assert len(server.asked) == 1


@pytest.mark.parametrize(("says", "kind"), [
    (problem(400, "There are no longer any instances available"), NoCapacity), (problem(401, "bad"), AuthFailed),
    (problem(402, "no money"), QuotaExceeded), (problem(403, "access denied"), NoCapacity),
    (problem(422, "x"), Rejected), (problem(429, "slow down"), RateLimited),
    (Says(307, b"", {"Location": "http://127.0.0.1:1/"}), Rejected),
])  # fmt: skip
def test_a_refusal_made_nothing_and_is_never_sent_again(says: Says, kind: type) -> None:
    with Canned(lambda _: says) as server, pytest.raises(kind) as caught:
        client(server).create_object("/pods", {}, "create a pod")
    assert type(caught.value) is kind
    assert len(server.asked) == 1, "nor followed to where somebody else is shown the key"


def test_what_only_reads_is_asked_again_a_little() -> None:
    with Canned(in_turn(Says(CUT), problem(502, "bad gateway"), Says(200, {"id": "p1"}))) as server:
        assert client(server).find_object("/pods/p1", "look at a pod") == {"id": "p1"}
    with Canned(lambda _: problem(500, "oops")) as server, pytest.raises(Unknown, match="oops"):
        client(server).find_object("/pods/p1", "look at a pod")
    assert len(server.asked) == 3


def slower(status: int, seconds: str, header: str = "Retry-After") -> Says:
    said = problem(status, "rate limit exceeded")
    return Says(status, said.body, {**said.headers, header: seconds})


def test_the_name_of_a_header_may_be_in_small_letters() -> None:
    with Canned(lambda _: slower(429, "5", "retry-after")) as server, pytest.raises(RateLimited) as caught:
        client(server).create_object("/pods", {}, "create a pod")
    assert caught.value.retry_after == 5.0


@pytest.mark.parametrize("status", [429, 503])
def test_what_only_reads_waits_as_long_as_it_is_told(status: int) -> None:
    clock = FakeClock()
    with Canned(
        in_turn(slower(status, "12"), slower(status, "40"), slower(status, "0"), Says(200, {"id": "p1"}))
    ) as server:
        assert client(server, clock).find_object("/pods/p1", "look at a pod") == {"id": "p1"}
    assert clock.slept == [12.0, 40.0, 1.0]
    clock.slept.clear()
    with Canned(lambda _: slower(429, "40")) as server, pytest.raises(RateLimited) as caught:
        client(server, clock).find_object("/pods/p1", "look at a pod")
    assert (clock.slept, caught.value.retry_after) == ([40.0], 40.0), "not for ever"
    with Canned(lambda _: slower(429, "5")) as server, pytest.raises(RateLimited):
        client(server).create_object("/pods", {}, "create a pod")
    assert len(server.asked) == 1, "what creates is asked for anew by whoever knows that nothing was made"


@pytest.mark.parametrize("status", [400, 401, 403, 422, 429])
def test_a_plain_no_is_not_asked_again(status: int) -> None:
    with Canned(lambda _: problem(status, "no")) as server, pytest.raises(ProviderError):
        client(server).find_object("/pods/p1", "look at a pod")
    assert len(server.asked) == 1


@pytest.mark.parametrize("body", [None, b"null", {}])
def test_an_answer_of_success_that_says_nothing_is_not_gone(body: Any) -> None:
    with Canned(lambda _: Says(200, body)) as server, pytest.raises(Unknown, match="cannot be read"):
        client(server).find_object("/pods/p1", "look")


def test_gone_is_no_error() -> None:
    with Canned(lambda _: problem(404, "pod not found")) as server:
        api = client(server)
        assert api.find_object("/pods/p1", "look at a pod") is None
        assert api.delete("/pods/p1", "end a pod") == 404
    with Canned(lambda _: problem(409, "in a cluster")) as server:
        assert client(server).delete("/pods/p1", "end a pod", accepted=(404, 409)) == 409


@pytest.mark.parametrize("status", [401, 403, 429, 500])
def test_an_end_that_was_not_asked_for_in_earnest_is_raised(status: int) -> None:
    with Canned(lambda _: problem(status, "no")) as server, pytest.raises(ProviderError):
        client(server).delete("/pods/p1", "end a pod")


@pytest.mark.parametrize(("body", "say"), [
    ([], "REST API v1"), ({"data": {"myself": None}}, "GraphQL"), ({"errors": []}, "GraphQL"),
    ({"pods": [{"name": "x"}]}, "cannot be read"), ({"pods": "x"}, "cannot be read"), ({}, "cannot be read"),
    (3, "cannot be read"),
])  # fmt: skip
def test_a_list_that_is_none_is_not_taken_for_an_empty_one(body: Any, say: str) -> None:
    with Canned(lambda _: Says(200, body)) as server, pytest.raises(Unknown, match=say):
        client(server).pages("/pods", "pods", "list pods")


def pod(name: str) -> dict[str, str]:
    return {"id": name}


@pytest.mark.parametrize("where", ["nextCursor", "cursor", "pagination"])
def test_all_pages_are_turned(where: str) -> None:
    def tell(asked: Asked) -> Says:
        after = asked.path.partition("cursor=")[2]
        page, more = (["a", "b"], "2") if not after else (["c"], "")
        cursor = {where: {"nextCursor": more} if where == "pagination" else more}
        return Says(200, {"pods": [pod(one) for one in page], **cursor})

    with Canned(tell) as server:
        found = client(server).pages("/pods", "pods", "list pods", includeClusterPods=True)
    assert [one["id"] for one in found] == ["a", "b", "c"]
    assert server.said == ["GET /v2/pods?includeClusterPods=true", "GET /v2/pods?includeClusterPods=true&cursor=2"]


def test_pages_that_cannot_be_turned_are_no_whole_list() -> None:
    same = Says(200, {"pods": [pod("a")], "nextCursor": "2"})
    with Canned(lambda _: same) as server, pytest.raises(Unknown, match="pages"):
        client(server).pages("/pods", "pods", "list pods")
    assert len(server.asked) == 2


def test_the_key_is_in_no_message() -> None:
    with Canned(lambda _: problem(401, f"no such key: {KEY}")) as server, pytest.raises(AuthFailed) as caught:
        client(server).get("/pods", "list pods")
    assert "no such key" in caught.value.message
    assert KEY not in caught.value.message + caught.value.hint + str(caught.value) + repr(caught.value.args)


def test_an_answer_that_drips_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CALL_TIMEOUT_S", 0.8)
    with Canned(lambda _: Says(201, {"id": "x" * 200}, drip_s=0.05)) as server, pytest.raises(Unknown, match="in time"):
        client(server).create_object("/pods", {}, "create a pod")
    assert len(server.asked) == 1


def test_nobody_there() -> None:
    with Canned() as server:
        api = client(server)
    with pytest.raises(Unknown, match="cannot be reached"):
        api.create_object("/pods", {}, "create a pod")


class Brief(Clock):
    """HANG_S are over once thirty pieces were heard: a busy machine has heard as many as any other."""

    def __init__(self) -> None:
        self._looks = itertools.count(0.0, HANG_S / 60)

    def monotonic(self) -> float:
        return next(self._looks)


def test_a_stream_is_heard_for_a_while() -> None:
    lines = b"".join(b'data: {"line": "%d"}\n\n' % at for at in range(100))
    with Canned(lambda _: Says(200, lines, drip_s=0.01)) as server:
        heard = client(server, Brief()).read_stream("/pods/p1/logs", HANG_S, "read a log", tail=5)
        assert heard.startswith(b'data: {"line": "0"}')
        assert len(heard) < len(lines)
    with Canned(lambda _: Says(200, lines)) as server:
        assert client(server, Brief()).read_stream("/pods/p1/logs", HANG_S, "read a log") == lines
    assert server.said == ["GET /v2/pods/p1/logs"]


def test_a_half_heard_stream_does_not_confuse_the_next_answer() -> None:
    def tell(asked: Asked) -> Says:
        return Says(200, b"data: x\n" * 50, drip_s=0.02) if "logs" in asked.path else Says(200, {"id": "p1"})

    with Canned(tell) as server:
        api = client(server, Brief())
        assert len(api.read_stream("/pods/p1/logs", HANG_S, "read a log")) < 8 * 50
        assert api.find_object("/pods/p1", "look") == {"id": "p1"}


def test_many_threads_share_it() -> None:
    with Canned(lambda asked: Says(200, {"id": asked.path})) as server:
        api = client(server)
        wrong: list[Any] = []

        def work(at: int) -> None:
            for step in range(20):
                found = api.find_object(f"/pods/{at}-{step}", "look")
                if found != {"id": f"/v2/pods/{at}-{step}"}:
                    wrong.append(found)

        threads = [threading.Thread(target=work, args=(at,)) for at in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
    assert len(server.asked) == 240


HTTPS, HTTP = "https://api.runpod.io/v2", "http://10.0.0.1/v2"


@pytest.mark.parametrize(("url", "env", "proxy"), [
    (HTTPS, {}, ""),
    (HTTPS, {"HTTPS_PROXY": "http://p:3128"}, "http://p:3128"),
    (HTTPS, {"https_proxy": "p:3128"}, "http://p:3128"),
    (HTTPS, {"ALL_PROXY": "http://p:1"}, "http://p:1"),
    (HTTPS, {"HTTPS_PROXY": "http://p:3128", "NO_PROXY": "localhost, .runpod.io"}, ""),
    (HTTPS, {"HTTPS_PROXY": "http://p:3128", "NO_PROXY": "*"}, ""),
    (HTTPS, {"HTTPS_PROXY": "http://p:3128", "NO_PROXY": "pod.io,unpod.io"}, "http://p:3128"),
    (HTTP, {"HTTPS_PROXY": "http://p:3128"}, ""),
    (HTTP, {"http_proxy": "http://p:3128"}, "http://p:3128"),
    (HTTP, {"HTTP_PROXY": "http://p:3128"}, ""),
])  # fmt: skip
def test_proxies(url: str, env: dict[str, str], proxy: str) -> None:
    assert proxy_for(url, env) == proxy


def test_it_goes_through_the_proxy_with_its_login() -> None:
    with Canned(lambda _: Says(200, {"id": "p1"})) as proxy:
        host = proxy.url.removesuffix("/v2").removeprefix("http://")
        env = {"RUNPOD_API_KEY": KEY, "RUNPOD_API_URL": HTTP, "http_proxy": f"http://me:w%40rd@{host}"}
        assert api(env).find_object("/pods/p1", "look") == {"id": "p1"}
    assert proxy.asked[0].path == "http://10.0.0.1/v2/pods/p1"
    assert proxy.asked[0].headers["proxy-authorization"] == "Basic bWU6d0ByZA=="


def test_to_make_one_touches_nothing_and_imports_nothing() -> None:
    api({})
    code = (
        "import sys\nfrom pathlib import Path\nfrom gpuops.core.provider import Context\n"
        "from provisioners.runpod import RunpodProvisioner\nRunpodProvisioner(Context('', Path('x'), {}))\n"
        "print([name for name in ('urllib3', 'certifi', 'runpod', 'cryptography', 'paramiko') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout == "[]\n", done.stderr
    with pytest.raises(AuthFailed):
        api({}).get("/pods", "list pods")
    with pytest.raises(UsageError):
        api({"RUNPOD_API_KEY": KEY, "RUNPOD_API_URL": "https://rest.runpod.io/v1"}).get("/pods", "list pods")
