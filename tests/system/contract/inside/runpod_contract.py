"""Not collected by itself: the process that runs it stands in the network in which the fake and its pods are."""

from __future__ import annotations

import pytest

from gpuops.core.models import Request
from gpuops.testing import ProvisionerContract
from provisioners.runpod import RunpodProvisioner

RunpodProvisioner.settle_s = 2.0  # this service knows at once what was made


class TestPod(ProvisionerContract):
    provider = "runpod"

    @pytest.fixture(scope="class")
    @classmethod
    def wanted(cls) -> Request:
        return Request("runpod")
