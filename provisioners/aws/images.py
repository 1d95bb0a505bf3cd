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
    told = ask(f"look at the image {wanted} in {name}", client.describe_images, ImageIds=[wanted]).get("Images") or []
    if not told:
        raise Rejected(f"the image {wanted} is not there in {name}", "name one of that region: --ami")
    return parse_image(told[0], wishes)


def parse_image(told: Mapping[str, Any], wishes: Wishes) -> Image:
    """An image of DescribeImages' answer. Raises Rejected where it cannot be used, UsageError for an unknown login."""
    id_, name = str(told["ImageId"]), str(told.get("Name") or told["ImageId"])
    why = _unfit_reason(told)
    if why:
        raise Rejected(f"the image {name} ({id_}) {why}", "name another one with --ami, or leave --ami out")
    root = str(told.get("RootDeviceName") or "/dev/sda1")
    disks = {str(one.get("DeviceName")): one["Ebs"] for one in told.get("BlockDeviceMappings") or [] if one.get("Ebs")}
    size = int((disks.get(root) or {}).get("VolumeSize") or 0)
    further = tuple(sorted(device for device in disks if device != root))
    note = NO_TORCH_NOTE.format(name=name) if wishes.ami and BASE_PATTERN.search(name) else ""
    return Image(id_, name, wishes.user or _login_user(told, name), root, size, further, note)


def _unfit_reason(told: Mapping[str, Any]) -> str:
    if str(told.get("Platform") or "").lower() == "windows":
        return "is Windows; gpuops needs Linux"
    if told.get("Architecture", "x86_64") != "x86_64":
        return f"is for {told['Architecture']}; the machines with NVIDIA GPUs that gpuops rents are x86_64"
    if told.get("State", "available") != "available":
        return f"is {told['State']}"
    if told.get("RootDeviceType", "ebs") != "ebs":
        return "has no disk of its own (EBS)"
    return ""


def _login_user(told: Mapping[str, Any], name: str) -> str:
    words = " ".join((name, str(told.get("Description") or ""), str(told.get("PlatformDetails") or "")))
    for kind, user in LOGINS:
        if kind.search(words):
            return user
    raise UsageError(f"who logs in to the image {name}?", "say it: --user ubuntu, or ec2-user, or …")


def _find_pytorch_image(account: Account, region: str, gone: Sequence[str]) -> Mapping[str, Any]:
    """AWS's image with PyTorch, as AWS tells of it: a known good one, else the newest. Raises ProviderError."""
    name = split_region(region)[0]
    names = [f"{PARAMETER_PATH}/oss-nvidia-driver-gpu-pytorch-{one}/latest/ami-id" for one in CANDIDATES]
    ssm = account.client("ssm", region)
    refused: ProviderError | None = None
    try:
        told = ask(f"ask which images AWS has in {name}", ssm.get_parameters, Names=names)
        known = {str(one["Name"]): str(one["Value"]) for one in told.get("Parameters") or []}
        if found := _first_available(account, region, [known[one] for one in names if one in known], gone):
            return found
        doing = f"list AWS's images in {name}"
        listed = pages(doing, ssm, "get_parameters_by_path", "Parameters", Path=PARAMETER_PATH, Recursive=True)
        ids = rank_parameters({str(one["Name"]): str(one["Value"]) for one in listed})
        if found := _first_available(account, region, ids, gone):
            return found
    except ProviderError as error:
        refused = error  # EC2 knows them, too
    client = account.client("ec2", region)
    filters = [{"Name": "name", "Values": list(IMAGE_NAMES)}, {"Name": "architecture", "Values": ["x86_64"]}]
    images = pages(f"list images in {name}", client, "describe_images", "Images", Owners=["amazon"], Filters=filters)
    if found := select_newest([one for one in images if one["ImageId"] not in gone]):
        return found
    if refused is not None:
        raise refused
    raise Rejected(f"AWS has no image with PyTorch in {name}", "name one of your own with --ami, or another --region")


def _first_available(
    account: Account, region: str, ids: Sequence[str], gone: Sequence[str]
) -> Mapping[str, Any] | None:
    """The first of these images that can be started: a parameter may name one that AWS has taken away."""
    wanted = [one for one in ids if one not in gone][:MAX_CANDIDATES]
    if not wanted:
        return None
    told = pages(
        f"look at AWS's images in {split_region(region)[0]}",
        account.client("ec2", region),
        "describe_images",
        "Images",
        Filters=[{"Name": "image-id", "Values": wanted}],
        IncludeDeprecated=True,
    )
    there = {str(one["ImageId"]): one for one in told if not _unfit_reason(one)}
    return next((there[one] for one in wanted if one in there), None)


def rank_parameters(parameters: Mapping[str, str]) -> list[str]:
    """Of AWS's parameters the ids of images with PyTorch: the newest first, of equals Ubuntu."""
    found = [
        ((int(match[1]), int(match[2]), match[3] == "ubuntu", int(match[4]), int(match[5] or 0)), value)
        for name, value in parameters.items()
        if (match := PARAMETER_PATTERN.search(name))
    ]
    return [id for _, id in sorted(found, reverse=True)]


def select_newest(images: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The one that was made last, on Ubuntu rather than not; None where there is none."""
    there = [one for one in images if not _unfit_reason(one) and not BASE_PATTERN.search(str(one.get("Name")))]
    return max(
        there,
        key=lambda one: ("ubuntu" in str(one.get("Name")).lower(), str(one.get("CreationDate")), str(one["ImageId"])),
        default=None,
    )
