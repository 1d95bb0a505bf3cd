"""What authors of provisioners override in the contract as tests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from gpuops.commands.prove.sandbox import Sandbox
from gpuops.core.models import Request
from gpuops.testing import ProvisionerContract
from tests.fakes.provider import NAME, install


class TestWithAFake(ProvisionerContract):
    """Its address is known once it runs, so that no attribute of a class could hold it."""

    provider = NAME
    test_contract: Any = None  # nothing is made here

    @pytest.fixture(scope="class")
    @classmethod
    def env(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
        cloud = install(tmp_path_factory.mktemp("cloud"))
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(cloud.site))
            yield {"SCRIPTED": str(cloud.folder)}

    def test_its_environment_is_what_the_provisioner_finds(
        self, bench: Sandbox, wanted: Request, env: Mapping[str, str]
    ) -> None:
        assert wanted == Request(NAME, nodes=2)
        raw: Any = bench.raw
        assert str(raw.folder) == env["SCRIPTED"]
