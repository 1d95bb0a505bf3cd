"""Given bytes of many streams, in any pieces, then these lines."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.runs.logs.lines import IDLE_POLLS, MAX_PIECE_CHARS, REDRAW_POLLS, LineMerger


def merger(**changed: object) -> LineMerger:
    return LineMerger(**{"nodes": 2, "ranks": 4, "launcher": True, **changed})  # type: ignore[arg-type]


def alone() -> LineMerger:
    return merger(nodes=1, ranks=1)


def idle(merged: LineMerger, looks: int) -> list[str]:
    return [line for _ in range(looks) for line in merged.idle()]


# Whose it is.


def test_lines_say_whose_they_are() -> None:
    merged = merger()
    assert merged.feed(1, "rank3.out", b"loss 0.5\nloss 0.4\n") == ["[n1 r3] loss 0.5", "[n1 r3] loss 0.4"]
    assert merged.feed(1, "rank3.err", b"careful\n") == ["[n1 r3] careful"]
    assert merged.feed(0, "launcher.err", b"W1120 torchrun\n") == ["[n0] W1120 torchrun"]


@pytest.mark.parametrize(
    ("nodes", "ranks", "kind", "line"),
    [
        (1, 1, "torchrun", "x"),
        (1, 2, "torchrun", "[n0] x"),
        (2, 2, "torchrun", "[n0] x"),
        (1, 2, "command", "x"),
        (2, 2, "command", "[n0] x"),
    ],
)
def test_no_prefix_where_only_one_can_have_said_it(nodes: int, ranks: int, kind: str, line: str) -> None:
    assert merger(nodes=nodes, ranks=ranks, kind=kind).feed(0, "launcher.out", b"x\n") == [line]


def test_colour_is_of_the_rank_and_only_when_told() -> None:
    first, again = (merger(colour=True).feed(0, "rank1.out", b"x\n") for _ in range(2))
    other = merger(colour=True).feed(0, "rank2.out", b"x\n")
    assert first == again == ["\x1b[33m[n0 r1]\x1b[0m x"]
    assert other == ["\x1b[35m[n0 r2]\x1b[0m x"]
    assert merger(colour=True).feed(0, "launcher.out", b"x\n") == ["\x1b[2m[n0]\x1b[0m x"]


def test_eight_ranks_differ_and_none_looks_like_an_error() -> None:
    merged = merger(colour=True)
    codes = [merged.feed(0, f"rank{rank}.out", b"x\n")[0].partition("m")[0] for rank in range(8)]
    assert len(set(codes)) == 8
    assert not {"\x1b[31", "\x1b[91"} & set(codes)
    assert merged.feed(0, "rank8.out", b"x\n")[0].startswith(codes[0])


@pytest.mark.parametrize(
    ("node", "rank", "shown"),
    [
        (None, None, ["[n0] a", "[n0 r1] b", "[n1] c", "[n1 r3] d"]),
        (1, None, ["[n1] c", "[n1 r3] d"]),
        (None, 1, ["[n0 r1] b"]),
        (0, 1, ["[n0 r1] b"]),
        (1, 1, []),
    ],
)
def test_filters(node: int | None, rank: int | None, shown: list[str]) -> None:
    merged = merger(node=node, rank=rank)
    said = [
        (0, "launcher.out", b"a\n"),
        (0, "rank1.err", b"b\n"),
        (1, "launcher.err", b"c\n"),
        (1, "rank3.out", b"d\n"),
    ]
    assert [line for words in said for line in merged.feed(*words)] == shown


def test_grep_looks_at_what_was_said_not_at_who_says_it_nor_at_its_colours() -> None:
    merged = merger(grep=re.compile(r"^loss 0|r3"), colour=True)
    assert merged.feed(1, "rank3.out", b"\x1b[32mloss\x1b[0m 0.5\nepoch 3\nloss 1\n") == [
        "\x1b[32m[n1 r3]\x1b[0m \x1b[32mloss\x1b[0m 0.5"
    ]
    assert merged.feed(1, "rank3.err", b"wait") + idle(merged, IDLE_POLLS) == []
    assert merged.feed(1, "rank2.err", b"\r0%\rloss 0.1") + idle(merged, IDLE_POLLS) == [
        "\x1b[35m[n1 r2]\x1b[0m loss 0.1"
    ]
    assert merged.feed(0, "rank1.err", b"loss 0") == []
    assert merged.flush() == ["\x1b[33m[n0 r1]\x1b[0m loss 0"]


@pytest.mark.parametrize("stream", ["times.jsonl", "events.jsonl", "rank3.json", "rank.out", "launcher.err.1"])
def test_other_files_are_not_output(stream: str) -> None:
    merged = merger()
    assert merged.feed(0, stream, b"{}\nrest") == []
    assert merged.flush() == []


# Where a line ends.


def test_pieces_of_streams_do_not_mix() -> None:
    merged = merger()
    assert merged.feed(0, "rank0.out", b"epo") == []
    assert merged.feed(0, "rank0.err", b"warn\n") == ["[n0 r0] warn"]
    assert merged.feed(1, "rank0.out", b"other\n") == ["[n1 r0] other"]
    assert merged.feed(0, "rank0.out", b"ch 1\n\nnext") == ["[n0 r0] epoch 1", "[n0 r0] "]
    assert merged.flush() == ["[n0 r0] next"]
    assert merged.flush() == []


def test_other_line_separators_of_unicode_do_not_end_lines() -> None:
    text = "a\x0bb\x0cc\x85d\u2028e\x1cf"
    assert alone().feed(0, "rank0.out", text.encode() + b"\r\n") == [text]


def test_characters_cut_in_two_are_whole_again_and_broken_ones_are_marked() -> None:
    merged = alone()
    first, second = "ż🏖".encode()[:3], "ż🏖".encode()[3:]
    assert merged.feed(0, "rank0.out", first) == []
    assert merged.feed(0, "rank0.out", second + b"\xff\xfe!\n") == ["ż🏖��!"]
    assert merged.feed(0, "rank0.out", b"\xc5") == []
    assert merged.flush() == ["�"]


def test_a_very_long_line_is_shown_in_pieces() -> None:
    merged = merger()
    text = "".join(f"{i:07d}," for i in range(MAX_PIECE_CHARS // 4))
    lines = merged.feed(0, "rank0.out", text[: MAX_PIECE_CHARS + 5].encode())
    assert [len(line) - len("[n0 r0] ") for line in lines] == [MAX_PIECE_CHARS]
    lines += merged.feed(0, "rank0.out", text[MAX_PIECE_CHARS + 5 :].encode())
    lines += merged.feed(0, "rank0.out", b"\nshort\n")
    assert "".join(line.removeprefix("[n0 r0] ") for line in lines) == text + "short"
    assert lines[-1] == "[n0 r0] short"


BYTES = st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", b"\xff", "ż🏖".encode()])).map(b"".join)


@given(BYTES, st.lists(st.integers(0, 100)))
def test_how_the_bytes_were_cut_changes_nothing(data: bytes, cuts: list[int]) -> None:
    at = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    pieces = [data[start:end] for start, end in itertools.pairwise(at)]
    cut, whole = merger(), merger()
    lines = [line for piece in pieces for line in cut.feed(0, "rank0.out", piece)] + cut.flush()
    assert lines == whole.feed(0, "rank0.out", data) + whole.flush()
    assert not any("\n" in line or "\r" in line for line in lines)


@given(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=50), st.integers(0, 30))
def test_plain_text_is_shown_to_the_letter(text: str, looks: int) -> None:
    merged = alone()
    assert merged.feed(0, "rank0.out", text.encode()) == []
    lines = idle(merged, looks) + merged.feed(0, "rank0.out", b"\n")
    assert lines == [text]


# What does not end.


def test_an_unfinished_line_is_shown_after_a_while_and_once() -> None:
    merged = merger()
    assert merged.feed(0, "rank0.out", b"Enter: ") == []
    assert idle(merged, IDLE_POLLS - 1) == []
    assert idle(merged, 1) == ["[n0 r0] Enter: "]
    assert idle(merged, 100) == []
    assert merged.feed(0, "rank0.out", b"\nnext\n") == ["[n0 r0] next"]


def test_what_follows_an_unfinished_line_that_was_shown_is_a_line_of_its_own() -> None:
    merged = merger()
    merged.feed(0, "rank0.out", b"loading ...")
    assert idle(merged, IDLE_POLLS) == ["[n0 r0] loading ..."]
    assert merged.feed(0, "rank0.out", b" done\n\n") == ["[n0 r0]  done", "[n0 r0] "]


def test_news_starts_the_wait_again() -> None:
    merged = merger()
    for _ in range(5):
        merged.feed(0, "rank0.out", b".")
        assert idle(merged, IDLE_POLLS - 1) == []
    assert idle(merged, 1) == ["[n0 r0] ....."]


def test_a_progress_bar_is_its_last_state() -> None:
    merged = merger()
    assert merged.feed(0, "rank0.err", b"\r 0%|   |\r50%|#  |\r99%|## |") == []
    assert merged.feed(0, "rank0.err", b"\r100%|###|\nsaved\r\n") == ["[n0 r0] 100%|###|", "[n0 r0] saved"]


def test_a_moving_progress_bar_is_shown_now_and_then() -> None:
    merged = merger()
    lines = []
    for step in range(2 * REDRAW_POLLS + 1):
        lines += merged.feed(0, "rank0.err", b"\r%d steps" % step) + merged.idle()
    assert lines == [f"[n0 r0] {REDRAW_POLLS - 2} steps", f"[n0 r0] {2 * REDRAW_POLLS - 2} steps"]
    assert merged.flush() == [f"[n0 r0] {2 * REDRAW_POLLS} steps"]


def test_a_progress_bar_that_never_ends_is_not_collected() -> None:
    merged = alone()
    for step in range(3 * MAX_PIECE_CHARS):
        assert merged.feed(0, "rank0.err", b"\r%d steps" % step) == []
    assert merged.flush() == [f"{3 * MAX_PIECE_CHARS - 1} steps"]


def test_torchruns_own_lines_are_shown_when_asked_for_only() -> None:
    assert merger(launcher=False).feed(0, "launcher.err", b"W1120 torchrun\n") == []
    assert merger(launcher=False, kind="command").feed(0, "launcher.out", b"x\n") == ["[n0] x"]
