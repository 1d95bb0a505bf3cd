"""gpuops.sync.notebook: code cells become a script; what only IPython understands is left out, and told."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpuops.core.errors import UsageError
from gpuops.sync.notebook import convert, write_script


def notebook(*cells: str) -> str:
    """Each cell as Jupyter writes it: a list of lines."""
    code = [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]
    return json.dumps({"nbformat": 4, "cells": [{"cell_type": "markdown", "source": "# Title"}, *code]})


def run(script: str) -> dict[str, object]:
    names: dict[str, object] = {}
    exec(script, names)
    return names


def test_cells_run_one_after_the_other() -> None:
    converted = convert(notebook("a = 1", "b = a + 1\nb"), "train.ipynb")
    assert run(converted.script)["b"] == 2
    assert converted.left_out == ()


def test_what_only_ipython_understands_is_left_out_and_told() -> None:
    cells = (
        "%matplotlib inline\n!pip install torch\nimport math",
        "if math.pi > 3:\n    !nvidia-smi\nfiles = !ls\nmath.sin?\nc = 3",
        "%%bash\necho hello",
        "%%time\nd = c + 1",
        "text = '''\n%not a magic\n!nor a command\n'''",
        "e = (17\n% 5)",
    )
    converted = convert(notebook(*cells), "train.ipynb")
    names = run(converted.script)
    assert (names["d"], names["text"], names["e"]) == (4, "\n%not a magic\n!nor a command\n", 2)
    assert converted.left_out == (
        "cell 1: %matplotlib inline", "cell 1: !pip install torch",
        "cell 2: !nvidia-smi", "cell 2: files = !ls", "cell 2: math.sin?",
        "cell 3: %%bash and its cell", "cell 4: %%time",
    )  # fmt: skip


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"cells": [1]}', '{"cells": [{"cell_type": "code"}]}', "[" * 500_000]
)
def test_what_is_no_notebook_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no notebook in Jupyter's format 4"):
        convert(text, "train.ipynb")


def test_a_cell_that_is_no_python_is_named() -> None:
    with pytest.raises(UsageError, match=r"cell 2 of train\.ipynb is no Python"):
        convert(notebook("a = 1", "a = ="), "train.ipynb")
    with pytest.raises(UsageError, match="cell 1 of "):
        convert(notebook("-" * 100_000 + "1"), "train.ipynb")


def test_the_script_is_renewed_and_a_persons_file_is_not(tmp_path: Path) -> None:
    for cell in ("a = 1", "a = 2"):
        (tmp_path / "train.ipynb").write_text(notebook(cell))
        write_script(tmp_path, "train.ipynb")
    script = tmp_path / "train_ipynb.py"
    assert run(script.read_text())["a"] == 2
    script.write_text("mine = 1\n")
    with pytest.raises(UsageError, match=r"train_ipynb\.py is not gpuops'"):
        write_script(tmp_path, "train.ipynb")
    assert script.read_text() == "mine = 1\n"


@pytest.mark.parametrize("kind", ["pipe", "device", "dangling"])
def test_what_a_project_has_put_in_the_scripts_place_is_not_read(tmp_path: Path, kind: str) -> None:
    (tmp_path / "train.ipynb").write_text(notebook("a = 1"))
    place = tmp_path / "train_ipynb.py"
    if kind == "pipe":
        os.mkfifo(place)
    else:
        place.symlink_to("/dev/zero" if kind == "device" else tmp_path / "elsewhere")
    with pytest.raises(UsageError, match="would be overwritten"):
        write_script(tmp_path, "train.ipynb")
    assert not (tmp_path / "elsewhere").exists()
