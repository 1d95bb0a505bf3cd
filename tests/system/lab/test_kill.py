"""On hosts: whoever dies, the others stop, nothing of the run is left, and no byte of a log is lost or doubled."""

from __future__ import annotations

import pytest

from tests.conftest import HANG_S
from tests.integration.cli.counting import PLAIN, TORCHRUN
from tests.system.lab.laptop import Begin, Laptop


@pytest.mark.parametrize(
    ("what", "kind", "code", "say"),
    [
        ("worker", TORCHRUN, 1, "rank 1 on node1 was ended by SIGKILL"),
        ("launcher", TORCHRUN, 1, "torchrun on node1 was ended by SIGKILL"),
        ("agent", PLAIN, 4, "the run was lost on node1: "),
        ("watchdog", PLAIN, 4, "the run was lost on node1: "),
    ],
)
@pytest.mark.parametrize("alone", [False, True], ids=["watched", "with the command dead"])
def test_a_process_is_killed_on_a_host(
    begin: Begin, what: str, kind: tuple[str, ...], code: int, say: str, alone: bool
) -> None:
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
