"""Checks of several places together: what differs between nodes that are to train together. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gpuops.commands.doctor.checks_host import NETWORK_FILE_SYSTEMS
from gpuops.commands.doctor.facts import Checkup
from gpuops.commands.doctor.report import Finding, error, format_size, note, warning
from gpuops.core.format import first_few, listed, plural

BETWEEN = "between them"
CLOCK_DIFFERENCE_MAX_S = 1.0
"""Seconds between two clocks that are no finding."""
MEMORY_DIFFERENCE_MAX = 0.1
"""Fraction by which memory may differ between equal machines: firmware reserves some."""
NAMES_SHOWN_MAX = 4
"""Node names that one sentence lists."""


def differences(places: Sequence[Checkup]) -> Iterator[Finding]:
    """Findings about all places together; none for fewer than two."""
    if len(places) < 2:
        return
    yield from _software(places)
    yield from _hardware(places)
    yield from _clocks(places)
    yield from _shared(places)


def _software(places: Sequence[Checkup]) -> Iterator[Finding]:
    same = "name one that is the same on all nodes with --python PATH, or install the same torch"
    if unlike := _unlike(places, _torch):
        yield error("torch-differs", f"torch differs: {unlike}; they cannot train together", same)
    elif unlike := _unlike(places, _cuda):
        yield error("torch-differs", f"torch is built for different CUDA: {unlike}", same)
    if unlike := _unlike(places, _python):
        yield warning("python-differs", f"Python differs: {unlike}; what one pickles the other may not read", same)
    if unlike := _unlike(places, lambda place: f"driver {place.gpus[0].driver}" if place.gpus else ""):
        yield note("driver-differs", f"NVIDIA's driver differs: {unlike}", "nothing, as long as torch runs with both")
    if unlike := _unlike(places, lambda place: place.artefact):
        yield note(
            "agent-differs",
            f"gpuops' agents differ: {unlike}",
            "end the cluster and bring it up again when no run needs it",
        )


def _torch(place: Checkup) -> str:
    return f"torch {place.python.torch}" if place.python and place.python.torch else "no torch"


def _cuda(place: Checkup) -> str:
    return f"CUDA {place.python.cuda if place.python and place.python.cuda else 'none'}"


def _python(place: Checkup) -> str:
    python = place.python or (place.facts.pythons and place.facts.pythons.agent)
    return f"Python {'.'.join(map(str, python.version[:2]))}" if python and python.version else ""


def _hardware(places: Sequence[Checkup]) -> Iterator[Finding]:
    alike = "train on nodes that are alike, or give every rank less to do than its GPU can"
    if unlike := _unlike(places, lambda place: ", ".join(sorted({gpu.name for gpu in place.gpus}))):
        yield warning(
            "gpu-kind-differs", f"the GPUs are of different kinds: {unlike}; the slowest sets the pace", alike
        )
    if unlike := _unlike(places, lambda place: plural(len(place.gpus), "GPU")):
        yield warning(
            "gpu-count-differs",
            f"the number of GPUs differs: {unlike}; a script that takes all nodes for alike may fail",
            "run as many ranks on each: --gpus",
        )
    if unlike := _unlike(places, lambda place: plural(place.facts.machine.cores, "core")):
        yield note(
            "cores-differ", f"the number of cores differs: {unlike}", "nothing; reading data may be slower on some"
        )
    amounts = [place.facts.machine.memory for place in places]
    if min(amounts) and max(amounts) > min(amounts) * (1 + MEMORY_DIFFERENCE_MAX):
        unlike = _unlike(places, lambda place: format_size(place.facts.machine.memory))
        yield note("memory-differs", f"memory differs: {unlike}", "what fits the smallest fits all")


def _clocks(places: Sequence[Checkup]) -> Iterator[Finding]:
    """A finding only where the bounds of two clocks do not overlap by more than the limit."""
    timed = [(place.where, *place.clock) for place in places if place.clock is not None]
    if len(timed) < 2:
        return
    slow, slow_low, _ = max(timed, key=lambda clock: clock[1])
    fast, _, fast_high = min(timed, key=lambda clock: clock[2])
    apart_s = slow_low - fast_high
    if apart_s > CLOCK_DIFFERENCE_MAX_S:
        yield warning(
            "clock-differs",
            f"the clock of {slow} is {apart_s:.1f} s behind that of {fast}: times in their logs do not compare",
            "turn NTP on where it is off: sudo timedatectl set-ntp true",
        )


def _shared(places: Sequence[Checkup]) -> Iterator[Finding]:
    homes: dict[tuple[str, str], list[str]] = {}
    for place in places:
        home = place.disk("home")
        if home and home.kind in NETWORK_FILE_SYSTEMS:
            homes.setdefault((home.source, home.path), []).append(place.where)
    for (source, _), names in homes.items():
        if len(names) > 1:
            yield note(
                "home-shared",
                f"{_names(names)} share their home folder ({source})",
                "nothing for gpuops; a script that writes there must not do it on every node",
            )


def _unlike(places: Sequence[Checkup], fact: Callable[[Checkup], str]) -> str:
    """`node0 and node2 have A, node1 has B`; empty where all places with a value agree."""
    groups: dict[str, list[str]] = {}
    for place in places:
        if value := fact(place):
            groups.setdefault(value, []).append(place.where)
    if len(groups) < 2:
        return ""
    return ", ".join(
        f"{_names(names)} {'has' if len(names) == 1 else 'have'} {value}" for value, names in groups.items()
    )


def _names(names: Sequence[str]) -> str:
    if len(names) > NAMES_SHOWN_MAX:
        return first_few(names, NAMES_SHOWN_MAX - 1)
    return listed(names)
