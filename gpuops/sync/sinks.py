"""Where a run's results are kept besides this computer (`--sink`): parsing, completion, and sentences for users.

`volume:NAME`: a provider that can mount a network volume has the option `volume`, and states in
`Resource.data["mounts"]` where each of a machine's volumes lies. The nodes copy the run's results into a folder of it.
`s3://BUCKET/PREFIX`: the nodes of any provider upload an archive each (`sync.bucket`). In both cases the nodes report
when everything is kept (docs/protocol.md); from then on this computer is not needed.
"""

from __future__ import annotations

import dataclasses
import posixpath
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from gpuops.core.errors import UsageError
from gpuops.core.models import Option, Resource
from gpuops.core.run_models import RunRequest
from gpuops.core.sink import BucketSink, FolderSink, Sink, SinkProgress

VOLUME = "volume"
BUCKET = "s3"
VOLUME_OPTION = "volume"
"""The option of a provider that mounts volumes."""
VOLUME_FOLDER = "gpuops"
"""The folder on a volume that has a folder for each run."""
AWS = "aws"
"""The provider whose option `profile` names keys that are valid for a bucket, too."""
BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
PREFIX = re.compile(r"[A-Za-z0-9!_.*'()=+-]+(/[A-Za-z0-9!_.*'()=+-]+)*")
MAX_PREFIX_CHARS = 512
SINK_HINT = "write --sink s3://BUCKET/PREFIX, or --sink volume:NAME with a network volume's name"


def parse_sink(text: str) -> Sink:
    """The bucket or volume that `--sink` names. Raises UsageError for anything else."""
    kind, colon, name = text.partition(":")
    if kind == VOLUME and colon and name and name.strip() == name and name.isprintable():
        return FolderSink(name)
    if kind == BUCKET and name.startswith("//"):
        return _parse_bucket(text, name[2:])
    raise UsageError(f"--sink {text} names no place for results", SINK_HINT)


def _parse_bucket(text: str, name: str) -> BucketSink:
    bucket, _, prefix = name.partition("/")
    prefix = prefix.rstrip("/")
    if not BUCKET_NAME.fullmatch(bucket):
        raise UsageError(f"--sink {text} names no bucket", "write --sink s3://BUCKET/PREFIX")
    is_valid = PREFIX.fullmatch(prefix) and len(prefix) <= MAX_PREFIX_CHARS and not {".", ".."} & set(prefix.split("/"))
    if prefix and not is_valid:
        raise UsageError(
            f"--sink {text}: {prefix} is no prefix", "write letters, digits and . _ - in it, with / between its parts"
        )
    return BucketSink(bucket, prefix)


def with_profile(sink: BucketSink, provider: str, options: Mapping[str, object]) -> BucketSink:
    """A bucket with the profile that the machines are rented with, where the provider is AWS."""
    profile = str(options.get("profile") or "").strip() if provider == AWS else ""
    return dataclasses.replace(sink, profile=profile) if profile else sink


def with_volume_option(provider: str, known: Sequence[Option], given: Mapping[str, Any], sink: Sink) -> dict[str, Any]:
    """A provider's options with the volume that the sink needs; unchanged for a bucket. Raises UsageError."""
    if isinstance(sink, BucketSink):
        return dict(given)
    name = sink.volume
    if all(option.name != VOLUME_OPTION for option in known):
        raise UsageError(
            f"{provider} mounts no network volume that --sink could keep results on",
            "write --sink s3://BUCKET/PREFIX, or name a provider that has the option --volume",
        )
    if given.get(VOLUME_OPTION) not in (None, name):
        raise UsageError(f"--sink volume:{name} and --volume {given[VOLUME_OPTION]} name two volumes", "name one")
    return {**given, VOLUME_OPTION: name}


def resolve_sink(sink: Sink, cluster: str, machines: Sequence[Resource], *, end: bool) -> Sink:
    """The sink of a run's request: where its nodes have the volume, and whether they end once results are kept.

    Raises UsageError where a machine does not have the volume, or another one has it elsewhere.
    """
    if isinstance(sink, BucketSink):
        return dataclasses.replace(sink, end=end)
    mounts = {str((machine.data.get("mounts") or {}).get(sink.volume) or "") for machine in machines}
    if len(mounts) != 1 or "" in mounts:
        raise UsageError(
            f"the network volume {sink.volume} is not mounted on {cluster}",
            "bring up a cluster with it (--volume), or leave out --sink",
        )
    return FolderSink(sink.volume, mounts.pop(), end, uuid.uuid4().hex[:8])


def spec_document(request: RunRequest, run: str) -> dict[str, Any] | None:
    """The sink as the launch spec has it; None without one."""
    sink = request.sink
    if sink is None:
        return None
    if isinstance(sink, BucketSink):
        return {"bucket": sink.place or sink.url(run), "end": sink.end}
    return {"folder": posixpath.join(sink.mount, VOLUME_FOLDER, run), "end": sink.end, "id": sink.id}


def describe_place(request: RunRequest, run: str, folder: str = "") -> str:
    """`the network volume NAME, in gpuops/RUN`, or `s3://BUCKET/PREFIX/RUN`; `folder`: its path on a node, where
    known."""
    sink = request.sink
    if isinstance(sink, BucketSink):
        return folder or sink.place or sink.url(run)
    if sink is None:
        return folder
    inside = posixpath.relpath(folder, sink.mount) if folder and sink.mount else f"{VOLUME_FOLDER}/{run}"
    return f"the network volume {sink.volume}, in {inside}"


def describe_outcome(
    request: RunRequest, run: str, states: Mapping[int, SinkProgress], nodes: Sequence[int], folder: str = ""
) -> str:
    """The receipt's part of a sentence on kept results. `states`: the reports of the nodes that still answer."""
    folder = next((state.folder for state in states.values() if state.folder), folder)
    place = f"{'in' if isinstance(request.sink, BucketSink) else 'on'} {describe_place(request, run, folder)}"
    if not states:
        return f"what its nodes kept is {place}"
    reported = {index: states.get(index, SinkProgress()) for index in nodes}
    failures = {index: state.why or "it does not say" for index, state in reported.items() if not state.is_safe}
    if not failures:
        return f"safe {place}"
    reasons = "; ".join(f"node{index}: {why}" for index, why in failures.items())
    return f"not all {place} ({reasons})"


def describe_not_fetched(run: str, folder: str, error: str) -> tuple[str, str]:
    """Sentence and hint for a run whose machines were preempted and whose bucket cannot be read now."""
    return (
        f"; what it kept in {folder} is not home: {error}",
        f"`gpuops pull {run}` fetches it, and `--resume {run}` goes on from it",
    )


def describe_ended_while_away(request: RunRequest, run: str, folder: str = "", error: str = "") -> tuple[str, str]:
    """Sentence and hint for a run whose machines ended while this computer was away. `error`: why its results could
    not be fetched from a bucket."""
    ended = "its nodes ended while this computer was away"
    if isinstance(request.sink, BucketSink):
        why = f" and is not home: {error}" if error else ""
        return (
            f"{ended}; what they kept is in {describe_place(request, run, folder)}{why}",
            f"fetch it: gpuops pull {run}",
        )
    return (
        f"{ended}; what they kept is on {describe_place(request, run)}",
        "a node's results are all there where its folder has safe.json; result.json there says how the run ended",
    )
