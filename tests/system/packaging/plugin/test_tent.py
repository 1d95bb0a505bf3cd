"""The tent keeps the contract."""

from gpuops.testing import ProvisionerContract


class TestTent(ProvisionerContract):
    provider = "tent"
