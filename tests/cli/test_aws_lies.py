"""An AWS that lies, forgets, delays and refuses: what is typed, the exact words that are seen, and what is left."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from filelock import FileLock

from gpuops.guard import LOCK
from gpuops.ledger import Ledger
from provisioners.aws import AwsProvisioner, launch, network
from tests.cli.conftest import Desk, Said
from tests.fakes.aws import FakeAWS, Fault, Request
from tests.fakes.aws.requests import Refusal

UP = ("up", "aws", "--yes", "--name", "lab", "--gpus", "4", "--gpu-type", "g5.12xlarge", "--spot", "--timeout", "0.01")
PRICE = "$1.85/h"


@dataclass
class Renter:
    """Somebody with an account at AWS, whose machines never come up, and no guard that helps."""

    desk: Desk
    fake: FakeAWS

    def type(self, *words: str) -> Said:
        said = self.desk.type(*words)
        print(f"\n>>> {' '.join(words[:2])}: {said.code}\n{said.err}", said.out)
        return said

    def live(self) -> list[str]:
        ledger = Ledger.open(self.desk.home)
        try:
            return [row.name for row in ledger.clusters()]
        finally:
            ledger.close()

    @property
    def owner(self) -> str:
        return (self.desk.home / "owner").read_text().strip()

    def when(self, action: str, then: Callable[[Request], object], moment: str = "before", nth: int = 1) -> None:
        """Do something at the `nth` request for an action."""
        count = [0]

        def called(request: Request, now: str) -> None:
            if request.action == action and now == moment:
                count[0] += 1
                if count[0] == nth:
                    then(request)

        self.fake.on_answer(called)

    def expect_nothing_left(self) -> None:
        assert self.fake.left() == []
        assert self.live() == []
        assert not list(self.desk.home.glob("bug-*"))

    def words(self, said: Said) -> list[str]:
        """The last two lines, with what is never the same in words."""
        lines = [re.sub(r"\b(i|sg|sir)-[0-9a-f]+", r"\1-…", line) for line in said.err.splitlines()[-2:]]
        lines = [re.sub(r"in \d+ s\b", "in … s", line.replace(self.owner, "OWNER")) for line in lines]
        return [line.removeprefix("error: ").removeprefix("hint: ") for line in lines]


@pytest.fixture
def renter(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Renter]:
    with FakeAWS(tmp_path / "aws") as fake:
        for name, value in {"HOME": str(tmp_path), "COLUMNS": "200", **fake.env}.items():
            monkeypatch.setenv(name, value)
        fake.pending_s = 86400.0
        monkeypatch.setattr(AwsProvisioner, "settle_s", 0.5)
        monkeypatch.setattr(AwsProvisioner, "gone_s", 0.6)
        for module in (launch, network):
            monkeypatch.setattr(module, "lull", lambda _: 0.02)
        desk.home.mkdir()
        with FileLock(desk.home / LOCK):
            yield Renter(desk, fake)
            fake.script.clear()


def test_expired_x(renter: Renter) -> None:
    renter.when("GetConsoleOutput", lambda _: setattr(renter.fake, "expired", True))
    said = renter.type(*UP)
    print(renter.words(said))
    said = renter.type("down", "lab")
    print(renter.words(said))
    said = renter.type("status")
    renter.fake.expired = False
    said = renter.type("down", "lab")
    renter.expect_nothing_left()


def test_denied_x(renter: Renter) -> None:
    renter.fake.deny("ec2:TerminateInstances")
    said = renter.type(*UP)
    print(renter.words(said))
    said = renter.type("down", "lab")
    print(renter.words(said))
    said = renter.type("reap", "--yes")
    renter.fake.permit()
    said = renter.type("down", "lab")
    renter.expect_nothing_left()
