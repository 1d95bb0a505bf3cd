"""The report of a run that failed, from its launch to its page."""

from __future__ import annotations

import json

from tests.conftest import Shell

FAILS = """
import time
for step in range(3):
    print(f"step {step}: loss {1 / (step + 1):.2f}", flush=True)
    time.sleep(0.1)
raise ValueError("<script>alert(1)</script>")
"""


def test_each_run_has_a_page_about_it(shell: Shell) -> None:
    shell.write("fails.py", FAILS)
    ran = shell.run("train", "multigpu", "--gpus", "2", "fails.py")
    assert ran.returncode == 1, ran.stderr
    path = shell.folder / "runs/fails-1/report.html"
    assert f"report   {path}" in ran.stdout + ran.stderr
    assert json.loads((path.parent / "run.json").read_text())["report"] == str(path)
    page = path.read_text()
    assert "ValueError: &lt;script&gt;" in page
    assert "<script" not in page
    for part in ("fails.py", "torch ", "loss <span", "node0 rank1", "What node0 used", "end the machines"):
        assert part in page, part
    assert f"report: {path}" in shell.run("logs", "-f").stderr

    path.unlink()
    assert shell.json("report", "fails-1", "--html", "other.html")["report"] == str(shell.folder / "other.html")
    assert not path.exists()
    assert (shell.folder / "other.html").read_text()[:100] == page[:100]
    said = shell.run("report", "--html", "no/such/folder.html")
    assert said.returncode == 4
    assert "cannot be written" in said.stderr
