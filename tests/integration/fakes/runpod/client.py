"""Somebody who asks the fake, one request at a time."""

from __future__ import annotations

import dataclasses
import http.client
import json
from typing import Any

from tests.conftest import HANG_S
from tests.fakes.runpod import FakeRunPod

RTX, H100 = "NVIDIA GeForce RTX 4090", "NVIDIA H100 80GB HBM3"
IMAGE = "runpod/pytorch:1.0.2-cu1281-torch280-ubuntu2404"


@dataclasses.dataclass
class Said:
    status: int
    body: Any
    headers: dict[str, str]

    @property
    def detail(self) -> str:
        return str(self.body["detail"])


class Client:
    """One request at a time, with one key."""

    def __init__(self, fake: FakeRunPod, key: str = "") -> None:
        self.fake = fake
        self.key = key or fake.account_key

    def __call__(self, method: str, path: str, body: Any = None, agent: str = "test/1", version: str = "/v2") -> Said:
        connection = http.client.HTTPConnection(self.fake.base_url.removeprefix("http://"), timeout=HANG_S)
        headers = {"User-Agent": agent, "Authorization": f"Bearer {self.key}"}
        try:
            connection.request(method, version + path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        kept = {name.lower(): value for name, value in answer.getheaders()}
        is_json = "json" in kept.get("content-type", "")
        return Said(answer.status, json.loads(text) if is_json else text.decode(), kept)

    def create(self, **more: Any) -> Said:
        return self("POST", "/pods", request(**more))

    def cluster(self, **more: Any) -> Said:
        compute = {"gpuTypeId": H100, "gpuCountPerPod": 1, "podCount": 2}
        body = {"name": "c", "type": "TRAINING", "compute": compute, "image": IMAGE, "ports": ["22/tcp"], **more}
        return self("POST", "/clusters", body)

    def pods(self, query: str = "") -> list[str]:
        return [one["name"] for one in self("GET", f"/pods{query}").body["pods"]]


def request(**more: Any) -> dict[str, Any]:
    gpu = {"id": RTX, "count": 1, "minCudaVersion": "12.8"}
    return {"name": "a", "image": IMAGE, "gpu": gpu, "ports": ["22/tcp"], "env": {"K": "v"}, **more}
