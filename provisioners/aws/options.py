"""AWS's own flags, and a request checked. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpuops.core.errors import UsageError
from gpuops.core.models import Option, Request
from provisioners.aws.reservations import Reserved

DISK_GB = 100
MAX_DISK_GB = 16384
OPTIONS: Sequence[Option] = (
    Option(
        "instance-type",
        "Machines of these types (c7i.large, or several with commas): any for x86, also without a GPU.",
    ),
    Option("cpu", "The cheapest machines without a GPU that can train.", "bool"),
    Option("zone", "The one zone to start in: us-east-1b."),
    Option("disk", "GB of each machine's own disk (gp3), which is gone with the machine.", "int", default=DISK_GB),
    Option("profile", "A profile of ~/.aws/config whose account is used."),
    Option(
        "subnet", "Subnets of your own (subnet-…, or several with commas, one for a zone), not the default network's."
    ),
    Option(
        "public-ip",
        "Give machines public addresses in a subnet of your own that has none for them.",
        "bool",
    ),
    Option(
        "security-group", "A security group of your own (sg-…) in that network, instead of one made for the cluster."
    ),
    Option(
        "ami", "An image of your own (ami-…), instead of AWS's Deep Learning AMI: Linux with cloud-init and systemd."
    ),
    Option(
        "instance-profile", "An instance profile of your own (its name or ARN): what programs on the machines may do."
    ),
    Option("reservation", "Capacity reserved by you (cr-…), Capacity Blocks too: it says which machines, and where."),
    Option("placement-group", "A placement group of your own that the machines start in."),
    Option("user", "Who logs in to an image of your own: ubuntu, ec2-user, …; without, as the image's name says."),
    Option("ssh-from", "Whom SSH is open to (203.0.113.7 or 203.0.113.0/24); without, this computer's address alone."),
)
ID = re.compile(r"[0-9a-f]{8,17}")
ZONE = re.compile(r"[a-z]+(-[a-z]+)+-\d+(-[a-z]+-\d+)?[a-z]")
CPU = ("c7i.large", "c6i.large", "c6a.large", "c5.large", "m5.large")
"""What --cpu means: 2 vCPU and at least 4 GB of memory, whichever is cheapest where it is."""
ROLE = re.compile(r"(arn:aws[a-z-]*:iam::\d{12}:instance-profile/([\w+=,.@-]+/)*)?[\w+=,.@-]{1,128}", re.ASCII)
GROUP = re.compile(r"[ -~]{1,255}")
TYPE = re.compile(r"[a-z][a-z0-9-]*\.[a-z0-9-]+")
USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")


@dataclass(frozen=True)
class Wishes:
    """A checked request; AWS was not asked for anything yet."""

    nodes: int
    gpus: int | None
    """Per node; None: whatever is cheapest."""
    gpu_type: str | None
    gpu_mem: int | None
    """GB that each GPU has at least."""
    types: tuple[str, ...]
    """Names of instance types; empty: those that the GPUs mean."""
    spot: bool
    disk: int
    """GB; at least what the image needs is taken."""
    subnets: tuple[str, ...]
    """Empty: those of the default network."""
    public_ip: bool
    zone: str
    security_group: str
    ami: str
    user: str
    instance_profile: str
    placement_group: str
    reservation: str
    profile: str
    ssh_from: str
    """A CIDR; empty: this computer's own address."""
    max_price: float | None
    reserved: Reserved | None = None
    """What AWS said of the reservation."""


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
    if not 1 <= disk <= MAX_DISK_GB:
        raise UsageError(f"no disk has {disk} GB", f"--disk is in GB, from 1 to {MAX_DISK_GB}")
    for name, start in (("subnet", "subnet-"), ("security-group", "sg-"), ("ami", "ami-")):
        for value in _several(text(name)) if name == "subnet" else filter(None, [text(name)]):
            if not (value.startswith(start) and ID.fullmatch(value.removeprefix(start))):
                raise UsageError(f"--{name} {value} is no id", f"write it like {start}0123456789abcdef0")
    if given.get("public-ip") and not text("subnet"):
        raise UsageError(
            "--public-ip is for a subnet of your own: the default network's machines have public addresses anyway",
            "leave it out, or name the subnet as well: --subnet",
        )
    if text("zone") and not ZONE.fullmatch(text("zone")):
        raise UsageError(f"--zone {text('zone')} is no zone", "write it like us-east-1b")
    if text("instance-profile") and not ROLE.fullmatch(text("instance-profile")):
        raise UsageError(
            f"--instance-profile {text('instance-profile')} is no name of one",
            "write its name, or its ARN: arn:aws:iam::123456789012:instance-profile/NAME",
        )
    if text("placement-group") and not GROUP.fullmatch(text("placement-group")):
        raise UsageError(f"--placement-group '{text('placement-group')}' is no name of one", "write it as AWS lists it")
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
        types=_types(request, text("instance-type").lower()),
        spot=request.spot,
        disk=disk,
        subnets=_several(text("subnet")),
        public_ip=bool(given.get("public-ip")),
        zone=text("zone"),
        security_group=text("security-group"),
        ami=text("ami"),
        user=text("user"),
        instance_profile=text("instance-profile"),
        placement_group=text("placement-group"),
        reservation=_reservation(request, text("reservation")),
        profile=text("profile"),
        ssh_from=_network(text("ssh-from")),
        max_price=request.max_price,
    )


def _types(request: Request, named: str) -> tuple[str, ...]:
    """Names of instance types; empty where GPUs say which. Raises UsageError."""
    types, cpu = _several(named), bool(request.options.get("cpu"))
    flag = "--gpu-type" if request.gpu_type else "--gpu-mem" if request.gpu_mem else ""
    if cpu and (flag or types or request.gpus):
        other = flag or ("--gpus" if request.gpus else "--instance-type")
        raise UsageError(f"--cpu asks for machines without a GPU, and {other} for others", "leave one of them out")
    if wrong := next((one for one in types if not TYPE.fullmatch(one)), ""):
        raise UsageError(f"--instance-type {wrong} is no instance type", "write it like c7i.large or g5.12xlarge")
    if types and flag:
        raise UsageError(f"--instance-type names the machine, and {flag} chooses one", "leave one of them out")
    return CPU if cpu else types


def _reservation(request: Request, id_: str) -> str:
    """Raises UsageError for what is none, and for what it decides itself."""
    if not id_:
        return ""
    if not (id_.startswith("cr-") and ID.fullmatch(id_.removeprefix("cr-"))):
        raise UsageError(f"--reservation {id_} is no id", "write it like cr-0123456789abcdef0")
    asked = {"gpu-type": request.gpu_type, "gpu-mem": request.gpu_mem, "spot": request.spot}
    asked |= {name: request.options.get(name) for name in ("instance-type", "cpu", "zone")}
    if other := next((name for name, value in asked.items() if value), ""):
        raise UsageError(
            f"--reservation says which machines, and where: --{other} has no meaning beside it", f"leave out --{other}"
        )
    return id_


def _several(given: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in given.split(",") if part.strip()))


def _network(given: str) -> str:
    """An address or a network as a CIDR. Raises UsageError."""
    if not given:
        return ""
    try:
        return str(ipaddress.ip_network(given, strict=False))
    except ValueError:
        raise UsageError(f"--ssh-from {given} is no network", "write it like 203.0.113.7 or 203.0.113.0/24") from None
