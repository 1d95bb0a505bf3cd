"""What only AWS can be asked for, and one request of ours, checked. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpuops.errors import UsageError
from gpuops.models import Option, Request

DISK_GB = 100
DISK_MOST = 16384
OPTIONS: Sequence[Option] = (
    Option("disk", "GB of each machine's own disk (gp3), which is gone with the machine.", "int", default=DISK_GB),
    Option("profile", "A profile of ~/.aws/config whose account is used."),
    Option("subnet", "A subnet of your own (subnet-…), instead of the default network's."),
    Option(
        "security-group", "A security group of your own (sg-…) in that network, instead of one made for the cluster."
    ),
    Option(
        "ami", "An image of your own (ami-…), instead of AWS's Deep Learning AMI: Linux with cloud-init and systemd."
    ),
    Option("user", "Who logs in to an image of your own: ubuntu, ec2-user, …; without, as the image's name says."),
    Option("ssh-from", "Whom SSH is open to (203.0.113.7 or 203.0.113.0/24); without, this computer's address alone."),
)
ID = re.compile(r"[0-9a-f]{8,17}")
USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


@dataclass(frozen=True)
class Wishes:
    """A request: nothing of it is unclear, and nothing was asked of AWS yet."""

    nodes: int
    gpus: int | None
    """Per node; None: whatever is cheapest."""
    gpu_type: str | None
    gpu_mem: int | None
    """GB that each GPU has at least."""
    spot: bool
    disk: int
    """GB; at least what the image needs is taken."""
    subnet: str
    security_group: str
    ami: str
    user: str
    profile: str
    ssh_from: str
    """A CIDR; empty: this computer's own address."""
    max_price: float | None


def wishes(request: Request) -> Wishes:
    """Raises UsageError for what makes no sense anywhere."""
    given = request.options

    def text(name: str) -> str:
        return str(given.get(name) or "").strip()

    disk = DISK_GB if given.get("disk") is None else int(given["disk"])
    if request.image is not None:
        raise UsageError("AWS starts no container images", "leave out --image; --ami names a machine's image")
    if request.nodes < 1:
        raise UsageError("a cluster has at least one node", "--nodes is 1 and more")
    if request.gpus is not None and request.gpus < 1:
        raise UsageError("a machine is asked for with at least one GPU", "leave out --gpus, or ask for 1 and more")
    if not 1 <= disk <= DISK_MOST:
        raise UsageError(f"no disk has {disk} GB", f"--disk is in GB, from 1 to {DISK_MOST}")
    for name, start in (("subnet", "subnet-"), ("security-group", "sg-"), ("ami", "ami-")):
        value = text(name)
        if value and not (value.startswith(start) and ID.fullmatch(value.removeprefix(start))):
            raise UsageError(f"--{name} {value} is no id", f"write it like {start}0123456789abcdef0")
    if text("user") and not USER.fullmatch(text("user")):
        raise UsageError(f"--user {text('user')} is no name of a login", "write it like ubuntu")
    if text("user") and not text("ami"):
        raise UsageError("--user says who logs in to an image of your own", "name the image too: --ami")
    if text("profile") and re.search(r"[\s@,]", text("profile")):
        raise UsageError(f"--profile '{text('profile')}' cannot be used here", "a profile without spaces, @ and commas")
    return Wishes(
        nodes=request.nodes,
        gpus=request.gpus,
        gpu_type=request.gpu_type,
        gpu_mem=request.gpu_mem,
        spot=request.spot,
        disk=disk,
        subnet=text("subnet"),
        security_group=text("security-group"),
        ami=text("ami"),
        user=text("user"),
        profile=text("profile"),
        ssh_from=_network(text("ssh-from")),
        max_price=request.max_price,
    )


def _network(given: str) -> str:
    """An address or a network as a CIDR. Raises UsageError."""
    if not given:
        return ""
    try:
        return str(ipaddress.ip_network(given, strict=False))
    except ValueError:
        raise UsageError(f"--ssh-from {given} is no network", "write it like 203.0.113.7 or 203.0.113.0/24") from None
