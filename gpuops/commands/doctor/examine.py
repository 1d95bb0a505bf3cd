"""Examines places in parallel: runs the agent's checkup on each and judges the facts.

A checkup sends the agent, runs its mode `checkup` and deletes it again; no agent has to live there. What a place
answers is not trusted: an answer of another form is a finding about that place, and costs no other place its findings.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from gpuops.commands.doctor.checks_differences import BETWEEN, differences
from gpuops.commands.doctor.checks_gpu import gpu_findings
from gpuops.commands.doctor.checks_host import host_findings
from gpuops.commands.doctor.facts import Checkup, parse_facts
from gpuops.commands.doctor.report import Finding, error, summarize
from gpuops.core.context import Context
from gpuops.core.errors import ConnectionLost, MalformedAnswer, NodeError
from gpuops.core.format import one_line
from gpuops.core.parallel import on_each
from gpuops.core.polling import Clock
from gpuops.core.timings import Whose
from gpuops.nodes import bootstrap
from gpuops.transport import validation
from gpuops.transport.bulk_transfer import exchange
from gpuops.transport.connection import Connection

CHECKUP_SILENCE_TIMEOUT_S = 60.0
"""Seconds without a byte from a checkup; each of its probes has a shorter limit of its own."""
CLOCK_TIMEOUT_S = 20.0
CHECKUP_SCRIPT = r"""
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
"""/dev/shm comes first, so that a full disk can still be examined."""
TIME_MAX_S = 253_402_300_799.0
"""The end of the year 9999, in UTC seconds."""
CLOCK_PROGRAM = "import time; print(time.time())"
YOURS_HINT = "check that this machine is yours"


@dataclass(frozen=True)
class Place:
    """A place to examine, and how to connect to it."""

    where: str
    connect: Callable[[], Connection]
    python: str
    """The Python that runs the checkup there."""
    reached: bool = True
    """Whether gpuops logs in there; otherwise it is this computer."""
    options: Sequence[str] = ()
    """Arguments of the agent's mode `checkup`."""
    artefact: str = ""
    """Hash of the agent that its node runs; empty where there is none."""


def examine_places(ctx: Context, places: Sequence[Place]) -> list[Finding]:
    """Examine places in parallel; return the findings about each and about the differences between them."""
    if not places:
        return []
    with ctx.progress.during(f"examining {', '.join(place.where for place in places)}", whose=Whose.NODE):
        answers = on_each(partial(_examine_place, ctx.clock), places)
    unreached = [answer for answer in answers if isinstance(answer, Finding)]
    checkups = [answer for answer in answers if isinstance(answer, Checkup)]
    judged = [finding for place in checkups for finding in judge_safely(place.where, partial(judge_place, place))]
    return [*unreached, *judged, *judge_safely(BETWEEN, lambda: differences(checkups))]


def _examine_place(clock: Clock, place: Place) -> Checkup | Finding:
    """The facts of one place, or the finding that there are none."""
    try:
        with closing(place.connect()) as connection:
            connection.label = place.where
            return run_checkup(connection, place, clock)
    except MalformedAnswer as malformed:
        return dataclasses.replace(error("nonsense", malformed.message, YOURS_HINT), where=place.where)
    except NodeError as unreached:
        return dataclasses.replace(error("unreached", unreached.message, unreached.hint), where=place.where)


def run_checkup(connection: Connection, place: Place, clock: Clock) -> Checkup:
    """Run the checkup over a connection. Raises NodeError where the place is unreachable or its answer cannot be
    read, MalformedAnswer where the answer has another form."""
    login = ["--login"] if place.reached else []
    argv = ["sh", "-c", CHECKUP_SCRIPT, "sh", place.python, *login, *place.options]
    agent = bootstrap.pack_zip(bootstrap.agent_sources())
    document = read_document(
        exchange(connection.open(argv), place.where, agent, CHECKUP_SILENCE_TIMEOUT_S), place.where
    )
    with validation.report_malformed(place.where, "checkup"):
        facts = parse_facts(document)
    bounds = _measure_clock(connection, place, clock) if place.reached else None
    return Checkup(place.where, facts, place.reached, bounds, place.artefact)


def read_document(output: bytes, where: str) -> Mapping[str, object]:
    """The JSON document that a checkup printed. Raises ConnectionLost where the output is another."""
    try:
        document = validation.parse_json(output)
        if document["schema"] == 1:
            return dict(document)
    except (ValueError, KeyError, TypeError):
        pass  # raised below
    raise ConnectionLost(
        f"what {where} answers to a checkup cannot be read", "look at what its shell prints at a login"
    )


def _measure_clock(connection: Connection, place: Place, clock: Clock) -> tuple[float, float]:
    """Bounds of the seconds to add to the place's clock to get ours: its time was read between our two."""
    before = clock.now()
    output = exchange(
        connection.open([place.python, "-I", "-c", CLOCK_PROGRAM]), place.where, silence_s=CLOCK_TIMEOUT_S
    )
    after = clock.now()
    try:
        remote = float(output)
        if not 0 <= remote <= TIME_MAX_S:
            raise ValueError(remote)
    except ValueError:
        raise ConnectionLost(f"{place.where} does not say what time it is", "try again") from None
    return before - remote, after - remote


def judge_place(place: Checkup) -> Iterator[Finding]:
    yield summarize(place)
    yield from gpu_findings(place)
    yield from host_findings(place)


def judge_safely(where: str, judge: Callable[[], Iterator[Finding]]) -> list[Finding]:
    """Findings of `judge`, or one error where a fact has an unexpected value: what a place answers is not trusted."""
    try:
        return locate(where, judge())
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as unexpected:
        say = f"its answer to the checkup has an unexpected form ({type(unexpected).__name__}: {unexpected})"
        return locate(where, [error("nonsense", say, YOURS_HINT)])


def locate(where: str, findings: Iterable[Finding]) -> list[Finding]:
    """Findings with their place and without line breaks, since they may quote a host."""
    return [
        dataclasses.replace(finding, say=one_line(finding.say), hint=one_line(finding.hint), where=where)
        for finding in findings
    ]
