"""The provisioner against moto within this process, without HTTP: the same fake, asked by way of botocore alone.

The contract's scenarios run so as well (tests/integration/provisioners/test_rented_contract.py, on demand).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpuops.core.errors import NoCapacity, QuotaExceeded
from tests.fakes.aws import FakeAWS
from tests.fakes.aws.inside import inside
from tests.fakes.aws.known import G_SPOT
from tests.fakes.aws.server import Handler
from tests.integration.provisioners.aws.conftest import OWNER, Tenant


@pytest.fixture(autouse=True)
def no_http(fake: FakeAWS, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The server would err, and the fake say so at its end."""
    monkeypatch.delattr(Handler, "hear")
    with inside(fake):
        yield


def test_a_cluster_from_offers_to_its_end(tenant: Tenant, fake: FakeAWS) -> None:
    first = tenant.provider.offers(tenant.request)[0]
    made = tenant.make(offer=first)
    assert [one.kind for one in made] == ["group", "machine", "machine"]
    assert {one.id for one in tenant.listed("us-east-1")} == {one.id for one in made}
    assert [one.status for one in fake.asked("RunInstances")] == [200]
    tenant.end()
    assert list(tenant.provider.list_owned(OWNER, ["us-east-1"])) == []
    assert fake.left() == []


def test_quotas_and_capacity(tenant: Tenant, fake: FakeAWS) -> None:
    offer = tenant.offer()
    fake.capacity["us-east-1b", "g5.12xlarge"] = 1
    with pytest.raises(NoCapacity, match="none free"):
        tenant.make(offer=offer)
    assert [(one.status, one.error) for one in fake.asked("RunInstances")] == [(500, "InsufficientInstanceCapacity")]
    fake.quota["us-east-1", G_SPOT] = 64.0
    with pytest.raises(QuotaExceeded, match="2 x 48 vCPU is 96"):
        tenant.provider.offers(tenant.request)
    report = tenant.provider.quota(tenant.request)
    (asked,) = (one for one in report.quotas if one.asked)
    assert (asked.limit, asked.need, asked.missing) == (64.0, 96.0, 32.0)
    filed = tenant.provider.request_quota(asked, 96.0)
    fake.decide(filed.id, "APPROVED")
    assert tenant.provider.requested_quota(asked, filed.id).granted
    tenant.end()
