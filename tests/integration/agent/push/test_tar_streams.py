"""What a node sends of its files as a tar stream."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path

import pytest

from gpuops.agent.files import tar_streams
from gpuops.agent.files.tar_streams import Padded
from gpuops.agent.node import Node, Refusal
from tests.integration.agent.push.tree import (
    HOSTILE,
    make,
    push,
)


@pytest.mark.parametrize("path", HOSTILE)
def test_such_paths_are_not_sent_either(node: Node, path: str) -> None:
    with pytest.raises(Refusal) as refused:
        tar_streams.send(node, ["--tree", "project"], io.BytesIO(json.dumps([path]).encode()), io.BytesIO())
    assert refused.value.kind == "bad-path"


def sent(node: Node, paths: list[str], *arguments: str) -> dict[str, tarfile.TarInfo]:
    out = io.BytesIO()
    assert tar_streams.send(node, list(arguments), io.BytesIO(json.dumps(paths).encode()), out) == 0
    with tarfile.open(fileobj=io.BytesIO(out.getvalue()), encoding="utf-8", errors="surrogateescape") as tar:
        return {member.name: member for member in tar}


def test_send_leaves_out_what_is_gone_and_names_arrive(node: Node, here: Path) -> None:
    odd = ["two\nlines", "q'\"", "ünï", "raw\udcff", "n" * 200, "deep/" * 40 + "x"]
    make(here, {**dict.fromkeys(odd, "text"), "link->q'\"": None}, 10**18)
    push(node, here)
    os.mkfifo(node.path("project", "pipe"))
    members = sent(node, [*odd, "link", "gone", "pipe", "deep"], "--tree", "project")
    assert list(members) == [*odd, "link"]
    assert members["link"].issym()


def test_a_run_sends_what_its_links_lead_to(node: Node, here: Path) -> None:
    make(here, {"a": "12345", "latest->a": None}, 10**18)
    push(node, here)
    os.makedirs(node.run("digits-1"))
    Path(node.run("digits-1"), "spec.json").write_text(json.dumps({"tree": "project"}))
    assert sent(node, ["latest"], "--run", "digits-1")["latest"].size == 5
    with pytest.raises(Refusal) as refused:
        sent(node, [], "--run", "none")
    assert refused.value.kind == "no-run"


@pytest.mark.parametrize("now", [b"", b"short", b"x" * 20])
def test_a_member_is_as_long_as_announced(now: bytes) -> None:
    padded = Padded(io.BytesIO(now), 10)
    data = b"".join(iter(lambda: padded.read(4), b""))
    assert data == (now + bytes(10))[:10]
