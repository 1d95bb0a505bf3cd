"""Who asked: killed, unanswered or dropped; what is kept of it; a command with the fake."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from tests.conftest import HANG_S, TESTS, until
from tests.fakes.runpod import FakeRunPod, Request
from tests.integration.fakes.runpod.client import Client, request

ASKING = """
    import http.client, sys
    connection = http.client.HTTPConnection(sys.argv[1])
    connection.request("POST", "/v2/pods", sys.stdin.read(), {"Authorization": "Bearer " + sys.argv[2]})
    print(connection.getresponse().status)
"""


@pytest.mark.parametrize("moment", ["before", "after", "sent"])
def test_the_very_process_that_asked_can_be_killed(fake: FakeRunPod, moment: str) -> None:
    seen: list[int] = []

    def kill(request: Request, when: str) -> None:
        if when == moment:
            seen.append(len(fake.service.course.pods))
            with contextlib.suppress(ProcessLookupError):  # it may have its answer, and have ended
                os.kill(request.client_pid, signal.SIGKILL)

    fake.on_answer(kill)
    argv = [sys.executable, "-c", textwrap.dedent(ASKING), fake.base_url.removeprefix("http://"), fake.account_key]
    done = subprocess.run(argv, input=json.dumps(request()), text=True, capture_output=True, timeout=HANG_S)
    assert done.returncode == -signal.SIGKILL or moment == "sent"  # there its answer may have been quicker
    until(lambda: seen and fake.running(), "the service does not care")
    assert seen == [0 if moment == "before" else 1]


def test_an_answer_can_be_lost_or_a_request_dropped(fake: FakeRunPod, call: Client) -> None:
    lose = [True]

    def interfere(request: Request, moment: str) -> None:
        if moment == "before":
            request.lose() if lose else request.drop()

    fake.on_answer(interfere)
    for _ in range(2):
        with pytest.raises(http.client.RemoteDisconnected):
            call.create()
        assert len(fake.running()) == 1
        lose.clear()


def test_requests_are_kept(fake: FakeRunPod, call: Client) -> None:
    call.create()
    call("GET", "/pods?includeClusterPods=true")
    first, second = fake.requests
    assert (str(first), first.body["name"], first.answer["name"]) == ("POST /pods 201", "a", "a")
    assert second.query == {"includeClusterPods": "true"}
    assert fake.asked("POST", "/pods") == [first]
    assert fake.env["RUNPOD_API_URL"] == fake.url


def test_a_command_with_the_fake_for_its_service() -> None:
    asking = "exec(__import__('sys').argv[1])"
    body = textwrap.dedent("""
        import http.client, json, os
        place = os.environ["RUNPOD_API_URL"].split("/")[2]
        connection = http.client.HTTPConnection(place)
        made = {"name": "left", "image": "x", "gpu": {"id": "NVIDIA L4", "count": 1, "minCudaVersion": "12.8"}}
        headers = {"Authorization": "Bearer " + os.environ["RUNPOD_API_KEY"]}
        connection.request("POST", "/v2/pods", json.dumps(made), headers)
        print(connection.getresponse().status)
    """)
    argv = [sys.executable, "-m", "tests.fakes.runpod", sys.executable, "-c", asking, body]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=HANG_S, cwd=TESTS.parent)
    assert done.stdout == "201\n", done.stderr
    assert "still rented: left" in done.stderr
