"""RunPod as its user meets it: every way in which it says no, errs or lies, in the words that are read, against a
server that plays it. What is left running at the end is what a sentence has named.

Nothing is behind the pods here: none becomes a node, and what is asked for is undone (tests/system/lab has the rest).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest

from gpuops.clusters import readiness
from tests.fakes.runpod import Fault, Life, Request
from tests.fakes.runpod.faults import (
    BANNED,
    CRASH_LOOP,
    CUDA_MISMATCH,
    LAYER_ERROR,
    NOT_MADE,
    PULL_ERROR,
    broke,
    capacity,
    denied,
    half_cluster,
    leaving_members,
    lost_create,
    too_many,
)
from tests.integration.cli.renter import (
    CONSOLE,
    CREDIT,
    ENOUGH,
    MAKE_ONE,
    NO_KEY,
    POOR,
    SHORT,
    TWO,
    UP,
    Renter,
    config,
    end_all,
    expect,
)
from tests.sshd import can_serve, serving

pytestmark = pytest.mark.usefixtures("no_guard_stays")

IMAGE = "runpod/pytorch:1.0.2-cu1281-torch280-ubuntu2404"
TOGETHER = "runpod/pytorch:1.0.7-cu1281-torch280-ubuntu2404-cluster"
LONG = (*UP[:-1], "0.5")
"""For what is known to be in vain long before the time is up."""
ANY = ("up", "runpod", "--yes", "--name", "lab", "--gpu-mem", "80", "--timeout", "0.015")
"""The cheapest is $1.65/h; five cost no more than half as much again."""

SEE_KEY = f"see what this key may do: {CONSOLE}"
NOT_V2 = "unset RUNPOD_API_URL, or set it to https://api.runpod.io/v2"
NONE_FREE = "RunPod has none free: There are no longer any instances available with the requested specifications"
LATER = "try again later, let it be tried for you (--wait 2h), or allow more kinds of machine"
KEYS_MAY = "see what this key may do: https://console.runpod.io/user/settings"
OTHERWISE = "change what is asked for: RunPod would say no again"
OTHER_NETWORK = "try another network, and tell the makers of gpuops"
CONSOLES = "try again, or look at the provider's console"
LONGER = "raise --timeout if it only needs longer"
READ_ONLY = (
    "this account or its key may not create a pod with 1 x RTX 4090: access denied (a key that is Read Only looks, "
)
READ_ONLY += "and rents nothing)"
CUT_OFF = f"create container {IMAGE} / {IMAGE} Pulling from registry"
LOG = f"its own log ends with: {CUT_OFF} / start container for {IMAGE}: begin"
REFUSES = "root@127.0.0.1:{port} refuses connections on this port"


# ---- one sentence, one thing to do


@dataclass(frozen=True)
class Row:
    what: str
    say: str
    hint: str
    code: int = 3
    words: tuple[str, ...] = UP
    world: Callable[[Renter], object] = lambda _: None
    creates: int = 0
    """How often a pod was asked for."""


def answer(at: str, status: int, raw: str | None = None, **more: Any) -> Callable[[Renter], object]:
    """What it always answers there."""
    kind = "text/html" if raw and raw.startswith("<") else "application/json"
    return lambda renter: renter.play(Fault(at, status=status, raw=raw, content_type=kind, times=None, **more))


def played(*faults: Fault) -> Callable[[Renter], object]:
    return lambda renter: renter.play(*faults)


def invalid(*errors: str) -> Callable[[Renter], object]:
    document = {"title": "Unprocessable Entity", "status": 422, "detail": "Request validation failed."}
    return answer("POST /pods", 422, json.dumps({**document, "errors": errors}))


def named(**attributes: Any) -> Callable[[Renter], object]:
    return lambda renter: [setattr(renter.fake, name, value) for name, value in attributes.items()]


def both(*steps: Callable[[Renter], object]) -> Callable[[Renter], object]:
    return lambda renter: [step(renter) for step in steps]


KEYS_AND_ADDRESSES = [
    Row("no key", NO_KEY, MAKE_ONE, world=Renter.no_key),
    Row("an empty key in .env", NO_KEY, MAKE_ONE,
        world=both(Renter.no_key, lambda renter: renter.desk.write(".env", "RUNPOD_API_KEY=\n"))),
    Row("a wrong key", "RunPod does not accept the API key: invalid bearer token", f"look at your keys: {CONSOLE}",
        world=lambda renter: renter.key("rpa_NOBODYS")),
    Row("a key with a space", "the RunPod API key is no key: it has characters that none has", MAKE_ONE,
        world=lambda renter: renter.key("rpa_SOME BODYS")),
    Row("a key with quotes that a shell would have taken",
        "RunPod does not accept the API key: invalid bearer token", f"look at your keys: {CONSOLE}",
        world=lambda renter: renter.key(f"'{renter.fake.account_key}'")),
    Row("a config.toml without a key", NO_KEY, MAKE_ONE, world=config('apiurl = "x"\n[default]\n')),
    Row("a config.toml that is none", "{folder}/../.runpod/config.toml cannot be read, and RUNPOD_API_KEY is not set",
        MAKE_ONE, world=config("apiKey = rpa_\n")),
    Row("a key that only looks", READ_ONLY, KEYS_MAY, creates=1,
        world=lambda renter: renter.key(renter.fake.read_only_key)),
    Row("a key that may not even look", "the RunPod API key may not list pods: access denied", SEE_KEY,
        world=played(denied("GET /pods"))),
    Row("an address in .env", "RUNPOD_API_URL has no effect in .env",
        "remove it there, and export RUNPOD_API_URL in your shell instead", 2,
        world=lambda renter: renter.desk.write(".env", f"RUNPOD_API_URL={renter.fake.url}\n")),
    Row("another address in .env", "RUNPOD_API_BASE_URL has no effect in .env",
        "remove it there, and export RUNPOD_API_BASE_URL in your shell instead", 2,
        world=lambda renter: renter.desk.write(".env", f"RUNPOD_API_BASE_URL={renter.fake.url}\n")),
    Row("a key in clear", "RUNPOD_API_URL is http://api.runpod.io/v2: an API key would travel unencrypted",
        "write it with https://", 2, world=lambda renter: renter.url("http://api.runpod.io/v2")),
    Row("a key in clear, by number", "RUNPOD_API_URL is http://8.8.8.8/v2: an API key would travel unencrypted",
        "write it with https://", 2, world=lambda renter: renter.url("http://8.8.8.8/v2")),
    Row("the address of v1", "RUNPOD_API_URL is https://rest.runpod.io/v1, which is not RunPod's REST API v2",
        "unset it, or end it in /v2: https://api.runpod.io/v2", 2,
        world=lambda renter: renter.url("https://rest.runpod.io/v1")),
    Row("no address", "RUNPOD_API_URL is 'runpod', which is no address of an API",
        "unset it, or write it like https://api.runpod.io/v2", 2, world=lambda renter: renter.url("runpod")),
    Row("nobody there", "RunPod was asked to list pods: it cannot be reached", "check the network, and try again",
        world=lambda renter: renter.url(f"http://127.0.0.1:{renter.port}/v2")),
    Row("v1 answers with a list", "what answers is RunPod's older REST API v1, not v2", NOT_V2,
        world=answer("GET /pods", 200, "[]")),
    Row("v1 answers with an error", "what answers is RunPod's older REST API v1, not v2: pods: oh", NOT_V2,
        world=answer("GET /pods", 500, '{"error": "pods: oh", "status": 500}')),
    Row("v1 answers 401", "what answers is RunPod's older REST API v1, not v2", NOT_V2,
        world=answer("GET /pods", 401, '{"error": {}}')),
    Row("GraphQL answers", "what answers is RunPod's GraphQL API, not its REST API v2", NOT_V2,
        world=answer("GET /pods", 200, '{"errors": [{"message": "no"}]}')),
    Row("a page answers", "RunPod was asked to list pods: what it answered cannot be read",
        "check the network, and try again",
        world=answer("GET /pods", 200, "<html>welcome</html>")),
    Row("it has moved", "RunPod's address answers with a redirect, to list pods",
        "unset RUNPOD_API_URL, or set it to https://api.runpod.io/v2",
        world=answer("GET /pods", 302)),
    Row("it is switched off", "RunPod has switched off the API that this gpuops speaks", "upgrade gpuops",
        world=answer("GET /pods", 410)),
    Row("a path that it does not know any more", "RunPod refuses to list GPUs: resource not found",
        "upgrade gpuops: RunPod's API has changed",
        world=played(Fault("GET /catalog/gpus", status=404, detail="resource not found", times=None))),
]  # fmt: skip

WISHES = [
    Row("several GPUs of one name", "'ada' is more than one GPU at RunPod: RTX 2000 Ada, RTX 4000 Ada, RTX 6000 Ada",
        "name one of them exactly", 2, (*ANY, "--gpu", "ada")),
    Row("a misspelt GPU", "RunPod has no GPU called 'rtx 490'", "did you mean RTX 4090?", 2,
        (*UP, "--gpu-type", "rtx 490")),
    Row("an unknown GPU", "RunPod has no GPU called 'tpu-v5'",
        "RunPod has A100 PCIe, A100 SXM, A30, A40, B200, B300, H100 NVL, H100 PCIe, H100 SXM, H200 SXM, L4, L40 and "
        "others", 2, (*UP, "--gpu-type", "tpu-v5")),
    Row("a GPU of another maker", f"MI300X is AMD's, and the image {IMAGE} is for NVIDIA's",
        "name an image with ROCm: --image", 2, (*UP, "--gpu-type", "mi300x")),
    Row("more memory than there is", "no GPU there has 500 GB of memory: the most is 288 GB",
        "ask for less with --gpu-mem, or for another --cloud", 2, (*ANY, "--gpu-mem", "500")),
    Row("more memory than it has", "4090 has not 80 GB of memory: the most is 24 GB",
        "ask for less with --gpu-mem, or for another --cloud", 2, (*UP, "--gpu-mem", "80")),
    Row("too low a price", "runpod offers nothing at $0.10/h or less: the cheapest that fits is $0.70/h",
        "raise --max-price, or ask for less", 3, (*UP, "--max-price", "0.1")),
    Row("an unknown region", "RunPod has no data center or region 'US-KS-9'", "did you mean US-KS-3 or US-KS-2?", 2,
        (*UP, "--region", "US-KS-9")),
    Row("a region without the GPU", "RunPod has no 1 x RTX 4090 free now in its secure cloud in AP-JP-1",
        "ask for another GPU or region, or fewer of them, or try again later", 3, (*UP, "--region", "AP-JP-1")),
    Row("everything taken", "RunPod has no 1 x RTX 4090 free now in its secure cloud",
        "ask for another GPU or region, or fewer of them, or try again later", 3,
        world=named(stock={})),
    Row("a GPU of the other cloud", "B200 is not in that cloud of RunPod's",
        "ask for the other --cloud, or another GPU", 2, (*UP, "--gpu-type", "B200", "--cloud", "community")),
    Row("an unknown cloud", "RunPod has no cloud 'clear'", "--cloud is secure, community or any", 2,
        (*UP, "--cloud", "clear")),
    Row("a volume in the community", "community cloud has no network volumes",
        "leave out --volume, or --cloud community", 2, (*UP, "--cloud", "community", "--volume", "mine")),
    Row("no volume at all", "there is no network volume 'mine'", "make one in RunPod's console (Storage)", 2,
        (*UP, "--volume", "mine")),
    Row("spot", "runpod cannot do spot: RunPod has given up spot prices; --cloud community is its cheaper one",
        "leave that out, or name another provider", 2, (*UP, "--spot")),
    Row("more GPUs than a machine has", "no machine of RunPod's secure cloud has 16 x RTX 4090: the most is 8",
        "ask for --gpus 8, or another --gpu-type", 2, (*UP, "--gpus", "16")),
    Row("no disk", "--disk 0 is out of range", "it is 1 and more", 2, (*UP, "--disk", "0")),
    Row("no RAM", "--min-ram 0 is out of range", "it is 1 and more", 2,
        (*UP, "--min-ram", "0")),
    Row("more RAM than there is", "RunPod has no 1 x RTX 4090 free now in its secure cloud with 100 GB of RAM",
        "ask for another GPU or region, or fewer of them, or try again later", 3, (*UP, "--min-ram", "100")),
    Row("a CUDA that is none", "--min-cuda new is no version of CUDA", "write it like 12.8, or none", 2,
        (*UP, "--min-cuda", "new")),
    Row("an image of two words", "'a b' is not the name of an image", f"write it like {IMAGE}", 2,
        (*UP, "--image", "a b")),
    Row("nobody to be asked", "cannot ask for confirmation: no terminal", "add --yes", 2,
        tuple(word for word in UP if word != "--yes")),
    Row("a run without a key", NO_KEY, MAKE_ONE, 3, ("run", "--on", "runpod", "--yes", "--", "true"), Renter.no_key),
    Row("training that cannot be had", NONE_FREE, LATER, 3,
        ("train", "single", "--on", "runpod", "--gpu-type", "4090", "--yes", "--workload", "toy"),
        played(capacity(times=None)), 1),
]  # fmt: skip

REFUSES_TO = "RunPod refuses to create a pod with 1 x RTX 4090"
CLOUDFLARE = "Cloudflare, which stands before RunPod, does not let this program {} (error code 1010: its User-Agent)"
NO_REASON = "Something went wrong. Please try again later or contact support"
STRANGERS = "$: additional properties 'name', 'gpu' not allowed"
FAST = "RunPod wants fewer requests: rate limit exceeded for the minute window"
REFUSALS = [
    Row("none free", NONE_FREE, LATER, world=played(capacity(times=None)), creates=1),
    Row("none free of all that are not too dear",
        f"none of 5 offers could be had: {NONE_FREE}; the next offer is 1 pod, 1 x H100 NVL (94 GB each), secure "
        "cloud, stock high at $2.80/h, more than 1.5 times $1.65/h",
        f"allow it: --max-price 2.81; or {LATER}", words=ANY, world=played(capacity(times=None)), creates=5),
    Row("none free in other words", "RunPod has none free: This machine does not have the resources to deploy your pod",
        LATER, creates=1, world=played(capacity(detail="This machine does not have the resources to deploy your pod. "
                                                "Please try a different machine"))),
    Row("a rule", f"{REFUSES_TO}: mounts.persistent and mounts.network are mutually exclusive", OTHERWISE,
        world=answer("POST /pods", 400, detail="mounts.persistent and mounts.network are mutually exclusive"),
        creates=1),
    Row("no reason", f"RunPod makes none now, and does not say why: {NO_REASON}", LATER, creates=1,
        world=answer("POST /pods", 400, detail=NO_REASON)),
    Row("a word that it does not know",
        f"{REFUSES_TO}: Request validation failed; $: additional properties 'cloud' not allowed",
        "upgrade gpuops: RunPod's API has changed", creates=1,
        world=invalid("$: additional properties 'cloud' not allowed")),
    Row("a word that is missing, which makes strangers of the others",
        f"{REFUSES_TO}: Request validation failed; $: missing property 'tier'",
        "upgrade gpuops: RunPod's API has changed", creates=1, world=invalid("$: missing property 'tier'", STRANGERS)),
    Row("an image that is nowhere", f"{REFUSES_TO}: image nobody/none:1 was not found on its registry",
        "check --image: RunPod must be able to pull it without a login", words=(*UP, "--image", "nobody/none:1"),
        creates=1, world=lambda renter: renter.fake.no_such_images.add("nobody/none:1")),
    Row("no money", f"{POOR}: insufficient balance", CREDIT, world=played(broke()), creates=1),
    Row("less money than an hour costs", f"{POOR}: insufficient balance", CREDIT, creates=1, world=named(balance=0.3)),
    Row("beyond the spend limit", f"{POOR}: spend limit reached", CREDIT, creates=1, world=named(spend_limit=0.5)),
    Row("a kind of machine that the account may not have", READ_ONLY, KEYS_MAY, creates=1, world=played(denied())),
    Row("a gateway that dislikes the program", CLOUDFLARE.format("list pods"), OTHER_NETWORK, world=played(BANNED)),
    Row("a gateway that dislikes what costs", CLOUDFLARE.format("create a pod with 1 x RTX 4090"), OTHER_NETWORK,
        world=answer("POST /pods", 403, "error code: 1010"), creates=1),
    Row("a proxy of the company's",
        "something between here and RunPod forbids to list pods (HTTP 403, and not in RunPod's words)",
        "look at your proxy, or try another network", world=answer("GET /pods", 403, "<html>blocked</html>")),
    Row("slower, for ever", FAST, "wait, or run fewer commands at a time",
        world=played(too_many(retry_after=0, times=None)), creates=4),
    Row("slower, before anything is asked for", FAST, "wait, or run fewer commands at a time",
        world=played(too_many("GET /pods", retry_after=3600))),
    Row("500, and nothing was made",
        "RunPod failed to create a pod with 1 x RTX 4090 (HTTP 500): Internal Server Error", "try again in a minute",
        world=played(Fault("POST /pods", status=500)), creates=1),
    Row("silence, and nothing was made",
        "RunPod was asked to create a pod with 1 x RTX 4090: the connection was cut",
        "check the network, and try again", world=played(Fault("POST /pods", cut=True)), creates=1),
    Row("500 from the first", "RunPod failed to list pods (HTTP 500): Internal Server Error", "try again in a minute",
        world=answer("GET /pods", 500)),
]  # fmt: skip

IN_VAIN = "try another machine or image"
NOT_PULLED = f"error pulling image: Error response from daemon: manifest for {IMAGE} not found: manifest unknown"
NO_DRIVER = (
    "error starting container: failed to create shim task: OCI runtime create failed: nvidia-container-cli: "
    "requirement error: unsatisfied condition: cuda>=12.8, please update your driver to a newer version, or use an "
    "earlier cuda container: unknown"
)
UNMAPPED = Life(map_s=None)
STOPPED = replace(UNMAPPED, end="EXITED", end_s=0.4)
NO_SHELL = 'error starting container: OCI runtime create failed: exec: "sh": executable file not found in $PATH'
NEVER_READY = [
    Row("an image that is pulled for ever",
        f"lab was not ready after {{s}}: node0: pulling its image; its own log ends with: {CUT_OFF}", LONGER, 4,
        world=named(life=Life(pull_s=600.0)), creates=1),
    Row("no machine for it", "lab was not ready after {s}: node0: getting a machine", LONGER, 4,
        world=named(life=Life(assign_s=None)), creates=1),
    Row("a port that is never mapped", f"lab was not ready after {{s}}: node0: waiting for its SSH port; {LOG}",
        LONGER, 4, world=named(life=UNMAPPED), creates=1),
    Row("a port with nothing behind it", f"lab was not ready after {{s}}: {REFUSES}; {LOG}", LONGER, 4,
        world=Renter.deaf, creates=1),
    Row("a list that never shows it", f"lab was not ready after {{s}}: {REFUSES}; {LOG}", LONGER, 4,
        world=lambda renter: renter.deaf(listed_s=600.0), creates=1),
    Row("an address that is nobody's own", "node0 will never be ready: its machine has no public address "
        "(100.65.0.119 is behind another's): take --cloud secure, or another GPU or region; " + LOG, IN_VAIN, 4,
        LONG, named(life=Life(address="100.65.0.119")), 1),
    Row("an image that cannot be pulled", f"node0 will never be ready: its image cannot be pulled: {NOT_PULLED}; its "
        f"own log ends with: create container {IMAGE} / image pull: {IMAGE}: pending / {NOT_PULLED}", IN_VAIN, 4,
        LONG, named(life=PULL_ERROR), 1),
    Row("a driver that is too old", "node0 will never be ready: its machine's driver is too old for the image "
        f"(cuda>=12.8): --min-cuda asks for newer ones; its own log ends with: {CUT_OFF} / {NO_DRIVER}", IN_VAIN, 4,
        LONG, named(life=CUDA_MISMATCH), 1),
    Row("a container that has ended", "node0 will never be ready: its container has ended, and RunPod has stopped the "
        f"pod; {LOG}", CONSOLES, 4, LONG, named(life=STOPPED), 1),
    Row("a container that does not start", f"node0 will never be ready: its container does not start: {NO_SHELL}; its "
        f"own log ends with: {NO_SHELL} / start container for {IMAGE}: begin", IN_VAIN, 4, LONG,
        named(life=replace(STOPPED, log=(NO_SHELL,))), 1),
    Row("a pod in error", "node0 will never be ready: RunPod says that it is in an error it does not come out of; "
        f"{LOG}", IN_VAIN, 4, LONG, named(life=replace(UNMAPPED, end="ERROR", end_s=0.4)), 1),
    Row("a pod that somebody has ended", "{mark} ended before it was ready", CONSOLES, 4, LONG,
        named(life=replace(UNMAPPED, end="TERMINATED", end_s=0.4, linger_s=60.0)), 1),
    Row("a pod that is gone", "{mark} ended before it was ready", CONSOLES, 4, LONG,
        named(life=replace(UNMAPPED, end="GONE", end_s=0.4)), 1),
]  # fmt: skip

UNNUMBERED = "runpod has not numbered its machines yet"
WHAT = "create a cluster of 2 times 8 x H100 SXM"
LOGS, NONE_PULLED = LOG.replace(IMAGE, TOGETHER), NOT_PULLED.replace(IMAGE, TOGETHER)
CLUSTERS = [
    Row("a GPU that forms none", "RunPod has no cluster of 2 times 8 x RTX 4090 free now in its secure cloud",
        "clusters can be had now with --gpus 8 of A100 SXM, B200, B300, H100 SXM, H200 SXM", 3,
        (*SHORT, "--gpu-type", "4090")),
    Row("a cluster in the community", "community cloud has no clusters", "leave out --cloud, or ask for one node", 2,
        (*SHORT, "--cloud", "community")),
    Row("no cluster free", NONE_FREE, LATER, 3, SHORT, played(capacity(at="POST /clusters", times=None)), 1),
    Row("a cluster beyond the spend limit of every new account",
        f"the balance or spend limit of the RunPod account does not let it {WHAT}: spend limit reached", CREDIT, 3,
        SHORT, named(spend_limit=40.0), 1),
    Row("a member that never comes up", f"node1 will never be ready: its image cannot be pulled: {NONE_PULLED}; its "
        f"own log ends with: create container {TOGETHER} / image pull: {TOGETHER}: pending / {NONE_PULLED}", IN_VAIN, 4,
        ENOUGH, played(half_cluster(1, replace(PULL_ERROR, ranked_s=0.0))), 1),
    Row("members of whom nobody is the first", f"lab was not ready after {{s}}: {UNNUMBERED}; {LOGS}", LONGER, 4,
        SHORT, named(life=Life(ranked_s=600.0)), 1),
    Row("a member without a number that never comes up", "{pod} will never be ready: its "
        f"image cannot be pulled: {NONE_PULLED}; its own log ends with: create container {TOGETHER} / "
        f"image pull: {TOGETHER}: pending / {NONE_PULLED}", IN_VAIN, 4, ENOUGH,
        played(half_cluster(1, replace(PULL_ERROR, ranked_s=600.0))), 1),
    Row("a cluster whose maker heard nothing", f"lab was not ready after {{s}}: {REFUSES}; {LOGS}", LONGER, 4, SHORT,
        lambda renter: renter.deaf(lost_create(500, at="POST /clusters"), ranked_s=0.0), 1),
    Row("a cluster whose maker heard nothing, and whose members have no numbers",
        f"lab was not ready after {{s}}: {UNNUMBERED}; {LOGS}", LONGER, 4, SHORT,
        lambda renter: renter.deaf(lost_create(500, at="POST /clusters"), ranked_s=600.0), 1),
    Row("a cluster whose end leaves its members", f"lab was not ready after {{s}}: {REFUSES}; {LOGS}", LONGER, 4, SHORT,
        lambda renter: renter.deaf(leaving_members(), ranked_s=0.0), 1),
]  # fmt: skip


ROWS = [*KEYS_AND_ADDRESSES, *WISHES, *REFUSALS, *NEVER_READY, *CLUSTERS]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_one_sentence_one_thing_to_do_and_nothing_left(renter: Renter, row: Row) -> None:
    renter.fake.balance = 5000.0
    row.world(renter)
    at = row.words.index("--") if "--" in row.words else len(row.words)
    said = renter.type(*row.words[:at], "--json", *row.words[at:])
    expect(said, row.say.replace("{folder}/..", str(renter.desk.home.parent)), row.hint, row.code, renter)
    assert len([*renter.fake.asked("POST", "/pods"), *renter.fake.asked("POST", "/clusters")]) == row.creates
    assert ("is undone, nothing of it is left" in said.err) == (row.creates > 0)
    renter.expect_nothing_left()


# ---- what is borne


def test_what_cannot_be_had_is_passed_over(renter: Renter) -> None:
    renter.deaf(capacity(detail=NO_REASON), denied(gpus=("NVIDIA A100-SXM4-80GB",)))
    said = renter.type(*ANY)
    asked = renter.fake.asked("POST", "/pods")
    assert [one.status for one in asked] == [400, 403, 201]
    assert [one.body["gpu"] for one in asked] == [
        {"id": gpu, "count": 1, "minCudaVersion": "12.8"}
        for gpu in ("NVIDIA A100 80GB PCIe", "NVIDIA A100-SXM4-80GB", "NVIDIA RTX PRO 6000 Blackwell Server Edition")
    ]
    assert said.err.count("is undone") == 1
    renter.expect_nothing_left()


def test_slower_means_later(renter: Renter) -> None:
    """Also while it is looked whether the machine is ready."""
    times: list[float] = []
    renter.fake.on_answer(lambda request, moment: note(times, request, moment))
    renter.deaf(too_many(retry_after=1), too_many("GET /pods/*", retry_after=1))
    said = renter.type(*UP)
    assert [one.status for one in renter.fake.asked("POST", "/pods")] == [429, 201]
    ((first, second),) = pairwise(times)
    assert second - first >= 1.0
    assert "not yet protected" in said.err
    renter.expect_nothing_left()


def test_slower_while_it_is_asked_what_there_is(renter: Renter) -> None:
    """Every list is refused once; one of them is too busy, and says until when."""
    lists = ("GET /pods", "GET /catalog/gpus", "GET /catalog/data-centers")
    renter.play(*(too_many(at, retry_after=1) for at in lists), Fault("GET /pods", nth=2, status=503, retry_after=1))
    said = renter.type(*UP, "--dry-run")
    assert said.code == 0, said.err
    assert [one.status for one in renter.fake.asked("GET", "/pods")][:3] == [429, 503, 200]


def note(times: list[float], request: Request, moment: str) -> None:
    if (request.method, request.path, moment) == ("POST", "/pods", "before"):
        times.append(time.monotonic())


@pytest.mark.parametrize(
    ("fault", "life"),
    [
        (lost_create(500), {}),
        (lost_create(504), {}),
        (lost_create(), {}),
        (lost_create(500), {"listed_s": 0.3}),
        (Fault("POST /pods", raw="<html>", status=201, takes_effect=True), {}),
    ],
    ids=["500", "504", "silence", "500 and a list that lags", "an answer that nobody can read"],
)
def test_a_pod_whose_maker_heard_nothing_is_found_and_not_made_twice(
    renter: Renter, fault: Fault, life: dict[str, float]
) -> None:
    renter.deaf(fault, **life)
    said = renter.type(*UP)
    assert "not yet protected" in said.err
    assert said.code == 4
    assert len(renter.fake.asked("POST", "/pods")) == len(renter.fake.pods) == 1
    renter.expect_nothing_left()


BEGIN = "start container for an image: begin"


@pytest.mark.parametrize(
    ("life", "say", "creates"),
    [
        (STOPPED, "its container has ended, and RunPod has stopped the pod", 2),
        (replace(UNMAPPED, end="TERMINATED", end_s=0.4, linger_s=60.0), "ended before it was ready", 2),
        (replace(UNMAPPED, end="GONE", end_s=0.4), "ended before it was ready", 2),
        (replace(STOPPED, log=(NO_SHELL,)), "its container does not start: error starting container: ", 1),
        (replace(STOPPED, log=(BEGIN, BEGIN)), "its container ended by itself each of the 3 times that it was", 1),
        (PULL_ERROR, "its image cannot be pulled: ", 1),
        (CRASH_LOOP, "its container ended by itself each of the 3 times that it was started", 1),
        (LAYER_ERROR, "its machine cannot unpack the image: error creating container: failed to register layer", 2),
        (NOT_MADE, "its container cannot be made: error creating container: nvidia-smi", 2),
        (replace(UNMAPPED, end="ERROR", end_s=0.4), "it is in an error it does not come out of", 1),
    ],
)
def test_another_pod_is_rented_only_for_one_that_went(renter: Renter, life: Life, say: str, creates: int) -> None:
    """`--retries` costs: an image that does not start on one machine does not on the next."""
    renter.fake.life = life
    said = renter.type("run", "--on", "runpod", "--gpu-type", "4090", "--yes", "--retries", "1", "--", "true")
    error, _ = said.err.splitlines()[-2:]
    assert (said.code, say in error) == (4, True), said.err
    assert error.endswith("; not tried again: --retries 1 is used up") == (creates == 2)
    assert ("; retry 1 of 1: looking for machines anew\n" in said.err) == (creates == 2)
    assert len(renter.fake.asked("POST", "/pods")) == creates
    renter.expect_nothing_left()


def test_members_that_get_their_numbers_late_are_waited_for(renter: Renter) -> None:
    """Longer than it is looked for a lost answer; made once, and ended only when the time for all of it is up."""
    renter.deaf(ranked_s=2.0)
    said = renter.type(*TWO, "0.1", "--json")
    expect(said, f"lab was not ready after {{s}}: {REFUSES}; {LOGS}", LONGER, 4, renter)
    assert len(renter.fake.asked("POST", "/clusters")) == 1
    names = {request.path for request in renter.fake.asked("GET", "/pods/*")}
    assert names == {f"/pods/{pod}" for pod in renter.fake.pods}
    renter.expect_nothing_left()


def test_what_errs_for_a_moment_only(renter: Renter) -> None:
    renter.deaf(Fault("GET /pods", status=502), Fault("GET /catalog/gpus", cut=True), Fault("GET /pods/*", status=503),
                Fault("DELETE /pods/*", takes_effect=True, cut=True))  # fmt: skip
    said = renter.type(*UP, "--json")
    expect(said, f"lab was not ready after {{s}}: {REFUSES}; {LOG}", LONGER, 4, renter)
    renter.expect_nothing_left()


def test_what_somebody_else_has_ended_is_gone(renter: Renter) -> None:
    """DELETE: 404."""
    renter.deaf()
    renter.fake.on_answer(
        lambda request, moment: (request.method, moment) == ("DELETE", "before") and end_all(renter.fake)
    )
    said = renter.type(*UP)
    assert [one.status for one in renter.fake.asked("DELETE")] == [404]
    assert "lab is undone, nothing of it is left" in said.err
    renter.expect_nothing_left()


def test_a_server_that_is_not_the_one_that_was_rented(renter: Renter) -> None:
    if why := can_serve():
        pytest.skip(why)
    renter.patch.setattr(readiness, "LOGIN_REFUSED_LIMIT_S", 0.3)
    with serving() as server:
        renter.fake.life = Life(address="127.0.0.1", port=server.port)
        said = renter.type(*LONG, "--json")
    say, hint = said.err.splitlines()[-2:]
    key = "SHA256:[A-Za-z0-9+/]+"
    assert re.fullmatch(
        f"error: the host key of root@127.0.0.1:{server.port} has changed: expected {key}, got {key}; either the host "
        "was set up anew, or somebody stands in between; its image seems to start an SSH server of its own, with a key "
        "that nobody can vouch for", say), say  # fmt: skip
    assert hint == "hint: choose an image that runs the start command it is given, as the provider's own do"
    assert said.code == 4
    renter.expect_nothing_left()
