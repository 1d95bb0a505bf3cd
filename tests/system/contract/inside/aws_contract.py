"""Not collected by itself: the process that runs it stands in the network in which the fake and its instances are."""

from __future__ import annotations

import pytest

from gpuops.core.models import Request
from gpuops.testing import ProvisionerContract
from provisioners.aws import AwsProvisioner

AwsProvisioner.settle_s = 2.0  # this AWS knows at once what was made


class TestInstances(ProvisionerContract):
    provider = "aws"

    @pytest.fixture(scope="class")
    @classmethod
    def wanted(cls) -> Request:
        return Request("aws", nodes=2, gpus=1, gpu_type="t4", spot=True)
