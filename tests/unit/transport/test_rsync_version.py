"""What `rsync --version` says, here and on a node, which may say anything."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gpuops.core.errors import MalformedAnswer
from gpuops.transport import validation
from gpuops.transport.rsync import parse_version


def first_line(version: str) -> str:
    return f"rsync  version {version}  protocol version 31\nCopyright (C) 1996-2022 by Andrew Tridgell and others.\n"


@pytest.mark.parametrize("version", ["3.1.3", "3.2.7", "3.4.1", "3.5.0", "4.0", "v3.2.3", "3.4.3dev"])
def test_what_can_be_used(version: str) -> None:
    found = parse_version("rsync", first_line(version))
    assert found
    assert found.version == version.removeprefix("v").removesuffix("dev")


@pytest.mark.parametrize(
    "text",
    [first_line("3.1.2"), first_line("3.1"), first_line("3.0.9"), first_line("2.6.9"), "", "rsync",
     "openrsync: protocol version 29\nrsync version 2.6.9 compatible\n", first_line("9" * 4000),
     first_line("3.99999999999"), "rsync" + " " * 4000 + "version 3.2.7", " " + first_line("3.2.7")],
)  # fmt: skip
def test_what_cannot(text: str) -> None:
    assert parse_version("rsync", text) is None


@pytest.mark.parametrize(
    ("version", "flawed"),
    [("3.2.6", False), ("3.2.7", True), ("3.3.0", True), ("3.4.0", False), ("3.4.1", False), ("4.0", False)],
)
def test_where_a_node_could_harm_this_computer(version: str, flawed: bool) -> None:
    text = first_line(version)
    found, mended = parse_version("rsync", text), parse_version("rsync", text.replace("version 31", "version 32"))
    assert found
    assert found.is_flawed is flawed
    assert mended
    assert not mended.is_flawed, "a system's own mending raises the protocol's number only"


@pytest.mark.parametrize(
    ("text", "zstd"),
    [("Compress list:\n    zstd lz4 zlibx zlib none\nDaemon auth list:\n", True), ("Compress list: zstd", True),
     ("Compress list:\n    lz4 zlibx zlib none\n    zstd\n", False), ("Compress list:" * 200, False), ("zstd", False)],
)  # fmt: skip
def test_zstd(text: str, zstd: bool) -> None:
    found = parse_version("rsync", first_line("3.2.7") + text)
    assert found
    assert found.has_zstd is zstd


def plan_saying(rsync: Any) -> bytes:
    ok = {"push": "x", "need": [0], "ask": [], "stale": [], "kept": [], "conflicts": [], "rsync": rsync}
    return json.dumps({"id": 1, "ok": ok}).encode()


def test_a_nodes_words_are_of_limited_length() -> None:
    assert validation.parse_message("node0", "plan", plan_saying("x" * 4096))[1].rsync == "x" * 4096
    for rsync in ("x" * 4097, None, 7, {"program": "/bin/sh"}):
        with pytest.raises(MalformedAnswer):
            validation.parse_message("node0", "plan", plan_saying(rsync))
