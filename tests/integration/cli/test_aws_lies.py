"""An AWS that lies, forgets, delays and refuses: what is typed, the exact words that are seen, and what is left."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from botocore.retries import standard

from gpuops.core.models import Request
from gpuops.core.polling import Clock
from gpuops.ledger.store import Ledger
from provisioners.aws import AwsProvisioner, errors, launch, network, offers
from tests.conftest import no_guards
from tests.desk import Desk, Said
from tests.fakes.aws import FakeAWS, Fault, course, filters
from tests.fakes.aws import Request as Heard
from tests.integration.provisioners.aws.conftest import Tenant

UP = ("up", "aws", "--yes", "--name", "lab", "--gpus", "4", "--gpu-type", "g5.12xlarge", "--timeout", "0.01")


class Shop(Tenant):
    """Offers without asking for types and prices, which takes long."""

    def on(self, spot: bool) -> Shop:
        self.request = dataclasses.replace(self.request, spot=spot)
        return self


@dataclass
class Renter:
    """Somebody with an account at AWS, whose machines never come up, and no guard that helps."""

    desk: Desk
    fake: FakeAWS

    def type(self, *words: str) -> Said:
        return self.desk.type(*words)

    def play(self, *faults: Fault) -> None:
        self.fake.play(*faults)

    def live(self) -> list[str]:
        ledger = Ledger.open(self.desk.home)
        try:
            return [row.name for row in ledger.clusters()]
        finally:
            ledger.close()

    @property
    def owner(self) -> str:
        return (self.desk.home / "owner").read_text().strip()

    def when(self, action: str, then: Callable[[Heard], object], moment: str = "before", nth: int = 1) -> None:
        """Do something at the `nth` request for an action."""
        count = [0]

        def called(request: Heard, now: str) -> None:
            if request.action == action and now == moment:
                count[0] += 1
                if count[0] == nth:
                    then(request)

        self.fake.on_answer(called)

    def expect_nothing_left(self) -> None:
        """Once AWS has shut down what is leaving, which takes minutes."""
        self.fake.script.clear()
        if self.fake.left():
            assert {one.state for one in self.fake.instances()} <= {"shutting-down"}
            self.fake.advance(self.fake.ending_s)
            assert self.type("reap", "--yes").code == 0
        assert self.fake.left() == []
        assert self.live() == []
        assert not list(self.desk.home.glob("bug-*"))

    def words(self, said: Said) -> tuple[int, str, str]:
        """Exit code, sentence and hint, with what is never the same in words."""
        assert "Traceback" not in said.err
        error, hint = said.err.replace(self.owner, "OWNER").replace(f"{self.fake.url}/", "URL").splitlines()[-2:]
        say = re.sub(r"\b(i|sg|sir)-[0-9a-f]{8,}", r"\1-…", error.removeprefix("error: "))
        return said.code, say, hint.removeprefix("hint: ")


@pytest.fixture
def renter(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Renter]:
    """Time is AWS's here: what waits lets it pass."""
    with FakeAWS(tmp_path / "aws") as fake:
        for name, value in {"HOME": str(tmp_path), "COLUMNS": "200", **fake.env}.items():
            monkeypatch.setenv(name, value)
        fake.pending_s = 86400.0
        fake.only_regions = ("us-east-1", "us-west-2")
        monkeypatch.setattr(AwsProvisioner, "gone_s", 30.0)
        monkeypatch.setattr(AwsProvisioner, "settle_s", 30.0)
        monkeypatch.setattr(Clock, "now", lambda _: fake.world.now())
        monkeypatch.setattr(Clock, "monotonic", lambda _: fake.world.now())
        monkeypatch.setattr(Clock, "sleep", lambda _, seconds: fake.advance(seconds))
        monkeypatch.setattr(standard.ExponentialBackoff, "delay_amount", lambda *_: 0.0)
        for module in (launch, network):
            monkeypatch.setattr(module, "backoff_s", lambda attempt: fake.advance(2.0**attempt) or 0.0)
        desk.home.mkdir()
        shop = Shop(fake, desk.home, dict(os.environ), Request("aws", nodes=1, gpus=4, spot=True))
        monkeypatch.setattr(
            offers, "find_offers", lambda _, wishes, regions: [shop.on(wishes.spot).offer(one) for one in regions]
        )
        with no_guards(desk.home):
            yield Renter(desk, fake)
            fake.script.clear()


def up(renter: Renter, *more: str) -> tuple[int, str, str]:
    """Exit code, sentence, hint."""
    return renter.words(renter.type(*UP, "--spot", *more))


def down(renter: Renter) -> tuple[int, str, str]:
    return renter.words(renter.type("down", "lab"))


def ends(renter: Renter) -> None:
    """Whatever was, is over: `down` does its work at once, and nothing is left."""
    assert renter.type("down", "lab").code == 0
    renter.expect_nothing_left()


NOT_READY = (4, "lab was not ready after 1 s: node0: AWS is starting it", "raise --timeout if it only needs longer")
KNOWN = "gpuops-OWNER-lab-group, gpuops-OWNER-lab-0 may still be there and bill $4.24/h"
"""As the ledger has it: in the order in which it was made."""
LISTED = "gpuops-OWNER-lab-0, gpuops-OWNER-lab-group may still be there and bill $4.24/h"
"""As AWS lists it."""
GROUP = "gpuops-OWNER-lab-group may still be there"
AGAIN = "gpuops down lab"
POLICY = "gpuops policy aws prints what gpuops needs; have whoever runs the account allow it"
MINUTE = "try again in a minute"
NETWORK = "check the network, try again"
FEWER = "AWS wants fewer requests: Request limit exceeded"
SLOWER = "wait, or run fewer commands at a time"
PAGE = "what came is none of AWS's answers, or half of one (a proxy, or a network that wants a login?)"
CLOSED = 'Connection was closed before we received a valid response from endpoint URL: "URL"'


# ---- at the end


def test_credentials_expire_before_the_end(renter: Renter) -> None:
    """Logged in again, the next command ends it."""
    renter.when("GetConsoleOutput", lambda _: setattr(renter.fake, "expired", True))
    why = "the AWS credentials have expired, or this computer's clock is wrong: Request has expired"
    login = f"{errors.LOGIN}; and look at the clock: date -u"
    assert up(renter) == (5, f"{KNOWN}: {why}", f"{login}; then: {AGAIN}")
    assert down(renter) == (5, f"{KNOWN}: the AWS credentials have expired", f"{errors.LOGIN}; then: {AGAIN}")
    assert renter.live() == ["lab"]
    unasked = f"aws could not be asked: {why}"
    reaped = (5, f"something may still be there: {unasked}", f"{login}; then: gpuops reap")
    assert renter.words(renter.type("reap")) == reaped
    assert renter.type("status", "--cloud").err.endswith(f"note: {unasked}; {login}\n")
    renter.fake.expired = False
    ends(renter)


def test_nothing_may_be_terminated(renter: Renter) -> None:
    renter.fake.deny("ec2:TerminateInstances")
    why = "these AWS credentials lack the permission ec2:TerminateInstances, and cannot end machines"
    assert up(renter) == (5, f"{LISTED}: {why}", f"{POLICY}; then: {AGAIN}")
    assert down(renter) == (5, f"{LISTED}: {why}", f"{POLICY}; then: {AGAIN}")
    renter.fake.permit()
    ends(renter)


def test_a_machine_is_said_to_end_and_goes_on(renter: Renter, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(course, "end", lambda *_: None)
        assert up(renter) == (5, LISTED, AGAIN)
        assert down(renter) == (5, LISTED, AGAIN)
        assert len(renter.fake.asked("TerminateInstances")) > 5
    ends(renter)


def test_a_machine_shuts_down_for_ever(renter: Renter) -> None:
    """Which costs nothing: nobody waits for it, and nothing is forgotten."""
    renter.fake.ending_s = 1e9
    began = renter.fake.world.now()
    assert up(renter) == NOT_READY
    assert renter.fake.world.now() - began < 30.0
    assert renter.live() == []
    left = "lab costs nothing any more; left of it: 1 machine shutting down, group sg-"
    for _ in range(2):
        said = renter.type("reap")
        assert (said.code, said.out) == (0, "nothing left over\n")
        assert left in said.err
        assert "bill" not in said.err
    (one,) = renter.fake.instances()
    one.ending = 0.0
    assert left not in renter.type("reap").err
    assert renter.fake.left() == []


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("throttle", FEWER),
        ("500", "AWS failed to end machines (InternalError): An internal error has occurred"),
        ("cut", f"AWS did not answer to end machines: {CLOSED}"),
    ],
)
def test_terminating_fails(renter: Renter, what: str, why: str) -> None:
    renter.play(Fault("TerminateInstances", what=what, times=None))
    assert up(renter) == (5, f"{LISTED}: {why}", AGAIN)
    renter.fake.script.clear()
    ends(renter)


def test_a_group_stays_in_use(renter: Renter) -> None:
    """It costs nothing, and is not forgotten."""
    renter.play(Fault("DeleteSecurityGroup", what="code", code="DependencyViolation", times=None))
    assert up(renter) == NOT_READY
    renter.fake.advance(renter.fake.ending_s)
    said = renter.type("reap")
    assert said.code == 0
    assert re.search(r"^lab costs nothing any more; left of it: group sg-\w+$", said.err, re.MULTILINE)
    renter.expect_nothing_left()


def test_a_group_may_not_be_deleted(renter: Renter) -> None:
    renter.fake.deny("ec2:DeleteSecurityGroup")
    why = "these AWS credentials lack the permission ec2:DeleteSecurityGroup, and cannot delete the security group sg-…"
    assert up(renter) == NOT_READY
    renter.fake.advance(renter.fake.ending_s)
    said = renter.type("reap")
    assert said.code == 0
    left = re.sub("sg-[0-9a-f]+", "sg-…", said.err)
    assert f"lab costs nothing any more; left of it: group sg-…, which is not cleared: {why}\n" in left
    renter.fake.permit()
    renter.expect_nothing_left()


# ---- what is listed


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("500", "AWS failed to list machines in us-east-1 (InternalError): An internal error has occurred"),
        ("garbage", f"AWS did not answer to list machines in us-east-1: {PAGE}"),
        ("half", f"AWS did not answer to list machines in us-east-1: {PAGE}"),
        ("throttle", FEWER),
        ("denied",
         "these AWS credentials lack the permission ec2:DescribeInstances, and cannot list machines in us-east-1"),
    ],
)  # fmt: skip
def test_nothing_is_listed(renter: Renter, what: str, why: str) -> None:
    """What is known by its id is ended all the same; that it has ended, nobody can say."""
    renter.when("GetConsoleOutput", lambda _: renter.play(Fault("DescribeInstances", what=what, times=None)))
    assert up(renter) == (5, f"{KNOWN}: {why}", f"{POLICY}; then: {AGAIN}" if what == "denied" else AGAIN)
    assert {one.state for one in renter.fake.instances()} == {"shutting-down"}
    renter.fake.script.clear()
    ends(renter)


def test_one_region_of_two_does_not_answer(renter: Renter) -> None:
    """What is in the other one is ended, and not named."""
    renter.fake.capacity[("us-east-1b", "g5.12xlarge")] = 0
    renter.when("GetConsoleOutput", lambda _: renter.play(Fault("DescribeInstances", region="us-east-1", times=None)))
    why = (
        "AWS does not tell what there is in us-east-1: AWS failed to list machines in us-east-1 (InternalError): "
        "An internal error has occurred"
    )
    assert up(renter, "--region", "us-east-1,us-west-2") == (5, f"lab may still be there: {why}", AGAIN)
    assert {one.state for one in renter.fake.instances()} == {"shutting-down"}
    assert down(renter) == (5, f"lab may still be there: {why}", AGAIN)
    renter.fake.script.clear()
    ends(renter)


def blind(patch: pytest.MonkeyPatch) -> None:
    """Lists of machines come without a page: the only one."""
    real = filters.page

    def page(rows: Any, asked: Any, most: int) -> Any:
        machines = bool(rows) and "Instances" in rows[0]
        return ([], None) if machines and "Filters" in asked else real(rows, asked, most)

    patch.setattr(filters, "page", page)


def test_a_page_is_missing(renter: Renter, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the ledger knows is looked at by its id."""
    with monkeypatch.context() as patch:
        blind(patch)
        assert up(renter) == NOT_READY
        renter.expect_nothing_left()


def test_a_page_is_missing_where_an_answer_was_lost(renter: Renter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its spot request tells of the machine."""
    renter.fake.ending_s = 0.1  # nobody sees that it is leaving
    renter.play(Fault("RunInstances", what="lost", times=None))
    why = f"AWS did not answer to start 1 x g5.12xlarge in us-east-1b: {CLOSED}; it may have happened"
    with monkeypatch.context() as patch:
        blind(patch)
        assert up(renter) == (3, why, NETWORK)
    assert len(renter.fake.world.instances) == 1
    renter.expect_nothing_left()


def test_the_same_on_demand(renter: Renter, monkeypatch: pytest.MonkeyPatch) -> None:
    """The security group, which cannot go, keeps the machine from being forgotten."""
    renter.play(Fault("RunInstances", what="lost", times=None))
    with monkeypatch.context() as patch:
        blind(patch)
        assert renter.words(renter.type(*UP)) == (5, GROUP, AGAIN)
        assert len(renter.fake.instances()) == 1
    ends(renter)


# ---- what is made


def test_it_is_seen_eight_seconds_late(renter: Renter) -> None:
    renter.fake.lag_s = 8.0
    assert up(renter, "--timeout", "1") == (4, NOT_READY[1].replace("1 s", "1 min"), NOT_READY[2])
    assert len(renter.fake.world.instances) == 1
    renter.expect_nothing_left()


def late(renter: Renter, seconds: float) -> None:
    """No answer to RunInstances arrives, and its machine is seen so much later."""
    renter.play(Fault("RunInstances", what="lost", times=None))
    renter.when("RunInstances", lambda _: setattr(renter.fake, "lag_s", seconds))


def test_machines_are_made_late(renter: Renter) -> None:
    """They are found by their tags, and there is nothing to be made again."""
    late(renter, 45.0)
    assert up(renter, "--timeout", "2") == (4, NOT_READY[1].replace("1 s", "2 min"), NOT_READY[2])
    assert len(renter.fake.world.instances) == 1
    renter.expect_nothing_left()


def test_later_than_anything_is_believed(renter: Renter) -> None:
    """The security group, which cannot go, keeps it from being forgotten."""
    late(renter, 900.0)
    assert up(renter) == (5, GROUP, AGAIN)
    assert len(renter.fake.world.instances) == 1
    renter.fake.advance(900.0)
    ends(renter)


def test_throttled_in_the_middle_of_everything(renter: Renter) -> None:
    renter.play(*(Fault("ec2:*", nth=nth, what="throttle") for nth in range(3, 900, 3)))
    assert up(renter) == NOT_READY
    assert sum(one.error == "RequestLimitExceeded" for one in renter.fake.requests) > 5
    assert len(renter.fake.world.instances) == 1
    renter.expect_nothing_left()


START = "start 1 x g5.12xlarge in us-east-1b"


@pytest.mark.parametrize(
    ("action", "what", "came"),
    [
        ("RunInstances", "throttle", (3, FEWER, SLOWER)),
        ("RunInstances", "500", (3, f"AWS failed to {START} (InternalError): An internal error has occurred", MINUTE)),
        ("RunInstances", "garbage", (3, f"AWS did not answer to {START}: {PAGE}; it may have happened", NETWORK)),
        ("RunInstances", "broken", NOT_READY),  # it is there
        ("RunInstances", "denied",
         (3, f"these AWS credentials lack the permission ec2:RunInstances, and cannot {START}", POLICY)),
        ("CreateSecurityGroup", "lost",
         (3, f"AWS did not answer to make a security group in us-east-1: {CLOSED}; it may have happened", NETWORK)),
        ("AuthorizeSecurityGroupIngress", "broken",
         (3, "AWS failed to open the security group sg-… (InternalError): An internal error has occurred", MINUTE)),
    ],
)  # fmt: skip
def test_making_fails_for_ever(renter: Renter, action: str, what: str, came: tuple[int, str, str]) -> None:
    renter.play(Fault(action, what=what, times=None))
    assert up(renter) == came
    assert len(renter.fake.world.instances) <= 1
    renter.expect_nothing_left()
