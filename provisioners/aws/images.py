"""The image that machines start from: AWS's own with PyTorch in it, or one that was named."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gpuops.core.errors import ProviderError, Rejected, UsageError
from provisioners.aws.account import Account
from provisioners.aws.api import ask, pages, split_region
from provisioners.aws.options import Wishes

PARAMETER_PATH = "/aws/service/deeplearning/ami/x86_64"
CANDIDATES = (
    "2.13-ubuntu-24.04",
    "2.12-ubuntu-24.04",
    "2.11-ubuntu-24.04",
    "2.10-ubuntu-24.04",
    "2.9-ubuntu-24.04",
    "2.8-ubuntu-24.04",
    "2.7-ubuntu-22.04",
    "2.9-amazon-linux-2023",
    "2.8-amazon-linux-2023",
    "2.13-ubuntu-26.04",
)
"""PyTorch and system, best first: ten, which is what one question may name. Old ones are taken away some day."""
PARAMETER_PATTERN = re.compile(
    r"/oss-nvidia-driver-gpu-pytorch-(\d+)\.(\d+)-(ubuntu|amazon-linux)-(\d+)(?:\.(\d+))?/latest/ami-id$"
)
GONE_CODES = ("InvalidAMIID.NotFound", "InvalidAMIID.Unavailable")
"""AWS's codes where it does not start from an image any more."""
MAX_CANDIDATES = 100
"""Images that are described in one call; AWS takes 200."""
IMAGE_NAMES = ("Deep Learning OSS Nvidia Driver AMI GPU PyTorch *",)
LOGINS = (
    (re.compile(r"ubuntu", re.I), "ubuntu"),
    (re.compile(r"amazon.linux|al20\d\d|amzn", re.I), "ec2-user"),
    (re.compile(r"debian", re.I), "admin"),
)
BASE_PATTERN = re.compile(r"\bbase\b", re.I)
NO_TORCH_NOTE = (
    "the image {name} brings no PyTorch: gpuops makes an environment with one on each machine, which takes minutes"
)


class Image(NamedTuple):
    id: str
    name: str
    user: str
    """Who logs in."""
    root_device: str
    root_gb: int
    """GB that its own disk has at least."""
    devices: tuple[str, ...] = ()
    """Further disks that it brings, by device: they shall go with the machine as well."""
    note: str = ""
    """What the user should read before accepting."""

    @property
    def data(self) -> dict[str, Any]:
        """What an offer keeps of it."""
        return {
            "ami": self.id,
            "ami_name": self.name,
            "user": self.user,
            "root_device": self.root_device,
            "devices": list(self.devices),
        }


def find_image(account: Account, region: str, wishes: Wishes, gone: Sequence[str] = ()) -> Image:
    """The image for a request in one region. `gone`: ids not to take. Raises ProviderError, UsageError."""
    if not wishes.ami:
        return parse_image(_find_pytorch_image(account, region, gone), wishes)
    client, name, wanted = account.client("ec2", region), split_region(region)[0], wishes.ami
    answer = ask(f"look at the image {wanted} in {name}", client.describe_images, ImageIds=[wanted])
    described = answer.get("Images") or []
    if not described:
        raise Rejected(f"the image {wanted} is not there in {name}", "name one of that region: --ami")
    return parse_image(described[0], wishes)


def parse_image(document: Mapping[str, Any], wishes: Wishes) -> Image:
    """An image of DescribeImages' answer. Raises Rejected where it cannot be used, UsageError for an unknown login."""
    id_, name = str(document["ImageId"]), str(document.get("Name") or document["ImageId"])
    why = _unfit_reason(document)
    if why:
        raise Rejected(f"the image {name} ({id_}) {why}", "name another one with --ami, or leave --ami out")
    root = str(document.get("RootDeviceName") or "/dev/sda1")
    disks = {
        str(mapping.get("DeviceName")): mapping["Ebs"]
        for mapping in document.get("BlockDeviceMappings") or []
        if mapping.get("Ebs")
    }
    size = int((disks.get(root) or {}).get("VolumeSize") or 0)
    further = tuple(sorted(device for device in disks if device != root))
    note = NO_TORCH_NOTE.format(name=name) if wishes.ami and BASE_PATTERN.search(name) else ""
    return Image(id_, name, wishes.user or _login_user(document, name), root, size, further, note)


def _unfit_reason(document: Mapping[str, Any]) -> str:
    if str(document.get("Platform") or "").lower() == "windows":
        return "is Windows; gpuops needs Linux"
    if document.get("Architecture", "x86_64") != "x86_64":
        return f"is for {document['Architecture']}; the machines with NVIDIA GPUs that gpuops rents are x86_64"
    if document.get("State", "available") != "available":
        return f"is {document['State']}"
    if document.get("RootDeviceType", "ebs") != "ebs":
        return "has no disk of its own (EBS)"
    return ""


def _login_user(document: Mapping[str, Any], name: str) -> str:
    words = " ".join((name, str(document.get("Description") or ""), str(document.get("PlatformDetails") or "")))
    for kind, user in LOGINS:
        if kind.search(words):
            return user
    raise UsageError(f"who logs in to the image {name}?", "say it: --user ubuntu, or ec2-user, or …")


def _find_pytorch_image(account: Account, region: str, gone: Sequence[str]) -> Mapping[str, Any]:
    """AWS's image with PyTorch, as described by EC2: a known good one, else the newest. Raises ProviderError."""
    name = split_region(region)[0]
    names = [f"{PARAMETER_PATH}/oss-nvidia-driver-gpu-pytorch-{candidate}/latest/ami-id" for candidate in CANDIDATES]
    ssm = account.client("ssm", region)
    refused: ProviderError | None = None
    try:
        answer = ask(f"ask which images AWS has in {name}", ssm.get_parameters, Names=names)
        known = {str(entry["Name"]): str(entry["Value"]) for entry in answer.get("Parameters") or []}
        if found := _first_available(
            account, region, [known[parameter] for parameter in names if parameter in known], gone
        ):
            return found
        doing = f"list AWS's images in {name}"
        listed = pages(doing, ssm, "get_parameters_by_path", "Parameters", Path=PARAMETER_PATH, Recursive=True)
        ids = rank_parameters({str(entry["Name"]): str(entry["Value"]) for entry in listed})
        if found := _first_available(account, region, ids, gone):
            return found
    except ProviderError as error:
        refused = error  # EC2 is asked next
    client = account.client("ec2", region)
    filters = [{"Name": "name", "Values": list(IMAGE_NAMES)}, {"Name": "architecture", "Values": ["x86_64"]}]
    images = pages(f"list images in {name}", client, "describe_images", "Images", Owners=["amazon"], Filters=filters)
    if found := select_newest([image for image in images if image["ImageId"] not in gone]):
        return found
    if refused is not None:
        raise refused
    raise Rejected(f"AWS has no image with PyTorch in {name}", "name one of your own with --ami, or another --region")


def _first_available(
    account: Account, region: str, ids: Sequence[str], gone: Sequence[str]
) -> Mapping[str, Any] | None:
    """The first of these images that can be started: a parameter may name one that AWS has taken away."""
    wanted = [id_ for id_ in ids if id_ not in gone][:MAX_CANDIDATES]
    if not wanted:
        return None
    described = pages(
        f"look at AWS's images in {split_region(region)[0]}",
        account.client("ec2", region),
        "describe_images",
        "Images",
        Filters=[{"Name": "image-id", "Values": wanted}],
        IncludeDeprecated=True,
    )
    usable = {str(image["ImageId"]): image for image in described if not _unfit_reason(image)}
    return next((usable[id_] for id_ in wanted if id_ in usable), None)


def rank_parameters(parameters: Mapping[str, str]) -> list[str]:
    """The image ids in AWS's parameters for PyTorch: the newest first, Ubuntu before others."""
    found = [
        ((int(match[1]), int(match[2]), match[3] == "ubuntu", int(match[4]), int(match[5] or 0)), value)
        for name, value in parameters.items()
        if (match := PARAMETER_PATTERN.search(name))
    ]
    return [id for _, id in sorted(found, reverse=True)]


def select_newest(images: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The image created last, Ubuntu preferred; None where none is usable."""
    usable = [image for image in images if not _unfit_reason(image) and not BASE_PATTERN.search(str(image.get("Name")))]
    return max(
        usable,
        key=lambda image: (
            "ubuntu" in str(image.get("Name")).lower(),
            str(image.get("CreationDate")),
            str(image["ImageId"]),
        ),
        default=None,
    )
