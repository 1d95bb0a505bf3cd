"""Whether a host can run containers for its user: asked before anything is made, and by `gpuops doctor ssh`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuops.core.errors import NodeError
from gpuops.core.format import one_line
from gpuops.core.models import Problem
from provisioners.ssh.container_spec import DOCKER, ENGINES, PODMAN, STACK_BYTES, HostLimits, full_name

if TYPE_CHECKING:
    from gpuops.transport.connection import Connection

PROBE_SCRIPT = r"""
exec 2>/dev/null
wanted=$1 image=$2 full=$3
printf 'user %s\nuid %s\ngid %s\n' "$(id -un)" "$(id -u)" "$(id -g)"
printf 'memlock %s\nstack %s\n' "$(ulimit -H -l)" "$(ulimit -H -s)"
[ -d /dev/infiniband ] && echo 'infiniband yes'
engine=
for name in $wanted; do command -v "$name" >/dev/null && engine=$name && break; done
[ -n "$engine" ] || exit 0
case $(docker --version) in *podman*) [ "$engine" = docker ] && command -v podman >/dev/null && engine=podman ;; esac
printf 'engine %s\n' "$engine"
if [ "$engine" = docker ]; then
    facts=$(docker info --format '{{.ServerVersion}} {{.SecurityOptions}}' 2>&1) || {
        printf 'refused %s\n' "$(printf %s "$facts" | tr '\n' ' ')"; exit 0; }
    case $facts in *rootless*) echo 'rootless yes' ;; esac
    for name in nvidia-container-runtime-hook nvidia-container-toolkit nvidia-ctk; do
        PATH=$PATH:/usr/sbin:/usr/local/bin command -v "$name" >/dev/null && echo 'toolkit yes' && break
    done
else
    facts=$(podman info --format '{{.Host.Security.Rootless}}' 2>&1) || {
        printf 'refused %s\n' "$(printf %s "$facts" | tail -n 1)"; exit 0; }
    if [ "$(printf %s "$facts" | tail -n 1)" = true ]; then # after its warnings
        echo 'rootless yes'
        [ "$(podman unshare cat /proc/self/uid_map | wc -l)" -gt 1 ] || echo 'numbers one'
    fi
    [ -d /run/systemd/system ] && printf 'linger %s\n' "$(loginctl show-user --property Linger --value "$(id -un)")"
    for file in /etc/cdi/*nvidia* /run/cdi/*nvidia*; do [ -e "$file" ] && echo 'toolkit yes' && break; done
fi
[ -n "$image" ] || exit 0
"$engine" image inspect "$image" >/dev/null && { echo 'image here'; exit 0; }
[ "$engine" = podman ] && image=$full
said=$(timeout 30 "$engine" manifest inspect "$image" 2>&1 >/dev/null) ||
    printf 'no-image %s\n' "$(printf %s "$said" | tail -n 1)"
exit 0
"""
"""Asks for one of the engines `$1`, and for the image `$2`, which Podman is to pull by the name `$3`."""
IMAGE_FILE_SCRIPT = r"""
command -v apptainer >/dev/null 2>&1 && echo 'engine yes'
[ -e "$1" ] && echo 'image yes'
exit 0
"""
DENIED_SIGNS = ("denied", "unauthorized", "authentication required", "403 ")
SUBORDINATE_HINT = (
    "sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 {user} there, with numbers that nobody else "
    "has in /etc/subuid and /etc/subgid; then: podman system migrate"
)
UNKNOWN_SIGNS = ("no such manifest", "manifest unknown", "not found", "name unknown", "repository does not exist")


@dataclass(frozen=True)
class ContainerFacts:
    """What PROBE_SCRIPT found on a host."""

    limits: HostLimits
    engine: str = ""
    """The one that is there; empty where there is none."""
    refused: str = ""
    """What it says where it does not work."""
    has_toolkit: bool = False
    has_numbers: bool = True
    """Whether a user who is not root has user numbers besides their own, which Podman needs to keep that one."""
    lingers: bool = True
    """Whether what the user has started outlives the login."""
    has_image: bool = False
    no_image: str = ""
    """What the registry says where the image is not on the host and cannot be had."""


def probe_containers(connection: Connection, wanted: str, image: str, gpus: int) -> ContainerFacts:
    """Ask a host. `wanted`: the engine; any where empty. `gpus`: how many it has. Raises NodeError, ConnectionLost."""
    from gpuops.nodes import bootstrap

    engines = wanted or " ".join(ENGINES)
    argv = ["sh", "-c", PROBE_SCRIPT, "sh", engines, image, full_name(PODMAN, image)]
    said = bootstrap.run_step(connection, argv).decode(errors="replace")
    return parse_facts(said, connection.label, gpus)


def parse_facts(text: str, label: str, gpus: int) -> ContainerFacts:
    """Parse what PROBE_SCRIPT printed. Raises NodeError."""
    said: dict[str, str] = {}
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        said.setdefault(word, one_line(rest.strip()))
    try:
        uid, gid = int(said["uid"]), int(said["gid"])
    except (KeyError, ValueError):
        raise NodeError(
            f"{label} does not say which user this is", "look at what its shell prints at a login"
        ) from None
    engine, rootless, root = said.get("engine", ""), said.get("rootless") == "yes", uid == 0
    # Docker's daemon raises limits; Podman and a daemon of the user's own can go as high as the user may.
    raises = engine == DOCKER and not rootless
    limits = HostLimits(
        user=said.get("user") or str(uid),
        uid=uid,
        gid=gid,
        rootless=rootless,
        gpus=gpus > 0,
        infiniband=said.get("infiniband") == "yes",
        locks_memory=raises or said.get("memlock") == "unlimited",
        stacks=raises or _reaches(said.get("stack", ""), STACK_BYTES >> 10),
    )
    return ContainerFacts(
        limits,
        engine=engine if engine in (DOCKER, PODMAN) else "",
        refused=said.get("refused", ""),
        has_toolkit=said.get("toolkit") == "yes",
        has_numbers=said.get("numbers") != "one",
        lingers=root or said.get("linger") != "no",
        has_image=said.get("image") == "here",
        no_image=said.get("no-image", ""),
    )


def image_file_problems(connection: Connection, name: str, image: str) -> list[Problem]:
    """What keeps a host from running an image file by Apptainer. Raises NodeError, ConnectionLost."""
    from gpuops.nodes import bootstrap

    said = bootstrap.run_step(connection, ["sh", "-c", IMAGE_FILE_SCRIPT, "sh", image]).decode(errors="replace")
    if "engine yes" not in said.splitlines():
        return [Problem(f"{name} has no apptainer", "install it there, where a login finds it on its PATH")]
    if image and "image yes" not in said.splitlines():
        hint = f"make it there: apptainer build {image} docker://IMAGE"
        return [Problem(f"there is no image file {image} on {name}", hint)]
    return []


def _reaches(limit: str, least: int) -> bool:
    return limit == "unlimited" or (limit.isdecimal() and int(limit) >= least)


def container_problems(name: str, facts: ContainerFacts, wanted: str, image: str) -> list[Problem]:
    """What keeps a host from running the image, each with what to do. Pure."""
    user, engine = facts.limits.user, facts.engine
    if not engine:
        what = wanted or "neither docker nor podman"
        say = f"{name} has {what}" if not wanted else f"{name} has no {what}"
        return [Problem(say, f"install {wanted or 'docker or podman'} there, or leave out --image")]
    if facts.refused:
        return [_refusal(name, engine, facts.refused, user)]
    found: list[Problem] = []
    if facts.limits.gpus and not facts.has_toolkit:
        say = f"{name} has GPUs, and {engine} there has no NVIDIA container toolkit to hand them on"
        found.append(Problem(say, f"install nvidia-container-toolkit there, then: {_toolkit_command(engine)}"))
    if not facts.has_numbers:
        say = f"{user} has no subordinate user and group IDs on {name}, which podman needs without root"
        found.append(Problem(say, SUBORDINATE_HINT.format(user=user)))
    if not facts.lingers:
        say = f"what {user} starts on {name} ends with the login, a container of podman as well"
        found.append(Problem(say, f"let it go on: loginctl enable-linger {user}"))
    if facts.no_image and not facts.has_image and (problem := image_problem(name, engine, image, facts.no_image)):
        found.append(problem)
    return found


def _toolkit_command(engine: str) -> str:
    if engine == PODMAN:
        return "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
    return "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"


def _refusal(name: str, engine: str, said: str, user: str) -> Problem:
    if "permission denied" in said.lower() and engine == DOCKER:
        say = f"{user} may not use docker on {name}"
        return Problem(say, f"sudo usermod -aG docker {user} there, then log in anew; or --container podman")
    if "cannot connect" in said.lower() or "daemon running" in said.lower():
        return Problem(f"docker's daemon does not run on {name}", "start it: sudo systemctl start docker")
    if "newuidmap" in said or "newgidmap" in said:
        say = f"podman on {name} works for root alone: newuidmap is not there"
        return Problem(say, "install it: sudo apt install uidmap (Fedora: shadow-utils)")
    return Problem(f"{engine} does not work on {name}: {said[:300]}", f"try there: {engine} info")


def image_problem(name: str, engine: str, image: str, said: str) -> Problem | None:
    """Why an image cannot be had, where a registry said so clearly; None for all else: a pull may still succeed."""
    text = said.lower()
    # Docker Hub answers `denied` for what does not exist, too.
    if any(sign in text for sign in DENIED_SIGNS):
        say = f"{image} does not exist, or {name} has no access to it: {said[:200]}"
        return Problem(say, f"check the name; if it is right, log in there: {engine} login")
    if any(sign in text for sign in UNKNOWN_SIGNS):
        return Problem(f"there is no image {image}: {said[:200]}", "check its name and tag")
    return None
