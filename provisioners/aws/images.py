"""The image that machines start from: AWS's own with PyTorch in it, or one that the user has named.

EC2's description of an image is parsed into an `ImageDescription`; one that can be used becomes an `Image`, which is
what an offer keeps.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpuops.core.errors import ProviderError, Rejected, UsageError
from provisioners.aws.account import Account
from provisioners.aws.api import Document, ask, pages, split_region
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


@dataclass(frozen=True)
class Image:
    """One that machines can start from."""

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


@dataclass(frozen=True)
class ImageDescription:
    """An image, as EC2 describes it."""

    id: str
    name: str
    """Its id where it has no name."""
    platform: str
    """In lower case: `windows`, or empty."""
    architecture: str
    state: str
    root_device_type: str
    root_device: str
    disk_gb: Mapping[str, int]
    """GB of each of its disks, by device."""
    texts: str
    """Its name and what is said about it, in which its system is named."""
    created: str
    """In ISO 8601."""

    @property
    def unfit_reason(self) -> str:
        """Why machines cannot start from it; empty where they can."""
        if self.platform == "windows":
            return "is Windows; gpuops needs Linux"
        if self.architecture != "x86_64":
            return f"is for {self.architecture}; the machines with NVIDIA GPUs that gpuops rents are x86_64"
        if self.state != "available":
            return f"is {self.state}"
        if self.root_device_type != "ebs":
            return "has no disk of its own (EBS)"
        return ""


def parse_image(document: Document) -> ImageDescription:
    """An image of DescribeImages' answer; what it does not say is taken to be as usual."""
    id_ = str(document["ImageId"])
    name = str(document.get("Name") or id_)
    disks = [mapping for mapping in document.get("BlockDeviceMappings") or [] if mapping.get("Ebs")]
    return ImageDescription(
        id=id_,
        name=name,
        platform=str(document.get("Platform") or "").lower(),
        architecture=str(document.get("Architecture", "x86_64")),
        state=str(document.get("State", "available")),
        root_device_type=str(document.get("RootDeviceType", "ebs")),
        root_device=str(document.get("RootDeviceName") or "/dev/sda1"),
        disk_gb={str(disk.get("DeviceName")): int(disk["Ebs"].get("VolumeSize") or 0) for disk in disks},
        texts=" ".join((name, str(document.get("Description") or ""), str(document.get("PlatformDetails") or ""))),
        created=str(document.get("CreationDate") or ""),
    )


def find_image(account: Account, region: str, wishes: Wishes, gone: Sequence[str] = ()) -> Image:
    """The image for a request in one region. `gone`: ids not to take. Raises ProviderError, UsageError."""
    if not wishes.ami:
        return use_image(_find_pytorch_image(account, region, gone), wishes)
    client, name = account.client("ec2", region), split_region(region)[0]
    answer = ask(f"look at the image {wishes.ami} in {name}", client.describe_images, ImageIds=[wishes.ami])
    described = answer.get("Images") or []
    if not described:
        raise Rejected(f"the image {wishes.ami} is not there in {name}", "name one of that region: --ami")
    return use_image(parse_image(described[0]), wishes)


def use_image(described: ImageDescription, wishes: Wishes) -> Image:
    """What an offer keeps of an image. Raises Rejected where it cannot be used, UsageError for an unknown login."""
    if why := described.unfit_reason:
        hint = "name another one with --ami, or leave --ami out"
        raise Rejected(f"the image {described.name} ({described.id}) {why}", hint)
    has_no_torch = wishes.ami and BASE_PATTERN.search(described.name)
    return Image(
        id=described.id,
        name=described.name,
        user=wishes.user or _login_user(described),
        root_device=described.root_device,
        root_gb=described.disk_gb.get(described.root_device, 0),
        devices=tuple(sorted(device for device in described.disk_gb if device != described.root_device)),
        note=NO_TORCH_NOTE.format(name=described.name) if has_no_torch else "",
    )


def _login_user(described: ImageDescription) -> str:
    for system, user in LOGINS:
        if system.search(described.texts):
            return user
    raise UsageError(f"who logs in to the image {described.name}?", "say it: --user ubuntu, or ec2-user, or …")


def _find_pytorch_image(account: Account, region: str, gone: Sequence[str]) -> ImageDescription:
    """AWS's image with PyTorch: a known good one, else the newest. Raises ProviderError."""
    name = split_region(region)[0]
    names = [f"{PARAMETER_PATH}/oss-nvidia-driver-gpu-pytorch-{candidate}/latest/ami-id" for candidate in CANDIDATES]
    ssm = account.client("ssm", region)
    refused: ProviderError | None = None
    try:
        answer = ask(f"ask which images AWS has in {name}", ssm.get_parameters, Names=names)
        known = {str(entry["Name"]): str(entry["Value"]) for entry in answer.get("Parameters") or []}
        ids = [known[parameter] for parameter in names if parameter in known]
        if found := _first_available(account, region, ids, gone):
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
    listed = pages(f"list images in {name}", client, "describe_images", "Images", Owners=["amazon"], Filters=filters)
    if found := select_newest([image for image in map(parse_image, listed) if image.id not in gone]):
        return found
    if refused is not None:
        raise refused
    raise Rejected(f"AWS has no image with PyTorch in {name}", "name one of your own with --ami, or another --region")


def _first_available(account: Account, region: str, ids: Sequence[str], gone: Sequence[str]) -> ImageDescription | None:
    """The first of these images that can be started: a parameter may name one that AWS has taken away."""
    candidates = [id_ for id_ in ids if id_ not in gone][:MAX_CANDIDATES]
    if not candidates:
        return None
    described = pages(
        f"look at AWS's images in {split_region(region)[0]}",
        account.client("ec2", region),
        "describe_images",
        "Images",
        Filters=[{"Name": "image-id", "Values": candidates}],
        IncludeDeprecated=True,
    )
    usable = {image.id: image for image in map(parse_image, described) if not image.unfit_reason}
    return next((usable[id_] for id_ in candidates if id_ in usable), None)


def rank_parameters(parameters: Mapping[str, str]) -> list[str]:
    """The image ids in AWS's parameters for PyTorch: the newest first, Ubuntu before others."""
    found = [
        ((int(match[1]), int(match[2]), match[3] == "ubuntu", int(match[4]), int(match[5] or 0)), value)
        for name, value in parameters.items()
        if (match := PARAMETER_PATTERN.search(name))
    ]
    return [id for _, id in sorted(found, reverse=True)]


def select_newest(images: Sequence[ImageDescription]) -> ImageDescription | None:
    """The image created last, Ubuntu preferred; None where none is usable."""
    usable = [image for image in images if not image.unfit_reason and not BASE_PATTERN.search(image.name)]
    return max(usable, key=lambda image: ("ubuntu" in image.name.lower(), image.created, image.id), default=None)
