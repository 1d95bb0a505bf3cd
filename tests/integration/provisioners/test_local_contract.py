"""Local nodes keep the contract: every scenario, on this machine."""

from __future__ import annotations

from gpuops.testing import ProvisionerContract


class TestLocal(ProvisionerContract):
    provider = "local"
