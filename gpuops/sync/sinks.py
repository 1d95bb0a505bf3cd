"""Where a run's results are kept besides this computer (`--sink`): decisions and their words.

`volume:NAME`: a provider that can mount a network volume has the option `volume`, and states in
`Resource.data["mounts"]` where each of a machine's volumes lies. The nodes copy the run's results into a folder of it.
`s3://BUCKET/PREFIX`: the nodes of any provider send an archive each (`sync.bucket`). In both cases the nodes report
when everything is kept (docs/protocol.md); from then on this computer is not needed.
"""

from __future__ import annotations

import posixpath
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from gpuops.core.errors import UsageError
from gpuops.core.models import Option, Resource, RunRequest

VOLUME = "volume"
BUCKET = "s3"
VOLUME_OPTION = "volume"
"""The option of a provider that mounts volumes."""
VOLUME_FOLDER = "gpuops"
"""The folder on a volume that has a folder for each run."""
AWS = "aws"
"""The provider whose option `profile` names keys that serve for a bucket, too."""
BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
PREFIX = re.compile(r"[A-Za-z0-9!_.*'()=+-]+(/[A-Za-z0-9!_.*'()=+-]+)*")
MAX_PREFIX_CHARS = 512
SINK_HINT = "write --sink s3://BUCKET/PREFIX, or --sink volume:NAME with a network volume's name"


def parse_sink(text: str) -> dict[str, Any]:
    """What `--sink` names: `volume`, or `bucket` and `prefix`. Raises UsageError for anything else."""
    kind, colon, name = text.partition(":")
    if kind == VOLUME and colon and name and name.strip() == name and name.isprintable():
        return {"volume": name}
    if kind == BUCKET and name.startswith("//"):
        return _parse_bucket(text, name[2:])
    raise UsageError(f"--sink {text} names no place for results", SINK_HINT)


def _parse_bucket(text: str, name: str) -> dict[str, Any]:
    bucket, _, prefix = name.partition("/")
    prefix = prefix.rstrip("/")
    if not BUCKET_NAME.fullmatch(bucket):
        raise UsageError(f"--sink {text} names no bucket", "write --sink s3://BUCKET/PREFIX")
    fits = PREFIX.fullmatch(prefix) and len(prefix) <= MAX_PREFIX_CHARS and not {".", ".."} & set(prefix.split("/"))
    if prefix and not fits:
        raise UsageError(
            f"--sink {text}: {prefix} is no prefix", "write letters, digits and . _ - in it, with / between its parts"
        )
    return {"bucket": bucket, "prefix": prefix}


def with_profile(sink: Mapping[str, Any], provider: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """A sink with the profile that the machines are rented with, where the provider is AWS."""
    profile = str(options.get("profile") or "").strip() if provider == AWS else ""
    return {**sink, "profile": profile} if profile else dict(sink)


def is_bucket(sink: Mapping[str, Any] | None) -> bool:
    return bool(sink and sink.get("bucket"))


def with_volume_option(
    provider: str, known: Sequence[Option], given: Mapping[str, Any], sink: Mapping[str, Any]
) -> dict[str, Any]:
    """A provider's options with the volume that the sink needs; unchanged for a bucket. Raises UsageError."""
    if is_bucket(sink):
        return dict(given)
    name = str(sink["volume"])
    if all(option.name != VOLUME_OPTION for option in known):
        raise UsageError(
            f"{provider} mounts no network volume that --sink could keep results on",
            "write --sink s3://BUCKET/PREFIX, or name a provider that has the option --volume",
        )
    if given.get(VOLUME_OPTION) not in (None, name):
        raise UsageError(f"--sink volume:{name} and --volume {given[VOLUME_OPTION]} name two volumes", "name one")
    return {**given, VOLUME_OPTION: name}


def resolve_sink(sink: Mapping[str, Any], cluster: str, machines: Sequence[Resource], *, end: bool) -> dict[str, Any]:
    """The sink of a run's request: where its nodes have the volume, and whether they end once results are kept.

    Raises UsageError where a machine does not have the volume.
    """
    if is_bucket(sink):
        return {**sink, "end": end}
    name = str(sink["volume"])
    places = [(machine.data.get("mounts") or {}).get(name) for machine in machines]
    if not places or any(place != places[0] for place in places) or not places[0]:
        raise UsageError(
            f"the network volume {name} is not mounted on {cluster}",
            "bring up a cluster with it (--volume), or leave out --sink",
        )
    return {"volume": name, "mount": str(places[0]), "end": end, "id": uuid.uuid4().hex[:8]}


def spec_document(request: RunRequest, run: str) -> dict[str, Any] | None:
    """The sink as the launch spec has it; None without one."""
    sink = request.sink
    if not sink:
        return None
    if is_bucket(sink):
        return {"bucket": sink.get("place") or _bucket_url(sink, run), "end": bool(sink.get("end"))}
    return {"folder": posixpath.join(sink["mount"], VOLUME_FOLDER, run), "end": sink["end"], "id": sink["id"]}


def describe_place(request: RunRequest, run: str, folder: str = "") -> str:
    """`the network volume NAME, in gpuops/RUN`, or `s3://BUCKET/PREFIX/RUN`; `folder`: its path on a node, where
    known."""
    sink = request.sink or {}
    if is_bucket(sink):
        return folder or str(sink.get("place") or _bucket_url(sink, run))
    inside = posixpath.relpath(folder, sink["mount"]) if folder and sink.get("mount") else f"{VOLUME_FOLDER}/{run}"
    return f"the network volume {sink.get('volume')}, in {inside}"


def _bucket_url(sink: Mapping[str, Any], run: str) -> str:
    return "s3://" + "/".join(filter(None, (sink["bucket"], sink.get("prefix"), run)))


def describe_outcome(
    request: RunRequest, run: str, states: Mapping[int, Mapping[str, Any]], nodes: Sequence[int], folder: str = ""
) -> str:
    """The receipt's sentence part on kept results. `states`: the answers of the nodes that answer."""
    folder = next((str(state["folder"]) for state in states.values() if state.get("folder")), folder)
    on = "in" if is_bucket(request.sink) else "on"
    if not states:
        return f"what its nodes kept is {on} {describe_place(request, run, folder)}"
    bad = {index: str(states.get(index, {}).get("why") or "it does not say") for index in nodes
           if states.get(index, {}).get("state") != "safe"}  # fmt: skip
    if not bad:
        return f"safe {on} {describe_place(request, run, folder)}"
    whose = "; ".join(f"node{index}: {why}" for index, why in bad.items())
    return f"not all {on} {describe_place(request, run, folder)} ({whose})"


def describe_not_fetched(run: str, folder: str, trouble: str) -> tuple[str, str]:
    """Sentence and hint for a run whose machines were preempted and whose bucket cannot be read now."""
    return (
        f"; what it kept in {folder} is not home: {trouble}",
        f"`gpuops pull {run}` fetches it, and `--resume {run}` goes on from it",
    )


def describe_ended_while_away(request: RunRequest, run: str, folder: str = "", trouble: str = "") -> tuple[str, str]:
    """Sentence and hint for a run whose machines ended while this computer was away. `trouble`: why its results could
    not be fetched from a bucket."""
    gone = "its nodes ended while this computer was away"
    if is_bucket(request.sink):
        why = f" and is not home: {trouble}" if trouble else ""
        return (
            f"{gone}; what they kept is in {describe_place(request, run, folder)}{why}",
            f"fetch it: gpuops pull {run}",
        )
    return (
        f"{gone}; what they kept is on {describe_place(request, run)}",
        "a node's results are all there where its folder has safe.json; result.json there says how the run ended",
    )
