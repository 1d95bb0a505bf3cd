"""A client that plays another system (tests/fakes/lacking.py) brings up a real host, runs on it and brings home."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fakes.lacking import play
from tests.integration.transport.ssh.conftest import MakeSshd

MAKES = """
import os, pathlib
for name, text in {"a:b.pt": "colon", "aux.pt": "device", "Model.pt": "great", "model.pt": "small"}.items():
    pathlib.Path(name).write_text(text)
"""
HERE = {
    "windows": {"a_b.pt": "colon", "_aux.pt": "device", "Model.pt": "great", "model.pt.new": "small"},
    "macos": {"a:b.pt": "colon", "aux.pt": "device", "Model.pt": "great", "model.pt.new": "small"},
}


@pytest.mark.parametrize("kind", ["windows", "macos"])
def test_a_run_on_a_host(sshd: MakeSshd, tmp_path: Path, kind: str) -> None:
    server = sshd()
    folder, tools = tmp_path / "project", tmp_path / "tools"
    for one in (folder, tools):
        one.mkdir()
    (folder / "make.py").write_text(MAKES)
    (folder / "go.sh").write_bytes(b"#!/bin/sh\nexec python3 make.py\n")
    (folder / "go.sh").chmod(0o644 if kind == "windows" else 0o755)
    (tools / "icacls").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/protected\n')
    (tools / "icacls").chmod(0o755)

    host = ["--host", f"{server.user}@127.0.0.1:{server.port}", "--identity", str(server.identity), "--accept-new"]
    answer = play(
        kind, tmp_path / "home", folder,
        ["up", "ssh", "--name", "lab", "--yes", *host],
        ["run", "--cluster", "lab", "--out", "*.pt", "--", "./go.sh"],
        ["down", "lab"],
        env={"PATH": f"{tools}:{os.environ['PATH']}"},
    )  # fmt: skip

    assert answer["broken"] == []
    _, run, down = answer["said"]
    assert [one["code"] for one in answer["said"]] == [0, 0, 0], answer["said"]
    out = next((folder / "runs").glob("go-*")) / "out"
    assert {path.name: path.read_text() for path in out.glob("*.pt*")} == HERE[kind]
    assert "model.pt.new is model.pt: to this computer that is the same name as Model.pt" in run["err"]
    assert ("a_b.pt is a:b.pt" in run["err"]) == (kind == "windows")
    assert "gone" in down["err"] + down["out"]
    assert (tmp_path / "protected").exists() == (kind == "windows")
    assert not list(server.home.glob(".gpuops-*"))
