"""The vendor's description of the API as a judge."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.runpod import FakeRunPod, Request, spec
from tests.fakes.runpod.requests import Answer


def test_a_fake_that_drifts_fails(tmp_path: Path) -> None:
    """Where the vendor's description of the API is at hand; it is not ours to bring along."""
    fake = FakeRunPod(tmp_path, frozen=True)
    judge = spec.found()
    if judge is None:
        fake.judge(Request("GET", "/pods/x", {}, {}, None), Answer(200, {"id": "x"}))
        return fake.close()
    asked = Request("GET", "/pods/x", {}, {}, None)
    wrong = judge.mismatches(asked, Answer(200, {"id": "x"}))
    assert any("'status' is a required property" in one for one in wrong)
    taken = judge.mismatches(Request("POST", "/network-volumes", {}, {}, {"name": "v"}), Answer(201, {}))
    assert any("took a body that is wrong" in one for one in taken)
    fake.judge(asked, Answer(200, {"id": "x"}))
    with pytest.raises(AssertionError, match="not as the service"):
        fake.close()
    return None
