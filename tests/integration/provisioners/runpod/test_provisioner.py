"""The provisioner against a fake of the service: real requests, real answers, nothing behind the pods."""

from __future__ import annotations

import base64
import dataclasses
import json
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuops.commands import ssh
from gpuops.core.errors import (
    AuthFailed,
    Interrupted,
    NoCapacity,
    ProviderError,
    QuotaExceeded,
    RateLimited,
    Rejected,
    Unknown,
    UsageError,
)
from gpuops.core.models import Intent, Offer, Request, Resource
from gpuops.core.provider import Context
from gpuops.transport.ssh import Target
from gpuops.transport.ssh.host_keys import canonical
from provisioners.kit import keys
from provisioners.kit.account import AccountFacts
from provisioners.kit.rented import PRIVATE_HOSTS
from provisioners.runpod import RunpodProvisioner, boot_log, boot_script, pod_log
from provisioners.runpod import account as accounts
from tests.conftest import HANG_S, until
from tests.fakes.runpod import FakeRunPod, Fault, Life, Pod
from tests.fakes.runpod.faults import (
    BANNED,
    CRASH_LOOP,
    CUDA_MISMATCH,
    LAYER_ERROR,
    NOT_MADE,
    PRIVATE,
    PULL_ERROR,
    UNMAPPED,
    broke,
    capacity,
    denied,
    lost_create,
    too_many,
)

OWNER = "0a1b2c3d"
TOKEN = "t" * 32
AT_ONCE = Life(assign_s=0, pull_s=0, map_s=0)


class Lines:
    """A journal that remembers."""

    def __init__(self, interrupt: bool = False) -> None:
        self.lines: list[Any] = []
        self.interrupt = interrupt

    def will(self, kind: str, mark: str, token: str, region: str) -> None:
        if self.interrupt:
            raise Interrupted("another command ends it")
        self.lines.append(("will", kind, mark, token, region))

    def got(self, resource: Resource) -> None:
        self.lines.append(("got", resource))


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeRunPod]:
    with FakeRunPod(tmp_path / "runpod") as one:
        yield one


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def runpod(fake: FakeRunPod, home: Path) -> RunpodProvisioner:
    return RunpodProvisioner(Context(OWNER, home, fake.env))


def asked(**wish: Any) -> Request:
    return Request("runpod", **wish)


def intended() -> Intent:
    return Intent(OWNER, "lab", TOKEN, time.time() + 900, Path("abc.pyz"))


def made(runpod: RunpodProvisioner, **wish: Any) -> Resource:
    return runpod.create(runpod.offers(asked(**wish))[0], intended(), Lines())[0]


def only(fake: FakeRunPod) -> Pod:
    (pod,) = fake.pods.values()
    return pod


# Before anything is made.


def test_nothing_is_wrong(runpod: RunpodProvisioner, fake: FakeRunPod) -> None:
    assert list(runpod.preflight(asked())) == []
    assert [request.method for request in fake.requests] == ["GET"]


def test_a_key_that_is_not_there_or_not_good_is_a_problem(fake: FakeRunPod, home: Path) -> None:
    for env, say in (({}, "RUNPOD_API_KEY is not set"), ({**fake.env, "RUNPOD_API_KEY": "rpa_x"}, "does not accept")):
        (problem,) = RunpodProvisioner(Context(OWNER, home, env)).preflight(asked())
        assert problem.fatal
        assert say in problem.say
        assert problem.hint


def test_a_volume_chooses_the_place(runpod: RunpodProvisioner, fake: FakeRunPod) -> None:
    volume = fake.add_volume("data", "US-KS-2")
    fake.life = AT_ONCE
    for wish in ("data", volume.id):
        assert list(runpod.preflight(asked(options={"volume": wish}))) == []
        offer = runpod.offers(asked(gpu_type="4090", options={"volume": wish}))[0]
        assert "US-KS-2" in offer.say
        assert "+" not in offer.say
        assert "network volume data is at /workspace" in offer.notes[0]
    runpod.create(offer, intended(), Lines())
    body = fake.asked("POST", "/pods")[0].body
    assert body["mounts"] == {"network": [{"volumeId": volume.id, "path": "/workspace"}]}
    assert body["dataCenterIds"] == ["US-KS-2"]


@pytest.mark.parametrize(("wish", "say"), [
    ({"options": {"volume": "nothing"}}, "there is no network volume 'nothing'"),
    ({"options": {"volume": "twice"}}, "more than one network volume is called 'twice'"),
    ({"options": {"volume": "one"}, "region": "EU-RO-1"}, "is in US-KS-2, not in EU-RO-1"),
    ({"region": "no-such-region"}, "no data center or region 'no-such-region'"),
])  # fmt: skip
def test_what_is_not_there_is_said_before(
    runpod: RunpodProvisioner, fake: FakeRunPod, wish: dict[str, Any], say: str
) -> None:
    for name, place in (("one", "US-KS-2"), ("twice", "US-KS-2"), ("twice", "EU-RO-1")):
        fake.add_volume(name, place)
    with pytest.raises(UsageError, match=say):
        runpod.preflight(asked(**wish))
    with pytest.raises(UsageError, match=say):
        runpod.offers(asked(**wish))
    assert not fake.pods


def test_the_cloud_that_was_asked_for(runpod: RunpodProvisioner, fake: FakeRunPod) -> None:
    secure, community = (
        runpod.offers(asked(gpu_type="4090", options={"cloud": one}))[0] for one in ("secure", "community")
    )
    assert community.per_hour < secure.per_hour
    assert "community cloud" in community.say
    assert [any(note.startswith(PRIVATE_HOSTS) for note in one.notes) for one in (secure, community)] == [False, True]
    runpod.create(community, intended(), Lines())
    assert fake.asked("POST", "/pods")[0].body["cloud"] == "COMMUNITY"


def test_both_clouds_by_price(runpod: RunpodProvisioner, fake: FakeRunPod) -> None:
    fake.add_volume("data", "US-KS-2")
    found = runpod.offers(asked(gpu_type="4090,3090", options={"cloud": "any"}))
    assert [(one.data["gpu_name"], one.data["cloud"]) for one in found] == [
        ("RTX 3090", "COMMUNITY"), ("RTX 4090", "COMMUNITY"), ("RTX 3090", "SECURE"), ("RTX 4090", "SECURE"),
    ]  # fmt: skip
    with_volume = runpod.offers(asked(gpu_type="4090", options={"cloud": "any", "volume": "data"}))
    assert [one.data["cloud"] for one in with_volume] == ["SECURE"]
    assert runpod.offers(asked(gpu_type="rtx 4080", options={"cloud": "any"}))[0].data["cloud"] == "COMMUNITY"
    fake.stock = {}
    with pytest.raises(NoCapacity):
        runpod.offers(asked(gpu_type="4090", options={"cloud": "any"}))


NONE_LARGE = ("none free now with 100 GB of RAM and 16 vCPUs, and not tried: RTX 4090",)


def test_ram_and_vcpus_at_least(runpod: RunpodProvisioner, fake: FakeRunPod) -> None:
    """The older interface alone tells what machines have; none of a 4090's has 100 GB."""
    found = runpod.offers(asked(gpu_type="4090,l40s", options={"min-ram": 100, "min-vcpu": 16}))
    assert [(one.data["gpu_name"], one.notes) for one in found] == [("L40S", NONE_LARGE)]
    assert {name: found[0].data["columns"][name] for name in ("RAM", "VCPU")} == {"RAM": "192 GB", "VCPU": "16"}
    (query,) = [one.body["query"] for one in fake.asked("POST", "/graphql")]
    assert "(input: {gpuCount: 1, minMemoryInGb: 100, minVcpuCount: 16, secureCloud: true})" in query
    runpod.create(found[0], intended(), Lines())
    assert runpod.offers(asked(gpu_type="4090", gpus=4, options={"min-ram": 300})), "of all GPUs together"
    with pytest.raises(NoCapacity, match="no 1 x RTX 4090 free now in its secure cloud with 100 GB of RAM and 2 vCPUs"):
        runpod.offers(asked(gpu_type="4090", options={"min-ram": 100, "min-vcpu": 2}))
    assert not runpod.offers(asked(gpu_type="4090"))[0].notes, "nobody asked"


def test_one_place_has_the_ram_or_not(runpod: RunpodProvisioner, fake: FakeRunPod) -> None:
    fake.stock = {"NVIDIA L4": {"EU-RO-1": 8}}
    assert runpod.offers(asked(gpu_type="l4", region="EU-RO-1", options={"min-ram": 64}))
    assert 'dataCenterId: "EU-RO-1"' in fake.asked("POST", "/graphql")[-1].body["query"]


@pytest.mark.parametrize("fault", [
    Fault("POST /graphql", status=404, times=None), Fault("POST /graphql", cut=True, times=None),
    Fault("POST /graphql", status=400, raw='{"errors": [{"message": "Cannot query field"}]}', times=None),
    Fault("POST /graphql", status=200, raw='{"data": {"gpuTypes": null}}', times=None),
])  # fmt: skip
def test_where_no_ram_is_told_that_is_said(runpod: RunpodProvisioner, fake: FakeRunPod, fault: Fault) -> None:
    fake.play(fault)
    (offer,) = runpod.offers(asked(gpu_type="4090", options={"min-ram": 100}))
    assert offer.notes == ("whether its machine has 100 GB of RAM RunPod does not tell now: a pod may have less",)
    assert "RAM" not in offer.data["columns"]


def test_only_where_it_was_asked_for(runpod: RunpodProvisioner, fake: FakeRunPod) -> None:
    fake.stock = {"NVIDIA GeForce RTX 4090": {"US-KS-2": 4}, "NVIDIA L4": {"EU-RO-1": 8}}
    assert [offer.data["gpu_name"] for offer in runpod.offers(asked(region="europe"))] == ["L4"]
    with pytest.raises(NoCapacity, match="no 1 x RTX 4090 free now in its secure cloud in EU-RO-1"):
        runpod.offers(asked(region="EU-RO-1", gpu_type="4090"))
    with pytest.raises(NoCapacity):
        runpod.offers(asked(gpus=8, gpu_type="4090"))
    with pytest.raises(UsageError, match="the most is 8"):
        runpod.offers(asked(gpus=16, gpu_type="4090"))


# Making.


def test_a_pod_is_asked_for_with_all_that_it_needs(runpod: RunpodProvisioner, fake: FakeRunPod, home: Path) -> None:
    lines = Lines()
    intent = intended()
    offer = runpod.offers(asked(gpu_type="4090", gpus=2, region="US-KS-2"))[0]
    (machine,) = runpod.create(offer, intent, lines)
    assert lines.lines == [("will", "machine", f"gpuops-{OWNER}-lab-0", f"{TOKEN}-0", "runpod"), ("got", machine)]
    body = fake.asked("POST", "/pods")[0].body
    env = body.pop("env")
    assert body == {
        "name": f"gpuops-{OWNER}-lab-0", "image": "runpod/pytorch:1.0.2-cu1281-torch280-ubuntu2404", "cloud": "SECURE",
        "gpu": {"id": "NVIDIA GeForce RTX 4090", "count": 2, "minCudaVersion": "12.8"}, "disk": 100,
        "ports": ["22/tcp"], "args": boot_script.ARGS, "dataCenterIds": ["US-KS-2"],
    }  # fmt: skip
    _, public = keys.ensure_login_key(home)
    assert env["PUBLIC_KEY"] == public
    assert env["RUNPOD_POD_USER"] == "0"
    assert env["GPUOPS_END"] == str(int(intent.boot_deadline))
    assert env["GPUOPS_TOKEN"] == f"{TOKEN}-0" == machine.data["token"]
    assert base64.b64decode(env["GPUOPS_HOST_KEY"]).startswith(b"-----BEGIN OPENSSH PRIVATE KEY-----")
    assert canonical(env["GPUOPS_HOST_PUBLIC"]) == env["GPUOPS_HOST_PUBLIC"]
    assert fake.account_key not in json.dumps(env) + json.dumps(dataclasses.asdict(machine))
    assert env["GPUOPS_HOST_KEY"] not in json.dumps(dataclasses.asdict(machine))
    assert (machine.kind, machine.region, machine.name, machine.bills) == ("machine", "runpod", intent.mark(0), True)
    assert machine.state == "starting"
    assert machine.per_hour == pytest.approx(offer.per_hour, rel=0.01)


def test_a_template_a_registry_and_ports(runpod: RunpodProvisioner, fake: FakeRunPod, home: Path) -> None:
    """Our start command stands before the template's own; RunPod merges the environments."""
    fake.life = AT_ONCE
    fake.service.templates["tpl1"] = {"image": "own/image:1", "args": "serve", "env": {"A": "b"}, "ports": ["80/http"]}
    fake.service.registries["reg1"] = "mine"
    wish = {"template": "named tpl1", "registry": "mine", "ports": "6006, 8000/tcp"}
    assert list(runpod.preflight(asked(options=wish))) == []
    machine = made(runpod, options=wish)
    body = fake.asked("POST", "/pods")[0].body
    assert (body["templateId"], body["registry"], "image" in body) == ("tpl1", "reg1", False)
    assert "minCudaVersion" not in body["gpu"], "the template's own constraint stays"
    pod = only(fake)
    assert (pod.args, pod.env["A"], pod.request["image"]) == (boot_script.ARGS, "b", "own/image:1")
    assert pod.request["ports"] == ["22/tcp", "6006/http", "8000/tcp"]
    assert runpod.describe(machine).data["urls"] == [f"https://{pod.id}-6006.proxy.runpod.net"]
    world: Any = type("World", (), {"home": home})()
    assert f"node0: https://{pod.id}-6006.proxy.runpod.net" in ssh.host_name_lines(
        world, type("Row", (), {"name": "lab"})(), [machine]
    )


@pytest.mark.parametrize(("wish", "say"), [
    ({"template": "none"}, "there is no template 'none'"), ({"registry": "none"}, "there is no registry 'none'"),
    ({"ports": "22"}, "--ports 22 is no port"), ({"ports": "x/udp"}, "--ports x/udp is no port"),
])  # fmt: skip
def test_a_template_a_registry_or_a_port_that_is_none(
    runpod: RunpodProvisioner, wish: dict[str, str], say: str
) -> None:
    with pytest.raises(UsageError, match=say):
        runpod.preflight(asked(options=wish))


def test_once_somebody_ends_the_cluster_nothing_is_made(runpod: RunpodProvisioner, fake: FakeRunPod) -> None:
    offer = runpod.offers(asked())[0]
    with pytest.raises(Interrupted):
        runpod.create(offer, intended(), Lines(interrupt=True))
    assert not fake.asked("POST", "/pods")


@pytest.mark.parametrize(("fault", "kind"), [
    (capacity(), NoCapacity), (denied(), NoCapacity), (broke(), QuotaExceeded), (too_many(), RateLimited),
    (BANNED, Rejected), (Fault("POST /pods", status=401, detail="x"), AuthFailed),
    (Fault("POST /pods", status=400, detail="these are mutually exclusive"), Rejected),
    (Fault("POST /pods", status=400, detail="Something went wrong. Please try again later"), NoCapacity),
    (Fault("POST /pods", status=500, detail="x"), Unknown), (Fault("POST /pods", cut=True), Unknown),
])  # fmt: skip
def test_a_refusal_makes_nothing_and_is_not_repeated(
    runpod: RunpodProvisioner, fake: FakeRunPod, fault: Fault, kind: type[ProviderError]
) -> None:
    offer = runpod.offers(asked())[0]
    fake.play(fault)
    lines = Lines()
    with pytest.raises(kind) as caught:
        runpod.create(offer, intended(), lines)
    assert type(caught.value) is kind
    assert len(fake.asked("POST", "/pods")) == 1
    assert [line[0] for line in lines.lines] == ["will"]
    assert not fake.pods


@pytest.mark.parametrize("status", [0, 500, 504])
def test_a_lost_answer_is_found_by_its_mark_with_all_that_is_needed(
    runpod: RunpodProvisioner, fake: FakeRunPod, status: int
) -> None:
    offer = runpod.offers(asked())[0]
    fake.life = AT_ONCE
    fake.play(lost_create(status))
    with pytest.raises(Unknown):
        runpod.create(offer, intended(), Lines())
    (found,) = runpod.list_owned(OWNER, ["runpod"])
    assert found.id == only(fake).id
    assert found.data["token"] == f"{TOKEN}-0"
    assert found.per_hour == pytest.approx(offer.per_hour, rel=0.01)
    target = Target.from_document(found.data["target"])
    assert target.host_keys == (only(fake).env["GPUOPS_HOST_PUBLIC"],)


def test_a_pod_comes_up(runpod: RunpodProvisioner, fake: FakeRunPod, home: Path) -> None:
    fake.life = Life(assign_s=10, pull_s=10, map_s=10)
    machine = made(runpod)
    seen = []
    for _ in range(4):
        now = runpod.describe(machine)
        seen.append((now.state, now.data["phase"], bool(now.address), "target" in now.data))
        assert not now.data["hopeless"]
        fake.advance(10)
    assert seen == [
        ("starting", "getting a machine", False, False), ("starting", "pulling its image", False, False),
        ("starting", "waiting for its SSH port", False, False), ("running", "", True, True),
    ]  # fmt: skip
    document = runpod.describe(machine).data["target"]
    target = Target.from_document(document)
    assert (target.user, target.identities_only) == ("root", True)
    assert target.identities == (str(home / "ssh" / "id_ed25519"),)
    assert document == json.loads(json.dumps(document))


def test_a_disk_is_counted_once(runpod: RunpodProvisioner, fake: FakeRunPod) -> None:
    """What RunPod tells that a pod costs has its disk in it."""
    machine = made(runpod, options={"disk": 1000})
    assert runpod.describe(machine).per_hour == pytest.approx(fake.per_hour())


def test_a_key_that_was_replaced_is_not_called_new_again(runpod: RunpodProvisioner, fake: FakeRunPod) -> None:
    fake.life = AT_ONCE
    machine = made(runpod)
    assert machine.data["throwaway_key"] is True
    own = dataclasses.replace(machine, data={**machine.data, "throwaway_key": False})
    assert runpod.describe(own).data["throwaway_key"] is False


# What never becomes ready.


@pytest.mark.parametrize(("how", "state", "hopeless"), [
    ("EXITED", "unknown", "its container has ended"), ("ERROR", "unknown", "in an error"), ("TERMINATED", "ended", ""),
    ("GONE", "ended", ""),
])  # fmt: skip
def test_a_pod_that_ends_by_itself(
    runpod: RunpodProvisioner, fake: FakeRunPod, how: str, state: str, hopeless: str
) -> None:
    fake.life, fake.terse = AT_ONCE, True
    machine = made(runpod)
    fake.end(only(fake), how)
    now = runpod.describe(machine)
    assert now.state == state
    assert hopeless in now.data["hopeless"] if hopeless else state == "ended"
    assert (now.per_hour > 0) == (state != "ended"), "its disk costs"
    assert len(runpod.list_owned(OWNER, [])) == (state != "ended")


def whole_logs(fake: FakeRunPod, monkeypatch: pytest.MonkeyPatch, until_it_says: str = "") -> None:
    """A log ends where there is no more of it: however busy this machine is, all of it is heard."""
    monkeypatch.setattr(pod_log, "LOG_LISTEN_S", HANG_S)
    fake.terse = True
    if until_it_says:
        until(lambda: fake.settle() or until_it_says in str(only(fake).log), f"{until_it_says}: {only(fake).log}")


@pytest.mark.parametrize(("log", "hopeless", "stopped"), [
    ((), "its container has ended, and RunPod has stopped the pod", True),
    (("start container for x: begin",) * 2, "its container ended by itself each of the 3 times that it was started",
     False),
    (('error starting container: exec: "sh": executable file not found in $PATH',), "its container does not start: ",
     False),
])  # fmt: skip
def test_a_pod_that_stopped_says_whether_another_one_would_do(
    runpod: RunpodProvisioner,
    fake: FakeRunPod,
    monkeypatch: pytest.MonkeyPatch,
    log: tuple[str, ...],
    hopeless: str,
    stopped: bool,
) -> None:
    whole_logs(fake, monkeypatch)
    fake.life = dataclasses.replace(AT_ONCE, log=log)
    machine = made(runpod)
    fake.end(only(fake), "EXITED")
    for _ in range(2):
        now = runpod.describe(machine)
        assert now.data["hopeless"].startswith(hopeless)
        assert now.data["stopped"] is stopped
    assert len(fake.asked("GET", "/pods/*/logs")) == 1
    node = dataclasses.replace(machine, data={**machine.data, "artefact": "0a1b2c"})
    assert runpod.describe(node).data["stopped"], "it had come up: its image starts"


def test_an_address_that_nobody_reaches_is_hopeless_once_it_stays(
    runpod: RunpodProvisioner, fake: FakeRunPod, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.life = dataclasses.replace(PRIVATE, assign_s=0, pull_s=0, map_s=0)
    machine = made(runpod)
    now = runpod.describe(machine)
    assert (now.address, now.data["phase"], now.data["hopeless"]) == ("", "waiting for a public address", "")
    monkeypatch.setattr(pod_log, "IMAGE_PULL_LOG_INTERVAL_S", 0.0)
    whole_logs(fake, monkeypatch)
    now = runpod.describe(machine)
    assert "no public address" in now.data["hopeless"]
    assert "--cloud secure" in now.data["hopeless"]
    assert not now.address
    only(fake).life = AT_ONCE
    now = runpod.describe(machine)
    assert (now.state, now.data["hopeless"]) == ("running", ""), "it was given one"


def test_a_port_that_never_comes_is_waited_for(runpod: RunpodProvisioner, fake: FakeRunPod) -> None:
    fake.life = dataclasses.replace(UNMAPPED, assign_s=0, pull_s=0)
    now = runpod.describe(made(runpod))
    assert (now.state, now.data["phase"], now.data["hopeless"]) == ("starting", "waiting for its SSH port", "")


@pytest.mark.parametrize(("life", "wish", "logged", "say"), [
    (PULL_ERROR, {}, "manifest unknown", "its image cannot be pulled"),
    (CUDA_MISMATCH, {"options": {"min-cuda": "none"}}, "cuda>=12.8", "driver is too old for the image (cuda>=12.8)"),
    (LAYER_ERROR, {}, "host ID", "its machine cannot unpack the image: error creating container: failed to register"),
    (NOT_MADE, {}, "NVML", "its container cannot be made: error creating container: nvidia-smi: Failed to"),
    (CRASH_LOOP, {}, "begin", "its container ended by itself each of the 3 times that it was started"),
])  # fmt: skip
def test_an_image_that_never_starts_is_looked_into_after_a_while(
    runpod: RunpodProvisioner,
    fake: FakeRunPod,
    monkeypatch: pytest.MonkeyPatch,
    life: Life,
    wish: dict[str, Any],
    logged: str,
    say: str,
) -> None:
    fake.life = dataclasses.replace(life, assign_s=life.assign_s and 0, pull_s=life.pull_s and 0)
    machine = made(runpod, **wish)
    assert runpod.describe(machine).data["hopeless"] == ""
    assert not fake.asked("GET", "/pods/*/logs"), "not at once"
    monkeypatch.setattr(pod_log, "IMAGE_PULL_LOG_INTERVAL_S", 0.0)
    whole_logs(fake, monkeypatch, logged)
    assert say in runpod.describe(machine).data["hopeless"]
    monkeypatch.setattr(pod_log, "IMAGE_PULL_LOG_INTERVAL_S", 60.0)
    now = runpod.describe(machine)
    assert say in now.data["hopeless"], "and it stays so"
    assert now.data["stopped"] == (life in (LAYER_ERROR, NOT_MADE)), "another machine may do"
    assert len(fake.asked("GET", "/pods/*/logs")) == 1


@pytest.mark.parametrize(("said", "say", "machine"), [
    (["start container for x: begin"] * 2, "", False),
    (["error creating container: x"] * 2, "", False),
    (["error creating container: x"] * 3, "its container cannot be made: error creating container: x", True),
    (['error creating container: exec: "sh": executable file not found'] * 3, "its container cannot be made: ", False),
    (["failed to register layer: no space left on device"], "its machine cannot unpack the image: failed to", True),
    (["pull access denied", *["start container for x: begin"] * 3], "its image cannot be pulled: ", False),
])  # fmt: skip
def test_whose_fault_it_is(said: list[str], say: str, machine: bool) -> None:
    why = boot_log.diagnose(said)
    assert why.say.startswith(say)
    assert bool(why.say) == bool(say)
    assert why.machine is machine


def test_last_words(runpod: RunpodProvisioner, fake: FakeRunPod, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.life = dataclasses.replace(PULL_ERROR, assign_s=0)
    machine = made(runpod)
    whole_logs(fake, monkeypatch, "manifest unknown")
    assert "manifest unknown" in runpod.last_words(machine).splitlines()[-1]


# Finding and ending.


def test_only_what_is_marked_is_ours(runpod: RunpodProvisioner, fake: FakeRunPod) -> None:
    machine = made(runpod)
    for name in ("somebody", f"gpuops-{OWNER}", "gpuops-ffffffff-lab-0", f"x-gpuops-{OWNER}-lab-0"):
        fake.add_pod(name)
    fake.add_pod(f"gpuops-{OWNER}-lab-0", key=fake.other_key)
    assert [one.id for one in runpod.list_owned(OWNER, [])] == [machine.id]
    assert [one.id for one in runpod.list_owned(OWNER, ["elsewhere", "runpod"])] == [machine.id]
    assert runpod.list_owned(OWNER, ["elsewhere"]) == []


def test_a_pod_that_the_console_made_under_our_name_can_be_ended(runpod: RunpodProvisioner, fake: FakeRunPod) -> None:
    fake.add_pod(f"gpuops-{OWNER}-lab-0")
    found = runpod.list_owned(OWNER, [])
    assert "target" not in found[0].data, "nobody knows its host key"
    runpod.destroy(found)
    assert not fake.running()


def test_ending_may_be_asked_for_again(runpod: RunpodProvisioner, fake: FakeRunPod) -> None:
    machine = made(runpod)
    for _ in range(3):
        runpod.destroy([machine])
    assert not fake.running()
    assert runpod.describe(machine).state == "ended"
    assert runpod.list_owned(OWNER, []) == []


def test_one_that_cannot_be_ended_does_not_keep_the_others(runpod: RunpodProvisioner, fake: FakeRunPod) -> None:
    first, second = made(runpod), made(runpod)
    fake.play(Fault("DELETE /pods/*", status=500, detail="oops"))
    with pytest.raises(Unknown):
        runpod.destroy([first, second])
    assert [pod.id for pod in fake.running()] == [first.id]


def test_another_accounts_key_does_not_make_a_pod_gone(runpod: RunpodProvisioner, fake: FakeRunPod, home: Path) -> None:
    machine = made(runpod)
    other = RunpodProvisioner(Context(OWNER, home, {**fake.env, "RUNPOD_API_KEY": fake.other_key}))
    with pytest.raises(AuthFailed, match="was made with another API key") as caught:
        other.describe(machine)
    assert "use that key again" in caught.value.hint


def test_another_key_of_the_same_account_is_as_good(
    runpod: RunpodProvisioner, fake: FakeRunPod, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accounts, "query_account", lambda *_: AccountFacts(fake.account_id, balance=3.0))
    assert runpod.account()["id"] == fake.account_id
    machine = made(runpod)
    assert machine.data["account"]["id"] == fake.account_id
    runpod.destroy([machine])
    fake.renew_key()
    renewed = RunpodProvisioner(Context(OWNER, home, fake.env))
    assert renewed.describe(machine).state == "ended"


def test_a_pod_that_another_key_sees_is_there(runpod: RunpodProvisioner, fake: FakeRunPod, home: Path) -> None:
    machine = made(runpod)
    fake.renew_key()
    renewed = RunpodProvisioner(Context(OWNER, home, fake.env))
    assert renewed.describe(machine).state == "starting"
    assert renewed.describe(renewed.describe(machine)).data["account"] != machine.data["account"]


def test_a_node_ends_itself_with_the_python_it_has(runpod: RunpodProvisioner, fake: FakeRunPod) -> None:
    machine = made(runpod)
    argv = runpod.self_destruct(dataclasses.replace(machine, data={**machine.data, "python": "/usr/bin/python3.9"}))
    assert (argv[:2], argv[3:]) == (["sh", "-c"], ["gpuops", fake.url, "/usr/bin/python3.9"])
    assert fake.account_key not in " ".join(argv)


# Money and keys.


def test_the_balance_is_asked_for_in_another_process(
    runpod: RunpodProvisioner, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [AccountFacts("u1", balance=3.5), AccountFacts("u1", balance=2.0), AccountFacts("u1", balance=1.0)]
    monkeypatch.setattr(accounts, "query_account", lambda *_: answers.pop(0))
    assert runpod.balance() == 3.5
    assert runpod.balance() == 3.5, "just asked"
    assert runpod.account() == {"id": "u1", "balance": 3.5}
    monkeypatch.setattr(RunpodProvisioner, "balance_valid_s", 0.0)
    assert runpod.balance() == 2.0
    assert runpod.account() == {"id": "u1", "balance": 1.0}, "a search for hours asks again in each round"
    answers.append(AccountFacts())
    assert runpod.account() == {"id": "u1"}, "whose it is stays known"


def test_without_runpods_package_nothing_is_known_of_the_account() -> None:
    assert accounts.query_account("rpa_x", "http://127.0.0.1:1", {}) == AccountFacts()


def test_what_the_account_says() -> None:
    told = {"id": "u1", "clientBalance": 3, "currentSpendPerHr": 0.5, "spendLimit": None}
    facts = accounts.parse_facts({"data": {"myself": told}})
    assert facts.document() == {"id": "u1", "balance": 3.0, "spend_per_hr": 0.5}
    for nonsense in (None, [], {"data": None}, {"data": {"myself": None}}, {"errors": []}):
        assert accounts.parse_facts(nonsense) == AccountFacts()


def test_our_key_is_made_once_whoever_comes_first(home: Path) -> None:
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(keys.ensure_login_key(home))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    path, public = found[0]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert canonical(public) == public
    assert [one.name for one in path.parent.iterdir()] == ["id_ed25519"]
    path.chmod(0o644)
    keys.ensure_login_key(home)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("damaged")
    with pytest.raises(UsageError, match="is damaged"):
        keys.ensure_login_key(home)


def test_a_machines_first_key_is_its_own() -> None:
    one, other = keys.generate_key_pair(), keys.generate_key_pair()
    assert one.public != other.public
    assert base64.b64decode(one.packed).decode() == one.private


def offered(runpod: RunpodProvisioner) -> Offer:
    return runpod.offers(asked())[0]


def test_an_offer_survives_the_ledger(runpod: RunpodProvisioner, fake: FakeRunPod) -> None:
    stored = json.loads(json.dumps(dataclasses.asdict(offered(runpod))))
    again = Offer(**{**stored, "prices": offered(runpod).prices})
    runpod.create(again, intended(), Lines())
    assert len(fake.running()) == 1
