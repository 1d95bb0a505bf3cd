"""A bucket beside machines at AWS: `--profile` names the account of both, where nothing else names another."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.cli.tenant import Tenant

RUN = ("run", "--on", "aws", "--gpus", "4", "--yes", "--sink", "s3://results/lab")
VOID = "AKIANOBODYS000000000"


@pytest.fixture
def poor(tenant: Tenant, tmp_path: Path) -> Tenant:
    """No quota, so that nothing is rented; no key in the environment, and a default profile that is void."""
    tenant.fake.fresh_account()
    tenant.fake.bucket("results")
    keys = "aws_access_key_id = {}\naws_secret_access_key = {}\n"
    path = tmp_path / "credentials"
    path.write_text(f"[default]\n{keys.format(VOID, 'void')}[work]\n{keys.format(tenant.fake.key, tenant.fake.secret)}")
    tenant.patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        tenant.patch.delenv(name)
    return tenant


def test_the_profile_of_the_machines_is_the_buckets(poor: Tenant) -> None:
    said = poor.type(*RUN, "--profile", "work", "--", "true")
    assert said.code == 3
    assert "error: AWS lets this account use 0 vCPU" in said.err
    assert {one.key for one in poor.fake.requests if one.service == "s3"} == {poor.fake.key}
    assert poor.fake.objects("results") == {"lab/.gpuops": b""}
    poor.expect_nothing_left(said)


@pytest.mark.parametrize("named", [True, False])
def test_without_it_or_with_another_that_is_named_it_is_not(poor: Tenant, named: bool) -> None:
    if named:
        poor.patch.setenv("AWS_PROFILE", "default")
    said = poor.type(*RUN, *(("--profile", "work") if named else ()), "--", "true")
    assert said.code == 3
    assert "error: AWS does not accept these credentials (" in said.err
    assert poor.fake.objects("results") == {}
    poor.expect_nothing_left(said)
