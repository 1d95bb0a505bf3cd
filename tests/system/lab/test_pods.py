"""Pods of the fake RunPod as machines: a first process with its environment, a login, restarts, volumes, clusters."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import HANG_S, until
from tests.fakes.runpod import FakeRunPod, Fault, Life, Pod, faults
from tests.fakes.runpod.container import Container
from tests.fakes.runpod.requests import Request
from tests.system.lab.available import why_no_lab
from tests.system.lab.hosts import Lab

IMAGE = "runpod/pytorch:1.0.2-cu1281-torch280-ubuntu2404"
ASK = """
import json, os, sys, urllib.request
method, path, body = sys.argv[1:4]
headers = {"Authorization": "Bearer " + os.environ["RUNPOD_API_KEY"], "User-Agent": "pod/1",
           "Content-Type": "application/json"}
asked = urllib.request.Request(os.environ["API"] + path, data=body.encode() or None, method=method, headers=headers)
try:
    print(urllib.request.urlopen(asked, timeout=30).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""
needs_lab = pytest.mark.skipif(why_no_lab() is not None, reason=str(why_no_lab()))


@pytest.fixture
def fake(lab: Lab, tmp_path: Path) -> Iterator[FakeRunPod]:
    with FakeRunPod(tmp_path / "runpod", lab=lab) as one:
        yield one


def add(fake: FakeRunPod, lab: Lab, **more: Any) -> Pod:
    """A pod into which the lab's key leads."""
    env = {"PUBLIC_KEY": lab.login, "API": fake.url, **more.pop("env", {})}
    body = {"image": IMAGE, "ports": ["22/tcp", "8000/tcp"], "env": env, **more}
    return fake.add_pod(more.pop("name", "a"), **{key: value for key, value in body.items() if key != "name"})


def body(pod: Pod) -> Container:
    """The machine, once its container is there."""
    assert isinstance(pod.body, Container)
    until(lambda: pod.body.up, "the container is there")
    return pod.body


def ask(lab: Lab, fake: FakeRunPod, method: str, path: str, key: str = "") -> Any:
    """As the laptop asks."""
    done = subprocess.run(
        [*lab.enter, "curl", "-sS", "-X", method, "-H", f"Authorization: Bearer {key or fake.account_key}", "-A", "t",
         fake.url + path],
        capture_output=True, text=True, timeout=HANG_S, check=True,
    )  # fmt: skip
    return json.loads(done.stdout) if done.stdout else None


def login(lab: Lab, pod: Pod, line: str, **changes: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*lab.enter, "ssh", "-F", "/dev/null", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-o",
         "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "-o",
         f"ConnectTimeout={changes.get('wait_s', 60)}", "-i", str(lab.identity), "-p",
         str(changes.get("port", pod.port)),
         f"root@{pod.address}", "--", line],
        capture_output=True, text=True, timeout=HANG_S,
    )  # fmt: skip


def open_door(lab: Lab, pod: Pod) -> None:
    until(lambda: login(lab, pod, "true", wait_s=5).returncode == 0, f"a login: {pod.log}")


def inside(pod: Pod, method: str, path: str, said: Mapping[str, Any] | None = None) -> str:
    """As a program in the pod asks, with the key that the pod has."""
    known = body(pod).first_environment
    done = body(pod).run(["env", *(f"{name}={known[name]}" for name in ("RUNPOD_API_KEY", "API")),
                          "python3", "-c", ASK, method, path, json.dumps(said) if said else ""])  # fmt: skip
    return done.stdout.strip() or done.stderr


def test_a_pod_boots_as_its_image_says_and_lets_its_key_in(lab: Lab, fake: FakeRunPod) -> None:
    pod = add(fake, lab, env={"ODD": "two words\nand a line", "RUNPOD_API_KEY": "mine"})
    open_door(lab, pod)
    told = ask(lab, fake, "GET", f"/pods/{pod.id}")["ssh"]["direct"]
    assert (told["host"], told["port"]) == (pod.address, pod.port)

    # It lets in before it has done all that it does.
    until(lambda: ("container", "Pod is ready to use.") in [line[1:] for line in pod.log], "its log")
    until(lambda: "sleep infinity" in body(pod).processes(), "what it does for ever")
    environment = body(pod).first_environment
    assert environment["ODD"] == "two words\nand a line"
    assert environment["RUNPOD_API_KEY"] == pod.key  # a key set under that name is shadowed
    assert (environment["RUNPOD_POD_ID"], environment["RUNPOD_TCP_PORT_22"]) == (pod.id, str(pod.port))
    seen = login(lab, pod, "tr '\\0' '\\n' </proc/1/environ | grep -c RUNPOD_; echo ${RUNPOD_POD_ID-none}; pwd; id -un")
    count, *rest = seen.stdout.split()
    assert int(count) >= 8
    assert rest == ["none", "/root", "root"]  # env is not in a session
    assert "RUNPOD_POD_ID" in login(lab, pod, "cat /etc/rp_environment").stdout
    torch = login(lab, pod, "python3 -c 'import sys, torch; print(sys.prefix, sys.base_prefix)'")
    assert torch.stdout == "/usr/local /usr/local\n", torch.stderr  # in the system's Python, as in the official images


def test_nothing_leads_in_but_mapped_ports(lab: Lab, fake: FakeRunPod) -> None:
    pod, other = add(fake, lab), add(fake, lab, name="b")
    open_door(lab, pod)
    open_door(lab, other)
    assert login(lab, pod, "true", port=22, wait_s=5).returncode == 255
    knock = f"exec 3<>/dev/tcp/{pod.address}/{pod.port}"
    assert body(other).run(["timeout", "1", "bash", "-c", knock]).returncode == 124


def test_a_deaf_port(lab: Lab, fake: FakeRunPod) -> None:
    fake.life = faults.DEAF
    pod = add(fake, lab)
    until(lambda: any("sshd is started" in line[2] for line in pod.log), "sshd")
    assert "refused" in login(lab, pod, "true").stderr


def test_arguments_replace_the_command(lab: Lab, fake: FakeRunPod) -> None:
    pod = add(fake, lab, args="""bash -c 'echo "$0: $ODD" >/made; exec /start.sh' 'two words'""", env={"ODD": "a b"})
    open_door(lab, pod)
    assert login(lab, pod, "cat /made").stdout == "two words: a b\n"

    own = add(fake, lab, name="own", image="example/own-entrypoint:1", args="bash -c 'touch /made; sleep 9'")
    until(lambda: any(line[2] == "serving" for line in own.log), "its entrypoint")
    assert not (body(own).root / "made").exists()
    assert login(lab, own, "true").returncode == 255

    bare = add(fake, lab, name="bare", image="debian:bare", args="sleep infinity")
    until(lambda: body(bare).processes() == ["sleep infinity"], "its command")
    assert body(bare).run(["ls", "/start.sh", "/run/sshd"]).returncode != 0
    assert body(bare).run(["ls", "/usr/sbin/sshd"]).returncode == 0
    assert body(bare).run(["bash", "-c", "ls /etc/ssh/ssh_host_*"]).returncode != 0


def test_a_host_key_that_is_there_is_kept(lab: Lab, fake: FakeRunPod) -> None:
    made = "ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key; cp /etc/ssh/ssh_host_ed25519_key.pub /made"
    pod = add(fake, lab, args=f'bash -c "{made}; exec /start.sh"')
    open_door(lab, pod)
    assert (
        login(lab, pod, "cmp /made /etc/ssh/ssh_host_ed25519_key.pub && ls /etc/ssh/ssh_host_rsa_key").returncode == 0
    )


def test_a_container_that_ends_is_started_again_and_bills_on(lab: Lab, fake: FakeRunPod) -> None:
    pod = add(fake, lab)
    open_door(lab, pod)
    login(lab, pod, "touch /kept /dev/shm/lost; echo $$ >/run/kept")
    first = body(pod).pid
    os.kill(first, signal.SIGKILL)
    until(lambda: body(pod).starts == 2 and body(pod).pid not in (0, first), "another container")
    open_door(lab, pod)
    assert login(lab, pod, "ls /kept /run/kept && ! ls /dev/shm/lost").returncode == 0
    assert pod in fake.running()


def test_what_cannot_run_is_tried_again_and_again(lab: Lab, fake: FakeRunPod) -> None:
    bare = add(fake, lab, image="debian:bare")  # a shell that has nothing to read
    odd = add(fake, lab, name="odd", args="bash -c 'exec /start.sh")
    until(lambda: body(bare).starts > 2 and body(odd).starts > 2, "several starts")
    assert any("No such file or directory" in line[2] for line in odd.log)
    assert len(fake.running()) == 2


def test_a_terminated_pod_is_gone_without_a_word(lab: Lab, fake: FakeRunPod) -> None:
    pod = add(fake, lab)
    open_door(lab, pod)
    ask(lab, fake, "DELETE", f"/pods/{pod.id}")
    assert body_gone(pod)
    assert fake.running() == []
    assert login(lab, pod, "true", wait_s=5).returncode == 255


def body_gone(pod: Pod) -> bool:
    assert isinstance(pod.body, Container)
    return pod.body.processes() == [] and not pod.body.up


def test_stop_wipes_the_disk_and_a_volume_survives(lab: Lab, fake: FakeRunPod) -> None:
    fake.life = Life(pull_s=0.05, map_s=0.05)
    made = fake.add_volume("v", "US-KS-2")
    mounts = {"network": [{"volumeId": made.id, "path": "/workspace"}]}
    pod, other = add(fake, lab, mounts=mounts), add(fake, lab, name="b", mounts=mounts)
    open_door(lab, pod)
    open_door(lab, other)
    login(lab, pod, "touch /lost; echo kept >/workspace/file")
    assert login(lab, other, "cat /workspace/file").stdout == "kept\n"
    fake.end(other, "TERMINATED")
    fake.end(pod, "EXITED")
    assert body_gone(pod)
    port = pod.port
    fake.act(pod, "start")
    open_door(lab, pod)
    assert pod.port != port
    assert login(lab, pod, "! ls /lost && cat /workspace/file").stdout == "kept\n"


def test_a_pod_may_end_itself_and_do_nothing_else(lab: Lab, fake: FakeRunPod) -> None:
    pod, other = add(fake, lab), add(fake, lab, name="b")
    open_door(lab, pod)
    assert inside(pod, "GET", f"/pods/{pod.id}") == "200"
    assert [inside(pod, "GET", "/pods"), inside(pod, "DELETE", f"/pods/{other.id}")] == ["403", "403"]
    body(pod)
    assert inside(pod, "DELETE", f"/pods/{pod.id}") == "404"
    inside(pod, "POST", f"/pods/{pod.id}/action", {"action": "terminate"})  # who asked is gone before it hears
    until(lambda: body_gone(pod), "nothing runs there")
    assert fake.running() == [other]


def test_who_asks_is_found_in_any_network(lab: Lab, fake: FakeRunPod) -> None:
    asking: list[str] = []
    pod = add(fake, lab)
    open_door(lab, pod)

    def look(request: Request, moment: str) -> None:
        if moment == "before":  # who has its answer may be gone
            asking.append(Path(f"/proc/{request.client_pid}/comm").read_text().strip())

    fake.on_answer(look)
    ask(lab, fake, "GET", "/pods")
    assert set(asking) >= {"curl"}
    asking.clear()
    inside(pod, "GET", f"/pods/{pod.id}")
    assert asking[0].startswith("python3")


def test_members_of_a_cluster_meet_on_ens1(lab: Lab, fake: FakeRunPod) -> None:
    cluster = fake.add_cluster("c", image=IMAGE, ports=["22/tcp"], env={"PUBLIC_KEY": lab.login, "API": fake.url})
    first, second = cluster.members
    for pod in (first, second):
        open_door(lab, pod)
        assert login(lab, pod, f"ip -o -4 addr show ens1 | grep -c {pod.ip}/16").stdout == "1\n"
    environment = body(second).first_environment
    assert environment["PRIMARY_ADDR"] == environment["MASTER_ADDR"] == first.ip
    assert (environment["NODE_RANK"], environment["NUM_NODES"], environment["NODE_ADDR"]) == ("1", "2", second.ip)
    greet = "exec 3<>/dev/tcp/node-0/22 && head -c 4 <&3"
    assert body(second).run(["timeout", "60", "bash", "-c", greet]).stdout == "SSH-"
    assert inside(first, "POST", f"/pods/{first.id}/action", {"action": "terminate"}) == "409"
    assert inside(first, "DELETE", f"/clusters/{cluster.id}") == "403"
    ask(lab, fake, "DELETE", f"/clusters/{cluster.id}")
    assert all(body_gone(pod) for pod in cluster.members)


def test_a_pod_that_never_comes_has_no_machine(lab: Lab, fake: FakeRunPod) -> None:
    fake.play(Fault("POST /pods", life=faults.PULL_ERROR))
    fake.life = faults.PULL_ERROR
    pod = add(fake, lab)
    until(lambda: pod.status == "RUNNING" and pod.log, "its log")
    assert body_gone(pod)


LONELY = """
import sys, time
from pathlib import Path
from tests.fakes.runpod import FakeRunPod
from tests.system.lab.hosts import Lab
folder = Path(sys.argv[1])
with Lab(folder / "lab") as lab, FakeRunPod(folder / "runpod", lab=lab) as fake:
    pod = fake.add_pod("a", args="sleep infinity")
    while not pod.body.up:
        time.sleep(0.05)
    print(pod.body.pid, flush=True)
    time.sleep(1000)
"""


@needs_lab
def test_pods_end_with_who_made_them(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", LONELY, str(tmp_path / "lonely")]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]) as lonely:
        assert lonely.stdout
        first = int(lonely.stdout.readline())
        assert Path(f"/proc/{first}").exists()
        lonely.kill()
    until(lambda: not Path(f"/proc/{first}").exists(), "the pod is gone")


@needs_lab
def test_nothing_is_left_of_a_lab_with_pods(tmp_path: Path) -> None:
    with Lab(tmp_path / "lab") as lab, FakeRunPod(tmp_path / "runpod", lab=lab) as fake:
        pod = add(fake, lab)
        first = body(pod).pid
    assert not Path(f"/proc/{first}").exists()
    assert not (tmp_path / "lab").exists()
