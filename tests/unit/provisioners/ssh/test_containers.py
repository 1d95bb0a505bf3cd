"""Nodes in containers, without a host: the command lines, what a host's answers mean, and what is said of them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from gpuops.core.errors import ConnectionLost, NodeError, UsageError
from gpuops.core.models import Request, ResourceState
from gpuops.core.provider import Context
from gpuops.nodes.bootstrap import MachineProbe
from gpuops.transport.ssh import Target
from provisioners.ssh.container_host import FoundNode, parse_list
from provisioners.ssh.container_probe import (
    SUBORDINATE_HINT,
    ContainerFacts,
    container_problems,
    image_problem,
    parse_facts,
)
from provisioners.ssh.container_spec import (
    ENTER_SCRIPT,
    HOLD_SCRIPT,
    ContainerSpec,
    HostLimits,
    check_image,
    enter_words,
    full_name,
    parse_spec,
    start_words,
    wants_containers,
    within_words,
)
from provisioners.ssh.hosts import HostBook, KnownHost
from provisioners.ssh.placement import Host, NodePlace, host_of, parse_place, place_nodes
from provisioners.ssh.provisioner import SshProvisioner

ROOT = "/home/ann/.gpuops-0badcafe-docker"
ANN = HostLimits("ann", 1000, 1001)
SPEC = ContainerSpec(
    engine="docker", image="pytorch/pytorch:2.8.0", owner="0badcafe", mark="gpuops-0badcafe-lab-1", token="t-1",
    root=ROOT, cluster="lab", index=1, host="ann@a+docker", agent=f"{ROOT}/agent/abc.pyz", limits=ANN,
)  # fmt: skip
LABELS = "--label gpuops.owner=0badcafe --label gpuops.mark=gpuops-0badcafe-lab-1 --label gpuops.token=t-1"


def with_limits(engine: str = "docker", **limits: object) -> ContainerSpec:
    return dataclasses.replace(SPEC, engine=engine, limits=dataclasses.replace(ANN, **limits))  # type: ignore[arg-type]


def line(spec: ContainerSpec) -> str:
    """What starts a container, from `run` to the image."""
    words = enter_words(spec)[7:]
    return " ".join(word or "''" for word in words)


def test_the_whole_line_of_docker() -> None:
    spec = with_limits(gpus=True, infiniband=True)
    assert line(spec) == (
        f"docker run --interactive --rm --pull never {LABELS} --network=host --ipc=host "
        f"--mount type=bind,source={ROOT},target={ROOT} --workdir / --env HOME={ROOT}/lab/n1/home --env USER=ann "
        "--env LOGNAME=ann --user 1000:1001 --gpus all --ulimit memlock=-1 --ulimit stack=67108864 "
        "--device /dev/infiniband --cap-add IPC_LOCK --entrypoint '' pytorch/pytorch:2.8.0"
    )
    assert start_words(spec, ["python3", "/opt/conda/bin/python3"]) == [
        "docker", "run", "--detach", "--name", "gpuops-0badcafe-lab-1", "--label", f"gpuops.node={spec.document()}",
        *enter_words(spec)[10:], "sh", "-c", HOLD_SCRIPT, "sh", f"{ROOT}/lab/c1", f"{ROOT}/agent/abc.pyz",
        f"{ROOT}/lab/n1", "python3", "/opt/conda/bin/python3",
    ]  # fmt: skip


def test_the_lines_of_podman_and_of_a_docker_of_ones_own() -> None:
    assert line(with_limits("podman", gpus=True, rootless=True, locks_memory=False, stacks=False)) == (
        f"podman run --interactive --rm --pull never {LABELS} --network=host --ipc=host "
        f"--mount type=bind,source={ROOT},target={ROOT} --workdir / --env HOME={ROOT}/lab/n1/home --env USER=ann "
        "--env LOGNAME=ann --security-opt label=disable --userns=keep-id --device nvidia.com/gpu=all "
        "--entrypoint '' pytorch/pytorch:2.8.0"
    )
    assert "--userns" not in line(with_limits("podman", user="root", uid=0, gid=0)), "root there is root here"
    assert "--user " not in line(with_limits(rootless=True)), "root in it is the user"
    for spec in (with_limits(gpus=True, infiniband=True), with_limits("podman", rootless=True)):
        assert "--privileged" not in line(spec)
        assert line(spec).count("source=") == 1, "of the host's files our folder alone"


def test_a_program_goes_in_whole() -> None:
    words = enter_words(SPEC)
    assert words[:6] == ["sh", "-c", ENTER_SCRIPT, "sh", "docker", SPEC.mark]
    assert words[6] == str(len(words[7:])), "so many words start another container"


def test_a_spec_comes_back_from_its_label() -> None:
    assert parse_spec(json.loads(SPEC.document())) == SPEC
    for wrong in ({}, [], {**json.loads(SPEC.document()), "engine": "rm"}, {**json.loads(SPEC.document()), "root": 1}):
        with pytest.raises((TypeError, KeyError)):
            parse_spec(wrong)


@pytest.mark.parametrize("image", ["-v", "--privileged", "a b", "a;b", "$(id)", "", "a\nb", "x" * 600])
def test_what_is_no_image(image: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no image's name"):
        check_image(image)
    with pytest.raises(UsageError, match="is no image's name"):
        SshProvisioner(Context("0badcafe", tmp_path, {})).preflight(Request("ssh", image=image))


def test_names_of_images() -> None:
    for image in ("pytorch/pytorch:2.8.0", "nvcr.io/nvidia/pytorch:25.08-py3", "localhost:5000/x@sha256:ab", "base"):
        assert check_image(image) == image
        assert full_name("docker", image) == image
    assert full_name("podman", "pytorch/pytorch:2.8.0") == "docker.io/pytorch/pytorch:2.8.0"
    assert full_name("podman", "python") == "docker.io/library/python"
    for whole in ("nvcr.io/nvidia/pytorch:25.08-py3", "localhost/base", "reg:5000/x"):
        assert full_name("podman", whole) == whole


def test_which_requests_mean_containers(tmp_path: Path) -> None:
    assert wants_containers(Request("ssh", image="x"))
    assert wants_containers(Request("ssh", options={"container": "podman"}))
    assert not wants_containers(Request("ssh"))
    with pytest.raises(UsageError) as caught:
        SshProvisioner(Context("0badcafe", tmp_path, {})).offers(Request("ssh", options={"container": "podman"}))
    assert caught.value.message == "--container podman runs an image, and none was named"
    with pytest.raises(UsageError, match="--container dokcer is not known"):
        wants_containers(Request("ssh", options={"container": "dokcer"}))


USER = "user ann\nuid 1000\ngid 1001\n"


def facts(said: str, gpus: int = 0) -> ContainerFacts:
    return parse_facts(USER + said, "a", gpus)


def test_what_a_host_says() -> None:
    docker = facts("memlock 8192\nstack 8192\nengine docker\nimage here\n", 2)
    assert docker.limits == dataclasses.replace(ANN, gpus=True), "its daemon may raise limits"
    assert docker.has_image
    podman = facts("memlock 8192\nstack unlimited\nengine podman\nrootless yes\nlinger yes\ninfiniband yes\n")
    assert podman.limits == dataclasses.replace(ANN, rootless=True, infiniband=True, locks_memory=False)
    assert not facts("stack 8192\nengine docker\nrootless yes\n").limits.stacks
    assert facts("engine sh\n").engine == ""
    with pytest.raises(NodeError, match="a does not say which user this is"):
        parse_facts("uid many\n", "a", 0)


CONFIGURE = "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
PROBLEMS = [
    ("", 0, "a has neither docker nor podman", "install docker or podman there, or leave out --image"),
    (
        "engine docker\nrefused permission denied while trying to connect to the Docker daemon socket\n", 0,
        "ann may not use docker on a",
        "sudo usermod -aG docker ann there, then log in anew; or --container podman",
    ),
    (
        "engine docker\nrefused Cannot connect to the Docker daemon at unix:///var/run/docker.sock.\n", 0,
        "docker's daemon does not run on a", "start it: sudo systemctl start docker",
    ),
    ("engine podman\nrefused broken\n", 0, "podman does not work on a: broken", "try there: podman info"),
    (
        'engine podman\nrefused Error: command required for rootless mode: exec: "newuidmap": not found in $PATH\n', 0,
        "podman on a works for root alone: newuidmap is not there",
        "install it: sudo apt install uidmap (Fedora: shadow-utils)",
    ),
    (
        "engine podman\nrootless yes\nnumbers one\n", 0,
        "ann has no subordinate user and group IDs on a, which podman needs without root",
        SUBORDINATE_HINT.format(user="ann"),
    ),
    (
        "engine docker\n", 8, "a has GPUs, and docker there has no NVIDIA container toolkit to hand them on",
        f"install nvidia-container-toolkit there, then: {CONFIGURE}",
    ),
    (
        "engine podman\n", 8, "a has GPUs, and podman there has no NVIDIA container toolkit to hand them on",
        "install nvidia-container-toolkit there, then: sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
    ),
    (
        "engine podman\nrootless yes\nlinger no\n", 0,
        "what ann starts on a ends with the login, a container of podman as well",
        "let it go on: loginctl enable-linger ann",
    ),
    (
        "engine docker\nno-image no such manifest: docker.io/x/y:1\n", 0,
        "there is no image x/y:1: no such manifest: docker.io/x/y:1", "check its name and tag",
    ),
    (
        "engine docker\nno-image denied: requested access to the resource is denied\n", 0,
        "x/y:1 does not exist, or a has no access to it: denied: requested access to the resource is denied",
        "check the name; if it is right, log in there: docker login",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("said", "gpus", "say", "hint"), PROBLEMS)
def test_what_a_host_lacks_is_one_sentence(said: str, gpus: int, say: str, hint: str) -> None:
    (problem,) = container_problems("a", facts(said, gpus), "", "x/y:1")
    assert (problem.say, problem.hint, problem.fatal) == (say, hint, True)


def test_what_is_no_problem() -> None:
    assert container_problems("a", facts("engine docker\ntoolkit yes\n", 8), "", "x") == []
    assert container_problems("a", facts("engine podman\nrootless yes\nlinger yes\n"), "", "x") == []
    assert image_problem("a", "docker", "x", "dial tcp: lookup registry-1.docker.io: no such host") is None
    (problem,) = container_problems("a", facts(""), "podman", "x")
    assert problem.say == "a has no podman"


def listed(*lines: str) -> list[FoundNode]:
    return parse_list("\n".join([*lines, "done"]), "a")


FOLDER, CONTAINER = f"folder {SPEC.document()}", SPEC.document()
STATES = [
    ((f"container running {CONTAINER}", FOLDER, "log 98565f3f"), ResourceState.RUNNING, "", "", ""),
    ((f"container running {CONTAINER}",), ResourceState.RUNNING, "", "", ""),
    ((FOLDER, "works yes", "log pulling x"), ResourceState.STARTING, "pulling x", "", ""),
    (
        (FOLDER, "works yes", "log 3f4c: Pull complete"), ResourceState.STARTING,
        "pulling pytorch/pytorch:2.8.0: 3f4c: Pull complete", "", "",
    ),
    ((f"container created {CONTAINER}", FOLDER, "works yes", "log "), ResourceState.STARTING, "starting", "", ""),
    ((FOLDER, "log 98565f3f"), ResourceState.ENDED, "", "", "its container has ended"),
    ((f"container exited {CONTAINER}",), ResourceState.ENDED, "", "", "its container has ended"),
    ((FOLDER, 'ended {"at": 1, "why": "its lease is over"}'), ResourceState.ENDED, "", "", "its lease is over"),
    ((FOLDER, "ended {torn"), ResourceState.ENDED, "", "", "its container has ended"),
    (
        (FOLDER, "failed python"), ResourceState.STARTING, "",
        "the image pytorch/pytorch:2.8.0 has no Python 3.8 or later for gpuops' agent: add python3 to it", "",
    ),
    (
        (FOLDER, "failed pull", "log manifest unknown"), ResourceState.STARTING, "",
        "there is no image pytorch/pytorch:2.8.0: manifest unknown; check its name and tag", "",
    ),
    (
        (FOLDER, "failed pull", "log toomanyrequests: slow down"), ResourceState.STARTING, "",
        "pytorch/pytorch:2.8.0 cannot be pulled: toomanyrequests: slow down", "",
    ),
    (
        (FOLDER, "failed run", 'log Conflict. The container name "/x" is already in use'), ResourceState.STARTING, "",
        f"a container named {SPEC.mark} is there already: docker rm -f {SPEC.mark}, if it is a stray",
        "",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "state", "phase", "hopeless", "why"), STATES)
def test_what_a_node_is_at(lines: tuple[str, ...], state: str, phase: str, hopeless: str, why: str) -> None:
    (found,) = listed(*lines)
    assert found.spec == SPEC
    assert (found.state, found.phase, found.hopeless, found.why_ended) == (state, phase, hopeless, why)


def test_a_list_that_is_none() -> None:
    assert listed("container running {torn", "folder nonsense", "log x") == []
    with pytest.raises(NodeError, match="containers on a cannot be listed: Cannot connect"):
        parse_list("error Cannot connect to the Docker daemon\n", "a")
    with pytest.raises(ConnectionLost, match="a did not list its containers to the end"):
        parse_list(FOLDER, "a")


def test_places_in_containers(tmp_path: Path) -> None:
    target = Target("a", user="ann", host_keys=("ssh-ed25519 AAAA",))
    host = Host("ann@a", target, MachineProbe("/home/ann", "", 2), facts("engine podman\nrootless yes\n", 2))
    (place,) = place_nodes([host], 1, None, "python:3.12")[0]
    assert (place.engine, place.image, place.region) == ("podman", "docker.io/library/python:3.12", "ann@a+podman")
    assert parse_place(json.loads(json.dumps(place.document()))) == place
    assert host_of(place.region) == host_of("ann@a") == "ann@a"
    here = dataclasses.replace(host, containers=facts("engine podman\nimage here\n"))
    assert [one.image for one in place_nodes([here], 2, None, "python:3.12")[0]] == ["python:3.12"] * 2
    plain: NodePlace = place_nodes([dataclasses.replace(host, containers=None)], 1, None)[0][0]
    assert (plain.engine, plain.limits, plain.region) == ("", None, "ann@a")

    book = HostBook(tmp_path / "hosts.json")
    known = KnownHost(target, ROOT, "", "docker")
    book.record("ann@a+docker", known)
    assert book.get("ann@a+docker") == known
    assert SshProvisioner(Context("0badcafe", tmp_path, {})).standing(Request("ssh")) == []


def test_the_line_of_apptainer(tmp_path: Path) -> None:
    words = within_words("/srv/x.sif", ROOT, gpus=True)
    assert " ".join(words) == f"apptainer exec --nv --no-home --bind {ROOT} /srv/x.sif"
    assert "--nv" not in within_words("/srv/x.sif", ROOT, gpus=False)
    request = Request("ssh", image="x/y:1", options={"container": "apptainer"})
    assert not wants_containers(request), "its nodes are on the hosts themselves"
    with pytest.raises(UsageError) as caught:
        SshProvisioner(Context("0badcafe", tmp_path, {})).preflight(request)
    assert caught.value.message == "--image x/y:1 is no file on the hosts, and apptainer runs one"
