"""The program by which a container ends itself, with RunPod's ways, as a node's watchdog runs it."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import sys
from pathlib import Path

import pytest

from gpuops.core.models import Resource
from provisioners.runpod.boot_script import BOOT
from tests.certificate import certificate_in
from tests.integration.provisioners.runpod.canned import CUT, Asked, Canned, Says

KEY = "rpa_THISISTHEPODSOWNKEY"
POD = "/v2/pods/pod1"
TERMINATE, DELETE, OLDER, STOP = "terminate", f"DELETE {POD}", "POST /graphql", "stop"
CLUSTER = "DELETE /v2/clusters/c9"
WAYS = [TERMINATE, DELETE, OLDER, f"GET {POD}", STOP]
TOOLS = ("cat", "sed", "sh", "tr", "timeout")
BY = [
    pytest.param(tool, marks=pytest.mark.skipif(not shutil.which(tool), reason=f"there is no {tool} here"))
    for tool in ("curl", "python3")
]


@pytest.fixture(params=BY)
def tools(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A PATH with one program that can ask, and nobody waits."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in (*TOOLS, request.param):
        found = sys.executable if name == "python3" else shutil.which(name)
        (folder / name).symlink_to(os.path.realpath(str(found)))
    (folder / "sleep").write_text("#!/bin/sh\n")
    (folder / "sleep").chmod(0o755)
    return folder


def end(api: Canned, tools: Path, *more: str, **env: str) -> subprocess.CompletedProcess[str]:
    machine = Resource("machine", "pod1", "runpod", "gpuops-0a1b2c3d-lab-0", bills=True)
    return subprocess.run(
        [*BOOT.end_argv(api.url, machine), *more],
        env={"PATH": str(tools), "RUNPOD_API_KEY": KEY, "RUNPOD_POD_ID": "pod1", **env},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


def way(asked: Asked) -> str:
    return str((asked.body or {}).get("action") or f"{asked.method} {asked.path}")


@pytest.mark.parametrize("answer", [200, 204, 302, 401, 403, 404, 409, 429, 500, CUT])
def test_all_ways_are_tried_whatever_is_answered(tools: Path, answer: int) -> None:
    """Who still asks is still there; so it ends with an error, and is run again."""
    with Canned(lambda _: Says(answer)) as api:
        done = end(api, tools)
    assert done.returncode == 1
    assert [way(one) for one in api.asked] == WAYS


def test_the_words_of_each_way(tools: Path) -> None:
    with Canned(lambda _: Says(404)) as api:
        done = end(api, tools)
    assert [(one.method, one.path, one.body) for one in api.asked] == [
        ("POST", f"{POD}/action", {"action": "terminate"}),
        ("DELETE", POD, None),
        ("POST", "/graphql", {"query": 'mutation { podTerminate(input: {podId: "pod1"}) }'}),
        ("GET", POD, None),
        ("POST", f"{POD}/action", {"action": "stop"}),
    ]
    assert {one.headers["Authorization"] for one in api.asked} == {f"Bearer {KEY}"}
    assert {one.headers["User-Agent"] for one in api.asked} == {"gpuops"}
    assert {one.headers["Content-Type"] for one in api.asked} == {"application/json"}
    assert KEY not in done.stdout + done.stderr


@pytest.mark.parametrize("told", [True, False])
def test_a_member_asks_for_the_end_of_its_cluster_before_it_stops(tools: Path, told: bool) -> None:
    """As it was told when it became a node, else as RunPod says of it."""
    pod = {
        "id": "pod1",
        "gpu": {"id": "x"},
        "cluster": {"rank": 0, "id": "c9", "ip": "10.0.0.1"},
        "volume": {"id": "y"},
    }
    with Canned(lambda asked: Says(200, pod) if asked.method == "GET" else Says(409)) as api:
        end(api, tools, *(["c9"] if told else []))
    looked = [] if told else [f"GET {POD}"]
    assert [way(one) for one in api.asked] == [TERMINATE, DELETE, OLDER, *looked, CLUSTER, STOP]


def test_a_pod_of_no_cluster_ends_none(tools: Path) -> None:
    pod = {"id": "pod1", "cluster": None, "volume": {"id": "y"}}
    with Canned(lambda asked: Says(200, pod) if asked.method == "GET" else Says(409)) as api:
        end(api, tools)
    assert [way(one) for one in api.asked] == WAYS


def test_no_redirect_gets_the_key(tools: Path) -> None:
    with Canned() as elsewhere, Canned(lambda _: Says(302, None, {"Location": f"{elsewhere.url}/x"})) as api:
        end(api, tools)
    assert [way(one) for one in api.asked] == WAYS
    assert not elsewhere.asked


def test_what_hangs_or_drips_keeps_no_other_way_from_being_tried(tools: Path) -> None:
    def tell(asked: Asked) -> Says:
        return Says(200, {"title": "no end in sight"}, drip_s=30.0) if way(asked) == TERMINATE else Says(CUT)

    with Canned(tell) as api:
        end(api, tools)
    assert {way(one) for one in api.asked} >= set(WAYS)


def test_without_a_key_it_says_so(tools: Path) -> None:
    with Canned() as api:
        done = end(api, tools, RUNPOD_API_KEY="")
    assert done.returncode == 1
    assert "there is no RUNPOD_API_KEY" in done.stderr
    assert not api.asked


def test_who_is_not_trusted_is_sent_no_key(tools: Path, tmp_path: Path) -> None:
    certificate = certificate_in(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)
    with Canned(tls=tls) as api:
        end(api, tools)
        assert not api.asked
        end(api, tools, CURL_CA_BUNDLE=str(certificate), SSL_CERT_FILE=str(certificate))
    assert [way(one) for one in api.asked] == WAYS
