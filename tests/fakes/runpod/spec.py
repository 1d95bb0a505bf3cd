"""RunPod's description of its API, as the judge over the fake."""

from __future__ import annotations

from functools import cache

from tests.fakes.openapi import Spec, description
from tests.fakes.runpod.problems import NOT_VALID
from tests.fakes.runpod.requests import Answer


def _refused(answer: Answer) -> bool:
    return answer.status == 422 and (answer.body or {}).get("detail") == NOT_VALID


@cache
def found() -> Spec | None:
    """The description, read once; None where there is none."""
    document = description("runpod-openapi-v2.json")
    return Spec(document, "/v2", _refused) if document else None
