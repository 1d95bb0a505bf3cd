"""A node in a container on one of the user's hosts: what is started there, and how it is entered. Pure.

The container is the node. Its first program is the agent's mode `contain`, which ends with the node's watchdog, and the
kernel ends all within at that moment. It sees the host's network and shared memory, its GPUs and InfiniBand, and of the
host's files our folder alone, under the same path: what a run makes is the user's, and is there after the container.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuops.core.errors import UsageError
from gpuops.core.models import Request

DOCKER, PODMAN = "docker", "podman"
ENGINES = (DOCKER, PODMAN)
APPTAINER = "apptainer"
STACK_BYTES = 64 << 20
"""What NVIDIA's images ask for."""
IMAGE = re.compile(r"[A-Za-z0-9/.~][A-Za-z0-9._/:@~+-]{0,511}")
OWNER_LABEL, MARK_LABEL, TOKEN_LABEL, NODE_LABEL = "gpuops.owner", "gpuops.mark", "gpuops.token", "gpuops.node"
HOLD_SCRIPT = r"""
exec >>"$1/log" 2>&1
folder=$1 agent=$2 node=$3
shift 3
for name in "$@"; do
    found=$(command -v "$name") && "$found" -c 'import sys; sys.exit(sys.version_info < (3, 8))' || continue
    exec "$found" -I "$agent" contain --node "$node"
done
echo python >"$folder/failed"
"""
"""The first program's beginning, in the container: searches a Python for the agent, and becomes it."""
ENTER_SCRIPT = r"""
engine=$1 name=$2 count=$3
shift 3
flag=-i
if [ -t 0 ]; then flag=-it; fi
state=$("$engine" inspect --type container --format '{{.State.Running}} {{.State.Pid}}' "$name" 2>/dev/null)
if [ "${state% *}" = true ] && { [ "$engine" != podman ] || [ -d "/proc/${state#* }" ]; }; then
    shift "$count"
    exec "$engine" exec "$flag" "$name" "$@"
fi
exec "$@"
"""
"""Starts a program in the container `$2`. Where that has ended, its `$3` words before the program start it in another
one, which ends with the program: what lies in the node's folder is read there."""


@dataclass(frozen=True)
class HostLimits:
    """What of a host decides how its containers are started."""

    user: str
    uid: int
    gid: int
    rootless: bool = False
    """Whether the engine runs as the user: root in a container is the user outside."""
    gpus: bool = False
    infiniband: bool = False
    locks_memory: bool = True
    """Whether the user may lock any amount of memory."""
    stacks: bool = True
    """Whether the user may have a stack of `STACK_BYTES`."""


@dataclass(frozen=True)
class ContainerSpec:
    """One container, as its host keeps it, too: in the node's folder and as a label."""

    engine: str
    image: str
    owner: str
    mark: str
    token: str
    root: str
    """Our folder on the host, and in the container."""
    cluster: str
    index: int
    host: str
    """The host's name, as the region of the node's resource: hosts may share one home."""
    agent: str
    """Path of the agent's artefact."""
    limits: HostLimits
    gpus: Sequence[str] | None = None
    cores_share: float = 1.0

    @property
    def node(self) -> str:
        """The node's folder."""
        return f"{self.root}/{self.cluster}/n{self.index}"

    @property
    def folder(self) -> str:
        """The folder beside it, of what the host does to start the container."""
        return f"{self.root}/{self.cluster}/c{self.index}"

    @property
    def home(self) -> str:
        """What programs in the container take for the user's home."""
        return f"{self.node}/home"

    def document(self) -> str:
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))


def parse_spec(document: object) -> ContainerSpec:
    """A spec of its document. Raises ValueError, TypeError or KeyError for what is none."""
    if not isinstance(document, Mapping):
        raise TypeError("no container")
    words = ("engine", "image", "owner", "mark", "token", "root", "cluster", "host", "agent")
    if not all(isinstance(document[word], str) for word in words) or document["engine"] not in ENGINES:
        raise TypeError("no container of gpuops")
    return ContainerSpec(**{**document, "index": int(document["index"]), "limits": HostLimits(**document["limits"])})


def wanted_engine(request: Request) -> str:
    """What `--container` names; empty without it. Raises UsageError."""
    wanted = str(request.options.get("container") or "")
    if wanted and wanted not in (*ENGINES, APPTAINER):
        raise UsageError(f"--container {wanted} is not known", f"there are: {', '.join((*ENGINES, APPTAINER))}")
    return wanted


def wants_containers(request: Request) -> bool:
    """Whether the nodes themselves are to be in containers. Raises UsageError."""
    engine = wanted_engine(request)
    return engine in ENGINES or (not engine and request.image is not None)


def check_image(image: str, engine: str = "") -> str:
    """The image's name. Raises UsageError for what can be none: it may be a word of a command on the hosts."""
    if engine == APPTAINER and not image.startswith("/"):
        raise UsageError(
            f"--image {image} is no file on the hosts, and apptainer runs one",
            "make it there once: apptainer build /PATH/NAME.sif docker://IMAGE; then --image /PATH/NAME.sif",
        )
    if not IMAGE.fullmatch(image):
        raise UsageError(f"--image {image} is no image's name", "name it as docker pull does: pytorch/pytorch:2.8.0")
    return image


def within_words(image: str, root: str, *, gpus: bool) -> list[str]:
    """What stands before a program that Apptainer starts in an image file. It has no daemon, and the container is the
    program: the agent stays outside. Of the user's home nothing but our folder is there."""
    nv = ["--nv"] if gpus else []
    return [APPTAINER, "exec", *nv, "--no-home", "--bind", root, image]


def full_name(engine: str, image: str) -> str:
    """The name to pull by. Docker takes a name without a registry for one of Docker Hub's, Podman may not."""
    first, slash, _ = image.partition("/")
    if engine != PODMAN or (slash and (first == "localhost" or "." in first or ":" in first)):
        return image
    return f"docker.io/{image}" if slash else f"docker.io/library/{image}"


def run_words(spec: ContainerSpec) -> list[str]:
    """The command that starts a container with what a node needs, without a program."""
    limits, root = spec.limits, spec.root
    words = [
        spec.engine, "run", "--rm", "--pull", "never",
        "--label", f"{OWNER_LABEL}={spec.owner}", "--label", f"{MARK_LABEL}={spec.mark}",
        "--label", f"{TOKEN_LABEL}={spec.token}",
        "--network=host", "--ipc=host",
        "--mount", f"type=bind,source={root},target={root}", "--workdir", "/",
        "--env", f"HOME={spec.home}", "--env", f"USER={limits.user}", "--env", f"LOGNAME={limits.user}",
    ]  # fmt: skip
    if spec.engine == DOCKER and not limits.rootless:
        words += ["--user", f"{limits.uid}:{limits.gid}"]
    if spec.engine == PODMAN:
        words += ["--security-opt", "label=disable"]
        words += ["--userns=keep-id"] if limits.rootless else []
    if limits.gpus:
        words += ["--gpus", "all"] if spec.engine == DOCKER else ["--device", "nvidia.com/gpu=all"]
    if limits.locks_memory:
        words += ["--ulimit", "memlock=-1"]
    if limits.stacks:
        words += ["--ulimit", f"stack={STACK_BYTES}"]
    if limits.infiniband:
        words += ["--device", "/dev/infiniband", "--cap-add", "IPC_LOCK"]
    return [*words, "--entrypoint", "", spec.image]


def start_words(spec: ContainerSpec, pythons: Sequence[str]) -> list[str]:
    """The command that starts the node's container, detached; `pythons`: where the agent's is searched in it."""
    engine, run, *rest = run_words(spec)
    named = ["--detach", "--name", spec.mark, "--label", f"{NODE_LABEL}={spec.document()}"]
    hold = ["sh", "-c", HOLD_SCRIPT, "sh", spec.folder, spec.agent, spec.node, *pythons]
    return [engine, run, *named, *rest, *hold]


def enter_words(spec: ContainerSpec) -> list[str]:
    """What stands before a program that is started in the node (`Resource.data["inside"]`)."""
    engine, run, *rest = run_words(spec)
    other = [engine, run, "--interactive", *rest]
    return ["sh", "-c", ENTER_SCRIPT, "sh", engine, spec.mark, str(len(other)), *other]
