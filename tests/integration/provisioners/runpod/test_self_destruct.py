"""The program by which a pod ends itself, as its watchdog runs it."""

from __future__ import annotations

import io
import itertools
import json
import os
import shutil
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from email.message import Message
from pathlib import Path

import pytest

from provisioners.runpod.self_destruct import SOURCE
from tests.certificate import certificate_in
from tests.integration.provisioners.runpod.canned import CUT, Asked, Canned, Says

KEY = "rpa_THISISTHEPODSOWNKEY"
POD = "/v2/pods/pod1"
TERMINATE, DELETE, OLDER, STOP = "terminate", f"DELETE {POD}", "POST /graphql", "stop"
WAYS = (TERMINATE, DELETE, OLDER, STOP)
WORKS, NOTHING = 1, 0
"""Answers: the pod ends by it; there is none, as after a timeout. Others are statuses that come and nothing is done."""
PROGRAM = compile(SOURCE, "ending", "exec")


def end(api: Canned, *more: str, source: str = SOURCE, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-c", source, api.url, *more],
        env={"PATH": os.environ["PATH"], "RUNPOD_API_KEY": KEY, "RUNPOD_POD_ID": "pod1", **env},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


def way(asked: Asked) -> str:
    return str((asked.body or {}).get("action") or f"{asked.method} {asked.path}")


class Reply(io.BytesIO):
    """What urllib gives for a 2xx."""

    status = 200


class World:
    """One round of the program in this process: what was asked for, and whether the pod lives."""

    def __init__(self, answers: dict[str, int], monkeypatch: pytest.MonkeyPatch, cluster: str = "") -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.lives = True
        monkeypatch.setattr(urllib.request.OpenerDirector, "open", lambda _, request, **__: self.open(request))
        monkeypatch.setattr(time, "sleep", lambda _: None)
        monkeypatch.setattr(shutil, "which", lambda _: None)
        monkeypatch.setattr(sys, "argv", ["ending", "https://api.test/v2", *([cluster] if cluster else [])])
        monkeypatch.setattr(sys, "stderr", io.StringIO())
        monkeypatch.setenv("RUNPOD_API_KEY", KEY)
        monkeypatch.setenv("RUNPOD_POD_ID", "pod1")
        with pytest.raises(SystemExit) as left:
            exec(PROGRAM, {})
        self.code = left.value.code

    def open(self, request: urllib.request.Request) -> Reply:
        body = json.loads(request.data) if isinstance(request.data, bytes) else None
        one = way(Asked(request.get_method(), request.selector, dict(request.header_items()), body))
        assert request.get_header("Authorization") == f"Bearer {KEY}"
        self.asked.append(one)
        status = self.answers.get(one, 404)
        if status == WORKS:
            self.lives = False
        elif status == NOTHING:
            raise TimeoutError("timed out")
        elif status >= 300:
            raise urllib.error.HTTPError(request.full_url, status, "", Message(), io.BytesIO(b"{}"))
        return Reply(b"{}")


@pytest.mark.parametrize("first", [WORKS, NOTHING, 200, 204, 302, 401, 403, 404, 409, 429, 500])
def test_it_ends_in_the_first_round_in_which_any_way_works(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for others in itertools.product([WORKS, NOTHING, 204, 404], repeat=3):
        for at in range(len(WAYS)):  # each of the answers at each of the ways
            answers = dict(zip(WAYS, (*others[:at], first, *others[at:]), strict=True))
            world = World(answers, monkeypatch)
            assert world.lives == (WORKS not in answers.values()), answers
            assert world.code == 1, "who still asks is still there"
            assert [one for one in world.asked if one in WAYS] == list(WAYS), answers


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("answer", [WORKS, NOTHING, 204, 403, 404])
def test_a_member_asks_for_the_end_of_its_cluster_before_it_stops(
    answer: int, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not told:
        monkeypatch.setattr(Reply, "read", lambda _: b'{"id": "pod1", "cluster": {"id": "c9", "rank": 0}}')
    answers = {**dict.fromkeys(WAYS, 409), f"GET {POD}": 200, "DELETE /v2/clusters/c9": answer}
    world = World(answers, monkeypatch, cluster="c9" if told else "")
    assert world.lives == (answer != WORKS)
    looked = [] if told else [f"GET {POD}"]
    assert world.asked == [TERMINATE, DELETE, OLDER, *looked, "DELETE /v2/clusters/c9", STOP]


def test_the_words_of_each_way() -> None:
    with Canned(lambda _: Says(404)) as api:
        done = end(api)
    assert done.returncode == 1
    assert [(one.method, one.path, one.body) for one in api.asked] == [
        ("POST", f"{POD}/action", {"action": "terminate"}),
        ("DELETE", POD, None),
        ("POST", "/graphql", {"query": 'mutation { podTerminate(input: {podId: "pod1"}) }'}),
        ("GET", POD, None),
        ("POST", f"{POD}/action", {"action": "stop"}),
    ]
    assert {one.headers["Authorization"] for one in api.asked} == {f"Bearer {KEY}"}
    assert {one.headers["User-Agent"] for one in api.asked} == {"gpuops"}
    assert KEY not in done.stdout + done.stderr


def test_no_redirect_gets_the_key() -> None:
    with Canned() as elsewhere, Canned(lambda _: Says(302, None, {"Location": f"{elsewhere.url}/x"})) as api:
        end(api)
    assert {way(one) for one in api.asked} >= set(WAYS)
    assert not elsewhere.asked


def test_what_hangs_or_drips_keeps_no_other_way_from_being_tried() -> None:
    def tell(asked: Asked) -> Says:
        hangs = way(asked) in (TERMINATE, DELETE)
        return Says(200, {"title": "no end in sight"}, drip_s=30.0) if hangs else Says(CUT)

    with Canned(tell) as api:
        end(api, source=SOURCE.replace("WAY_S = 15", "WAY_S = 1"))
    assert {way(one) for one in api.asked} >= set(WAYS)


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
        assert "CERTIFICATE_VERIFY_FAILED" in refused.stderr
        assert not api.asked, "nobody who is not trusted is sent a key"
        end(api, CURL_CA_BUNDLE=str(certificate))
    assert {way(one) for one in api.asked} >= set(WAYS)
    assert api.asked[0].headers["Authorization"] == f"Bearer {KEY}"
