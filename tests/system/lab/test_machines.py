"""Instances of the fake AWS as machines: a system that boots, user data, power-offs, metadata, a security group."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioners.aws import boot_script
from provisioners.kit.keys import KeyPair
from tests.conftest import HANG_S, until
from tests.fakes.aws.machines import Machines, Order
from tests.fakes.aws.player import Unplayable
from tests.system.lab import disk
from tests.system.lab.available import why_no_machines
from tests.system.lab.first_process import in_namespace
from tests.system.lab.hosts import Lab

META = "http://169.254.169.254/latest/meta-data/"
ASK = """
import sys, urllib.error, urllib.request
def ask(path, method="GET", **headers):
    asked = urllib.request.Request("http://169.254.169.254/latest/" + path, method=method, headers=headers)
    try:
        return urllib.request.urlopen(asked, timeout=30).read().decode()
    except urllib.error.HTTPError as error:
        return str(error.code)
token = ask("api/token", "PUT", **{"X-aws-ec2-metadata-token-ttl-seconds": "60"})
print(ask(sys.argv[1], **({} if sys.argv[2:] else {"X-aws-ec2-metadata-token": token})))
"""
FAR = 100_000_000_000


@dataclass
class Instances:
    """What a test of instances needs: a host key that they all show, who has powered off, ways in."""

    lab: Lab
    machines: Machines
    host_key: str
    off: set[str] = field(default_factory=set)

    def config(self, end: int = FAR, **more: Any) -> str:
        """gpuops' own user data, with more of what a user of AWS could write."""
        host = KeyPair((self.lab.folder / "host_key").read_text(), self.host_key)
        own = boot_script.document(host=host, login=self.lab.login, user="ubuntu", end=end)
        return f"#cloud-config\n{yaml.safe_dump({**yaml.safe_load(own), **more})}"

    def login(self, id: str, line: str, user: str = "ubuntu", wait_s: int = 60) -> subprocess.CompletedProcess[str]:
        """Only past the host key that user data carried."""
        address = self.machines.address(id)
        known = self.lab.folder / f"known-{id}"
        known.write_text(f"{address} {' '.join(self.host_key.split()[:2])}\n")
        return subprocess.run(
            [*self.lab.enter, "ssh", "-F", "/dev/null", "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-o",
             f"UserKnownHostsFile={known}", "-o", "StrictHostKeyChecking=yes", "-o", "LogLevel=ERROR", "-o",
             f"ConnectTimeout={wait_s}", "-i", str(self.lab.identity), f"{user}@{address}", "--", line],
            capture_output=True, text=True, timeout=HANG_S,
        )  # fmt: skip

    def refuses(self, id: str) -> bool:
        return self.login(id, "true", wait_s=1).returncode == 255

    def open_door(self, id: str) -> None:
        until(
            lambda: self.login(id, "true", wait_s=5).returncode == 0,
            f"a login at {id}: {self.machines.console(id)}",
        )

    def metadata(self, id: str, path: str, *without_token: str) -> str:
        asked = self.machines.run(id, [sys.executable, "-I", "-c", ASK, path, *without_token])
        return asked.stdout.strip() or asked.stderr

    def systemctl(self, id: str, *words: str) -> str:
        return self.machines.run(id, ["systemctl", *words]).stdout.strip()

    def read(self, id: str, path: str) -> str:
        return self.machines.run(id, ["cat", path], check=True).stdout.strip()


@pytest.fixture
def instances(request: pytest.FixtureRequest) -> Iterator[Instances]:
    if reason := why_no_machines():
        pytest.skip(reason)
    lab = request.getfixturevalue("lab")
    with Machines(lab) as machines:
        one = Instances(lab, machines, disk.key_pair(lab.folder / "host_key"))
        machines.on_power_off = one.off.add
        yield one
    assert machines.problems == []


def test_an_instance_boots_as_its_user_data_says(instances: Instances) -> None:
    files = [{"path": "/etc/ours.conf", "content": "one\n", "permissions": "0600", "owner": "root:root"}]
    config = instances.config(write_files=files, runcmd=[["sh", "-c", "id -un >/var/lib/gpuops/ran"]])
    machines = instances.machines
    machines.start(Order("i-1", user_data=config.replace("bootcmd:\n", "bootcmd:\n- ssh-keygen -A\n"), nvme=True))
    instances.open_door("i-1")

    seen = instances.login(
        "i-1", "id -un; id -u; pwd; sudo -n id -un; ls /etc/ssh/ssh_host_*; stat -c %a /opt/dlami/nvme"
    )
    assert seen.stdout.split() == [
        "ubuntu", "1000", "/home/ubuntu", "root", "/etc/ssh/ssh_host_ed25519_key", "/etc/ssh/ssh_host_ed25519_key.pub",
        "1777",
    ]  # fmt: skip
    assert "not for root" in instances.login("i-1", "id", user="root").stdout
    until(lambda: "END SSH HOST KEY" in machines.console("i-1"), "the last stage")
    assert instances.read("i-1", "/var/lib/gpuops/ran") == "root"
    assert machines.run("i-1", ["stat", "-c", "%a %U", "/etc/ours.conf"]).stdout.split() == ["600", "root"]
    assert instances.host_key.split()[1] in machines.console("i-1")
    torch = instances.login("i-1", "/opt/pytorch/bin/python -c 'import sys; print(sys.prefix)'")
    assert torch.stdout.strip() == "/opt/pytorch", torch.stderr
    assert machines.processes("i-1")[0].startswith("/lib/systemd/systemd")
    until(lambda: instances.systemctl("i-1", "is-system-running") == "running", "its start is over")
    assert instances.login("i-1", "sudo -n systemctl is-active gpuops-end.timer").stdout.strip() == "active"


def test_it_powers_off_at_its_end_whatever_came_between(instances: Instances) -> None:
    """A reboot does not begin the count anew, and a stage that hangs, early or late, does not keep it from ending."""
    end = int(time.time()) + 1000
    machines = instances.machines
    for id, mishap in (("i-late", "hangs"), ("i-early", "hangs early")):
        machines.start(Order(id, user_data=instances.config(end), mishap=mishap))
    until(lambda: "waiting" in machines.console("i-early"), "the early stage hangs")
    assert instances.refuses("i-early")
    instances.open_door("i-late")
    until(lambda: "waiting" in machines.console("i-late"), "the late stage hangs")
    boot = instances.read("i-late", "/proc/sys/kernel/random/boot_id")

    machines.reboot("i-late")
    until(lambda: machines.machine("i-late").boots == 2, "a second boot")
    instances.open_door("i-late")  # with the same key, and the same user
    assert instances.read("i-late", "/proc/sys/kernel/random/boot_id") != boot
    assert instances.read("i-late", "/var/lib/gpuops/end") == str(end)
    assert not instances.off
    for id in ("i-late", "i-early"):
        machines.run(id, ["sh", "-c", "echo 1 >/var/lib/gpuops/end"], check=True)
    until(lambda: instances.off == {"i-late", "i-early"}, "both are off")
    assert not machines.up("i-late")
    assert "stage config" in machines.console("i-late")


def test_power_offs(instances: Instances) -> None:
    machines = instances.machines
    for id in ("i-asked", "i-forced", "i-stopped"):
        machines.start(Order(id, user_data=instances.config()))
        instances.open_door(id)
    assert instances.login("i-asked", "sudo -n systemctl poweroff").returncode in (0, 255)
    machines.run("i-forced", ["systemctl", "poweroff", "--force"])
    until(lambda: instances.off == {"i-asked", "i-forced"}, "both are off")
    machines.stop("i-stopped")
    machines.stop("i-stopped")
    assert not machines.up("i-stopped")
    assert instances.refuses("i-stopped")
    assert instances.off == {"i-asked", "i-forced"}  # nothing was said


def test_user_data_that_fails_leaves_no_way_in_and_an_end(instances: Instances) -> None:
    machines = instances.machines
    machines.start(Order("i-1", user_data=instances.config(), mishap="fails"))
    machines.start(Order("i-2", user_data=instances.config(), mishap="dead"))
    until(lambda: (machines.root("i-1") / "var/lib/gpuops/beat").exists(), "the timer runs")
    assert instances.refuses("i-1")
    until(lambda: instances.systemctl("i-1", "is-failed", "cloud-init") == "failed", "its user data has failed")
    assert not machines.up("i-2")
    assert machines.console("i-2") == ""
    machines.run("i-1", ["sh", "-c", "echo 1 >/var/lib/gpuops/end"], check=True)
    until(lambda: instances.off == {"i-1"}, "it is off")


def test_metadata(instances: Instances) -> None:
    machines = instances.machines
    config = instances.config()
    notice = {"action": "terminate", "time": "2026-11-20T08:22:00Z"}
    machines.start(Order("i-1", zone="us-east-1b", market="spot", launch_index=1, user_data=config))
    assert instances.metadata("i-1", "meta-data/instance-id") == "i-1"
    assert instances.metadata("i-1", "meta-data/instance-id", "without") == "401"
    assert instances.metadata("i-1", "meta-data/ami-launch-index") == "1"
    assert instances.metadata("i-1", "meta-data/instance-life-cycle") == "spot"
    assert instances.metadata("i-1", "meta-data/placement/availability-zone") == "us-east-1b"
    assert instances.metadata("i-1", "user-data") == config.strip()
    for path, kind in (("spot/instance-action", "instance-action"), ("events/recommendations/rebalance", "rebalance")):
        assert instances.metadata("i-1", f"meta-data/{path}") == "404"
        machines.notice("i-1", kind, notice)
        assert json.loads(instances.metadata("i-1", f"meta-data/{path}")) == notice
        machines.notice("i-1", kind, None)
        assert instances.metadata("i-1", f"meta-data/{path}") == "404"


def test_a_security_group(instances: Instances) -> None:
    """SSH from one network alone; members reach each other."""
    machines = instances.machines
    members = [machines.reserve("i-1"), machines.reserve("i-2")]
    laptop = instances.lab.laptop.address
    machines.firewall("i-1", [f"{laptop}/32"], members)
    for id in ("i-1", "i-2", "i-stranger"):
        machines.start(Order(id, user_data=instances.config()))
    instances.open_door("i-1")
    instances.open_door("i-stranger")
    knock = f"exec 3<>/dev/tcp/{members[0]}/22"
    assert machines.run("i-2", ["timeout", "60", "bash", "-c", knock]).returncode == 0
    assert machines.run("i-stranger", ["timeout", "1", "bash", "-c", knock]).returncode == 124
    machines.firewall("i-1", ["192.0.2.1/32"], members)  # the laptop has moved
    assert instances.refuses("i-1")
    machines.firewall("i-1", [f"{laptop}/32"], members)
    instances.open_door("i-1")


def test_what_is_not_known_is_said(instances: Instances) -> None:
    machines = instances.machines
    with pytest.raises(Unplayable, match="swap"):
        machines.start(Order("i-1", user_data=instances.config(swap={"size": 1})))
    assert machines.problems.pop() == "instance i-1: user data: swap: not among what is played here"
    machines.start(Order("i-2", user_data=instances.config(runcmd=["exit 3"])))
    until(lambda: machines.problems, "the failed command is told")
    assert machines.problems.pop() == "instance i-2: runcmd ended with 3"


KILLED = """
import sys, time
from pathlib import Path
from tests.fakes.aws.machines import Machines, Order
from tests.system.lab.hosts import Lab
lab = Lab(Path(sys.argv[1]))
machines = Machines(lab)
machines.start(Order("i-1"))
print(machines.machine("i-1").pid, lab.laptop.pid, machines.group, flush=True)
time.sleep(600)
"""


def test_nothing_is_left_of_a_killed_test_run(tmp_path: Path) -> None:
    if reason := why_no_machines():
        pytest.skip(reason)
    run = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path / "other")], stdout=subprocess.PIPE, text=True)
    assert run.stdout
    first, keeper, group = run.stdout.readline().split()
    inside = in_namespace("pid", int(first))
    assert len(inside) > 1
    folders = [Path(at) for at in _cgroups() if (Path(at) / group).exists()]
    assert folders
    run.send_signal(signal.SIGKILL)
    run.wait(HANG_S)
    run.stdout.close()
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in [*inside, int(keeper)]), "its processes ended")
    until(lambda: not any((folder / group).exists() for folder in folders), "its groups are gone")


def _cgroups() -> list[str]:
    """Where this process' own group of the second version is."""
    own = next(
        line[3:].strip() for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")
    )
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    return [at + own.rstrip("/") for _, at, kind, *_ in mounts if kind == "cgroup2"]


def test_instances_start_side_by_side(instances: Instances) -> None:
    """As many as one request asks for, at once, while one of them is ended before it is there."""
    ids = [f"i-{number}" for number in range(3)]
    threads = [
        threading.Thread(target=instances.machines.start, args=(Order(id, user_data=instances.config()),)) for id in ids
    ]
    for thread in threads:
        thread.start()
    instances.machines.stop("i-2")
    for thread in threads:
        thread.join()
    for id in ids[:2]:
        instances.open_door(id)
    assert not instances.machines.up("i-2")
