"""Before a launch: will the torch that was found use the GPUs it is to train on? Better said now than paid for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuops.core.errors import NodeError
from gpuops.core.models import RunRequest
from gpuops.nodes import cuda as compat
from gpuops.transport.bulk import exchange
from gpuops.transport.rpc import AgentClient

PROOF = "import torch; torch.ones(1, device='cuda').add(1).item()"
PROOF_S = 120.0
"""How long importing torch and using a GPU may take, in seconds."""
NO_GPU = ("", "-1")
"""CUDA_VISIBLE_DEVICES of who wants to train on the CPU."""


def check(
    client: AgentClient, python: str, torch: str | None, cuda: str | None, gpus: Sequence[Mapping[str, Any]],
    request: RunRequest,
) -> str:  # fmt: skip
    """What the user should know, or nothing. Raises NodeError for a torch that does not run on these GPUs (of `hello`).

    The tables cost nothing and know most; before anything is refused the node has the last word, since NVIDIA's
    compat package may stand in for a newer driver.
    """
    if request.kind != "torchrun" or not torch or request.env.get("CUDA_VISIBLE_DEVICES") in NO_GPU:
        return ""
    against = compat.misfit(torch, cuda, gpus, python)
    if against is None:
        return ""
    if against.kind == "cpu":
        return f"{client.label}: {against.say}; {against.hint}"
    if _proves(client, python, str(gpus[0]["index"]), request):
        return ""
    hint = f"{against.hint}; or train on the CPU: --env CUDA_VISIBLE_DEVICES="
    raise NodeError(f"{client.label}: {against.say}", hint)


def _proves(client: AgentClient, python: str, gpu: str, request: RunRequest) -> bool:
    """Whether torch uses a GPU nevertheless, surrounded as in the run."""
    around = [f"{name}={value}" for name, value in {"CUDA_VISIBLE_DEVICES": gpu, **request.env}.items()]
    script = "\n".join([*request.prelude, 'exec "$@"'])
    try:
        exchange(
            client.connection.open(["env", *around, "sh", "-c", script, "sh", python, "-c", PROOF]),
            client.label,
            silence_s=PROOF_S,
        )
    except NodeError:
        return False
    return True
