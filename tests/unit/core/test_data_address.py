"""gpuops.core.data_address: what `--data` may name beside a path here."""

from __future__ import annotations

import pytest

from gpuops.agent.fetch.permitted import may_redirect
from gpuops.core.data_address import (
    BucketData,
    DataAddress,
    NodeData,
    WebData,
    is_address,
    parse_address,
    without_query,
)
from gpuops.core.errors import UsageError

SHA = "0123456789abcdef" * 4
LOGIN = "me" + ":hush@"
"""In two, so that the search for keys finds none in this project."""


@pytest.mark.parametrize(
    ("text", "address", "name"),
    [
        ("s3://b-1/sets/train", BucketData("b-1", "sets/train"), "train"),
        ("s3://b-1/sets/train/", BucketData("b-1", "sets/train", is_folder=True), "train"),
        ("s3://b-1", BucketData("b-1", is_folder=True), "b-1"),
        ("S3://b-1/", BucketData("b-1", is_folder=True), "b-1"),
        ("s3://b-1/a b/ü#1?x", BucketData("b-1", "a b/ü#1?x"), "ü#1?x"),
        ("https://h.org/a/x.tar", WebData("https://h.org/a/x.tar", "x.tar"), "x.tar"),
        ("HTTPS://H.org:8443/x.tar?t=1", WebData("https://h.org:8443/x.tar?t=1", "x.tar"), "x.tar"),
        ("https://h.org/a%20b ü.tar", WebData("https://h.org/a%20b%20%C3%BC.tar", "a b ü.tar"), "a b ü.tar"),
        ("https://münchen.de/x", WebData("https://xn--mnchen-3ya.de/x", "x"), "x"),
        ("https://[::1]:8/x", WebData("https://[::1]:8/x", "x"), "x"),
        (f"https://h/x#sha256={SHA.upper()}", WebData("https://h/x", "x", SHA), "x"),
        (f"http://h/x#sha256={SHA}", WebData("http://h/x", "x", SHA), "x"),
        ("http://127.0.0.1:8/x", WebData("http://127.0.0.1:8/x", "x"), "x"),
        ("http://localhost/x", WebData("http://localhost/x", "x"), "x"),
        ("http://[::1]/x", WebData("http://[::1]/x", "x"), "x"),
    ],
)
def test_an_address(text: str, address: DataAddress, name: str) -> None:
    found = parse_address(text)
    assert found == address
    assert is_address(text)
    assert not isinstance(found, NodeData)
    assert found
    assert found.name == name


@pytest.mark.parametrize("text", ["data", "/data", "~/x", "a:b", "C:/x", "C:\\x", "", "s3:/x", "https:x", "//h/x"])
def test_a_path_here_is_no_address(text: str) -> None:
    assert parse_address(text) is None
    assert not is_address(text)


def test_a_path_on_the_nodes() -> None:
    assert parse_address("node:/workspace/data") == NodeData("/workspace/data")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ftp://h/x", "nodes fetch from s3:// and https:// addresses"),
        ("file:///etc/passwd", "nodes fetch from s3:// and https:// addresses"),
        ("http://h.org/x", "over http:// anybody on the way can change the data"),
        ("http://127.0.0.1.h.org/x", "over http:// anybody"),
        ("http://localhost.h.org/x", "over http:// anybody"),
        (f"https://{LOGIN}h/x", "has a login in it"),
        ("https://me@h/x", "has a login in it"),
        ("https:///x", "names no host"),
        ("https://h:port/x", "is no address"),
        ("https://h:0x1/x", "is no address"),
        ("https://[::1/x", "is no address"),
        ("https://h..org/x", "is no address"),
        ("https://h/x#part", "has a fragment that is no checksum"),
        (f"https://h/x#sha256={SHA}0", "has a fragment that is no checksum"),
        ("https://h", "ends with no name"),
        ("https://h/a/", "ends with no name"),
        ("https://h/..", "ends with no name"),
        ("https://h/%2e%2e", "ends with no name"),
        ("https://h/x%00", "ends with no name"),
        ("https://h/" + "x" * 300, "ends with no name"),
        ("s3://", "names no bucket"),
        ("s3:///x", "names no bucket"),
        ("s3://b-1/..", "ends with no name"),
        (f"s3://{LOGIN}b/x", "was given with a login in it"),
        ("s3://b-1/\udcff", "has bytes in it that are no text"),
        ("https://h/\udcff", "has bytes in it that are no text"),
        ("https://h/x?\udcff", "has bytes in it that are no text"),
        ("node:data", "is no absolute path on the nodes"),
        ("node:", "is no absolute path on the nodes"),
        ("node:/a\0b", "is no absolute path on the nodes"),
    ],
)
def test_what_cannot_be_fetched_is_one_sentence(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_address(text)
    assert caught.value.hint
    assert "hush" not in caught.value.message
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://h/x?token=hush", "https://h/x"),
        (f"https://h/x#sha256={SHA}", "https://h/x"),
        (f"https://{LOGIN}h/x?a=b#c", "https://h/x"),
        ("https://h?x", "https://h"),
        ("s3://b/a?b#c@d", "s3://b/a?b#c@d"),
        (f"s3://{LOGIN}b/a", "s3://b/a"),
        ("/a?b", "/a?b"),
    ],
)
def test_a_token_in_an_address_is_not_shown(text: str, shown: str) -> None:
    assert without_query(text) == shown


@pytest.mark.parametrize(
    ("url", "target", "has_checksum", "may"),
    [
        ("https://a/x", "https://b/y", False, True),
        ("https://a/x", "http://a/x", False, False),
        ("https://a/x", "http://a/x", True, False),
        ("https://a/x", "http://127.0.0.1/x", False, False),
        ("https://a/x", "file:///etc/passwd", True, False),
        ("http://127.0.0.1/x", "http://127.0.0.1/y", False, True),
        ("http://127.0.0.1/x", "http://169.254.169.254/y", False, False),
        ("http://a/x", "http://b/x", True, True),
        ("http://a/x", "https://b/x", True, True),
        ("http://a/x", "ftp://b/x", True, False),
    ],
)
def test_where_a_server_may_send_on_to(url: str, target: str, has_checksum: bool, may: bool) -> None:
    assert may_redirect(url, target, has_checksum) is may
