"""The command line: parse flags, call one function of `commands/` or below, print its result.

One module per command, named after it: up, down, lease, logs, status, runs, stop, export, reap, doctor, trust, quota,
policy, prove; and train_run (`train`, `run`), push_pull (`push`, `pull`), ssh (`ssh`, `forward`).

- `entry`: run one command line; every error becomes one sentence, one hint and an exit code.
- `registry`: the table of commands and the text of `gpuops --help`; it imports nothing.
- `flags`: the flags of `up`, `run` and `train` as dataclasses.
- `request`: from flags, `gpuops.toml` and a provider's own options to requests.
- `launch`: from the flags of `train` or `run` to a job, and to its plan or its exit code.
- `context`: the Context of a command, and the news that a command prints first.
- `help`: words behind `--`, a provider's own options in help texts.
- `errors`: typer's complaints in gpuops' words.
- `completion`: what a shell offers for a value.
- `terminal/`: output, writer, progress and its phases.

`main` is the entry point. No SDK and nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import gc
import sys
from typing import NoReturn


def main(argv: list[str] | None = None) -> NoReturn:
    """Run one command and exit with its code (0, 1, 2, 3, 4, 5, 130; a bug is 70)."""
    code = None
    gc.set_threshold(50_000)  # what is imported stays: to look for garbage in it takes a tenth of a short command
    try:
        from gpuops.cli.entry import execute, flush_streams, open_closed_streams

        open_closed_streams()
        code = execute(sys.argv[1:] if argv is None else argv)
        flush_streams()
    except KeyboardInterrupt:  # before the command started, or after it ended
        code = 130 if code is None else code
    gc.freeze()  # the process ends, and with it what the last collections of garbage would look at
    sys.exit(code)
