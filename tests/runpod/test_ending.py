"""The program by which a pod ends itself, as its watchdog runs it."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from provisioners.runpod.ending import SOURCE
from tests.certificate import certificate_in
from tests.runpod.canned import CUT, Asked, Canned, Says, problem

KEY = "rpa_THISISTHEPODSOWNKEY"


def end(api: Canned, *more: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-c", SOURCE, api.url, *more],
        env={"PATH": os.environ["PATH"], "RUNPOD_API_KEY": KEY, "RUNPOD_POD_ID": "pod1", **env},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


def in_a_cluster(told: bool) -> Canned:
    def tell(asked: Asked) -> Says:
        if asked.method == "GET":
            return (
                Says(200, {"id": "pod1", "cluster": {"id": "c9", "rank": 0}}) if told else problem(403, "access denied")
            )
        return problem(409, "it belongs to a cluster") if "/pods/" in asked.path else Says(204)

    return Canned(tell)


@pytest.mark.parametrize(("status", "code"), [(204, 0), (404, 0), (401, 1), (403, 1), (500, 1), (CUT, 1)])
def test_only_what_is_gone_is_success(status: int, code: int) -> None:
    with Canned(lambda _: Says(status, {} if status > 0 and status != 204 else None)) as api:
        done = end(api)
    assert done.returncode == code, done.stderr
    assert api.said[0] == "DELETE /v2/pods/pod1"
    assert api.asked[0].headers["Authorization"] == f"Bearer {KEY}"
    assert api.asked[0].headers["User-Agent"] == "gpuops"
    assert KEY not in done.stdout + done.stderr


def test_a_member_ends_its_cluster_that_it_was_told_of() -> None:
    with in_a_cluster(told=False) as api:
        assert end(api, "c9").returncode == 0
    assert api.said[-1] == "DELETE /v2/clusters/c9"


def test_a_member_ends_its_cluster_that_it_asks_for() -> None:
    with in_a_cluster(told=True) as api:
        assert end(api).returncode == 0
    assert api.said == ["DELETE /v2/pods/pod1", "GET /v2/pods/pod1", "DELETE /v2/clusters/c9"]


def test_a_member_that_cannot_find_its_cluster_fails() -> None:
    with in_a_cluster(told=False) as api:
        assert end(api).returncode == 1


def test_a_member_that_may_not_end_its_cluster_goes_or_stops_by_itself() -> None:
    def tell(asked: Asked) -> Says:
        if asked.body == {"action": "stop"}:
            return Says(200, {"id": "pod1"})
        return problem(409, "in a cluster") if "/pods/" in asked.path else problem(403, "access denied")

    with Canned(tell) as api:
        done = end(api, "c9")
    assert done.returncode == 0, done.stderr
    assert api.said == [
        "DELETE /v2/pods/pod1", "DELETE /v2/clusters/c9", "POST /v2/pods/pod1/action", "POST /v2/pods/pod1/action",
    ]  # fmt: skip


def test_without_a_key_it_says_so() -> None:
    with Canned() as api:
        done = end(api, RUNPOD_API_KEY="")
    assert done.returncode == 1
    assert "there is no RUNPOD_API_KEY" in done.stderr
    assert not api.asked


@pytest.mark.skipif(not shutil.which("curl"), reason="there is no curl here")
def test_where_python_trusts_nobody_curl_does(tmp_path: Path) -> None:
    certificate = certificate_in(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    with Canned(tls=tls) as api:
        refused = end(api)
        assert refused.returncode == 1
        assert "CERTIFICATE_VERIFY_FAILED" in refused.stderr
        assert not api.asked, "nobody who is not trusted is sent a key"
        done = end(api, CURL_CA_BUNDLE=str(certificate))
    assert done.returncode == 0, done.stderr
    assert api.said == ["DELETE /v2/pods/pod1"]
    assert api.asked[0].headers["Authorization"] == f"Bearer {KEY}"
