"""The process that the scenario `killed` starts has what every command has."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.commands.prove.killed_process import make_context


def test_it_reads_the_projects_dotenv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".env").write_text("RUNPOD_API_KEY=rpa_x\nAWS_REGION=eu-west-1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AWS_REGION", raising=False)
    ctx = make_context(tmp_path / "home", "0a1b2c3d")
    assert (ctx.folder, ctx.owner) == (tmp_path, "0a1b2c3d")
    assert ctx.dotenv == {"RUNPOD_API_KEY": "rpa_x"}
    assert ctx.env["AWS_REGION"] == "eu-west-1"
