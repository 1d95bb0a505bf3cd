"""A checkup of one place, brought there and gone again: nothing is left behind, and no agent need live there."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from gpuops.commands.doctor.finding import Examined
from gpuops.core.errors import ConnectionLost
from gpuops.nodes import artefact
from gpuops.transport.bulk import exchange
from gpuops.transport.connection import Connection

SILENCE_S = 60.0
"""Every probe has ended long before."""
CLOCK_S = 20.0
CARRY = r"""
umask 077
for base in /dev/shm "${TMPDIR:-/tmp}" "$HOME"; do
    dir=$(mktemp -d "$base/gpuops.XXXXXX" 2>/dev/null) && break
done
[ -n "$dir" ] || { cat >/dev/null; echo "no folder there can be written" >&2; exit 1; }
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' HUP INT TERM
cat >"$dir/checkup.pyz" || exit 1
python=$1
shift
"$python" -I "$dir/checkup.pyz" checkup "$@" </dev/null
"""
"""Memory comes first: a full disk must not keep anybody from seeing that it is full."""
LATEST = 253_402_300_799.0
"""The end of the year 9999, in UTC seconds."""
CLOCK = "import time; print(time.time())"


def examine(connection: Connection, where: str, python: str, options: Sequence[str], *, reached: bool) -> Examined:
    """`reached`: by logging in. Raises NodeError where there is no way there, or no answer that can be read."""
    argv = ["sh", "-c", CARRY, "sh", python, *(["--login"] if reached else []), *options]
    said = exchange(connection.open(argv), where, artefact.pack(artefact.sources()), SILENCE_S)
    return Examined(where, _read(said, where), reached, _clock(connection, where, python) if reached else None)


def _read(said: bytes, where: str) -> Mapping[str, Any]:
    from gpuops.transport import answers

    try:
        facts = answers.parsed(said)
        if facts["schema"] == 1:
            return dict(facts)
    except (ValueError, KeyError, TypeError):
        pass  # said below
    raise ConnectionLost(
        f"what {where} answers to a checkup cannot be read", "look at what its shell prints at a login"
    )


def _clock(connection: Connection, where: str, python: str) -> tuple[float, float]:
    """Bounds of the seconds to add to the place's clock to get ours: its time was read between our two."""
    before = time.time()
    said = exchange(connection.open([python, "-I", "-c", CLOCK]), where, silence_s=CLOCK_S)
    after = time.time()
    try:
        its = float(said)
        if not 0 <= its <= LATEST:
            raise ValueError(its)
    except ValueError:
        raise ConnectionLost(f"{where} does not say what time it is", "try again") from None
    return before - its, after - its
