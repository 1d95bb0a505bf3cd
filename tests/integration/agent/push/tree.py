"""A project, and a node to which it is pushed step by step."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpuops.agent.files import push_steps
from gpuops.agent.node import Node
from gpuops.agent.wire_format import END, head
from gpuops.sync.project_files import read_entry

Files = dict[str, str | None]
"""A project: path to text; None for a link named like its target (`x->y`)."""


HOSTILE = ["../x", "/etc/x", "a/../../x", "a//b", "", ".", "a/.", "..", "a/\0"]


def make(folder: Path, files: Files, stamp: int) -> None:
    """Write a project; `stamp` makes its times differ from another version's."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for path, text in files.items():
        name, _, target = path.partition("->")
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            (folder / name).symlink_to(target)
        else:
            (folder / name).write_text(text)
            os.utime(folder / name, ns=(stamp, stamp))


def listed(folder: Path) -> list[list[Any]]:
    paths = sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
    return [found.wire for path in paths if (found := read_entry(folder, path))]


def stream_of(folder: Path, files: list[list[Any]], need: Iterable[int]) -> bytes:
    contents = {index: (folder / files[index][0]).read_bytes() for index in need}
    return b"".join(head(str(index), len(data)) + data for index, data in contents.items()) + END


def ignore(item: dict[str, Any]) -> None:
    del item


def plan(node: Node, folder: Path, **options: Any) -> dict[str, Any]:
    files = listed(folder)
    answer = push_steps.plan(node, {"tree": "project", "files": files, **options}, ignore)
    if answer["ask"]:
        sums = {str(index): sha256(folder / files[index][0]) for index in answer["ask"]}
        answer = push_steps.plan(node, {"tree": "project", "files": files, "sums": sums, **options}, ignore)
    return answer


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def receive(node: Node, push: str, data: bytes) -> None:
    if push:
        push_steps.receive(node, ["--tree", "project", "--push", push], io.BytesIO(data), io.BytesIO())


def commit(node: Node, push: str) -> dict[str, Any]:
    if not push:
        return {"written": 0, "removed": 0}  # the plan had nothing to do
    return push_steps.commit(node, {"tree": "project", "push": push}, ignore)


def push(node: Node, folder: Path, **options: Any) -> dict[str, Any]:
    answer = plan(node, folder, **options)
    assert answer["conflicts"] == []
    receive(node, answer["push"], stream_of(folder, listed(folder), answer["need"]))
    return {**answer, **commit(node, answer["push"])}


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): os.readlink(path) if path.is_symlink() else path.read_text()
        for path in folder.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def staging(node: Node, push: str) -> Path:
    return Path(node.path("incoming", "project", f"files-{push}"))


def with_part(node: Node, push: str, size: int) -> Path:
    part = staging(node, push) / "a"
    part.write_bytes(bytes(size))
    return part
