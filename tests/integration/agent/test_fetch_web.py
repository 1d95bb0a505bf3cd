"""One request for data (`agent.fetch.web`): proxies, and what a server tells that no file can have."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest

from gpuops.agent.fetch import web
from gpuops.agent.http_connection import make_connection
from tests.fakes.data_server import DataServer

BIG = b"0123456789"


@pytest.fixture
def server() -> Iterator[DataServer]:
    with DataServer({"/x": BIG}) as one:
        yield one


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


def ask(url: str, **headers: str) -> web.Answer:
    return web.ask(web.Address(url, {}, has_checksum=False), headers)


def test_a_proxy_that_lets_nobody_through_is_named(server: DataServer, monkeypatch: pytest.MonkeyPatch) -> None:
    port = server.url.rpartition(":")[2]
    monkeypatch.setenv("HTTPS_PROXY", f"http://me:hush%40@127.0.0.1:{port}")
    with pytest.raises(web.Cut) as caught:
        ask("https://h.invalid/x?token=hush")
    assert str(caught.value) == "the proxy answers 407, asked for h.invalid"
    (heard,) = server.heard
    assert (heard.method, heard.path) == ("CONNECT", "h.invalid:443")
    assert heard.headers["proxy-authorization"] == f"Basic {base64.b64encode(b'me:hush@').decode()}"


def test_a_proxy_whose_address_is_none_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:port")
    with pytest.raises(web.Cut, match=r"the connection to h\.invalid failed"):
        ask("https://h.invalid/x")


@pytest.mark.parametrize(("scheme", "port"), [("https", 443), ("http", 80)])
def test_an_ipv6_address_needs_no_port(scheme: str, port: int) -> None:
    connection = make_connection(scheme, "fe80::8", None, 1.0)
    assert (connection.host, connection.port) == ("fe80::8", port)


@pytest.mark.parametrize("size", [1 << 63, 10**400], ids=["64 bits", "400 digits"])
def test_a_size_that_no_file_can_have_is_not_taken(
    server: DataServer, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server.more = {"Content-Range": f"bytes 4-9/{size}"}
    answer = ask(f"{server.url}/x", **{"Range": "bytes=4-", "If-Range": "x"})
    with pytest.raises(web.Cut, match="does not say which part of the file it sends"):
        answer.content_range()
    answer.close()
    server.more = {"Content-Length": str(size)}
    with pytest.raises(web.Cut, match="tells a size that no file can have"):
        ask(f"{server.url}/x")
