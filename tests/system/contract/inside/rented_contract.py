"""Not collected by itself: the process that runs it stands in the network in which the fake and its machines are."""

from __future__ import annotations

import dataclasses
import os

import pytest

from gpuops.core.models import Request
from gpuops.testing import ProvisionerContract
from provisioners.aws import AwsProvisioner
from provisioners.lambdacloud import LambdaProvisioner
from provisioners.lambdacloud.service import SERVICE
from provisioners.runpod import RunpodProvisioner
from provisioners.vast import VastProvisioner

for provisioner in (AwsProvisioner, LambdaProvisioner, RunpodProvisioner, VastProvisioner):
    provisioner.settle_s = 2.0  # these services know at once what was made
LambdaProvisioner.service = dataclasses.replace(SERVICE, requests_apart_s=0.03)  # a second of this Lambda is 20 ms
LambdaProvisioner.launches_apart_s = 0.3
TWO_SPOT = Request("aws", nodes=2, gpus=1, gpu_type="t4", spot=True)


class TestMachines(ProvisionerContract):
    provider = os.environ["CONTRACT_OF"]

    @pytest.fixture(scope="class")
    @classmethod
    def wanted(cls) -> Request:
        return TWO_SPOT if cls.provider == "aws" else Request(cls.provider)
