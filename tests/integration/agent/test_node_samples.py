"""Verb `sample` of a real node, with a program that plays nvidia-smi."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.agent.conftest import carrying, until

if TYPE_CHECKING:
    from tests.integration.agent.conftest import RealNode

SMI = """#!/bin/sh
[ "$3" = --loop-ms=500 ] || exit 1
while :; do
  printf '0, 97, 41234, 81559, 61, 412.33\\n1, [N/A], 3, 81559, [N/A], [N/A]\\n'
  sleep 0.1
done
"""


@pytest.fixture(autouse=True)
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "smi-of-this-test"
    folder.mkdir()
    program = folder / "nvidia-smi"
    program.write_text(SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return program


def test_gpus_are_asked_only_while_somebody_looks(node: RealNode, smi: Path) -> None:
    running = f"{smi}\0--query-gpu"
    node.init()
    client = node.client()
    assert not carrying(running)
    first, second = client.stream("sample"), client.stream("sample")
    until(lambda: len(next(first).gpus or ()) == 2, "both GPUs")
    sample = next(first)
    assert [gpu.use for gpu in sample.gpus] == [97.0, None]
    assert sample.cpu is not None
    next(second)
    assert len(carrying(running)) == 1, "one program for all who look"
    first.close()
    next(second)
    second.close()
    until(lambda: not carrying(running), "nobody looks any more")
    client.close()
