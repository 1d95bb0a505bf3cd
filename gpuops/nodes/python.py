"""The Python of each node of a run: found or made there, checked against the node's GPUs, and set up for the project.

A torch that cannot use the GPUs is refused before the launch, so that it is not found out at the cost of a run.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuops.core.context import Context
from gpuops.core.errors import NodeError, NodeRefused, RunFailed, UsageError
from gpuops.core.format import plural
from gpuops.core.models import NodeFacts, RunRequest
from gpuops.core.parallel import on_each
from gpuops.core.provider import has_capability
from gpuops.core.reporting import Progress
from gpuops.core.settings import Settings
from gpuops.nodes import cuda as compat
from gpuops.nodes import environment
from gpuops.nodes.rendezvous import Spot
from gpuops.nodes.session import ClusterSession
from gpuops.nodes.virtual import lots, ranks_for
from gpuops.transport.bulk import exchange
from gpuops.transport.rpc import AgentClient

if TYPE_CHECKING:
    from gpuops.transport.answers import Gpu, NodeHello, Output, Python, Saying, SetUp


PROOF = "import torch; torch.ones(1, device='cuda').add(1).item()"
PROOF_S = 120.0
"""How long importing torch and using a GPU may take, in seconds."""
NO_GPU = ("", "-1")
"""CUDA_VISIBLE_DEVICES of who wants to train on the CPU."""


def check(
    client: AgentClient, python: str, torch: str | None, cuda: str | None, gpus: Sequence[Gpu],
    request: RunRequest,
) -> str:  # fmt: skip
    """What the user should know, or nothing. Raises NodeError for a torch that does not run on these GPUs.

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
    if _proves(client, python, str(gpus[0].index), request):
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


PYTHON_SILENCE_S = 1800.0
"""How long the making of an environment may say nothing."""


@dataclass(frozen=True)
class Equipped:
    """One node ready to launch on: what a spec needs to know of it, and the torch that was found."""

    facts: NodeFacts
    torch: str | None
    why: str
    version: str = ""
    """The Python's."""
    gpus: int = 0


def equip(
    ctx: Context,
    settings: Settings,
    live: ClusterSession,
    request: RunRequest,
    folder: Path,
    spots: Sequence[Spot],
    progress: Progress,
) -> list[Equipped]:
    """Each node's Python and ranks, at its spot. Raises NodeError where torch differs between nodes, or cannot use
    their GPUs."""

    shared = has_capability(ctx.provisioner(live.row.provider), "shares_disk")
    given, _ = lots(live.machines[: request.nodes], live.gpus(), request.gpus)

    def one(index: int) -> Equipped:
        client, hello, lot = live.clients[index], live.hello(index), given[index]
        found = _python(ctx, settings, client, hello, request, folder, shared, progress)
        facts = NodeFacts(
            index=index,
            python=found["python"],
            cores=hello.cores,
            cores_share=lot.cores_share,
            ranks=ranks_for(request, lot.count),
            gpus=lot.gpus,
            interface=spots[index].interface,
            address=spots[index].address,
            env=dict(live.machines[index].data.get("env") or {}),
        )
        own = [gpu for gpu in hello.gpus if lot.gpus is None or str(gpu.index) in lot.gpus]
        used = own[: facts.ranks]
        if note := check(client, found["python"], found["torch"], found.get("cuda"), used, request):
            ctx.out.say(f"note: {note}")
        return Equipped(facts, found["torch"], found["why"], found["version"], lot.count)

    nodes = on_each(one, range(request.nodes))
    first = nodes[0]
    torch = f"torch {first.torch}" if first.torch else "no torch"
    ctx.out.say(f"python: {first.facts.python} ({torch}; {first.why})")
    for index, node in enumerate(nodes):
        if request.kind == "torchrun" and node.torch != first.torch:
            raise NodeError(
                f"node{index} has torch {node.torch}, node0 has {first.torch}",
                "name one that is the same on all nodes with --python PATH",
            )
    for note in differences(nodes) if request.kind == "torchrun" else ():
        ctx.out.say(f"note: {note}")
    return nodes


def differences(nodes: Sequence[Equipped]) -> list[str]:
    """What a user should know of nodes that are not alike, though it stops nothing."""
    found = []
    minors = [".".join(node.version.split(".")[:2]) for node in nodes]
    if other := next((index for index, minor in enumerate(minors) if minor != minors[0]), 0):
        found.append(
            f"node{other} has Python {minors[other]}, node0 {minors[0]}; what one pickles the other may not read"
        )
    if other := next((index for index, node in enumerate(nodes) if node.gpus != nodes[0].gpus), 0):
        unlike = [(0, nodes[0]), (other, nodes[other])]
        has = ", ".join(f"node{index} has {plural(node.gpus, 'GPU')}" for index, node in unlike)
        run = " and ".join(str(node.facts.ranks) for _, node in unlike)
        found.append(f"{has}: they run {run} ranks; a script that takes all nodes for alike may fail")
    return found


def _python(
    ctx: Context,
    settings: Settings,
    client: AgentClient,
    hello: NodeHello,
    request: RunRequest,
    folder: Path,
    shared: bool,
    progress: Progress,
) -> Python:
    """Verb `python`. A plain command takes any Python where none with torch is to be had."""
    make = environment.make_plan(folder, hello.gpus, settings, workload=bool(request.workload))
    arguments: dict[str, Any] = {
        "explicit": request.python,
        "candidates": own_pythons(ctx) if shared else [],
        "name": make["name"],
    }
    needs = request.kind == "torchrun"
    try:
        answer = _stream_python(client, progress, {**arguments, "needs_torch": True, "make": make if needs else None})
    except NodeRefused as refusal:
        if request.python and refusal.kind == "no-python":
            raise UsageError(refusal.say, refusal.hint) from refusal
        if needs or refusal.kind != "no-python":
            raise
        answer = _stream_python(client, progress, {**arguments, "needs_torch": False, "make": None})
    return answer


def _stream_python(client: AgentClient, progress: Progress, arguments: dict[str, Any]) -> Python:
    stream = client.stream("python", timeout=PYTHON_SILENCE_S, **arguments)
    item: Saying
    for item in stream:
        progress.waits(f"making an environment: {item['say']}", client.label)
    progress.waits("", client.label)
    found: Python = stream.answer
    return found


def own_pythons(ctx: Context) -> list[str]:
    """The user's own environment on this computer: the active one, then the one that gpuops runs in."""
    active = [f"{ctx.env[name]}/bin/python" for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if ctx.env.get(name)]
    return [*active, sys.executable]


def setup_command(request: RunRequest, folder: Path, python: str, *, rented: bool) -> str:
    """What prepares a node for the project: `--setup`, else what the project asks for, on rented nodes only.

    A package of the project is installed as editable: what is pushed later counts without another set-up.
    """
    if request.setup is not None or not rented or request.workload:
        return request.setup or ""
    if (folder / "requirements.txt").is_file():
        return shlex.join([python, "-m", "pip", "install", "-r", "requirements.txt"])
    return shlex.join([python, "-m", "pip", "install", "-e", "."]) if environment.is_package(folder) else ""


def set_up(
    ctx: Context,
    live: ClusterSession,
    tree: str,
    folder: Path,
    commands: Sequence[str],
    nodes: Sequence[Equipped],
    progress: Progress,
) -> None:
    """Run each node's set-up command in the tree; skipped where it has succeeded before and what it reads of the
    project's folder is the same. Raises RunFailed.

    Nodes on one machine have one Python, which only one of them may change at a time.
    """

    def one(node: Equipped, command: str) -> None:
        client = live.clients[node.facts.index]
        key = setup_key(command, node.facts.python, folder)
        output = b""
        stream = client.stream(
            "setup", timeout=PYTHON_SILENCE_S, tree=tree, command=command, python=node.facts.python, key=key
        )
        item: Output
        for item in stream:
            output = (output + item["b64"])[-4096:]
            progress.waits(_last_line(output), f"node{node.facts.index}")
        progress.waits("", f"node{node.facts.index}")
        end: SetUp = stream.answer
        if end["code"] != 0:
            last = output.decode(errors="replace").strip().splitlines()
            if last and last[-1].endswith(": No module named pip"):
                raise RunFailed(
                    f"the Python of node{node.facts.index}, {node.facts.python}, has no pip, which the set-up command "
                    f"`{command}` needs",
                    "install it first (--setup 'apt-get install -y python3-pip && …'), or name another with --python",
                )
            raise RunFailed(
                f"the set-up command `{command}` failed on node{node.facts.index} with exit code "
                f"{end['code']}: {last[-1] if last else 'it said nothing'}",
                "correct the command, or look at the node: "
                + ("with --keep it stays" if live.row.ephemeral else f"gpuops ssh {live.row.name}")
                + f"{f' --node {node.facts.index}' if node.facts.index and not live.row.ephemeral else ''}",
            )
        if not end["skipped"]:
            ctx.out.say(f"node{node.facts.index}: set up")

    by_index = {node.facts.index: (node, command) for node, command in zip(nodes, commands, strict=True)}

    def one_by_one(group: Sequence[int]) -> None:
        for index in group:
            one(*by_index[index])

    on_each(one_by_one, by_machine(live, by_index))


def setup_key(command: str, python: str, folder: Path) -> str:
    """The name of one set-up. It is another one when a file that the command reads has changed."""
    read = [hashlib.sha256(content).hexdigest() for content in environment.read_by(command, folder)]
    return hashlib.sha256("\0".join([command, python, *read]).encode()).hexdigest()[:12]


def by_machine(live: ClusterSession, nodes: Iterable[int]) -> list[list[int]]:
    """Nodes by the machine that they are on."""
    machines: dict[str, list[int]] = {}
    for index in nodes:
        login = live.machines[index].data.get("target")  # none where it is this computer
        machines.setdefault(json.dumps(login, sort_keys=True), []).append(index)
    return list(machines.values())


def _last_line(output: bytes) -> str:
    return next((line for line in reversed(output.decode(errors="replace").splitlines()) if line.strip()), "")


def versions(live: ClusterSession, nodes: Sequence[Equipped]) -> dict[str, Any]:
    """What the receipt says the run was made with."""
    gpus = live.hello(0).gpus
    return {
        "torch": nodes[0].torch,
        "python": nodes[0].facts.python,
        "driver": gpus[0].driver if gpus else None,
        "image": live.row.request.get("image"),
    }
