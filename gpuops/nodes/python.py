"""The Python of each node of a run: found or made there, checked against the node's GPUs, and set up for the project.

A torch that cannot use the GPUs is refused before the launch.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuops.agent.run.command_and_environment import PRELUDE_HINT, find_prelude_failure, prelude_script
from gpuops.core.context import Context
from gpuops.core.errors import NodeError, NodeRefused, RefusalKind, RunFailed, UsageError
from gpuops.core.format import plural
from gpuops.core.parallel import on_each
from gpuops.core.provider import has_capability
from gpuops.core.reporting import Progress
from gpuops.core.run_models import NodeFacts, RunRequest
from gpuops.core.settings import Settings
from gpuops.nodes import environment
from gpuops.nodes.cuda import MisfitKind, find_misfit
from gpuops.nodes.gpu_shares import ranks_for, share_gpus
from gpuops.nodes.python_in_image import find_python
from gpuops.nodes.rendezvous import Endpoint
from gpuops.nodes.session import ClusterSession
from gpuops.transport.bulk_transfer import exchange
from gpuops.transport.rpc import AgentClient

if TYPE_CHECKING:
    from gpuops.transport.schemas import Gpu, NodeHello, NodePython, ProgressLine, SetupOutput, SetupResult


TORCH_PROBE = "import torch; torch.ones(1, device='cuda').add(1).item()"
BASH_OR_SH = 'exec "$(command -v bash || echo sh)" "$@"'
"""The shell that runs preludes on a node."""
TORCH_PROBE_TIMEOUT_S = 120.0
"""Time limit for importing torch and using a GPU."""
CPU_ONLY_VALUES = ("", "-1")
"""Values of CUDA_VISIBLE_DEVICES that mean training on the CPU."""


def check_torch(
    client: AgentClient, python: Sequence[str], torch: str | None, cuda: str | None, gpus: Sequence[Gpu],
    request: RunRequest, start: Sequence[str] = (),
) -> str:  # fmt: skip
    """Check torch against the GPUs; returns a note for the user, or "". Raises NodeError if it cannot use them.

    The tables decide most cases at once. Before a refusal torch is tried on the node, since NVIDIA's compat package may
    stand in for a newer driver. `start`: the words that start a program on the node, where a connection reaches its
    login node (`Resource.data["inside_shell"]`).
    """
    if request.kind != "torchrun" or not torch or request.env.get("CUDA_VISIBLE_DEVICES") in CPU_ONLY_VALUES:
        return ""
    misfit = find_misfit(torch, cuda, gpus, python[-1])
    if misfit is None:
        return ""
    if misfit.kind is MisfitKind.CPU:
        return f"{client.label}: {misfit.say}; {misfit.hint}"
    if _can_use_gpu(client, start, python, str(gpus[0].index), request):
        return ""
    hint = f"{misfit.hint}; or train on the CPU: --env CUDA_VISIBLE_DEVICES="
    raise NodeError(f"{client.label}: {misfit.say}", hint)


def _can_use_gpu(
    client: AgentClient, start: Sequence[str], python: Sequence[str], gpu: str, request: RunRequest
) -> bool:
    """Whether torch uses a GPU, tried in the run's environment. Raises NodeError where the prelude fails there."""
    variables = [f"{name}={value}" for name, value in {"CUDA_VISIBLE_DEVICES": gpu, **request.env}.items()]
    shell = ["sh", "-c", BASH_OR_SH, "sh", "-c", prelude_script(request.prelude), "sh"]
    try:
        exchange(
            client.connection.open([*start, "env", *variables, *shell, *python, "-c", TORCH_PROBE]),
            client.label,
            silence_s=TORCH_PROBE_TIMEOUT_S,
        )
    except NodeError as error:
        if failed := find_prelude_failure(error.message):
            raise NodeError(f"{client.label}: {failed}", PRELUDE_HINT) from error
        return False
    return True


PYTHON_SILENCE_S = 1800.0
"""Time without output after which making an environment fails."""


@dataclass(frozen=True)
class PreparedNode:
    """One node ready to launch on: what a spec needs to know of it, and the torch that was found."""

    facts: NodeFacts
    torch: str | None
    why: str
    version: str = ""
    """The Python's."""
    gpus: int = 0


def prepare_pythons(
    ctx: Context,
    settings: Settings,
    session: ClusterSession,
    request: RunRequest,
    folder: Path,
    endpoints: Sequence[Endpoint],
    progress: Progress,
) -> list[PreparedNode]:
    """Each node's Python and ranks, at its endpoint. Raises NodeError where torch differs between nodes, or cannot use
    their GPUs."""

    shared = has_capability(ctx.provisioner(session.row.provider), "shares_disk")
    shares, _ = share_gpus(session.machines[: request.nodes], session.gpus(), request.gpus)

    def prepare(index: int) -> PreparedNode:
        client, hello, share = session.clients[index], session.hello(index), shares[index]
        there = session.machines[index].data
        within = [str(word) for word in there.get("within") or ()]
        start = [str(word) for word in there.get("inside_shell") or ()]
        image = [*start, *within] if within else []
        chosen = _choose_python(ctx, settings, client, hello, request, folder, shared, progress, image)
        facts = NodeFacts(
            index=index,
            python=chosen.python,
            cores=hello.cores,
            cores_share=share.cores_share,
            ranks=ranks_for(request, share.count),
            gpus=share.gpus,
            interface=endpoints[index].interface,
            address=endpoints[index].address,
            env=dict(session.machines[index].data.get("env") or {}),
            within=within,
        )
        own = [gpu for gpu in hello.gpus if share.gpus is None or str(gpu.index) in share.gpus]
        used = own[: facts.ranks]
        python = [*within, chosen.python]
        if note := check_torch(client, python, chosen.torch, chosen.cuda, used, request, start):
            ctx.out.say(f"note: {note}")
        return PreparedNode(facts, chosen.torch, chosen.why, chosen.version, share.count)

    nodes = on_each(prepare, range(request.nodes))
    first = nodes[0]
    torch = f"torch {first.torch}" if first.torch else "no torch"
    ctx.out.say(f"python: {first.facts.python} ({torch}; {first.why})")
    for index, node in enumerate(nodes):
        if request.kind == "torchrun" and node.torch != first.torch:
            raise NodeError(
                f"node{index} has torch {node.torch}, node0 has {first.torch}",
                "name one that is the same on all nodes with --python PATH",
            )
    for note in describe_differences(nodes) if request.kind == "torchrun" else ():
        ctx.out.say(f"note: {note}")
    return nodes


def describe_differences(nodes: Sequence[PreparedNode]) -> list[str]:
    """Notes on nodes that differ; they do not stop the run."""
    notes = []
    minors = [".".join(node.version.split(".")[:2]) for node in nodes]
    if other := next((index for index, minor in enumerate(minors) if minor != minors[0]), 0):
        notes.append(
            f"node{other} has Python {minors[other]}, node0 {minors[0]}; what one pickles the other may not read"
        )
    if other := next((index for index, node in enumerate(nodes) if node.gpus != nodes[0].gpus), 0):
        differing = [(0, nodes[0]), (other, nodes[other])]
        has = ", ".join(f"node{index} has {plural(node.gpus, 'GPU')}" for index, node in differing)
        run = " and ".join(str(node.facts.ranks) for _, node in differing)
        notes.append(f"{has}: they run {run} ranks; a script that takes all nodes for alike may fail")
    return notes


def _choose_python(
    ctx: Context,
    settings: Settings,
    client: AgentClient,
    hello: NodeHello,
    request: RunRequest,
    folder: Path,
    shared: bool,
    progress: Progress,
    image: Sequence[str],
) -> NodePython:
    """Verb `python`, or what is in the image that `image` starts programs in. A plain command gets any Python where
    none has torch.

    Raises UsageError where an environment has to be made and what the project requires cannot be read.
    """
    if image:
        return find_python(client, image, request.python, needs_torch=request.kind == "torchrun")
    make, no_plan = _plan_environment(settings, hello, request, folder)
    arguments: dict[str, Any] = {
        "explicit": request.python,
        "candidates": own_pythons(ctx) if shared else [],
        "name": make["name"] if make else "",
    }
    needs = request.kind == "torchrun"
    try:
        answer = _stream_python(client, progress, {**arguments, "needs_torch": True, "make": make if needs else None})
    except NodeRefused as refusal:
        if request.python and refusal.kind == RefusalKind.NO_PYTHON:
            raise UsageError(refusal.message, refusal.hint) from refusal
        if needs and no_plan and refusal.kind == RefusalKind.NO_PYTHON:
            raise no_plan from refusal
        if needs or refusal.kind != RefusalKind.NO_PYTHON:
            raise
        answer = _stream_python(client, progress, {**arguments, "needs_torch": False, "make": None})
    return answer


def _plan_environment(
    settings: Settings, hello: NodeHello, request: RunRequest, folder: Path
) -> tuple[dict[str, Any] | None, UsageError | None]:
    """The environment that could be made for the project, or why none can: that matters only where one is needed."""
    try:
        return environment.make_plan(folder, hello.gpus, settings, workload=bool(request.workload)), None
    except UsageError as error:
        return None, error


def _stream_python(client: AgentClient, progress: Progress, arguments: dict[str, Any]) -> NodePython:
    stream = client.stream("python", timeout=PYTHON_SILENCE_S, **arguments)
    item: ProgressLine
    for item in stream:
        progress.waits(f"making an environment: {item.say}", client.label)
    progress.waits("", client.label)
    python: NodePython = stream.answer
    return python


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


def run_setup(
    ctx: Context,
    session: ClusterSession,
    tree: str,
    folder: Path,
    commands: Sequence[str],
    nodes: Sequence[PreparedNode],
    progress: Progress,
) -> None:
    """Run each node's set-up command in the tree; skipped where it has succeeded before and what it reads of the
    project's folder is the same. Raises RunFailed.

    Nodes on one machine have one Python, which only one of them may change at a time.
    """

    def set_up(node: PreparedNode, command: str) -> None:
        client = session.clients[node.facts.index]
        key = setup_key(command, node.facts.python, folder)
        output = b""
        stream = client.stream(
            "setup", timeout=PYTHON_SILENCE_S, tree=tree, command=command, python=node.facts.python, key=key
        )
        item: SetupOutput
        for item in stream:
            output = (output + item.data)[-4096:]
            progress.waits(_last_line(output), f"node{node.facts.index}")
        progress.waits("", f"node{node.facts.index}")
        end: SetupResult = stream.answer
        if end.code != 0:
            last = output.decode(errors="replace").strip().splitlines()
            if last and last[-1].endswith(": No module named pip"):
                raise RunFailed(
                    f"the Python of node{node.facts.index}, {node.facts.python}, has no pip, which the set-up command "
                    f"`{command}` needs",
                    "install it first (--setup 'apt-get install -y python3-pip && …'), or name another with --python",
                )
            raise RunFailed(
                f"the set-up command `{command}` failed on node{node.facts.index} with exit code "
                f"{end.code}: {_explain_failure(last)}",
                "correct the command, or look at the node: "
                + ("with --keep it stays" if session.row.ephemeral else f"gpuops ssh {session.row.name}")
                + f"{f' --node {node.facts.index}' if node.facts.index and not session.row.ephemeral else ''}",
            )
        if not end.skipped:
            ctx.out.say(f"node{node.facts.index}: set up")

    by_index = {node.facts.index: (node, command) for node, command in zip(nodes, commands, strict=True)}

    def set_up_in_turn(group: Sequence[int]) -> None:
        for index in group:
            set_up(*by_index[index])

    on_each(set_up_in_turn, group_by_machine(session, by_index))


def _explain_failure(lines: Sequence[str]) -> str:
    """The last line of a set-up that failed; where that is pip's of versions that conflict, which, named further up."""
    *above, last = lines or ["it said nothing"]
    if "ResolutionImpossible" in last and "The conflict is caused by:" in above:
        named = takewhile(str.strip, above[above.index("The conflict is caused by:") + 1 :])
        return f"these versions conflict: {'; '.join(map(str.strip, named))}"
    return last


def setup_key(command: str, python: str, folder: Path) -> str:
    """The key of a set-up: it changes with the command, the Python and the files that the command reads."""
    read = [hashlib.sha256(content).hexdigest() for content in environment.files_read_by(command, folder)]
    return hashlib.sha256("\0".join([command, python, *read]).encode()).hexdigest()[:12]


def group_by_machine(session: ClusterSession, nodes: Iterable[int]) -> list[list[int]]:
    """The nodes, grouped by their machine."""
    machines: dict[str, list[int]] = {}
    for index in nodes:
        login = session.machines[index].data.get("target")  # none where it is this computer
        machines.setdefault(json.dumps(login, sort_keys=True), []).append(index)
    return list(machines.values())


def _last_line(output: bytes) -> str:
    return next((line for line in reversed(output.decode(errors="replace").splitlines()) if line.strip()), "")


def run_versions(session: ClusterSession, nodes: Sequence[PreparedNode]) -> dict[str, Any]:
    """Versions for the run's receipt."""
    gpus = session.hello(0).gpus
    return {
        "torch": nodes[0].torch,
        "python": nodes[0].facts.python,
        "driver": gpus[0].driver if gpus else None,
        "image": session.row.request.get("image"),
    }
