"""What is shown of a run's files at home: every byte once, nodes and ranks in the order of their numbers."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.core.errors import UsageError
from gpuops.core.polling import Clock
from gpuops.runs.logs.home_tail import HomeTail, LogTimes, TracebackFilter, parse_moment
from gpuops.runs.logs.lines import LineMerger
from gpuops.sync.log_mirror import MAX_STREAMS
from gpuops.sync.run_folder import RunHome


def write(home: Path, node: int, stream: str, text: str) -> None:
    path = home / "logs" / f"node{node}" / stream
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(text)


def tail(home: Path) -> HomeTail:
    return HomeTail(RunHome(home), LineMerger(nodes=12, ranks=24, launcher=True))


def test_ranks_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for node, rank in ((10, 20), (0, 10), (0, 2), (2, 3)):
        write(tmp_path, node, f"rank{rank}.out", "here\n")
    write(tmp_path, 0, "launcher.err", "first\n")
    assert list(tail(tmp_path).rest()) == [
        "[n0] first",
        "[n0 r2] here",
        "[n0 r10] here",
        "[n2 r3] here",
        "[n10 r20] here",
    ]


def test_each_byte_is_shown_once(tmp_path: Path) -> None:
    shown = tail(tmp_path)
    assert list(shown.new()) == []
    write(tmp_path, 0, "rank0.out", "one\ntw")
    assert list(shown.new()) == ["[n0 r0] one"]
    write(tmp_path, 0, "rank0.out", "o\n")
    assert list(shown.new()) == ["[n0 r0] two"]
    assert list(shown.rest()) == []


def test_of_too_much_the_last_lines_of_each_stream_are_left(tmp_path: Path) -> None:
    """A line that was begun before the gap ends there; what is not shown at all takes no room."""
    shown = HomeTail(RunHome(tmp_path), LineMerger(nodes=2, ranks=2))
    write(tmp_path, 0, "rank0.out", "begu")
    assert list(shown.new()) == []
    write(tmp_path, 0, "rank0.out", "n\n" + "".join(f"line {number:03}\n" for number in range(100)))
    write(tmp_path, 0, "launcher.err", "x" * 10_000)
    write(tmp_path, 1, "rank1.out", "short\n")
    assert shown.skip(6 + 27) == 1 + 97
    assert list(shown.rest()) == [*(f"[n0 r0] line {number:03}" for number in (97, 98, 99)), "[n1 r1] short"]
    assert shown.skip(0) == 0


@pytest.mark.parametrize("text", ["", "one\ntwo\n", "no end"])
def test_what_fits_is_shown_whole(tmp_path: Path, text: str) -> None:
    shown = tail(tmp_path)
    write(tmp_path, 0, "rank0.out", "begu")
    list(shown.new())
    write(tmp_path, 0, "rank0.out", text)
    assert shown.skip(len(text)) == 0
    assert list(shown.rest()) == [f"[n0 r0] {line}" for line in ("begu" + text).splitlines()]


def test_a_line_without_an_end_is_passed_over_as_well(tmp_path: Path) -> None:
    write(tmp_path, 0, "rank0.out", "x" * 200_000)
    shown = tail(tmp_path)
    assert shown.skip(5) == 1
    assert list(shown.rest()) == ["[n0 r0] xxxxx"]


def test_a_tail_stops_between_two_pieces_and_misses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuops.runs.logs.home_tail.CHUNK_BYTES", 4)
    write(tmp_path, 0, "rank0.out", "one\ntwo\nthree\n")
    shown, looks = tail(tmp_path), iter([False, False, True])
    assert list(shown.new(until=lambda: next(looks))) == ["[n0 r0] one", "[n0 r0] two"]
    assert list(shown.rest()) == ["[n0 r0] three"]


def test_what_is_no_output_is_not_shown(tmp_path: Path) -> None:
    write(tmp_path, 0, "events.jsonl", "{}\n")
    write(tmp_path, 0, "notes.txt", "mine\n")
    (tmp_path / "logs" / "elsewhere").mkdir()
    assert list(tail(tmp_path).rest()) == []


def note(home: Path, node: int, at: float, **sizes: int) -> None:
    named = {stream.replace("_", "."): size for stream, size in sizes.items()}
    write(home, node, "times.jsonl", json.dumps({"at": at, "sizes": named}) + "\n")


def timed(home: Path, since: float | None = None, skews: tuple[float, ...] = ()) -> HomeTail:
    return HomeTail(RunHome(home), LineMerger(nodes=2, ranks=4), times=LogTimes(RunHome(home), skews), since=since)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Two ranks take turns; node1's clock is 5 s behind."""
    write(tmp_path, 0, "rank0.out", "one\nthree, be")
    note(tmp_path, 0, 10.0, rank0_out=4)
    note(tmp_path, 0, 30.0, rank0_out=13)
    write(tmp_path, 0, "rank0.out", "gun before\nlast\n")
    note(tmp_path, 0, 50.0, rank0_out=24)
    write(tmp_path, 1, "rank2.out", "two\nfour\n")
    note(tmp_path, 1, 15.0, rank2_out=4)
    note(tmp_path, 1, 35.0, rank2_out=9)
    return tmp_path


def test_what_is_home_comes_in_the_order_in_which_it_was_written(written: Path) -> None:
    shown = timed(written, skews=(0.0, 5.0))
    inorder = ["[n0 r0] one", "[n1 r2] two", "[n1 r2] four", "[n0 r0] three, begun before", "[n0 r0] last"]
    assert list(shown.new()) == inorder
    write(written, 1, "rank2.out", "six\n")
    assert list(shown.new()) == ["[n1 r2] six"]
    assert list(timed(written).rest()) == [*inorder, "[n1 r2] six"]


@pytest.mark.parametrize(
    ("since", "lines"),
    [
        (0.0, 5), (10.0, 5), (10.1, 4), (20.0, 4), (20.1, 3), (30.1, 3), (40.1, 2), (50.0, 2), (50.1, 1), (9e9, 1),
    ],
)  # fmt: skip
def test_since_leaves_out_what_was_surely_written_before(written: Path, since: float, lines: int) -> None:
    """A line that was begun before counts by its end; what no note tells of is from just now."""
    every = list(timed(written, skews=(0.0, 5.0)).rest())
    assert list(timed(written, since, (0.0, 5.0)).rest()) == every[len(every) - lines :]


def test_notes_that_cannot_be_read_are_left_out(written: Path) -> None:
    write(written, 0, "times.jsonl", '{"at": 60.0, "si\n\nnull\n{"at": "x", "sizes": {}}\n{"at": 1, "sizes": 3}\n')
    note(written, 0, 70.0, rank0_out=29)
    assert list(timed(written, 69.0, (0.0, 5.0)).rest()) == ["[n0 r0] last"]
    assert LogTimes(RunHome(written)).latest() == 70.0


@pytest.mark.parametrize(
    "odd",
    [
        '{"at": 1e999, "sizes": {"rank2.out": 1}}', '{"at": NaN, "sizes": {"rank2.out": 1}}',
        '{"at": 1e300, "sizes": {"rank2.out": 1}}', '{"at": 1.0, "sizes": {"rank2.out": 1e999}}',
        '{"at": 1.0, "sizes": {"rank2.out": 1e30}}', '{"at": 1.0, "sizes": {"rank2.out": -1}}',
    ],
)  # fmt: skip
def test_notes_that_no_honest_node_makes_spoil_no_others(tmp_path: Path, odd: str) -> None:
    write(tmp_path, 1, "rank2.out", "a\nb\n")
    write(tmp_path, 1, "times.jsonl", odd + "\n")
    note(tmp_path, 1, 10.0, rank2_out=2)
    assert list(timed(tmp_path, 20.0).rest()) == ["[n1 r2] b"]
    assert LogTimes(RunHome(tmp_path)).latest() == 10.0


def test_runs_without_notes_are_shown_rank_by_rank(tmp_path: Path) -> None:
    write(tmp_path, 1, "rank2.out", "b\n")
    write(tmp_path, 0, "rank0.out", "a\n")
    assert list(timed(tmp_path).rest()) == ["[n0 r0] a", "[n1 r2] b"]
    assert not LogTimes(RunHome(tmp_path))


TEN = st.integers(0, 9)


@given(st.lists(st.tuples(TEN, st.sampled_from(["a\n", "b", "\n", "long line\n"])), max_size=12), st.integers(-1, 11))
def test_every_byte_is_shown_once_whatever_was_noted(said: list[tuple[int, str]], since: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        text = ""
        for at, words in sorted(said):
            write(home, 0, "rank0.out", words)
            text += words
            note(home, 0, float(at), rank0_out=len(text))
        lines = text.splitlines()
        shown = [line.removeprefix("[n0 r0] ") for line in timed(home).rest()]
        assert shown == lines
        late = [line.removeprefix("[n0 r0] ") for line in timed(home, float(since)).rest()]
        assert late == lines[len(lines) - len(late) :]
        assert len(late) == len(lines) or since > 0


@pytest.mark.parametrize(
    ("text", "ago"),
    [
        ("10m", 600.0),
        ("1h30m", 5400.0),
        ("90s", 90.0),
        ("2001-09-09T00:06:40Z", 6000.0),
        ("2001-09-09T02:06:40+02:00", 6000.0),
    ],
)
def test_when(text: str, ago: float) -> None:
    assert parse_moment(text, 1e9) == 1e9 - ago


def test_a_time_without_a_zone_is_the_one_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC-3")
    time.tzset()
    try:
        assert parse_moment("2001-09-09T03:06:40", 1e9) == 1e9 - 6000
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize("text", ["", "x", "10", "2026-13-01", "2026-", "-10m", "0001-01-01", "9999-01-01", "2e9m\0"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(UsageError, match=r"is no time|is still to come"):
        parse_moment(text, 1e9)


TRACE = "Traceback (most recent call last):\n  File x\nRuntimeError: peer\n"


class Moment(Clock):
    """A clock that shows what its list holds."""

    def __init__(self, now: list[float]) -> None:
        self._now = now

    def monotonic(self) -> float:
        return self._now[0]


def veiled(home: Path, now: list[float]) -> HomeTail:
    return HomeTail(RunHome(home), LineMerger(nodes=2, ranks=4), TracebackFilter(5.0, Moment(now)))


def test_tracebacks_of_a_run_that_fails_stay_in_the_logs(tmp_path: Path) -> None:
    now = [0.0]
    shown = veiled(tmp_path, now)
    write(tmp_path, 0, "rank0.err", "a warning\n" + TRACE)
    write(tmp_path, 1, "rank2.out", "epoch 1\n")
    assert list(shown.new()) == ["[n0 r0] a warning", "[n1 r2] epoch 1"]
    write(tmp_path, 1, "events.jsonl", '{"at": 1.0, "event": "failed", "reason": {}}\n')
    write(tmp_path, 1, "rank2.err", TRACE)
    now[0] = 10.0
    assert list(shown.new()) == []
    assert list(shown.rest()) == []


def test_a_traceback_in_a_run_that_goes_on_is_shown_late(tmp_path: Path) -> None:
    now = [0.0]
    shown = veiled(tmp_path, now)
    write(tmp_path, 0, "rank0.err", TRACE)
    assert list(shown.new()) == []
    now[0] = 5.0
    assert len(list(shown.new())) == 3
    write(tmp_path, 0, "rank0.err", "after\n")
    assert list(shown.new()) == []
    assert list(shown.rest()) == ["[n0 r0] after"]


@pytest.mark.parametrize(("outcome", "again"), [("failed", []), ("done", TRACE.splitlines())])
def test_the_traceback_of_a_command_that_fails_is_left_to_the_verdict(
    tmp_path: Path, outcome: str, again: list[str]
) -> None:
    merger = LineMerger(nodes=1, ranks=1, kind="command")
    shown = HomeTail(RunHome(tmp_path), merger, TracebackFilter(5.0, Moment([0.0])))
    write(tmp_path, 0, "launcher.err", "a warning\n" + TRACE)
    write(tmp_path, 0, "launcher.out", "epoch 1\n")
    assert list(shown.new()) == ["epoch 1", "a warning"]
    write(tmp_path, 0, "events.jsonl", f'{{"at": 1.0, "event": "ended", "outcome": "{outcome}", "left": 0}}\n')
    assert list(shown.rest()) == again


def test_notes_of_ever_new_streams_fill_no_memory(tmp_path: Path) -> None:
    names = [f"rank{number}.out" for number in range(MAX_STREAMS + 2000)]
    notes = [{"at": 1.0, "sizes": dict.fromkeys([*names[at : at + 2000], f"{at}.txt"], 1)}
             for at in range(0, len(names), 2000)]  # fmt: skip
    write(tmp_path, 0, "times.jsonl", "".join(json.dumps(note) + "\n" for note in notes))
    write(tmp_path, 1, "times.jsonl", '{"at": 1.0, "sizes": {"rank0.out": 1}}\n')
    times = LogTimes(RunHome(tmp_path))
    assert [bool(times.of(0, name).sizes) for name in names] == [True] * MAX_STREAMS + [False] * 2000
    assert not times.of(0, "0.txt").sizes
    assert times.of(1, "rank0.out").sizes == [1]
