"""Given work that takes so long, and waits for this: then these lines in a log, and this on a terminal."""

from __future__ import annotations

import io
import re
import threading

import pytest

from gpuops.cli.terminal.output import ERASE, Output
from gpuops.cli.terminal.phase import Phase, describe_rate, line_interval_s
from gpuops.cli.terminal.progress import PlainProgress, TerminalProgress, progress_on
from gpuops.core.format import amount
from gpuops.core.reporting import Progress, Silent


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Log:
    """A plain progress, looked at every second, and what it has said."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.lines: list[str] = []
        self.progress = PlainProgress(self.lines.append, self.clock, ticking=False)

    def passes(self, seconds: int) -> list[str]:
        """What is said in the next so many seconds."""
        before = len(self.lines)
        for _ in range(seconds):
            self.clock.now += 1
            self.progress.tick()
        return self.lines[before:]


def test_quick_work_is_not_worth_a_line() -> None:
    log = Log()
    with log.progress.during("looking around"):
        log.progress.waits("node1: asleep")
        log.clock.now += 0.9
        log.progress.tick()
        log.progress.advance(2, 2, "node0")
    assert log.passes(100) == log.lines == []


def test_what_drags_says_what_it_waits_for_and_is_never_silent_for_long() -> None:
    log = Log()
    with log.progress.during("waiting for lab", 1200.0):
        log.progress.waits("no SSH banner yet", "node1")
        assert log.passes(15) == ["waiting for lab (at most 20 min): node1: no SSH banner yet"]
        assert log.passes(2) == ["waiting for lab: node1: no SSH banner yet, 16 s of at most 20 min"]
        assert len(log.passes(60)) == 3
        log.passes(1200)
        assert log.lines[-1] == "waiting for lab: node1: no SSH banner yet, 20:46 min"
    assert log.lines[-1] == "waiting for lab: took 21:17 min"
    assert log.passes(100) == []


def test_another_reason_is_news_but_not_at_every_look() -> None:
    log = Log()
    with log.progress.during("making an environment"):
        log.passes(1)
        said = []
        for second in range(30):
            log.progress.waits(f"step {second}")
            said += log.passes(1)
    assert said == [f"making an environment: step {at}, {at + 2} s" for at in (9, 19, 29)]


def test_what_goes_on_aside_is_said_rarely_and_leaves_nothing() -> None:
    log = Log()
    with log.progress.during("a-1 runs on 4 ranks", aside=True):
        log.progress.waits("no line yet")
        assert log.passes(29) == []
        assert log.passes(121) == [
            f"a-1 runs on 4 ranks: no line yet, {took}" for took in ("30 s", "1:30 min", "2:30 min")
        ]
    assert len(log.lines) == 3


def test_a_narrow_terminal_cuts_the_reason_and_never_how_long_it_takes() -> None:
    phase = Phase("stopping talk-1", 0.0, 20.0, {"": "10 s for a snapshot, then 10 s to end"})
    assert phase.line(1.0, 79) == "stopping talk-1: 10 s for a snapshot, then 10 s to end, 1 s of at most 20 s"
    assert len(phase.line(1.0, 60)) == 60
    assert phase.line(1.0, 10) == "stopping talk-1: 10 s fo…, 1 s of at most 20 s"


def test_no_minute_is_silent() -> None:
    assert [line_interval_s(took) for took in (0, 59, 60, 599, 600, 1e6)] == [15, 15, 30, 30, 60, 60]


def test_what_fails_is_not_said_to_have_taken_time() -> None:
    log = Log()

    def fail() -> None:
        with log.progress.during("creating lab"):
            log.passes(40)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fail()
    assert log.lines[-1] == "creating lab: 31 s"


def test_who_waits_for_the_same_is_named_together() -> None:
    log = Log()
    with log.progress.during("reaching lab"):
        for node in range(6):
            log.progress.waits("no answer yet", f"node{node}")
        log.progress.waits("Permission\x1b[31m denied\n" + 200 * "x", "node5")
        log.progress.waits("", "node0")
        (line,) = log.passes(2)
    who, reason = line.removeprefix("reaching lab: ").split("; ")
    assert who == "node1, node2, node3 and 1 more: no answer yet"
    assert reason == f"node5: Permission?[31m denied {76 * 'x'}…"
    assert len(line) < 200


def test_after_a_phase_within_it_the_outer_one_goes_on() -> None:
    log = Log()
    with log.progress.during("fetching"):
        log.passes(5)
        with log.progress.during("reaching lab"):
            assert log.passes(2) == ["reaching lab"]
        log.progress.phase("comparing")
        assert log.passes(2) == ["comparing"]
    assert log.passes(60) == []


# Bytes.


def test_bytes_are_told_now_and_then_with_their_rate_and_time_left() -> None:
    log = Log()
    log.progress.phase("sending 3 files")
    for moment, done in ((0.5, 100_000), (2, 400_000), (6, 600_000), (7, 700_000), (20, 1_000_000), (20, 1_000_000)):
        log.clock.now = moment
        log.progress.advance(done, 1_000_000, "node0")
    assert log.lines == [
        "sending 3 files",
        "node0: 400.0 kB of 1.0 MB, 200.0 kB/s, 3 s left",
        "node0: 700.0 kB of 1.0 MB, 100.0 kB/s, 3 s left",
        "node0: 1.0 MB of 1.0 MB, 50.0 kB/s in 20 s",
    ]
    assert log.passes(20)[-1] == "sending 3 files: all is there, waiting for the other side, 35 s"


def test_bytes_that_do_not_come_are_missed() -> None:
    log = Log()
    with log.progress.during("fetching results"):
        log.clock.now = 2
        log.progress.advance(1000, 3000, "results")
        assert log.lines == ["fetching results", "results: 1.0 kB of 3.0 kB, 500 B/s, 4 s left"]
        assert log.passes(30) == [f"results: 1.0 kB of 3.0 kB, nothing for {late} s" for late in (15, 30)]


def test_numbers_for_people() -> None:
    assert [amount(size) for size in (0, 999, 1500, 2_000_000, 3e9, 4e12)] == [
        "0 B", "999 B", "1.5 kB", "2.0 MB", "3.0 GB", "4.0 TB"]  # fmt: skip
    assert describe_rate(0, 10, 1.0) == "waiting"
    assert describe_rate(5, 10, 1.0) == "5 B/s, 1 s left"


# A terminal.


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    @property
    def left(self) -> list[str]:
        """The lines that stay on the screen."""
        return [re.split(re.escape(ERASE), line)[-1] for line in self.getvalue().split("\n")]


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "60")
    return Terminal()


def test_a_terminal_has_one_line_that_lives_under_what_is_said(screen: Terminal) -> None:
    clock = Clock()
    out = Output(out=screen, err=screen)
    progress = TerminalProgress(out, clock, ticking=False)
    with progress.during("waiting for lab", 60.0):
        progress.waits("no SSH banner yet", "node1")
        progress.tick()
        assert screen.getvalue() == ""
        clock.now = 5
        progress.tick()
        assert screen.left == ["⠙ waiting for lab: node1: no SSH ban…, 5 s of at most 1 min"]
        out.say("a note")
        assert screen.left == ["a note", "⠙ waiting for lab: node1: no SSH ban…, 5 s of at most 1 min"]
        out.line("\x1b[32mgreen\x1b[2J")
        clock.now = 12
        progress.waits("", "node1")
        progress.tick()
        assert screen.left == ["a note", "\x1b[32mgreen?[2J\x1b[0m", "⠹ waiting for lab: 12 s of at most 1 min"]
    assert screen.left == ["a note", "\x1b[32mgreen?[2J\x1b[0m", "waiting for lab: took 12 s", ""]
    before = screen.getvalue()
    progress.tick()
    progress.close()
    assert screen.getvalue() == before


def test_a_line_that_a_narrower_terminal_has_wrapped_is_cleared_whole(
    screen: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Output(out=screen, err=screen)
    out.below("x" * 59)
    for columns, ups in ((60, 0), (59, 0), (58, 1), (30, 1), (20, 2)):
        monkeypatch.setenv("COLUMNS", str(columns))
        before = len(screen.getvalue())
        out.say("a note")
        written = screen.getvalue()[before:]
        assert written == f"{ERASE}\x1b[1A" * ups + f"{ERASE}a note\n" + "x" * 59
    out.below("")
    assert screen.getvalue().endswith(f"{ERASE}\x1b[1A" * 2 + ERASE)


def test_a_terminal_shows_bytes_as_a_bar(screen: Terminal) -> None:
    clock = Clock()
    progress = TerminalProgress(Output(out=screen, err=screen), clock, ticking=False)
    with progress.during("sending [a/b]"):
        clock.now = 2
        progress.advance(1, 2, "node[0]")
        progress.tick()
        assert screen.left == ["⠙ ██████████░░░░░░░░░░ node[0]: 1 B of 2 B, 0 B/s, 2 s left"]
        progress.advance(2, 2, "node[0]")
    assert screen.left == ["node[0]: 2 B of 2 B, 1 B/s in 2 s", ""]


def test_a_question_is_asked_below_nothing(screen: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    out = Output(out=screen, err=screen)
    out.below("⠙ creating lab")
    assert out.confirm("it costs more: go?")
    assert screen.left == ["it costs more: go? [y/N] "]


def test_output_that_goes_elsewhere_leaves_the_line_alone(screen: Terminal) -> None:
    file = io.StringIO()
    out = Output(out=file, err=screen)
    out.below("⠙ creating lab")
    out.line("\x1b[32mgreen\x07")
    assert (file.getvalue(), screen.getvalue()) == ("\x1b[32mgreen\x07\n", f"{ERASE}⠙ creating lab")


def test_which_progress_fits(screen: Terminal) -> None:
    def chosen(stream: io.StringIO, term: str) -> type[Progress]:
        return type(progress_on(Output(out=stream, err=stream), {"TERM": term}))

    assert chosen(screen, "xterm") is TerminalProgress
    assert chosen(screen, "dumb") is chosen(screen, "") is chosen(io.StringIO(), "xterm") is PlainProgress


def test_somebody_looks_while_the_work_goes_on() -> None:
    said = threading.Event()
    progress = PlainProgress(lambda _: said.set())
    for _ in range(2):
        said.clear()
        with progress.during("waiting"):
            assert said.wait(60)
    progress.close()


def test_nobody_watches() -> None:
    silent = Silent()
    with silent.during("x", 1.0):
        silent.waits("y")
        silent.advance(1, 2, "z")
