"""What tests/unit/runs/test_prepare.py leaves to real nodes."""

from __future__ import annotations

from tests.conftest import no_guards, until
from tests.desk import Desk, desk  # noqa: F401 - a fixture


def test_what_nobody_fetched_comes_home_before_the_next_run_overwrites_it(desk: Desk) -> None:  # noqa: F811
    """The command of the first run left it to the guard, and no guard works."""
    (desk.home / "guards").mkdir(mode=0o700, parents=True)
    desk.home.chmod(0o700)
    with no_guards(desk.home):
        try:
            assert desk.type("up", "local", "--nodes", "1", "--name", "lab").code == 0
            started = desk.type("run", "--detach", "--", "sh", "-c", "echo one >snapshot.pt")
            assert started.code == 0, started.err
            ended = desk.home / "local" / "lab" / "n0" / "runs" / "sh-1" / "result.json"
            until(ended.exists, "the first run has ended")
            kept = desk.folder / "runs" / "sh-1" / "out" / "snapshot.pt"
            assert not kept.exists()
            second = desk.type("run", "--", "sh", "-c", "echo two >snapshot.pt")
            assert second.code == 0, second.err
            assert kept.read_text() == "one\n", second.err
            assert (desk.folder / "runs" / "sh-2" / "out" / "snapshot.pt").read_text() == "two\n"
        finally:
            desk.type("down", "lab", "--force")
