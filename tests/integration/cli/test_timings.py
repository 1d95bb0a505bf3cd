"""`--timings`: the whole of a command, in the hands of those whose time it was."""

from __future__ import annotations

import json
import time

from tests.conftest import Shell


def test_a_run_says_where_its_time_went(shell: Shell) -> None:
    (shell.folder / "nap.py").write_text("import time; print('begins', flush=True); time.sleep(1.5)\n")
    began = time.monotonic()
    done = shell.run("run", "--on", "local", "--timings", "--json", "--", "python3", "nap.py")
    took = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["timings"]
    by_owner: dict[str, float] = {}
    for row in rows:
        by_owner[row["whose"]] = by_owner.get(row["whose"], 0.0) + row["seconds"]
    assert set(by_owner) == {"gpuops", "network", "node", "provider", "script"}
    assert 1.4 < by_owner["script"] < took
    assert sum(by_owner.values()) < took, "the command's own time, and no more"
    assert sum(line.startswith("where ") and line.endswith(" s went:") for line in done.stderr.splitlines()) == 1


def test_without_it_nothing_is_said(shell: Shell) -> None:
    done = shell.run("run", "--on", "local", "--json", "--", "true")
    assert done.returncode == 0, done.stderr
    assert "timings" not in json.loads(done.stdout)
    assert " s went:" not in done.stderr
