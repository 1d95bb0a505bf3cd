"""Where else results are kept: what is asked for, what is found, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest

from gpuops import sinks
from gpuops.errors import UsageError
from gpuops.models import Option, Resource, RunRequest

OPTIONS = (Option("size", "."), Option("volume", "."))
SINK = {"volume": "data", "mount": "/workspace", "end": True, "id": "5f0c"}
REQUEST = RunRequest(kind="command", mode="run", nodes=2, gpus=None, argv=("true",), sink=SINK)
FOLDER = "/workspace/gpuops/sh-1"


def machine(mounts: Any) -> Resource:
    return Resource("machine", "1", "", "gpuops-me-lab-0", True, data={"mounts": mounts} if mounts is not None else {})


@pytest.mark.parametrize(
    ("text", "name"), [("volume:data", "data"), ("volume:my data", "my data"), ("volume:a:b", "a:b")]
)
def test_a_volume_is_named(text: str, name: str) -> None:
    assert sinks.parse(text) == name


@pytest.mark.parametrize(
    "text", ["", "volume", "volume:", "volume: a", "volume:a\n", "s3://b", "Volume:a", "/mnt", "a"]
)
def test_anything_else_is_no_sink(text: str) -> None:
    with pytest.raises(UsageError) as error:
        sinks.parse(text)
    assert error.value.hint == "write --sink volume:NAME, a network volume's name"


def test_the_provider_is_asked_for_the_volume() -> None:
    assert sinks.implied("tent", OPTIONS, {"size": "small"}, "a") == {"size": "small", "volume": "a"}
    assert sinks.implied("tent", OPTIONS, {"volume": "a"}, "a") == {"volume": "a"}
    with pytest.raises(UsageError, match="name two volumes"):
        sinks.implied("tent", OPTIONS, {"volume": "b"}, "a")
    with pytest.raises(UsageError, match="local mounts no network volume"):
        sinks.implied("local", OPTIONS[:1], {}, "a")


def test_every_machine_must_have_it_in_one_place() -> None:
    there = machine({"data": "/workspace", "other": "/o"})
    found = sinks.found("data", "lab", [there, there], end=False)
    assert {**found, "id": ""} == {"volume": "data", "mount": "/workspace", "end": False, "id": ""}
    assert sinks.found("data", "lab", [there], end=False)["id"] != found["id"], "fresh for each run"
    for machines in ([], [machine(None)], [machine({})], [there, machine({"data": "/else"})], [there, machine(None)]):
        with pytest.raises(UsageError, match="the network volume data is not mounted on lab"):
            sinks.found("data", "lab", machines, end=False)


def test_the_launch_spec_names_a_folder_and_nothing_of_the_provider() -> None:
    assert sinks.of_spec(REQUEST, "sh-1") == {"folder": FOLDER, "end": True, "id": "5f0c"}
    assert sinks.of_spec(RunRequest(kind="command", mode="run", nodes=1, gpus=None), "sh-1") is None


SAFE = {"state": "safe", "folder": FOLDER}
FAILED = {"state": "failed", "folder": FOLDER, "why": "No space left on device"}


@pytest.mark.parametrize(
    ("states", "words"),
    [
        ({0: SAFE, 1: SAFE}, "safe on the network volume data, in gpuops/sh-1"),
        ({0: {**SAFE, "folder": f"{FOLDER}-5f0c"}, 1: SAFE}, "safe on the network volume data, in gpuops/sh-1-5f0c"),
        ({0: SAFE, 1: FAILED}, "not all on the network volume data, in gpuops/sh-1 (node1: No space left on device)"),
        ({0: SAFE}, "not all on the network volume data, in gpuops/sh-1 (node1: it does not say)"),
        ({}, "what its nodes kept is on the network volume data, in gpuops/sh-1"),
    ],
)
def test_the_receipt_says_where_results_are(states: dict[int, dict[str, Any]], words: str) -> None:
    assert sinks.outcome(REQUEST, "sh-1", states, range(2)) == words
