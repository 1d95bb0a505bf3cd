"""The provisioner against a fake of the service: real requests, real answers, nothing behind the instances."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuops.core.errors import AuthFailed, NoCapacity, ProviderError, QuotaExceeded, RateLimited, Unknown, UsageError
from gpuops.core.models import Intent, MachineStatus, Offer, Request, Resource
from gpuops.core.provider import Context
from provisioners.kit.http_client import Answer
from provisioners.kit.rented import DIRECT_S, PRIVATE_HOSTS
from provisioners.vast import VastProvisioner
from provisioners.vast.service import BOOT
from tests.fakes.provider import FakeClock
from tests.fakes.vast import FakeVast, Fault, Instance, Life
from tests.fakes.vast.records import AT_ONCE, OCI_ERROR, PULL_ERROR

OWNER = "0a1b2c3d"
TOKEN = "t" * 32
CREATE = "PUT /asks/*"


class Lines:
    """A journal that remembers."""

    def __init__(self) -> None:
        self.marks: list[str] = []
        self.made: list[Resource] = []

    def will(self, kind: str, mark: str, token: str, region: str) -> None:  # noqa: ARG002
        self.marks.append(mark)

    def got(self, resource: Resource) -> None:
        self.made.append(resource)


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeVast]:
    with FakeVast(tmp_path / "vast") as one:
        one.life = AT_ONCE
        yield one


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def vast(fake: FakeVast, tmp_path: Path, clock: FakeClock) -> VastProvisioner:
    (tmp_path / "home").mkdir()
    return VastProvisioner(Context(OWNER, tmp_path / "home", fake.env, clock=clock))


def found(vast: VastProvisioner, **wish: Any) -> list[Offer]:
    return list(vast.offers(Request("vast", **wish)))


def make(vast: VastProvisioner, offer: Offer | None = None, **wish: Any) -> Resource:
    intent = Intent(OWNER, "lab", TOKEN, time.time() + 900, Path("abc.pyz"))
    return vast.create(offer or found(vast, **wish)[0], intent, Lines())[0]


def only(fake: FakeVast) -> Instance:
    (one,) = fake.pods.values()
    return one


# Before anything is made.


def test_what_is_offered_is_what_may_be_rented(vast: VastProvisioner) -> None:
    """Of eight machines with one RTX 4090, six are unverified, unreliable, or too old, small, slow or closed."""
    assert [offer.per_hour < 0.4 for offer in found(vast, gpu_type="4090")] == [True, True]
    (first, second) = (offer.data["hosted_by"] for offer in found(vast, gpu_type="rtx4090"))
    assert (first, second) == ("private host", "data center")
    assert len(found(vast, gpu_type="4090", options={"datacenter": True})) == 1
    assert len(found(vast, gpu_type="4090", options={"min-reliability": 0.9})) == 3
    assert found(vast, gpu_type="4090", options={"unverified": True})[0].data["hosted_by"] == "unverified private host"
    assert {offer.say.split(", ")[3] for offer in found(vast, region="no")} == {"NO"}
    assert {offer.gpus for offer in found(vast, gpus=8, gpu_type="h100")} == {8}
    assert {offer.data["columns"]["MEMORY"] for offer in found(vast, gpu_mem=80)} == {"80 GB", "94 GB"}


def test_a_price_has_the_disk_in_it(vast: VastProvisioner) -> None:
    small, large = (found(vast, options={"disk": size})[0] for size in (50, 500))
    assert small.prices[0] == large.prices[0]
    assert large.prices[1].per_hour == pytest.approx(10 * small.prices[1].per_hour)


def test_what_makes_no_sense_is_said(vast: VastProvisioner) -> None:
    for wish in ({"bid": 0.2}, {"disk": 4}, {"min-reliability": 98.0}):
        with pytest.raises(UsageError):
            found(vast, options=wish)
    with pytest.raises(UsageError, match="names no countries"):
        found(vast, region="eu-west")
    with pytest.raises(UsageError, match="has no GPU called"):
        found(vast, gpu_type="h1000")
    with pytest.raises(NoCapacity, match="the lowest is"):
        found(vast, spot=True, options={"bid": 0.01})


def test_what_a_private_host_sees_is_said_until_one_is_rented(vast: VastProvisioner, fake: FakeVast) -> None:
    fake.service.plenty = True  # the same is offered again

    def is_said(**wish: Any) -> bool:
        return any(note.startswith(PRIVATE_HOSTS) for note in found(vast, **wish)[0].notes)

    assert not is_said(options={"datacenter": True})
    assert is_said(), "one further down may be taken, too"
    make(vast, found(vast, gpu_type="4090")[0])
    assert not is_said()


def test_keys_lie_where_vast_ai_puts_them(fake: FakeVast, tmp_path: Path) -> None:
    key = fake.env["VAST_API_KEY"]
    env = {"VAST_URL": fake.url, "HOME": str(tmp_path)}
    provisioner = VastProvisioner(Context(OWNER, tmp_path, env, {"VAST_API_KEY": key}))
    assert provisioner.payer(Request("vast"), 5.0).source == ".env"
    for path in (".vast_api_key", ".config/vastai/vast_api_key"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{key}\n")
        payer = provisioner.payer(Request("vast"), 5.0)
        assert (payer.account, payer.source) == ("somebody@example.com", f"~/{path}")


def test_a_key_that_is_not_there_or_not_good_is_a_problem(fake: FakeVast, tmp_path: Path) -> None:
    for env, say in (({"HOME": "/nowhere"}, "is not set"), ({**fake.env, "VAST_API_KEY": "x"}, "does not accept")):
        (problem,) = VastProvisioner(Context(OWNER, tmp_path, env)).preflight(Request("vast"))
        assert problem.fatal
        assert say in problem.say
    fake.service.balance = 0.0
    (problem,) = VastProvisioner(Context(OWNER, tmp_path, fake.env)).preflight(Request("vast"))
    assert "no credit" in problem.say


def test_money_that_was_paid_in_before_is_the_credit(vast: VastProvisioner, fake: FakeVast) -> None:
    """Such an account has a balance of 0, or one below it until its credit is charged."""
    fake.service.balance, fake.service.credit = -0.5, 18.0
    assert vast.balance() == 17.5
    assert vast.preflight(Request("vast")) == []


# Making.


def test_what_vast_ai_is_asked_for(vast: VastProvisioner, fake: FakeVast, tmp_path: Path) -> None:
    machine = make(vast)
    body = only(fake).request
    assert machine.name == body["label"] == f"gpuops-{OWNER}-lab-0"
    assert body["cancel_unavail"] is True
    assert "price" not in body
    assert BOOT.max_chars
    assert len(body["onstart"]) <= BOOT.max_chars
    assert fake.env["VAST_API_KEY"] not in str(body)
    login = tmp_path / "home/ssh/id_ed25519"
    assert stat.S_IMODE(login.stat().st_mode) == 0o600
    now = vast.describe(machine)
    assert now.data["target"]["host_keys"] == [only(fake).env["GPUOPS_HOST_PUBLIC"]]
    assert (now.state, now.data["token"]) == ("running", f"{TOKEN}-0")


def test_a_key_that_goes_while_a_machine_is_made_loses_no_machine(fake: FakeVast, tmp_path: Path) -> None:
    """Its file is being written anew just then."""
    stored, journal = tmp_path / ".vast_api_key", Lines()
    stored.write_text(fake.env["VAST_API_KEY"])
    vast = VastProvisioner(Context(OWNER, tmp_path / "home", {"VAST_URL": fake.url, "HOME": str(tmp_path)}))
    offer = found(vast)[0]
    fake.on_answer(lambda request, _: stored.write_text("") if request.method == "PUT" else None)
    vast.create(offer, Intent(OWNER, "lab", TOKEN, time.time() + 900, Path("abc.pyz")), journal)
    assert [made.id for made in journal.made] == [only(fake).id]


def test_an_ask_that_is_gone_is_no_capacity(vast: VastProvisioner, fake: FakeVast) -> None:
    first, second, *_ = found(vast)
    fake.service.asks[int(first.id)].taken = True
    del fake.service.asks[int(second.id)]
    fake.haste = float("inf")
    for offer in (first, second):
        with pytest.raises(NoCapacity, match="somebody else"):
            make(vast, offer)
    assert not fake.running()


def test_a_bid_that_is_too_low_by_now_leaves_nothing_unsaid(vast: VastProvisioner, fake: FakeVast) -> None:
    """Vast.ai may make it all the same, stopped: then it bills its disk, and has to be known."""
    offer = found(vast, spot=True)[0]
    fake.service.asks[int(offer.id)].min_bid *= 3
    journal = Lines()
    with pytest.raises(NoCapacity, match="too low"):
        vast.create(offer, Intent(OWNER, "lab", TOKEN, time.time() + 900, Path("abc.pyz")), journal)
    (left,) = fake.running()
    assert [resource.id for resource in journal.made] == [left.id]
    vast.destroy(journal.made)
    assert not fake.running()


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault(CREATE, cut=True, takes_effect=True), Unknown),
        (Fault(CREATE, status=502, takes_effect=True), Unknown),
        (Fault(CREATE, status=401), AuthFailed),
        (Fault(CREATE, status=400, detail="Insufficient credits"), QuotaExceeded),
    ],
)
def test_other_answers(vast: VastProvisioner, fake: FakeVast, fault: Fault, error: type[ProviderError]) -> None:
    fake.play(fault)
    with pytest.raises(error):
        make(vast)
    listed = vast.list_owned(OWNER, [])
    assert len(listed) == (error is Unknown)
    assert all(machine.data["token"] == f"{TOKEN}-0" for machine in listed), "by it a lost answer is known again"


def test_who_asks_too_often_is_told_for_how_long_to_wait(vast: VastProvisioner) -> None:
    offers = found(vast)
    make(vast, offers[0])
    with pytest.raises(RateLimited) as refused:
        make(vast, offers[1])
    assert refused.value.retry_after == 4.5


# Looking and ending.


def test_all_pages_are_read_and_only_ours_is_listed(vast: VastProvisioner, fake: FakeVast, clock: FakeClock) -> None:
    fake.service.plenty = True
    for number in range(60):
        fake.add_instance(f"gpuops-{OWNER}-lab-{number}")
    fake.add_instance("gpuops-ffffffff-lab-0")
    fake.add_instance("production")
    fake.add_instance(f"gpuops-{OWNER}-theirs-0", key=fake.service.other_key)
    fake.haste = float("inf")
    assert len(vast.list_owned(OWNER, [])) == 60
    assert len(vast.list_every_owner()) == 61
    assert vast.list_owned(OWNER, ["us-east-1"]) == []
    fake.play(Fault("GET /instances", nth=2, status=500, times=None))
    with pytest.raises(Unknown):
        vast.list_owned(OWNER, [])
    assert clock.slept, "it was tried again before"


def test_the_way_to_a_machine(vast: VastProvisioner, fake: FakeVast, clock: FakeClock) -> None:
    """By its own port; where that leads to no node for a while, or is not there, by the proxy. A node stays."""
    fake.haste = float("inf")
    machine = vast.describe(make(vast))
    one = only(fake)
    assert (machine.address, machine.port) == ("203.0.113.7", one.direct_port)
    node = Resource(**{**vars(machine), "data": {**machine.data, "artefact": "abc"}})
    clock.time += DIRECT_S
    assert vast.describe(machine).port == one.proxy_port
    assert vast.describe(node).port == one.direct_port
    one.life = Life(created_s=0, loading_s=0, running_s=0, mapped=False)
    assert vast.describe(node).port == one.proxy_port


@pytest.mark.parametrize(
    ("life", "status", "say"),
    [
        (OCI_ERROR, MachineStatus.STOPPED, "cannot start its container"),
        (PULL_ERROR, MachineStatus.TERMINATED, "its image cannot be pulled"),
        (Life(0, 0, 0, becomes="offline"), MachineStatus.STOPPED, "offline"),
    ],
)
def test_what_will_never_be_ready(
    vast: VastProvisioner, fake: FakeVast, life: Life, status: MachineStatus, say: str
) -> None:
    fake.life = life
    machine = make(vast)
    fake.advance(30)
    now = vast.describe(machine)
    assert (now.status, now.bills) == (status, True)
    assert say in now.data["hopeless"]


def test_one_that_is_outbid_was_preempted_and_bills_its_disk(vast: VastProvisioner, fake: FakeVast) -> None:
    machine = make(vast, spot=True)
    fake.advance(5)
    assert vast.describe(machine).status is MachineStatus.RUNNING
    fake.outbid(only(fake))
    fake.advance(5)
    now = vast.describe(machine)
    assert now.status is MachineStatus.PREEMPTED
    assert now.per_hour == pytest.approx(only(fake).per_hour)
    assert "pays more" in now.why_ended


def test_what_is_gone_has_ended_and_another_account_does_not_say_so(
    vast: VastProvisioner, fake: FakeVast, tmp_path: Path
) -> None:
    machine = make(vast)
    stranger = VastProvisioner(Context(OWNER, tmp_path, {**fake.env, "VAST_API_KEY": fake.service.other_key}))
    with pytest.raises(AuthFailed, match="another API key"):
        stranger.describe(machine)
    vast.destroy([machine])
    fake.advance(5)
    vast.destroy([machine])
    assert vast.describe(machine).state == "ended"
    assert [request.body for request in fake.asked("DELETE")] == [{}, {}], "as Vast.ai's own client asks"


def test_a_new_key_of_the_same_account_finds_the_same_machines(
    vast: VastProvisioner, fake: FakeVast, tmp_path: Path
) -> None:
    """Also where a process that never asked for the account has looked at them meanwhile, as a guard does."""
    assert vast.preflight(Request("vast")) == []
    machine = make(vast)
    guard = VastProvisioner(Context(OWNER, tmp_path / "home", fake.env))
    machine = guard.describe(machine)
    fake.renew_key()
    renewed = VastProvisioner(Context(OWNER, tmp_path / "home", fake.env))
    renewed.destroy([machine])
    assert renewed.describe(machine).state == "ended"


@pytest.mark.parametrize("answer", [{"instances": []}, {"instances": {}}, {"success": True}, None])
def test_an_answer_about_a_machine_that_says_nothing_is_not_its_end(
    vast: VastProvisioner, monkeypatch: pytest.MonkeyPatch, answer: object
) -> None:
    machine = make(vast)
    body = b"" if answer is None else json.dumps(answer).encode()
    monkeypatch.setattr(vast.api, "_send", lambda _: Answer(200, {}, body))
    with pytest.raises(Unknown, match="cannot be read"):
        vast.describe(machine)


def test_a_key_that_vast_ai_knows_no_more_is_not_the_end_of_a_machine(vast: VastProvisioner, fake: FakeVast) -> None:
    machine = make(vast)
    fake.play(Fault("GET /instances/*", status=404, detail="Invalid user key"))
    with pytest.raises(AuthFailed):
        vast.describe(machine)


def test_a_machine_ends_when_its_contract_does(vast: VastProvisioner) -> None:
    """The lease of what was had in place of the first offer is no longer than that."""
    machine = vast.describe(make(vast))
    assert machine.data["ends"] == 1999999999.0


@pytest.mark.parametrize("programs", [("curl",), ("python3",)])
def test_a_machine_ends_itself_with_its_own_key(
    vast: VastProvisioner, fake: FakeVast, tmp_path: Path, programs: tuple[str, ...]
) -> None:
    """By curl, or where there is none by Python; and the key is no argument of a program."""
    machine = make(vast)
    (tmp_path / "bin").mkdir()
    for name in (*programs, "sh", "cat", "tr", "sed", "head"):
        (tmp_path / "bin" / name).symlink_to(
            os.path.realpath(sys.executable) if name == "python3" else str(shutil.which(name))
        )
    (tmp_path / "bin" / "sleep").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "sleep").chmod(0o755)
    env = {"PATH": str(tmp_path / "bin"), "CONTAINER_ID": machine.id, "CONTAINER_API_KEY": only(fake).key}
    argv = vast.self_destruct(machine)
    assert only(fake).key not in argv
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, "while it can ask it is there"
    assert not fake.running(), done.stderr
