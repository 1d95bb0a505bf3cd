"""What gpuops costs, beside what its users would do by hand, in one run on one machine.

    python -m benchmarks                            everything, as markdown, in less than a quarter of an hour
    python -m benchmarks start push                 some of it
    python -m benchmarks parallel mistakes          what is not gpuops' own: half an hour more
    python -m benchmarks --write docs/benchmarks.md

Nothing is written but with --write; hosts and processes that were made for it are gone at the end.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from benchmarks.measure import Failed, Options, Skip, Table, machine

NAMES = ("start", "renting", "size", "connect", "push", "uplink", "edit", "first_step", "far", "throughput")
ALONE = ("parallel", "mistakes", "examples", "gpu", "gpt")
"""Only where they are named: what they measure is the training programs, and has a page of its own."""
LIMIT_S, ALL_S, ALONE_S = 400, 870, 1800
"""After so many seconds one benchmark of several is given up, and all of them; and each of ALONE."""
BEGIN, END = "<!-- from here on written by `python -m benchmarks --write` -->", "<!-- to here -->"


class TooLong(Exception):
    """A benchmark took more than its time."""


def main() -> int:
    options, names, path = _arguments()
    end = time.monotonic() + ALL_S
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, signal.default_int_handler)  # SIGTERM, too, leaves nothing behind
    print("\n".join(told := [*machine(), ""]), flush=True)
    failed = False
    try:
        for name in names:
            left_s = end - time.monotonic()
            limit_s = ALONE_S if name in ALONE else min(LIMIT_S, left_s) if len(names) > 1 else left_s
            for part in _one(name, options, limit_s):
                told.append(part)
                failed = failed or part.startswith("failed:")
                print(part, flush=True)
    except (KeyboardInterrupt, TooLong):  # TooLong: just while a table was printed
        print("interrupted: nothing was written", file=sys.stderr)
        return 130
    if path and failed:
        print(f"not written to {path}, since something failed", file=sys.stderr)
    elif path:
        path.write_text(renewed(path.read_text() if path.exists() else "# Benchmarks\n", "\n".join(told)))
        print(f"written to {path}", file=sys.stderr)
    return int(failed)


def _arguments() -> tuple[Options, list[str], Path | None]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(NAMES)} (all); {', '.join(ALONE)}")
    parser.add_argument("--rounds", type=int, help="how often each is measured, instead of its own number")
    parser.add_argument("--tiny", action="store_true", help="only see whether it works: its figures mean nothing")
    parser.add_argument("--install", action="store_true", help="install peers to weigh them: minutes, hundreds of MB")
    parser.add_argument("--examples", type=Path, metavar="FOLDER", help="a checkout of github.com/pytorch/examples")
    parser.add_argument("--nanogpt", type=Path, metavar="FOLDER", help="a checkout of github.com/karpathy/nanoGPT")
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables into this file, too")
    given = parser.parse_args()
    if unknown := [name for name in given.names if name not in NAMES + ALONE]:
        parser.error(f"there is no benchmark {unknown[0]}; there are {', '.join(NAMES + ALONE)}")
    options = Options(given.rounds, given.tiny, given.install, given.examples, given.nanogpt)
    return options, given.names or list(NAMES), given.write


def _one(name: str, options: Options, limit_s: float) -> Iterator[str]:
    """The tables of one benchmark, each as soon as it is there, or the sentence why there is none."""
    module = importlib.import_module(f"benchmarks.{name}")
    print(f"… {name}", file=sys.stderr, flush=True)
    try:
        with _limit(limit_s):
            for found in module.tables(options):
                yield str(found) if isinstance(found, Table) else f"left out: {name}: {found}\n"
    except Skip as why:
        yield f"left out: {name}: {why}\n"
    except Failed as why:
        yield f"failed: {name}: {why}\n"
    except TooLong:
        yield f"failed: {name}: given up after {limit_s:.0f} s\n"
    except Exception as error:
        traceback.print_exc()
        yield f"failed: {name}: {type(error).__name__}: {error}\n"


@contextmanager
def _limit(limit_s: float) -> Iterator[None]:
    """Raises TooLong in the middle of whatever is going on, once the time is over."""

    def over(_signal: int, _frame: FrameType | None) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, max(1.0, limit_s))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def renewed(text: str, told: str) -> str:
    """A page with the tables in place of the former ones, at its end where there are none."""
    head, begin, rest = text.partition(BEGIN)
    tail = rest.partition(END)[2] if begin else "\n"
    return f"{head.rstrip()}\n\n{BEGIN}\n\n{told.strip()}\n\n{END}{tail}"


if __name__ == "__main__":
    sys.exit(main())
