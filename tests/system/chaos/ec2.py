"""The saboteur at AWS, and who rents there: each with an AWS of their own, whose machines never come up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import Shell, until
from tests.fakes.aws import FakeAWS, Fault, Request
from tests.system.chaos.hits import Saboteur, guards
from tests.system.chaos.tenant import Tenant

HOME = "us-east-1"
NEVER_S = 86400.0
MAKES = ("CreateSecurityGroup", "RunInstances")
"""What makes something; where one was not answered, it is waited until nothing can come of it."""


TOLD_APART = (
    "DescribeInstances", "DescribeSpotInstanceRequests", "DescribeSecurityGroups", "DescribeVolumes",
    "DescribeNetworkInterfaces",
)  # fmt: skip
"""Whether they look by tag or by id."""


def name(request: Request) -> str:
    """What is asked for, as points call it; with its region, unless that is the usual one."""
    asked = request.parameters
    told = request.action
    if told in TOLD_APART:
        by_tag = any(one["Name"].startswith("tag:") for one in asked.get("Filters", []))
        by_id = any(key in asked for key in ("InstanceIds", "SpotInstanceRequestIds", "GroupIds"))
        told += " by id" if by_id else " by tag" if by_tag else ""
    return told if request.region in (HOME, "") else f"{told} in {request.region}"


class SaboteurAtAws(Saboteur):
    """Beside the ways of hits.py, "lost": done, no answer, and the next one is heard."""

    @staticmethod
    def fits(at: str, request: Any) -> bool:
        return name(request) == at

    def _prepare(self, request: Any, how: str) -> None:
        if how in ("broken", "throttle"):
            request.fault = Fault(request.action, what=how)
        else:
            super()._prepare(request, how)


@dataclass
class TenantOfAws(Tenant):
    """All that is in the account is theirs."""

    fake: FakeAWS  # type: ignore[assignment]

    def running(self) -> list[Any]:
        """Sentences: whatever carries our mark, of any kind, in any region."""
        return self.fake.left()

    def most_at_once(self) -> int:
        """How many machines there were at the same moment."""
        all_ = list(self.fake.world.instances.values())
        overlap = (sum(one.created <= it.created < (one.ended or it.created + 1) for one in all_) for it in all_)
        return max(overlap, default=0)

    def names(self) -> list[str]:
        """What was asked for, so far."""
        return [name(one) for one in self.fake.requests]

    def expect_over(self, hang_s: float, pods_at_once: int = 1) -> None:
        super().expect_over(hang_s, pods_at_once)
        assert self.fake.left() == []


@contextmanager
def alone(folder: Path) -> Iterator[TenantOfAws]:
    """One whose machines have no address, ever: AWS goes on starting them."""
    (folder / "project").mkdir(parents=True)
    with FakeAWS(folder / "aws") as fake:
        fake.pending_s = NEVER_S
        fake.only_regions = (HOME, "us-west-2")
        fake.ending_s = 0.0  # who asked for the end sees all of it
        shell = Shell(folder / "home", folder / "project", env={**fake.env, "HOME": str(folder)})
        try:
            yield TenantOfAws(shell, fake, SaboteurAtAws(fake))  # type: ignore[arg-type]
            until(lambda: not guards(shell), "the guard leaves")
            assert not shell.processes()
        except BaseException:
            shell.end()
            raise
