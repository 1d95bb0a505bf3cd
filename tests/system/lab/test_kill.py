"""On hosts: whoever dies, the others stop, nothing of the run is left, and no byte of a log is lost or doubled."""

from __future__ import annotations

import pytest

from tests.conftest import HANG_S
from tests.integration.cli.counting import PLAIN, TORCHRUN
from tests.system.lab.laptop import Begin, Laptop

ENDS: dict[str, tuple[tuple[str, ...], int, str]] = {
    "worker": (TORCHRUN, 1, "rank 1 on node1 was ended by SIGKILL"),
    "launcher": (TORCHRUN, 1, "torchrun on node1 was ended by SIGKILL"),
    "agent": (PLAIN, 4, "the run was lost on node1: "),
    "watchdog": (PLAIN, 4, "the run was lost on node1: "),
}
FIRST = (("launcher", False), ("watchdog", False), ("worker", True), ("agent", True))
"""Each process, and each kind of end, watched and not: how a run comes to it is the same on nodes of this computer."""


@pytest.mark.parametrize(
    ("what", "alone"),
    [
        pytest.param(
            *(what, alone),
            marks=[pytest.mark.proof] * ((what, alone) not in FIRST),
            id=f"{what}, {'with the command dead' if alone else 'watched'}",
        )
        for what in ENDS
        for alone in (False, True)
    ],
)
def test_a_process_is_killed_on_a_host(begin: Begin, what: str, alone: bool) -> None:
    kind, code, say = ENDS[what]
    counting = begin("deaf", kind=kind)
    if alone:
        counting.kill_the_command()
        counting.kill(what, 1)
        assert say in str(counting.concluded()["say"])
    else:
        counting.kill(what, 1)
        done = counting.end()
        assert done.returncode == code, done.stderr
        assert any(line.startswith(say) for line in done.stderr.splitlines()), done.stderr
        assert done.stderr.splitlines()[-1].startswith("hint: ")
    counting.expect_nothing_left()
    counting.expect_every_byte()


def test_the_logs_go_on_at_the_next_byte_after_the_command_died(begin: Begin, laptop: Laptop) -> None:
    counting = begin()
    counting.kill_the_command()
    counting.wait_beside(2000)
    follow = laptop.start("logs", "-f")
    counting.enough()
    out, err = follow.communicate(timeout=HANG_S)
    assert follow.returncode == 0, err
    assert out.count("counts") >= 40
    counting.concluded()
    counting.expect_every_byte()
    counting.expect_nothing_left()
