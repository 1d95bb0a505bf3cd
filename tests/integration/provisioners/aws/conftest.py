"""A fake of AWS over HTTP without machines behind its instances, and our side of it."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpuops.core.models import Intent, Offer, Price, Request, Resource
from gpuops.core.provider import Context
from provisioners.aws import AwsProvisioner, images, launch, network
from provisioners.aws.api import split_region
from provisioners.aws.options import wishes
from tests.fakes.aws import FakeAWS

OWNER = "0a1b2c3d"


@dataclass
class Notes:
    """A journal that remembers."""

    lines: list[tuple[str, str, str]] = field(default_factory=list)
    """(`will` or `got`, kind, mark), in order."""
    wills: list[tuple[str, str, str, str]] = field(default_factory=list)
    made: list[Resource] = field(default_factory=list)

    def will(self, kind: str, mark: str, token: str, region: str) -> None:
        self.lines.append(("will", kind, mark))
        self.wills.append((kind, mark, token, region))

    def got(self, resource: Resource) -> None:
        self.lines.append(("got", resource.kind, resource.name))
        self.made.append(resource)


@dataclass
class Tenant:
    """Somebody who rents at the fake."""

    fake: FakeAWS
    home: Path
    env: dict[str, str]
    request: Request = field(default_factory=lambda: Request("aws", nodes=2, gpus=4, spot=True))
    cluster: str = "c-one"

    def __post_init__(self) -> None:
        self.provider = AwsProvisioner(Context(OWNER, self.home, self.env))

    def intent(self) -> Intent:
        return Intent(OWNER, self.cluster, f"{uuid.uuid4().hex}-12345678", time.time() + 900, Path("agent"))

    def offer(self, region: str = "us-east-1", zone: str = "b", **options: Any) -> Offer:
        """One, as `offers` would make it; without asking for types and prices, which takes long."""
        wish = wishes(dataclasses.replace(self.request, options=options))
        account = self.provider._account
        place = network.find_subnets(account, region, wish)[split_region(region)[0] + zone]
        image = images.find_image(account, region, wish)
        market = "spot" if self.request.spot else "on-demand"
        prices = (Price("2 x g5.12xlarge", 4.2), Price("disks and addresses", 0.04))
        data = {
            "region": region, "zone": split_region(region)[0] + zone, "type": "g5.12xlarge", "market": market,
            "gpus": 4,
            "vcpus": 48, "ami": image.id, "user": image.user, "root_device": image.root_device, "disk": wish.disk,
            "devices": list(image.devices), "subnet": place.subnet, "vpc": place.vpc, "public": place.public,
            "security_group": wish.security_group, "ssh_from": wish.ssh_from,
            "launch": launch.optional_parameters(wish),
        }  # fmt: skip
        return Offer("aws", f"g5.12xlarge/{zone}", "2 x g5.12xlarge", self.request.nodes, 4, region, prices, data)

    def make(self, notes: Notes | None = None, offer: Offer | None = None, **options: Any) -> list[Resource]:
        """A cluster; what is listed first is its security group."""
        return list(self.provider.create(offer or self.offer(**options), self.intent(), notes or Notes()))

    def listed(self, *regions: str) -> list[Resource]:
        return list(self.provider.list_owned(OWNER, regions))

    def end(self) -> None:
        """Asked again until nothing is listed, while minutes pass at AWS."""
        for _ in range(10):
            if not (there := self.listed("us-east-1")):
                return
            self.provider.destroy(there)
            self.fake.advance(self.fake.ending_s)
        raise AssertionError(there)


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeAWS]:
    with FakeAWS(tmp_path / "aws") as fake:
        yield fake


@pytest.fixture
def tenant(fake: FakeAWS, tmp_path: Path) -> Tenant:
    home = tmp_path / "home"
    home.mkdir()
    return Tenant(fake, home, {**fake.env, "HOME": str(tmp_path)})
