"""Where else a run's results are kept than on this computer (`--sink volume:NAME`): decisions, and the words for it.

A provider that can mount a network volume has the option `volume`, and says in `Resource.data["mounts"]` where each
of a machine's volumes lies. The nodes copy what the run left into a folder of it, and say when all of it is there
(docs/protocol.md): then this computer may be away.
"""

from __future__ import annotations

import posixpath
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from gpuops.errors import UsageError
from gpuops.models import Option, Resource, RunRequest

KIND = "volume"
OPTION = "volume"
"""The option of a provider that mounts one."""
FOLDER = "gpuops"
"""Under it on a volume: a folder for each run."""


def parse(text: str) -> str:
    """The volume that `--sink` names. Raises UsageError for anything else."""
    kind, colon, name = text.partition(":")
    if kind == KIND and colon and name and name.strip() == name and name.isprintable():
        return name
    raise UsageError(f"--sink {text} names no place for results", "write --sink volume:NAME, a network volume's name")


def implied(provider: str, known: Sequence[Option], given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A provider's options with the volume that the sink needs. Raises UsageError."""
    if all(option.name != OPTION for option in known):
        raise UsageError(
            f"{provider} mounts no network volume that --sink could keep results on",
            "leave out --sink, or name a provider that has the option --volume",
        )
    if given.get(OPTION) not in (None, name):
        raise UsageError(f"--sink volume:{name} and --volume {given[OPTION]} name two volumes", "name one")
    return {**given, OPTION: name}


def found(name: str, cluster: str, machines: Sequence[Resource], *, end: bool) -> dict[str, Any]:
    """The sink of a run's request: where its nodes find the volume, and whether they end once all is there.

    Raises UsageError where a machine does not have it.
    """
    places = [(machine.data.get("mounts") or {}).get(name) for machine in machines]
    if not places or any(place != places[0] for place in places) or not places[0]:
        raise UsageError(
            f"the network volume {name} is not mounted on {cluster}",
            "bring up a cluster with it (--volume), or leave out --sink",
        )
    return {"volume": name, "mount": str(places[0]), "end": end, "id": uuid.uuid4().hex[:8]}


def of_spec(request: RunRequest, run: str) -> dict[str, Any] | None:
    """The sink in a launch spec."""
    sink = request.sink
    if not sink:
        return None
    return {"folder": posixpath.join(sink["mount"], FOLDER, run), "end": sink["end"], "id": sink["id"]}


def place(request: RunRequest, run: str, folder: str = "") -> str:
    """`the network volume NAME, in gpuops/RUN`; `folder`: where on a node, where that is known."""
    sink = request.sink or {}
    inside = posixpath.relpath(folder, sink["mount"]) if folder and sink.get("mount") else f"{FOLDER}/{run}"
    return f"the network volume {sink.get('volume')}, in {inside}"


def outcome(request: RunRequest, run: str, states: Mapping[int, Mapping[str, Any]], nodes: Sequence[int]) -> str:
    """What came of keeping results: one sentence part for the receipt. `states`: what each node that answers says."""
    folder = next((str(state["folder"]) for state in states.values() if state.get("folder")), "")
    if not states:
        return f"what its nodes kept is on {place(request, run)}"
    bad = {index: str(states.get(index, {}).get("why") or "it does not say") for index in nodes
           if states.get(index, {}).get("state") != "safe"}  # fmt: skip
    if not bad:
        return f"safe on {place(request, run, folder)}"
    whose = "; ".join(f"node{index}: {why}" for index, why in bad.items())
    return f"not all on {place(request, run, folder)} ({whose})"


def unseen(request: RunRequest, run: str) -> tuple[str, str]:
    """What is said of a run whose machines were gone when this computer came back, and what to do."""
    return (
        f"its nodes ended while this computer was away; what they kept is on {place(request, run)}",
        "a node's results are all there where its folder has safe.json; result.json there says how the run ended",
    )
