"""Not collected by itself: the process that runs it stands in the network in which the fake and its containers are."""

from __future__ import annotations

import os

import pytest

from gpuops.core.models import Request
from gpuops.testing import ProvisionerContract
from provisioners.runpod import RunpodProvisioner
from provisioners.vast import VastProvisioner

for provisioner in (RunpodProvisioner, VastProvisioner):
    provisioner.settle_s = 2.0  # these services know at once what was made


class TestContainer(ProvisionerContract):
    provider = os.environ["CONTRACT_OF"]

    @pytest.fixture(scope="class")
    @classmethod
    def wanted(cls) -> Request:
        return Request(cls.provider)
