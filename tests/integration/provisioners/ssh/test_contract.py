"""Hosts of one's own keep the contract: every scenario, on a real sshd that plays two nodes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpuops.core.models import Request
from gpuops.testing import ProvisionerContract
from tests.sshd import can_serve, serving


class TestSsh(ProvisionerContract):
    provider = "ssh"

    @pytest.fixture(scope="class")
    @classmethod
    def wanted(cls) -> Iterator[Request]:
        if why := can_serve():
            pytest.skip(why)
        with serving() as server:
            typed = f"{server.user}@127.0.0.1:{server.port}"
            options = {"host": [typed], "identity": str(server.identity), "accept-new": True}
            yield Request(cls.provider, nodes=2, options=options)
