"""examples/gpuops.ipynb, cell by cell: its commands are typed, its Python is run."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from tests.conftest import Shell

NOTEBOOK = Path(__file__).parents[3] / "examples" / "gpuops.ipynb"


@pytest.mark.proof  # a launch more with torch; that notebooks are converted is tests/unit/sync/test_notebook.py
@pytest.mark.real_torch
def test_the_example_runs(shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(shell.folder)
    said = []
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and source.startswith("!gpuops "):
            done = shell.run(*shlex.split(source)[1:])
            assert done.returncode == 0, done.stderr
            said.append(done.stdout)
        elif cell["cell_type"] == "code":
            exec(source, {})
    assert "[GPU0] Epoch 2 | Batchsize: 64 | Steps: 24" in said[0]
    assert capsys.readouterr().out == "3 epochs, 38282 weights\n"
