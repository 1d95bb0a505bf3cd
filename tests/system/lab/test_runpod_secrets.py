"""A whole run on a rented pod, and every byte of the pod while it goes on: keys are where they must be, nowhere else.

The account's key stays on the laptop. The pod's own key, which RunPod puts there, is for whoever ends the pod. The host
key that travelled through RunPod is of no use once somebody has logged in.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import HANG_S, until
from tests.fakes.runpod import FakeRunPod, Pod
from tests.fakes.runpod.container import Container
from tests.files import written_in
from tests.system.lab.first_process import in_namespace
from tests.system.lab.hosts import Lab
from tests.system.lab.laptop import Laptop

LOOK = """
import json, os, pathlib, time
print("ENV " + json.dumps(dict(os.environ)), flush=True)
while not pathlib.Path("/srv/go-on").exists():
    time.sleep(0.1)
pathlib.Path("result").write_text("learnt")
"""
ACCOUNT_KEY = "rpa_CANARYINTHEMINE0123456789ABCDEF"
OTHERS = ("canary-of-aws-4711", "canary-of-wandb-4711")


@pytest.fixture
def fake(lab: Lab, tmp_path: Path) -> Iterator[FakeRunPod]:
    with FakeRunPod(tmp_path / "runpod", lab=lab) as one:
        one.service.own.key = ACCOUNT_KEY
        yield one


@pytest.fixture
def renter(fake: FakeRunPod, laptop: Laptop, tmp_path: Path) -> Laptop:
    """A laptop at whose project the keys lie; it ends before RunPod does."""
    laptop.env |= {**fake.env, "HOME": str(tmp_path)}
    del laptop.env["RUNPOD_API_KEY"]
    laptop.write(
        ".env", f"RUNPOD_API_KEY={ACCOUNT_KEY}\nAWS_SECRET_ACCESS_KEY={OTHERS[0]}\nWANDB_API_KEY={OTHERS[1]}\n"
    )
    laptop.write("look.py", LOOK)
    return laptop


def body(pod: Pod) -> Container:
    assert isinstance(pod.body, Container)
    return pod.body


def disk_files(pod: Pod) -> dict[str, bytes]:
    """All that is on a pod's disk beside what this machine brings to it, and what lies in memory."""
    tops = body(pod).disk / "upper", body(pod).root / "dev/shm"
    return {str(path.relative_to(top)): data for top in tops for path, data in written_in(top).items()}


def processes(pod: Pod) -> list[tuple[str, bytes]]:
    """Every process of a pod: its command line, and its environment."""
    found = []
    for pid in in_namespace("pid", body(pod).pid):
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found.append((line, Path(f"/proc/{pid}/environ").read_bytes()))
        except OSError:
            continue
    return found


def is_run(line: str) -> bool:
    """Whether a command line is the run's own."""
    return line.split()[-1:] == ["look.py"] and "python3" in line.split()[0]


def goes_on(pod: Pod) -> bool:
    return any(is_run(line) for line, _ in processes(pod)) if body(pod).pid else False


def having(pod: Pod, secret: str) -> list[str]:
    """The programs in whose environment this is."""
    return sorted(line.split()[0] for line, env in processes(pod) if line and secret.encode() in env)


def test_keys_are_where_they_must_be(fake: FakeRunPod, renter: Laptop) -> None:
    words = ("run", "--on", "runpod", "--gpu-type", "4090", "--yes", "--out", "result", "--", "python3", "look.py")
    run = renter.start(*words)
    until(lambda: run.poll() is not None or any(goes_on(pod) for pod in fake.running()), "the run goes on")
    assert run.poll() is None, run.communicate()
    (pod,) = fake.running()
    host_key = base64.b64decode(pod.env["GPUOPS_HOST_KEY"])
    secret_part = b"".join(host_key.splitlines()[1:-1])[80:]  # behind what every such key begins with

    # The account's key, and what else lies in .env: nowhere.
    files, running = disk_files(pod), processes(pod)
    assert any("look.py" in name for name in files)
    said = "".join(line for _, _, line in pod.log).encode()
    for canary in (ACCOUNT_KEY, *OTHERS):
        assert not [name for name, data in files.items() if canary.encode() in data]
        assert not [line for line, env in running if canary.encode() in env or canary in line]
        assert canary.encode() not in said
        assert canary not in f"{pod.env} {pod.args}"

    # The pod's own key: no argument, no file of ours; the first process has it, and the watchdog that came with it.
    assert not [line for line, _ in running if pod.key in line]
    assert [name for name, data in files.items() if pod.key.encode() in data] == ["etc/rp_environment"]  # the image's
    until(lambda: set(having(pod, pod.key)) == {"sh", "sleep"}, "theirs alone, but for a moment in which one looks")
    assert pod.key.encode() not in said

    # The throw-away host key: replaced, and in no file.
    shown = files["etc/ssh/ssh_host_ed25519_key.pub"].decode().split()[:2]
    assert shown != pod.env["GPUOPS_HOST_PUBLIC"].split()[:2]
    assert not [name for name, data in files.items() if secret_part in data.replace(b"\n", b"")]
    assert not [name for name, data in files.items() if pod.env["GPUOPS_HOST_KEY"].encode() in data]
    assert not [line for line, _ in running if pod.env["GPUOPS_HOST_KEY"] in line]
    until(lambda: having(pod, pod.env["GPUOPS_HOST_KEY"]) == ["sh"], "its alone, but for one that it just starts")

    # The run itself has none of them.
    (own,) = [env for line, env in running if is_run(line)]
    names = {entry.partition(b"=")[0].decode() for entry in own.split(b"\0") if entry}
    assert not names & {"RUNPOD_API_KEY", "GPUOPS_HOST_KEY", "GPUOPS_START", "GPUOPS_TOKEN"}
    assert pod.key.encode() not in own

    body(pod).run(["touch", "/srv/go-on"], check=True)
    out, err = run.communicate(timeout=HANG_S)
    assert run.returncode == 0, err
    (line,) = [line for line in out.splitlines() if "ENV {" in line]
    env = json.loads(line[line.index("{") :])
    assert not {"RUNPOD_API_KEY", "GPUOPS_HOST_KEY"} & env.keys()
    assert [path.read_text() for path in renter.folder.glob("runs/*/out/result")] == ["learnt"]
    assert fake.running() == []

    # Nor do they come home, or were told to RunPod but by the one header.
    written = written_in(renter.home, renter.folder)
    for canary in (ACCOUNT_KEY, *OTHERS, pod.key):
        assert not [path for path, data in written.items() if path.name != ".env" and canary.encode() in data]
        assert canary not in out + err
        for request in fake.requests:
            headers = {name: value for name, value in request.headers.items() if name != "authorization"}
            assert canary not in f"{request.path} {request.query} {headers} {request.raw!r}"
