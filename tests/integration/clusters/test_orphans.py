"""What tests/unit/clusters/test_orphans.py leaves to real processes or sockets."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import Shell
from tests.fakes.provider import NAME, Fault, install

ROOT = Path(__file__).parents[3]


def test_from_the_keyboard(shell: Shell) -> None:
    """A stranger's provider that lies about DELETE: exit 5, what, how much, and what to type; then it is true."""
    folder = shell.folder.parent / "cloud"
    folder.mkdir()
    cloud = install(folder)
    cloud.play(real=True)
    shell.env = {"PYTHONPATH": f"{cloud.site}:{ROOT}", "SCRIPTED": str(cloud.folder)}
    made = shell.run("up", NAME, "--name", "lab", "--tier", "gold", "--yes")
    assert made.returncode == 0, made.stderr
    assert "not yet protected: keep this computer on" in made.stderr
    assert [one["per_hour"] for one in shell.clusters()] == [1.25]
    cloud.play(real=True, destroy_always=[Fault(lie=True)], gone_s=1.0, settle_s=0.0)
    lied = shell.run("down", "lab")
    assert lied.returncode == 5, lied.stderr
    assert "lab-0 may still be there and bill $1.25/h\nhint: gpuops down lab\n" in lied.stderr
    assert shell.json("status", "--cloud")["resources"][-1]["known"] is True
    cloud.play(real=True)
    told = shell.run("down", "lab")
    assert told.returncode == 0, told.stderr
    shell.expect_clean()
    assert cloud.machines() == []
    again = shell.run("down", "lab")
    assert (again.returncode, "lab is gone already (" in again.stderr) == (0, True), again.stderr
    cloud.play(real=True, list_owned_always=[Fault("AuthFailed")])
    unasked = shell.run("reap")
    assert (unasked.returncode, unasked.stdout) == (5, "")
    assert "scripted could not be asked: the provider said AuthFailed\n" in unasked.stderr
    assert unasked.stderr.endswith("hint: do something about it; then: gpuops reap\n")
    seen = shell.run("status", "--cloud")
    assert seen.returncode == 5
    assert "lists anything" not in seen.stdout, "something may be there"
    assert "scripted could not be asked: the provider said AuthFailed; do something about it\n" in seen.stderr
