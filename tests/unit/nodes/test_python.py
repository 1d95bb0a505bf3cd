"""Which Python a node runs: a plain command needs nothing of the project's requirements."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuops.core.errors import NodeRefused, UsageError
from gpuops.core.models import Resource
from gpuops.core.reporting import Silent
from gpuops.core.run_models import RunRequest
from gpuops.core.settings import Settings
from gpuops.nodes.python import PreparedNode, prepare_pythons
from gpuops.nodes.rendezvous import Endpoint
from gpuops.nodes.session import ClusterSession
from gpuops.transport.rpc import Items, Stream
from gpuops.transport.schemas import NodePython

PLAIN = RunRequest(kind="command", mode="run", nodes=1, gpus=None, argv=["nvidia-smi"])
TORCHRUN = RunRequest(kind="torchrun", mode="single", nodes=1, gpus=None, script="train.py")


class Agent:
    """A node with a Python, which has torch or not."""

    label = "node0"

    def __init__(self, torch: str | None) -> None:
        self._torch = torch

    def stream(self, _verb: str, *, needs_torch: bool, make: object, **_: Any) -> Stream:
        return Stream(self._items(needs_torch, make))

    def _items(self, needs_torch: bool, make: object) -> Items:
        if needs_torch and self._torch is None and make is None:
            raise NodeRefused("no Python on this node has torch", "name one", "no-python")
        yield from ()
        return NodePython("/usr/bin/python3", "3.11.7", self._torch, "the system's python3")


def prepared(request: RunRequest, folder: Path, torch: str | None) -> PreparedNode:
    machine = Resource("machine", "m", "r", "gpuops-0a1b2c3d-lab-0", False, data={})
    hello = SimpleNamespace(gpus=[], cores=1)
    live = ClusterSession(
        cast(Any, SimpleNamespace(provider="local")), [machine], [cast(Any, Agent(torch))], [cast(Any, hello)]
    )
    provider = SimpleNamespace(capabilities={})
    ctx = SimpleNamespace(provisioner=lambda _: provider, out=SimpleNamespace(say=lambda _: None))
    endpoints = [Endpoint("127.0.0.1", "lo")]
    (node,) = prepare_pythons(cast(Any, ctx), Settings(), live, request, folder, endpoints, Silent())
    return node


@pytest.mark.parametrize(("request_", "torch"), [(PLAIN, None), (PLAIN, "2.11.0"), (TORCHRUN, "2.11.0")])
def test_unreadable_requirements_keep_only_an_environment_from_being_made(
    request_: RunRequest, torch: str | None, tmp_path: Path
) -> None:
    (tmp_path / "requirements.txt").write_bytes(b"\xff\xfe\x00")
    assert prepared(request_, tmp_path, torch).facts.python == "/usr/bin/python3"


def test_where_an_environment_must_be_made_the_requirements_are_to_blame(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"requirements\.txt cannot be read"):
        prepared(TORCHRUN, tmp_path, None)
