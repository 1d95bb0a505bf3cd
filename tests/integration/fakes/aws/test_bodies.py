"""With machines of a lab behind the instances."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import HANG_S, until
from tests.fakes.aws import FakeAWS
from tests.system.lab.available import why_no_machines
from tests.system.lab.hosts import Lab

LAUNCH = """
import os, sys, urllib.request
import boto3
ec2 = boto3.client("ec2")
subnet = ec2.describe_subnets()["Subnets"][0]["SubnetId"]
group = ec2.create_security_group(GroupName="g", Description="d")["GroupId"]
own = urllib.request.urlopen(os.environ["GPUOPS_CHECKIP_URL"]).read().decode().strip() + "/32"
ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[
    {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": own}]},
])
ec2.run_instances(
    ImageId=sys.argv[1], UserData=sys.argv[2], InstanceType="g5.12xlarge", MinCount=2, MaxCount=2,
    InstanceInitiatedShutdownBehavior="terminate", InstanceMarketOptions={"MarketType": "spot"},
    NetworkInterfaces=[
        {"DeviceIndex": 0, "SubnetId": subnet, "Groups": [group], "AssociatePublicIpAddress": True},
    ],
)
print(group)
"""


@pytest.mark.skipif(bool(why_no_machines()), reason=str(why_no_machines()))
def test_instances_are_machines_behind_their_group_until_they_power_off_or_are_taken_back(tmp_path: Path):
    with Lab(tmp_path / "lab") as lab, FakeAWS(tmp_path / "aws", lab=lab) as fake:
        environment = {**os.environ, **fake.env}
        data = f"#cloud-config\nssh_authorized_keys: [{json.dumps(str(lab.login))}]\n"

        def typed(*words: str) -> subprocess.CompletedProcess[str]:
            command = [*lab.enter, *words]
            return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG_S)

        def ssh(address: str, command: str) -> str:
            options = "-oStrictHostKeyChecking=no -oUserKnownHostsFile=/dev/null -oBatchMode=yes -oConnectTimeout=2"
            return typed("ssh", *options.split(), "-i", str(lab.identity), f"ubuntu@{address}", command).stdout.strip()

        done = typed(sys.executable, "-c", LAUNCH, fake.image("pytorch-2.9"), data)
        assert done.returncode == 0, done.stderr
        group = done.stdout.strip()
        fake.ending_s = 0.1
        one, other = fake.instances()
        until(lambda: ssh(one.address, "id -un") == "ubuntu", "somebody can log in")
        assert one.address != one.private_address
        until(lambda: "SSH HOST KEY KEYS" in fake.world.bodies.console(one), "its keys are printed, after that")
        rule = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": f"{lab.laptop.address}/32"}]}
        shut = f"ec2.revoke_security_group_ingress(GroupId={group!r}, IpPermissions=[{rule}])"
        assert typed(sys.executable, "-c", f"import boto3; ec2 = boto3.client('ec2'); {shut}").returncode == 0
        assert ssh(one.address, "id -un") == ""
        fake.interrupt(one.id, in_s=1.0)
        fake.power_off(other.id)
        until(lambda: fake.instances() == [], "both are gone")
        assert one.reason[0] == "Server.SpotInstanceTermination"
        assert other.reason[0] == "Client.InstanceInitiatedShutdown"
        until(lambda: not any(fake.world.bodies.machines.up(it.id) for it in (one, other)), "the machines too")
