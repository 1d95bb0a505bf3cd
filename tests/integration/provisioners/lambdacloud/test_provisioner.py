"""Lambda's provisioner against a fake that is as unkind as the service is reported to be."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gpuops.core.errors import (
    AuthFailed,
    NoCapacity,
    NotSetUp,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Rejected,
    Unknown,
    UsageError,
)
from gpuops.core.models import Intent, Request, Resource
from gpuops.core.provider import Context
from provisioners.kit import json_api
from provisioners.kit.instance_types import InstanceType, select_types
from provisioners.lambdacloud import LambdaProvisioner
from provisioners.lambdacloud.service import SERVICE
from tests.fakes.lambdacloud import FakeLambda, Fault
from tests.fakes.lambdacloud.fake import FULL

OWNER = "0a1b2c3d"
LAUNCH, TERMINATE = "POST /instance-operations/launch", "POST /instance-operations/terminate"


@dataclass
class Notes:
    """A journal that remembers."""

    lines: list[str] = field(default_factory=list)

    def will(self, kind: str, mark: str, token: str, region: str) -> None:
        self.lines.append(f"will {kind} {mark} {token} {region}")

    def got(self, resource: Resource) -> None:
        self.lines.append(f"got {resource.name}")


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLambda]:
    hasty = dataclasses.replace(SERVICE, requests_apart_s=0.0, wait_at_429_s=1e6)  # nobody waits
    monkeypatch.setattr(LambdaProvisioner, "service", hasty)
    monkeypatch.setattr(LambdaProvisioner, "launches_apart_s", 0.0)
    monkeypatch.setattr(json_api, "RETRY_DELAYS_S", (0.01, 0.01))
    with FakeLambda(tmp_path / "lambda") as one:
        one.apart_s = one.launches_apart_s = 0.0
        yield one


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def provisioner(fake: FakeLambda, home: Path, **env: str) -> LambdaProvisioner:
    return LambdaProvisioner(Context(OWNER, home, {**fake.env, "HOME": str(home), **env}))


def intent(home: Path, made: Any = ()) -> Intent:
    return Intent(OWNER, "c", "token", 2e9, home / "agent.pyz", made)


@pytest.mark.parametrize("ids", [[None], [""], [7], [{}], ["a", "b"], [], None])
def test_an_answer_without_one_id_is_a_lost_one(
    fake: FakeLambda, home: Path, monkeypatch: pytest.MonkeyPatch, ids: object
) -> None:
    """A machine that is noted under no id is never described, and its cluster never known to have ended."""
    one = provisioner(fake, home)
    real = one.api.post
    monkeypatch.setattr(one.api, "post", lambda *told, **more: real(*told, **more) and {"instance_ids": ids})
    with pytest.raises(Unknown):
        create(one, home)


@pytest.mark.parametrize(("region", "is_listed"), [({}, True), ({"name": "us-east-1"}, True), ({"name": "x"}, False)])
def test_a_machine_whose_region_is_not_told_is_in_every_list(
    fake: FakeLambda, home: Path, monkeypatch: pytest.MonkeyPatch, region: dict[str, str], is_listed: bool
) -> None:
    """It may be the one whose launch was never answered, and would be taken for none."""
    one = provisioner(fake, home)
    told = {"id": "i1", "name": f"gpuops-{OWNER}-c-0", "status": "booting", "region": region}
    monkeypatch.setattr(one.api, "list_objects", lambda *_: [told])
    assert bool(one.list_owned(OWNER, ["us-east-1"])) is is_listed
    assert len(one.list_owned(OWNER, [])) == len(one.list_owned(OWNER, [""])) == 1, "it may be told by now"


def create(one: LambdaProvisioner, home: Path, nodes: int = 1, **wish: Any) -> list[Resource]:
    offer = one.offers(Request("lambda", nodes=nodes, **wish))[0]
    return list(one.create(offer, intent(home), Notes()))


def ended(fake: FakeLambda, one: LambdaProvisioner) -> None:
    one.destroy(one.list_owned(OWNER, []))
    assert fake.running() == []


def test_what_is_free_is_offered_with_its_price_and_its_conditions(fake: FakeLambda, home: Path) -> None:
    one = provisioner(fake, home)
    said = [(offer.id, offer.per_hour) for offer in one.offers(Request("lambda"))]
    assert said == [
        ("gpu_1x_a10/us-east-1", 1.29),
        ("gpu_1x_a10/us-west-1", 1.29),
        ("gpu_1x_h100_pcie/us-west-1", 3.29),
    ]
    (cluster,) = one.offers(Request("lambda", nodes=2, gpus=2))
    assert (cluster.gpus, cluster.per_hour, cluster.region) == (2, 4.36, "us-south-1")
    assert "every port" in cluster.notes[1]
    (arm,) = one.offers(Request("lambda", gpu_type="gh200"))
    assert arm.notes[-1] == "its processor is an ARM"
    (cpu,) = one.offers(Request("lambda", options={"instance-type": "cpu_4x_general"}))
    assert (cpu.gpus, cpu.per_hour) == (0, 0.2)


@pytest.mark.parametrize(("wish", "kind", "say"), [
    ({"gpu_type": "h10"}, UsageError, "Lambda has no GPU called 'h10'"),
    ({"gpu_type": "a10", "gpus": 4}, UsageError, "Lambda sells no machine with 4 x a10: it sells them with 1"),
    ({"gpus": 3}, UsageError, "Lambda sells no machine with 3 x GPU: it sells them with 1, 2"),
    ({"gpu_mem": 200}, UsageError, "no such GPU at Lambda has 200 GB of memory: the most is 80 GB"),
    ({"options": {"instance-type": "gpu_9x"}}, UsageError, "Lambda has no instance type 'gpu_9x'"),
    ({"gpu_type": "h100 sxm5"}, NoCapacity, "Lambda lists no gpu_1x_h100_sxm5 as free"),
    ({"gpu_type": "h100", "region": "us-east-1"}, NoCapacity, "as free in us-east-1"),
])  # fmt: skip
def test_a_wish_that_cannot_be_met(
    fake: FakeLambda, home: Path, wish: dict[str, Any], kind: type[Exception], say: str
) -> None:
    with pytest.raises(kind) as told:
        provisioner(fake, home).offers(Request("lambda", **wish))
    assert say in str(told.value)


@pytest.mark.parametrize(
    ("count", "flags"), [(3, "--gpus 4 or --gpus 2"), (16, "--gpus 8"), (5, "--gpus 8 or --gpus 4")]
)
def test_the_nearest_count_that_is_sold(count: int, flags: str) -> None:
    types = [InstanceType(f"gpu_{one}x_a100", one, "A100", 40, 1.99 * one, ()) for one in (1, 2, 4, 8)]
    with pytest.raises(UsageError) as told:
        select_types(types, Request("lambda", gpus=count), "Lambda")
    assert told.value.message == f"Lambda sells no machine with {count} x GPU: it sells them with 1, 2, 4, 8"
    assert told.value.hint == f"take the nearest: {flags}"


def test_preflight_says_in_seconds_what_is_wrong(fake: FakeLambda, home: Path) -> None:
    one = provisioner(fake, home)
    assert one.preflight(Request("lambda")) == []
    wrong = one.preflight(Request("lambda", region="us-west-2", image="lambda-stack-24-4"))
    assert [problem.say for problem in wrong] == [
        "Lambda has no region 'us-west-2'", "Lambda has no image family 'lambda-stack-24-4'",
    ]  # fmt: skip
    assert wrong[1].hint == "did you mean lambda-stack-24-04?"
    (bad_key,) = provisioner(fake, home, LAMBDA_API_KEY="wrong").preflight(Request("lambda"))
    assert bad_key.say.startswith("Lambda does not accept the API key: API key was invalid")
    fake.is_active = False
    assert one.preflight(Request("lambda"))[0].say.startswith("the Lambda account is inactive")
    fake.has_moved = True
    assert "answers with a redirect" in one.preflight(Request("lambda"))[0].say


def test_where_the_key_comes_from(fake: FakeLambda, home: Path) -> None:
    one = provisioner(fake, home, LAMBDA_API_KEY="")
    with pytest.raises(NotSetUp, match="there is no Lambda API key"):
        one.payer(Request("lambda"), 0)
    (home / ".lambda_cloud").mkdir(parents=True)
    (home / ".lambda_cloud" / "lambda_keys").write_text(f"api_key = {fake.key}\n")
    assert one.payer(Request("lambda"), 0).source == "~/.lambda_cloud/lambda_keys"
    assert one.preflight(Request("lambda")) == []


def test_each_machine_has_a_launch_a_mark_and_a_host_key_of_its_own(fake: FakeLambda, home: Path) -> None:
    one, notes = provisioner(fake, home), Notes()
    offer = one.offers(Request("lambda", nodes=2))[0]
    made = one.create(offer, intent(home), notes)
    assert notes.lines == [
        line
        for index in (0, 1)
        for line in (f"will machine gpuops-{OWNER}-c-{index} token-{index} us-east-1", f"got gpuops-{OWNER}-c-{index}")
    ]
    bodies = [request.body for request in fake.asked("POST", "/instance-operations/launch")]
    assert all(body["image"] == {"family": "lambda-stack-24-04"} and "quantity" not in body for body in bodies)
    assert len({body["user_data"] for body in bodies}) == 2
    assert {body["ssh_key_names"][0] for body in bodies} == set(fake.ssh_keys)
    fake.has_private_addresses = False
    described = [one.describe(resource) for resource in made]
    assert [resource.state for resource in described] == ["running", "running"], "an address is enough"
    assert [resource.data["token"] for resource in described] == ["token-0", "token-1"]
    target = described[0].data["target"]
    assert (target["user"], target["port"]) == ("ubuntu", 22)
    assert target["host_keys"] == [made[0].data["host_public"]]
    assert "jupyter" not in json.dumps([dataclasses.asdict(resource) for resource in described])
    ended(fake, one)


def test_a_login_that_the_account_has_already_is_used_under_its_name(fake: FakeLambda, home: Path) -> None:
    one = provisioner(fake, home)
    create(one, home)
    (name,) = fake.ssh_keys
    fake.ssh_keys = {
        "mine": {**fake.ssh_keys[name], "name": "mine", "public_key": fake.ssh_keys[name]["public_key"] + " me@home"}
    }
    create(provisioner(fake, home), home)
    assert fake.asked("POST", "/instance-operations/launch")[-1].body["ssh_key_names"] == ["mine"]
    ended(fake, one)


def test_the_second_launch_waits_for_its_turn_and_the_first_is_kept(
    fake: FakeLambda, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LambdaProvisioner, "launches_apart_s", 12.5)
    one, notes = provisioner(fake, home), Notes()
    offer = one.offers(Request("lambda", nodes=2))[0]
    with pytest.raises(RateLimited) as told:
        one.create(offer, intent(home), notes)
    assert 10 < (told.value.retry_after or 0) <= 12.5
    assert notes.lines[-1] == f"got gpuops-{OWNER}-c-0", "nothing was announced that is not asked for"
    with pytest.raises(RateLimited):
        provisioner(fake, home).create(offer, intent(home), Notes())
    monkeypatch.setattr(LambdaProvisioner, "launches_apart_s", 0.0)
    first = one.list_owned(OWNER, [])
    made = one.create(offer, intent(home, first), notes)
    assert made[0].id == first[0].id
    assert len(fake.running()) == 2
    ended(fake, one)


@pytest.mark.parametrize(("fault", "kind", "exists"), [
    (Fault(LAUNCH, 400, FULL), NoCapacity, False),
    (Fault(LAUNCH, 400, "global/quota-exceeded"), QuotaExceeded, False),
    (Fault(LAUNCH, 400, "global/invalid-parameters"), Rejected, False),
    (Fault(LAUNCH, 429), RateLimited, False),
    (Fault(LAUNCH, 500, done=True), Unknown, True),
    (Fault(LAUNCH, 400, "provider/internal-unavailable", done=True), Unknown, True),
    (Fault(LAUNCH, cuts=True, done=True), Unknown, True),
    (Fault(LAUNCH, 403, "global/invalid-address"), AuthFailed, False),
], ids=lambda value: f"{value.status} {value.code}" if isinstance(value, Fault) else "")  # fmt: skip
def test_a_launch_that_fails(fake: FakeLambda, home: Path, fault: Fault, kind: type[Exception], exists: bool) -> None:
    one = provisioner(fake, home)
    offer = one.offers(Request("lambda"))[0]
    fake.play(fault)
    with pytest.raises(kind) as told:
        one.create(offer, intent(home), Notes())
    assert type(told.value) is kind
    assert len(fake.asked("POST", "/instance-operations/launch")) == 1, "what creates is sent once"
    assert [resource.name for resource in one.list_owned(OWNER, [])] == [f"gpuops-{OWNER}-c-0"] * exists
    ended(fake, one)


def test_what_is_listed_as_free_may_be_refused(fake: FakeLambda, home: Path) -> None:
    fake.refuses.add("gpu_1x_a10")
    with pytest.raises(NoCapacity, match="it cannot start a gpu_1x_a10 in us-east-1 now"):
        create(provisioner(fake, home), home)


@pytest.mark.parametrize(("fault", "ask"), [
    (Fault("GET /instances", 500, times=9), "list_owned"), (Fault("GET /instances", 429, times=9), "list_owned"),
    (Fault("GET /instances", cuts=True, times=9), "list_owned"), (Fault("GET /instances/*", 500, times=9), "describe"),
    (Fault(TERMINATE, 500), "destroy"), (Fault(TERMINATE, cuts=True), "destroy"),
], ids=str)  # fmt: skip
def test_no_answer_is_never_nothing(fake: FakeLambda, home: Path, fault: Fault, ask: str) -> None:
    one = provisioner(fake, home)
    (machine,) = create(one, home)
    fake.play(fault)
    calls: dict[str, Any] = {
        "list_owned": lambda: one.list_owned(OWNER, []),
        "describe": lambda: one.describe(machine),
        "destroy": lambda: one.destroy([machine]),
    }
    with pytest.raises(ProviderError):
        calls[ask]()
    fault.times = 0
    ended(fake, one)


def test_one_that_is_gone_already_keeps_no_other_from_being_ended(fake: FakeLambda, home: Path) -> None:
    one = provisioner(fake, home)
    made = create(one, home, nodes=2)
    one.destroy(made[:1])
    assert one.describe(made[0]).state == "unknown", "it is terminating, and may bill"
    fake.instances.pop(made[0].id)
    assert one.describe(made[0]).state == "ended"
    one.destroy(made)
    one.destroy(made)
    assert fake.running() == []
    with pytest.raises(AuthFailed, match="made with another API key"):
        provisioner(fake, home, LAMBDA_API_KEY=renewed(fake)).describe(made[0])


@pytest.mark.parametrize("status", [400, 404])
def test_a_refusal_of_all_keeps_none_from_being_ended(fake: FakeLambda, home: Path, status: int) -> None:
    """One that is on its way out already may be none to end: the others bill."""
    one = provisioner(fake, home)
    made = create(one, home, nodes=2)
    fake.play(Fault(TERMINATE, status, "global/object-does-not-exist"))
    one.destroy(made)
    assert fake.running() == []
    fake.play(Fault(TERMINATE, 400, times=9))
    with pytest.raises(Rejected):
        one.destroy(made)


def test_what_is_terminating_is_not_asked_to_end_again(fake: FakeLambda, home: Path) -> None:
    """Lambda may refuse that, and four refusals would be taken for a machine that cannot be ended."""
    one = provisioner(fake, home)
    create(one, home)
    fake.ending_s = 1e9
    one.destroy(one.list_owned(OWNER, []))
    one.destroy(one.list_owned(OWNER, []))
    assert len(fake.asked("POST", "/instance-operations/terminate")) == 1


def test_a_new_key_that_has_seen_a_machine_sees_its_end(fake: FakeLambda, home: Path) -> None:
    """Lambda tells of no key whose it is: nothing that an older one made would ever count as gone."""
    (machine,) = create(provisioner(fake, home), home)
    one = provisioner(fake, home, LAMBDA_API_KEY=renewed(fake))
    one.destroy(one.list_owned(OWNER, []))
    fake.instances.pop(machine.id)
    assert one.describe(machine).state == "ended"


def test_what_one_key_has_seen_another_accounts_key_does_not_end(fake: FakeLambda, home: Path) -> None:
    """The file with the key is another account's by now: there, no machine of ours is found."""
    one = provisioner(fake, home, LAMBDA_API_KEY="")
    stored = home / ".lambda_cloud" / "lambda_keys"
    stored.parent.mkdir(parents=True)
    stored.write_text(f"api_key = {fake.key}\n")
    (machine,) = create(one, home)
    assert one.describe(machine).state == "running"
    stored.write_text(f"api_key = {renewed(fake)}\n")
    fake.instances.pop(machine.id)
    with pytest.raises(AuthFailed, match="made with another API key"):
        one.describe(machine)


def test_a_key_that_goes_while_a_machine_is_made_loses_no_machine(fake: FakeLambda, home: Path) -> None:
    """Its file is being written anew just then."""
    one, stored, notes = provisioner(fake, home, LAMBDA_API_KEY=""), home / ".lambda_cloud" / "lambda_keys", Notes()
    stored.parent.mkdir(parents=True)
    stored.write_text(f"api_key = {fake.key}\n")
    offer = one.offers(Request("lambda"))[0]
    fake.callbacks.append(lambda request, _: stored.write_text("") if request.path.endswith("launch") else None)
    one.create(offer, intent(home), notes)
    assert notes.lines[-1] == f"got gpuops-{OWNER}-c-0"


def renewed(fake: FakeLambda) -> str:
    fake.key = "secret_another"
    return fake.key


def test_what_lambda_calls_them(fake: FakeLambda, home: Path) -> None:
    one = provisioner(fake, home)
    (machine,) = create(one, home)
    fake.address_s = 1e9
    assert one.describe(machine).state == "starting"
    fake.address_s = 0.0
    fake.instances[machine.id].calls_it = "preempted"
    taken = one.describe(machine)
    assert (taken.state, taken.data["reclaimed"], taken.data["hopeless"]) == ("unknown", True, "Lambda took it back")
    assert taken.data["token"] == "token-0"
    fake.instances[machine.id].request["name"] = "renamed by its owner"
    assert [resource.name for resource in one.list_owned(OWNER, [])] == [machine.name]
    assert one.list_owned(OWNER, ["us-west-1"]) == []
    ended(fake, one)
