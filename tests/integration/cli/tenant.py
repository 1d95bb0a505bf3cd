"""Somebody who rents at an AWS that is played, with little patience, and machines that get no address."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gpuops.ledger.store import Ledger
from provisioners.aws import AwsProvisioner, launch
from tests.fakes.aws import FakeAWS

if TYPE_CHECKING:
    from tests.desk import Desk, Said

UP = ("up", "aws", "--yes", "--name", "lab", "--nodes", "2", "--spot", "--timeout", "0.01")
ONE = (*UP, "--gpu-type", "g5.12xlarge")
"""In five zones of us-east-1, for $3.55/h to $5.36/h."""
FOUR = (*UP, "--gpus", "4")


@dataclass
class Tenant:
    """Somebody with an account at AWS."""

    desk: Desk
    fake: FakeAWS
    patch: pytest.MonkeyPatch

    def type(self, *words: str) -> Said:
        return self.desk.type(*map(self.filled, words))

    def filled(self, text: str) -> str:
        """With the ids that are nobody's to know beforehand."""
        for name in ("subnet-a", "subnet-e", "image-west", "image-base"):
            if f"{{{name}}}" in text:
                text = text.replace(f"{{{name}}}", self.ids[name])
        return text

    @cached_property
    def ids(self) -> dict[str, str]:
        ec2 = self.fake.client("ec2")
        vpc = ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
        made = {
            f"subnet-{zone}": ec2.create_subnet(VpcId=vpc, CidrBlock=block, AvailabilityZone=f"us-east-1{zone}")
            for zone, block in (("a", "172.31.200.0/24"), ("e", "172.31.201.0/24"))
        }
        return {
            **{name: one["Subnet"]["SubnetId"] for name, one in made.items()},
            "image-west": self.fake.image("pytorch-2.9", "us-west-2"),
            "image-base": self.fake.image("base-oss", "us-east-1"),
        }

    def live(self) -> list[str]:
        """Clusters that the ledger knows."""
        if not (self.desk.home / "ledger.db").exists():
            return []
        with contextlib.closing(Ledger.open(self.desk.home)) as ledger:
            return [row.name for row in ledger.clusters()]

    def expect_nothing_left(self, said: Said) -> None:
        """Once AWS has shut down what is leaving, which takes minutes."""
        if self.fake.left():
            assert {one.state for one in self.fake.instances()} == {"shutting-down"}
            self.fake.advance(self.fake.ending_s)
            reaped = self.type("reap", "--yes")
            assert reaped.code == 0, reaped
        assert self.fake.left() == []
        assert self.live() == []
        assert not list(self.desk.home.glob("bug-*"))
        assert "Traceback" not in said.err
        for secret in self.fake.secrets:
            assert secret not in said.out + said.err


@pytest.fixture
def tenant(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tenant]:
    with FakeAWS(tmp_path / "aws") as fake:
        fake.only_regions = ("us-east-1", "us-west-2")
        fake.pending_s = 600.0  # nobody logs in to an address that somebody else may have
        for name, value in {"HOME": str(tmp_path), "COLUMNS": "200", **fake.env}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
        monkeypatch.setattr(AwsProvisioner, "settle_s", 0.3)
        monkeypatch.setattr(AwsProvisioner, "gone_s", 60.0)
        monkeypatch.setattr(launch, "backoff_s", lambda _: 0.0)
        yield Tenant(desk, fake, monkeypatch)
