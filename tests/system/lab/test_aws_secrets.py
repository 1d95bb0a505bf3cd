"""A whole run on a rented machine, and every byte of the machine while it goes on: keys are where they must be.

The account's keys stay on the laptop. A bucket is opened to a node by presigned URLs, which name the key that signed
them and, where that is a temporary one, carry its session's token: neither is of use without the secret. The host key
that travelled through AWS is of no use once somebody has logged in.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import HANG_S, until
from tests.fakes.aws import FakeAWS, Instance
from tests.fakes.aws.machine import Machine
from tests.files import written_in
from tests.system.lab.available import why_no_machines
from tests.system.lab.first_process import in_namespace
from tests.system.lab.laptop import Laptop

LOOK = """
import json, os, pathlib, time
print("ENV " + json.dumps(dict(os.environ)), flush=True)
while not pathlib.Path("/tmp/go-on").exists():
    time.sleep(0.1)
pathlib.Path("result").write_text("learnt")
"""
OTHERS = ("canary-of-wandb-4711", "rpa_CANARYINTHEMINE0123456789ABCDEF")
SESSION = "canary+session+token/4711"
TRACES = ("4711", "CANARY", "canary")
MEMORY = ("dev/shm", "run", "tmp")
"""Folders of a machine that are on no disk."""
COMMAND = (
    "run", "--on", "aws", "--gpu-type", "t4", "--gpus", "1", "--spot", "--yes", "--sink", "s3://results/lab",
    "--out", "result", "--", "python3", "look.py",
)  # fmt: skip


@pytest.fixture
def cloud(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[FakeAWS]:
    """AWS, and a laptop at whose project the keys lie: temporary ones."""
    if reason := why_no_machines():
        pytest.skip(reason)
    laptop: Laptop = request.getfixturevalue("laptop")
    with FakeAWS(tmp_path / "aws", lab=laptop.lab) as fake:
        fake.ending_s = 0.1
        fake.bucket("results")
        # Neither exported nor in files of AWS's own, which would go before `.env`.
        keys = {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"}
        laptop.env |= {**{name: value for name, value in fake.env.items() if name not in keys}, "HOME": str(tmp_path)}
        laptop.write(
            ".env",
            f"AWS_ACCESS_KEY_ID={fake.key}\nAWS_SECRET_ACCESS_KEY={fake.secret}\nAWS_SESSION_TOKEN={SESSION}\n"
            f"WANDB_API_KEY={OTHERS[0]}\nRUNPOD_API_KEY={OTHERS[1]}\n",
        )
        laptop.write("look.py", LOOK)
        yield fake
        laptop.end()


def machine(cloud: FakeAWS, one: Instance) -> Machine:
    assert cloud.world.bodies
    found: Machine = cloud.world.bodies.machines.machine(one.id)
    return found


def files(there: Machine) -> dict[str, bytes]:
    """All that is on its disk beside what this computer brings to it, and what lies in memory."""
    found = {}
    for top, base in [
        (there.disk / "upper", there.disk / "upper"),
        *((there.root / one, there.root) for one in MEMORY),
    ]:
        for path, data in written_in(top).items():
            name = str(path.relative_to(base))
            if not f"/{name}".startswith((sys.prefix, sys.base_prefix)):
                found[name] = data
    return found


def processes(there: Machine) -> list[tuple[str, bytes]]:
    """Every process of it: its command line, and its environment."""
    found = []
    for pid in in_namespace("pid", there.pid) if there.pid else []:
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            found.append((line, Path(f"/proc/{pid}/environ").read_bytes()))
        except OSError:
            continue
    return found


def holding(found: dict[str, bytes], text: str) -> list[str]:
    return [name for name, data in found.items() if text.encode() in data]


def test_keys_are_where_they_must_be(cloud: FakeAWS, laptop: Laptop) -> None:
    run = laptop.start(*COMMAND)

    def goes_on() -> bool:
        lines = [line for one in cloud.instances() for line, _ in processes(machine(cloud, one))]
        return any(line.split()[-1:] == ["look.py"] and "python3" in line.split()[0] for line in lines)

    until(lambda: run.poll() is not None or goes_on(), "the run goes on")
    assert run.poll() is None, run.communicate()
    (one,) = cloud.instances()
    there = machine(cloud, one)
    disk, running = files(there), processes(there)
    assert any(name.endswith("look.py") for name in disk)
    (addresses,) = [name for name in disk if name.endswith("/urls.json")]
    assert (there.disk / "upper" / addresses).stat().st_mode & 0o777 == 0o600

    # The secret, and what else lies in .env: nowhere; nor in what AWS was told that a machine can read.
    assert not any(trace in f"{one.user_data} {one.tags}" for trace in TRACES)
    printed = cloud.world.bodies.console(one) if cloud.world.bodies else ""
    assert printed
    assert not any(trace in printed for trace in TRACES)
    for canary in (cloud.secret, *OTHERS):
        assert holding(disk, canary) == []
    for canary in (cloud.secret, *OTHERS, SESSION, cloud.key):
        assert not [line for line, env in running if canary.encode() in env or canary in line]

    # What a presigned URL has: the key's name and its session's token, in the one file that only its user reads.
    signed = disk[addresses].decode()
    assert f"X-Amz-Credential={cloud.key}" in signed
    assert "X-Amz-Security-Token=canary" in signed
    assert "4711" in signed
    for trace in (cloud.key, SESSION, "session%2Btoken", "X-Amz-Signature"):
        assert set(holding(disk, trace)) <= {addresses}
    assert holding(disk, "canary") == [addresses]

    # The throw-away host key: replaced, and of no use where it still lies.
    shown = disk["etc/ssh/ssh_host_ed25519_key.pub"].decode().split()[:2]
    assert shown != one.tags["gpuops:host-key"].split()[:2]

    assert there.run(["touch", "/tmp/go-on"]).returncode == 0
    out, err = run.communicate(timeout=HANG_S)
    assert run.returncode == 0, err
    (line,) = [line for line in out.splitlines() if "ENV {" in line]
    environment = json.loads(line[line.index("{") :])
    assert not [name for name in environment if name.startswith(("AWS_", "WANDB_", "RUNPOD_"))]
    assert [path.read_text() for path in laptop.folder.glob("runs/*/out/result")] == ["learnt"]
    assert set(cloud.objects("results")) >= {"lab/python3-1/node0.tar", "lab/python3-1/node0.json"}
    assert cloud.left() == []

    # Nor do they come home, into the bucket, or were they told to AWS but by signing.
    written = written_in(laptop.home, laptop.folder)
    for canary in (*cloud.secrets, *OTHERS, SESSION):
        assert not [path for path, data in written.items() if path.name != ".env" and canary.encode() in data]
        assert canary not in out + err
        assert not [name for name, data in cloud.objects("results").items() if canary.encode() in data]
    for request in cloud.requests:
        headers = {name: text for name, text in request.headers.items() if name not in SIGNING}
        told = f"{headers} {request.raw!r} {request.parameters}"
        assert not [canary for canary in (*cloud.secrets, *OTHERS, SESSION) if canary in told], request
        assert cloud.secret not in request.path


SIGNING = ("authorization", "x-amz-security-token")
"""Headers."""
