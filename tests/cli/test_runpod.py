"""RunPod as its user meets it: every way in which it says no, errs or lies, in the words that are read, against a
server that plays it. What is left running at the end is what a sentence has named.

Nothing is behind the pods here: none becomes a node, and what is asked for is undone (see tests/lab for the others).
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpuops import boot
from gpuops.errors import BUG
from gpuops.ledger import Ledger
from provisioners.runpod import account, api, provisioner
from provisioners.runpod.provisioner import RunpodProvisioner
from tests.cli.conftest import Desk, Said
from tests.conftest import Shell, until
from tests.fakes.runpod import FakeRunPod, Fault, Life, Request
from tests.fakes.runpod.faults import (
    BANNED,
    CUDA_MISMATCH,
    PULL_ERROR,
    broke,
    capacity,
    deaf_delete,
    denied,
    half_cluster,
    leaving_members,
    lost_create,
    too_many,
)
from tests.ssh.sshd import can_serve, free_port, serving

IMAGE = "runpod/pytorch:1.0.2-cu1281-torch280-ubuntu2404"
RTX = "NVIDIA GeForce RTX 4090"
OFFER = "1 pod, 1 x RTX 4090 (24 GB each), secure cloud, EU-RO-1 +3, stock high"
UP = ("up", "runpod", "--yes", "--name", "lab", "--gpu-type", "4090", "--timeout", "0.015")
LONG = (*UP[:-1], "0.5")
"""For what is known to be in vain long before the time is up."""
ANY = ("up", "runpod", "--yes", "--name", "lab", "--gpu-mem", "80", "--timeout", "0.015")
"""The cheapest is $1.65/h; five cost no more than half as much again."""

CONSOLE = "https://console.runpod.io/user/settings"
MAKE_ONE = f"make one at {CONSOLE} (API Keys), and export RUNPOD_API_KEY=… or put it into .env"
SEE_KEY = f"see what this key may do: {CONSOLE}"
NOT_V2 = "unset RUNPOD_API_URL, or set it to https://api.runpod.io/v2"
NO_KEY = "there is no RunPod API key: RUNPOD_API_KEY is not set"
NONE_FREE = "RunPod has none free: There are no longer any instances available with the requested specifications"
LATER = "try again later, let it be tried for you (--wait 2h), or allow more kinds of machine"
KEYS_MAY = "see what this key may do: https://console.runpod.io/user/settings"
OTHERWISE = "change what is asked for: RunPod would say no again"
OTHER_NETWORK = "try another network, and tell the makers of gpuops"
CONSOLES = "try again, or look at the provider's console"
LONGER = "raise --timeout if it only needs longer"
CREDIT = "a pod needs credit for an hour, within the spend limit: https://console.runpod.io/user/billing"
POOR = "the balance or spend limit of the RunPod account does not let it create a pod with 1 x RTX 4090"
READ_ONLY = (
    "this account or its key may not create a pod with 1 x RTX 4090: access denied (a key that is Read Only looks, "
)
READ_ONLY += "and rents nothing)"
CUT_OFF = f"create container {IMAGE} / {IMAGE} Pulling from registry"
LOG = f"its own log ends with: {CUT_OFF} / start container for {IMAGE}: begin"
REFUSES = "root@127.0.0.1:{port} refuses connections on this port"
PROGRAM = account.PROGRAM


# ---- the desk at which it is typed


@dataclass
class Renter:
    """Somebody with an account at RunPod."""

    desk: Desk
    fake: FakeRunPod
    patch: pytest.MonkeyPatch
    port: int = 0
    """Of this computer, where nobody listens."""

    def type(self, *words: str) -> Said:
        return self.desk.type(*words)

    def key(self, key: str) -> None:
        self.patch.setenv("RUNPOD_API_KEY", key)

    def no_key(self) -> None:
        self.patch.delenv("RUNPOD_API_KEY", raising=False)

    def url(self, url: str) -> None:
        self.patch.setenv("RUNPOD_API_URL", url)

    def play(self, *faults: Fault) -> None:
        self.fake.play(*faults)

    def deaf(self, *faults: Fault, **life: object) -> None:
        """Pods come up, and nothing listens behind their ports."""
        self.fake.life = Life(address="127.0.0.1", port=self.port, **life)  # type: ignore[arg-type]
        self.fake.play(*faults)

    @property
    def owner(self) -> str:
        return (self.desk.home / "owner").read_text().strip()

    @property
    def mark(self) -> str:
        return f"gpuops-{self.owner}-lab-0"

    def live(self) -> list[str]:
        """Clusters that the ledger knows."""
        if not (self.desk.home / "ledger.db").exists():
            return []
        ledger = Ledger.open(self.desk.home)
        try:
            return [row.name for row in ledger.clusters()]
        finally:
            ledger.close()

    def expect_nothing_left(self) -> None:
        assert self.fake.running() == []
        assert self.live() == []
        assert not list(self.desk.home.glob("bug-*"))


def guards(folder: Path) -> list[str]:
    """Command lines of processes of ours under this folder."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if str(folder) in line and "gpuops" in line:
            found.append(line)
    return found


@pytest.fixture(scope="module", autouse=True)
def _no_guard_stays(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    yield
    base = tmp_path_factory.getbasetemp()
    until(lambda: not guards(base), f"no guard is left, but {guards(base)}")


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeRunPod]:
    with FakeRunPod(tmp_path / "runpod") as one:
        yield one


@pytest.fixture
def renter(desk: Desk, fake: FakeRunPod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Renter]:
    """With little patience; of the account's money nothing is known, as without RunPod's own package."""
    for name, value in {"HOME": str(tmp_path), **fake.env}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setattr(RunpodProvisioner, "settle_s", 0.5)
    monkeypatch.setattr(RunpodProvisioner, "gone_s", 0.6)
    monkeypatch.setattr(provisioner, "PULLING_S", 0.2)
    monkeypatch.setattr(provisioner, "RANKS_S", 0.1)
    monkeypatch.setattr(provisioner, "LOG_S", 0.25)
    monkeypatch.setattr(api, "PAUSES_S", (0.05, 0.05))
    monkeypatch.setattr(account, "PROGRAM", "raise SystemExit(1)")
    one = Renter(desk, fake, monkeypatch, free_port())
    yield one
    fake.script.clear()
    for name, value in fake.env.items():
        monkeypatch.setenv(name, value)
    (desk.folder / ".env").unlink(missing_ok=True)
    if one.live():
        assert desk.type("down", "--all", "--force").code == 0
    assert fake.running() == []


GRAPHQL = """
import json, os, urllib.request

def run_graphql_query(query, api_key=None):
    headers = {"Authorization": "Bearer " + api_key, "Content-Type": "application/json", "User-Agent": "RunPod-SDK"}
    url = os.environ["RUNPOD_API_BASE_URL"] + "/graphql"
    request = urllib.request.Request(url, json.dumps({"query": query}).encode(), headers)
    return json.loads(urllib.request.urlopen(request, timeout=10).read())
"""


@pytest.fixture
def money(renter: Renter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Renter:
    """Something stands in for RunPod's own package, so that the account's money is known."""
    package = tmp_path / "site" / "runpod" / "api"
    package.mkdir(parents=True)
    for name, text in {"../__init__.py": "", "__init__.py": "", "graphql.py": GRAPHQL}.items():
        (package / name).write_text(text)
    program = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n"
    monkeypatch.undo  # noqa: B018
    monkeypatch.setattr(account, "PROGRAM", program + PROGRAM)
    return renter


def pattern(text: str, renter: Renter) -> str:
    """The exact words, but for how long it took."""
    text = re.escape(text.replace("{port}", str(renter.port)).replace("{folder}", str(renter.desk.folder)))
    if "{mark}" in text.replace("\\", ""):
        text = text.replace(re.escape("{mark}"), renter.mark)
    return text.replace(re.escape("{s}"), "[0-9]+ s")


def expect(said: Said, say: str, hint: str, code: int, renter: Renter) -> None:
    """With --json: one sentence, one thing to do, on stderr, and an object."""
    lines = said.err.splitlines()
    assert re.fullmatch(f"error: {pattern(say, renter)}", lines[-2]), said.err
    assert re.fullmatch(f"hint: {pattern(hint, renter)}", lines[-1]), said.err
    assert said.code == code != BUG, said
    assert sum(line.startswith("error: ") for line in lines) == 1
    assert "Traceback" not in said.err
    document = json.loads(said.out)
    assert document.keys() == {"schema", "kind", "say", "hint", "exit_code"}
    assert (document["kind"], document["exit_code"]) == ("error", code)
    assert (document["say"], document["hint"]) == (lines[-2][len("error: ") :], lines[-1][len("hint: ") :])
    for key in (renter.fake.account_key, renter.fake.read_only_key, renter.fake.other_key):
        assert key not in said.err + said.out


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


def config(text: str) -> Callable[[Renter], object]:
    """In place of a key in the environment, what RunPod's own tools have stored."""

    def set_up(renter: Renter) -> None:
        renter.no_key()
        (renter.desk.home.parent / ".runpod").mkdir()
        (renter.desk.home.parent / ".runpod" / "config.toml").write_text(text)

    return set_up


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
    Row("a key in clear", "RUNPOD_API_URL is http://api.runpod.io/v2: an API key would travel in clear",
        "write it with https://", 2, world=lambda renter: renter.url("http://api.runpod.io/v2")),
    Row("a key in clear, by number", "RUNPOD_API_URL is http://8.8.8.8/v2: an API key would travel in clear",
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
        "set RUNPOD_API_URL to https://api.runpod.io/v2",
        world=answer("GET /pods", 302)),
    Row("it is switched off", "RunPod has switched off the API that this gpuops speaks", "upgrade gpuops",
        world=answer("GET /pods", 410)),
    Row("a path that it does not know any more", "RunPod refuses to list GPUs: resource not found",
        "upgrade gpuops: RunPod's API has changed",
        world=played(Fault("GET /catalog/gpus", status=404, detail="resource not found", times=None))),
]  # fmt: skip

WISHES = [
    Row("several GPUs of one name", "'h100' is more than one GPU at RunPod: H100 NVL, H100 PCIe, H100 SXM",
        "name one of them exactly", 2, (*ANY, "--gpu-type", "h100")),
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
    Row("an unknown cloud", "RunPod has no cloud 'clear'", "--cloud is secure or community", 2,
        (*UP, "--cloud", "clear")),
    Row("a volume in the community", "community cloud has no network volumes",
        "leave out --volume, or --cloud community", 2, (*UP, "--cloud", "community", "--volume", "mine")),
    Row("no volume at all", "there is no network volume 'mine'", "make one in RunPod's console (Storage)", 2,
        (*UP, "--volume", "mine")),
    Row("spot", "runpod cannot do spot: RunPod has given up spot prices; --cloud community is its cheaper one",
        "leave that out, or name another provider", 2, (*UP, "--spot")),
    Row("more GPUs than a machine has", "no machine of RunPod's secure cloud has 16 x RTX 4090: the most is 8",
        "ask for --gpus 8, or another --gpu-type", 2, (*UP, "--gpus", "16")),
    Row("no disk", "a disk of 0 GB is none", "--disk is in GB, 1 and more", 2, (*UP, "--disk", "0")),
    Row("a CUDA that is none", "--min-cuda new is no version of CUDA", "write it like 12.8, or none", 2,
        (*UP, "--min-cuda", "new")),
    Row("an image of two words", "'a b' is not the name of an image", f"write it like {IMAGE}", 2,
        (*UP, "--image", "a b")),
    Row("nobody to be asked", "this costs money, and nobody is there to be asked", "say --yes", 2,
        tuple(word for word in UP if word != "--yes")),
    Row("a run without a key", NO_KEY, MAKE_ONE, 3, ("run", "--on", "runpod", "--yes", "--", "true"), Renter.no_key),
    Row("training that cannot be had", NONE_FREE, LATER, 3,
        ("train", "single", "--on", "runpod", "--gpu-type", "4090", "--yes", "--workload", "toy"),
        played(capacity(times=None)), 1),
]  # fmt: skip

REFUSES_TO = "RunPod refuses to create a pod with 1 x RTX 4090"
CLOUDFLARE = "Cloudflare, which stands before RunPod, does not let this program {} (error code 1010: its User-Agent)"
STRANGERS = "$: additional properties 'name', 'gpu' not allowed"
FAST = "RunPod wants fewer requests: rate limit exceeded for the minute window"
REFUSALS = [
    Row("none free", NONE_FREE, LATER, world=played(capacity(times=None)), creates=1),
    Row("none free of all that are not too dear",
        f"none of 5 offers could be had: {NONE_FREE}; the next offer is 1 pod, 1 x H100 NVL (94 GB each), secure "
        "cloud, OC-AU-1 +2, stock high at $2.80/h, more than 1.5 times $1.65/h", "allow it: --max-price 2.81",
        words=ANY, world=played(capacity(times=None)), creates=5),
    Row("none free in other words", "RunPod has none free: This machine does not have the resources to deploy your pod",
        LATER, creates=1, world=played(capacity(detail="This machine does not have the resources to deploy your pod. "
                                                "Please try a different machine"))),
    Row("a rule", f"{REFUSES_TO}: mounts.persistent and mounts.network are mutually exclusive", OTHERWISE,
        world=answer("POST /pods", 400, detail="mounts.persistent and mounts.network are mutually exclusive"),
        creates=1),
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
        world=played(too_many("GET /pods"))),
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
        f"pod; {LOG}", IN_VAIN, 4, LONG, named(life=replace(UNMAPPED, end="EXITED", end_s=0.4)), 1),
    Row("a pod in error", "node0 will never be ready: RunPod says that it is in an error it does not come out of; "
        f"{LOG}", IN_VAIN, 4, LONG, named(life=replace(UNMAPPED, end="ERROR", end_s=0.4)), 1),
    Row("a pod that somebody has ended", "{mark} ended before it was ready", CONSOLES, 4, LONG,
        named(life=replace(UNMAPPED, end="TERMINATED", end_s=0.4, linger_s=60.0)), 1),
    Row("a pod that is gone", "{mark} ended before it was ready", CONSOLES, 4, LONG,
        named(life=replace(UNMAPPED, end="GONE", end_s=0.4)), 1),
]  # fmt: skip

TWO = ("up", "runpod", "--yes", "--name", "lab", "--gpu-type", "H100 SXM", "--gpus", "8", "--nodes", "2", "--timeout")
SHORT, ENOUGH = (*TWO, "0.02"), (*TWO, "0.5")
WHAT = "create a cluster of 2 times 8 x H100 SXM"
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
    Row("a member that never comes up", f"node1 will never be ready: its image cannot be pulled: {NOT_PULLED}; its "
        f"own log ends with: create container {IMAGE} / image pull: {IMAGE}: pending / {NOT_PULLED}", IN_VAIN, 4,
        ENOUGH, played(half_cluster(1)), 1),
    Row("members of whom nobody is the first", "RunPod has not numbered the cluster's pods yet", "try again", 3, SHORT,
        named(life=Life(ranked_s=600.0)), 1),
    Row("a cluster whose maker heard nothing", f"lab was not ready after {{s}}: {REFUSES}; {LOG}", LONGER, 4, SHORT,
        lambda renter: renter.deaf(lost_create(500, at="POST /clusters")), 1),
    Row("a cluster whose end leaves its members", f"lab was not ready after {{s}}: {REFUSES}; {LOG}", LONGER, 4, SHORT,
        lambda renter: renter.deaf(leaving_members()), 1),
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
    renter.deaf(capacity(), denied(gpus=("NVIDIA A100-SXM4-80GB",)))
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


def end_all(fake: FakeRunPod) -> None:
    for pod in fake.running():
        fake.end(pod, "GONE")


def test_a_server_that_is_not_the_one_that_was_rented(renter: Renter) -> None:
    if why := can_serve():
        pytest.skip(why)
    renter.patch.setattr(boot, "DENIED_S", 0.3)
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


# ---- what may still be there


def test_a_delete_that_lies(renter: Renter) -> None:
    renter.deaf(deaf_delete(times=None))
    said = renter.type(*UP, "--json")
    expect(said, "{mark} may still be there and bill $0.70/h", "gpuops down lab", 5, renter)
    assert "lab was to be undone because of this: lab was not ready after" in said.err
    again = renter.type("down", "lab", "--json")
    expect(again, "{mark} may still be there and bill $0.70/h", "gpuops down lab", 5, renter)
    assert [pod.name for pod in renter.fake.running()] == [renter.mark]
    assert renter.live() == ["lab"]
    renter.fake.script.clear()
    assert renter.type("down", "lab") == Said(0, "", "lab is gone\n")
    renter.expect_nothing_left()


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (
            Fault("DELETE /pods/*", status=500, times=None),
            "RunPod failed to end a pod (HTTP 500): Internal Server Error",
        ),
        (Fault("DELETE /pods/*", cut=True, times=None), "RunPod was asked to end a pod: the connection was cut"),
        (denied("DELETE /pods/*"), "the RunPod API key may not end a pod: access denied"),
    ],
)
def test_a_delete_that_fails(renter: Renter, fault: Fault, why: str) -> None:
    renter.deaf(fault)
    said = renter.type(*UP, "--json")
    expect(said, f"{{mark}} may still be there and bill $0.70/h: {why}", "gpuops down lab", 5, renter)
    assert [pod.name for pod in renter.fake.running()] == [renter.mark]


def test_a_cluster_whose_delete_lies(renter: Renter) -> None:
    """Its members cannot go one by one."""
    renter.fake.balance = 5000.0
    renter.deaf(deaf_delete(at="DELETE /clusters/*", times=None))
    names = [f"gpuops-{{owner}}-lab-{part}" for part in ("0", "1", "cluster")]
    said = renter.type(*SHORT, "--json")
    say = f"{', '.join(names)} may still be there and bill $47.87/h".replace("{owner}", renter.owner)
    expect(said, say, "gpuops down lab", 5, renter)
    assert {one.status for one in renter.fake.asked("DELETE", "/pods/*")} == {409}
    listed = renter.type("status", "--cloud").out.splitlines()[1:]
    assert sorted(line.split()[0] for line in listed) == [name.replace("{owner}", renter.owner) for name in names]
    renter.fake.script.clear()
    assert renter.type("down", "lab").code == 0
    renter.expect_nothing_left()


def left_behind(renter: Renter) -> None:
    """A pod that its cluster's end did not end, and goes on costing."""
    renter.deaf(deaf_delete(times=None))
    assert renter.type(*UP).code == 5


@pytest.mark.parametrize("key", ["another account's", "a wrong one", "none"])
def test_with_another_key_nothing_is_gone(renter: Renter, key: str) -> None:
    left_behind(renter)
    if key == "none":
        renter.no_key()
    else:
        renter.key(renter.fake.other_key if key == "another account's" else "rpa_NOBODYS")
    why = {
        "another account's": "{mark} was made with another API key, and this one does not see it",
        "a wrong one": "RunPod does not accept the API key: invalid bearer token",
        "none": NO_KEY,
    }[key]
    said = renter.type("down", "lab", "--json")
    expect(said, f"{{mark}} may still be there and bill $0.70/h: {why}", "gpuops down lab", 5, renter)
    forced = renter.type("down", "lab", "--force", "--json")
    expect(forced, f"{{mark}} may still be there and bill $0.70/h: {why}", "gpuops down lab", 5, renter)
    assert len(renter.fake.running()) == 1
    assert renter.live() == ["lab"]
    reaped = renter.type("reap", "--json")
    if key == "another account's":  # which is asked, and has nothing; what is being ended already is left to that
        assert json.loads(reaped.out)["closed"] == []
    else:
        why = f"something may still be there: runpod could not be asked: {why}"
        expect(reaped, why, "try again: gpuops reap", 5, renter)
        assert (
            renter.type("status", "--cloud").err == f"note: runpod could not be asked: {why.partition('asked: ')[2]}\n"
        )
    assert renter.live() == ["lab"]
    renter.fake.script.clear()
    renter.key(renter.fake.account_key)
    assert renter.type("down", "lab").code == 0
    renter.expect_nothing_left()


def test_reap_with_another_key_closes_nothing(renter: Renter) -> None:
    left_behind(renter)
    ledger = Ledger.open(renter.desk.home)
    (row,) = ledger.clusters()
    ledger.set_cluster(row.id, state="up", keeper=None)  # as if it had been seen ready
    ledger.close()
    renter.key(renter.fake.other_key)
    said = renter.type("reap", "--json")
    why = "runpod could not be asked about lab: {mark} was made with another API key, and this one does not see it"
    expect(said, f"something may still be there: {why}", "try again: gpuops reap", 5, renter)
    assert renter.live() == ["lab"]


def test_a_renewed_key_of_the_same_account(money: Renter) -> None:
    """A pod that is there no more is gone for sure only where it is known that both keys are of one account."""
    left_behind(money)
    money.fake.end(money.fake.running()[0], "GONE")
    money.key(money.fake.renew_key())
    said = money.type("down", "lab")
    assert (said.code, said.err.splitlines()[-1]) == (0, "lab is gone")


def test_what_the_ledger_does_not_know(renter: Renter) -> None:
    assert renter.type("status").code == 0  # which chooses the mark
    mine = renter.fake.add_pod(f"gpuops-{renter.owner}-old-0")
    stopped = renter.fake.add_pod(f"gpuops-{renter.owner}-older-0", disk=200)
    renter.fake.end(stopped, "EXITED")
    others = [renter.fake.add_pod(name) for name in ("gpuops-00000000-old-0", "comfy", f"gpuops-{renter.owner}")]
    assert [line.split()[:6] for line in renter.type("status", "--cloud").out.splitlines()[1:-1]] == [
        [mine.name, "runpod", "machine", "starting", "$0.70", "no"],
        [stopped.name, "runpod", "machine", "unknown", "$0.03", "no"],  # its disk costs
    ]
    asked = renter.type("reap", "--json")
    expect(asked, "2 left over, and nobody is there to be asked",
           "take back what still lives: gpuops reap --adopt; or end it: gpuops reap --yes", 5, renter)  # fmt: skip
    ended = renter.type("reap", "--yes")
    assert ended == Said(0, f"ended {mine.name}\nended {stopped.name}\n", "")
    assert {pod.id for pod in renter.fake.running()} == {pod.id for pod in others}
    assert renter.type("reap") == Said(0, "nothing left over\n", "")
    end_all(renter.fake)


# ---- which key, sent where


SHAPES = {"runpodctl": 'apiKey = "{key}"\n', "its Python package": '[default]\napi_key = "{key}"\n'}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_key_of_its_own_tools(renter: Renter, shape: str) -> None:
    config(SHAPES[shape].format(key=renter.fake.account_key))(renter)
    assert renter.type(*UP, "--dry-run").code == 0
    renter.key("rpa_NOBODYS")  # what is exported counts first
    assert renter.type(*UP, "--dry-run").code == 3


def test_a_key_of_the_project(renter: Renter) -> None:
    renter.no_key()
    renter.desk.write(".env", f"RUNPOD_API_KEY={renter.fake.account_key}\n")
    said = renter.type(*UP, "--dry-run")
    assert (said.code, said.out.splitlines()[-1], said.err) == (0, f"would create: {OFFER}, $0.70/h", "")
    renter.key("rpa_NOBODYS")
    assert renter.type(*UP, "--dry-run").code == 3
    renter.key("")
    assert renter.type(*UP, "--dry-run").code == 0


@pytest.mark.parametrize("words", [("status", "--cloud"), ("reap",), ("down",), ("doctor", "runpod")])
def test_a_project_sends_no_key_elsewhere(renter: Renter, tmp_path: Path, words: tuple[str, ...]) -> None:
    """Looking and ending go on, and ask where the key belongs."""
    with FakeRunPod(tmp_path / "thief") as thief:
        renter.desk.write(".env", f"RUNPOD_API_URL={thief.url}\nRUNPOD_API_BASE_URL={thief.base_url}\n")
        said = renter.type(*words)
        assert thief.requests == []
    assert said.code == 0
    assert "note: RUNPOD_API_URL has no effect in .env\n" in said.err
    assert words == ("down",) or renter.fake.asked("GET", "/pods")


# ---- volumes


@pytest.mark.parametrize(
    ("words", "say", "hint"),
    [
        (("--volume", "mine"), "there is no network volume 'mine'",
         "name one by its id: yours ({yours}, EU-RO-1), twice ({twice0}, EU-RO-1), twice ({twice1}, US-KS-2)"),
        (("--volume", "twice"), "more than one network volume is called 'twice'",
         "name one by its id: twice ({twice0}, EU-RO-1), twice ({twice1}, US-KS-2)"),
        (("--volume", "yours", "--region", "US-KS-2"), "the network volume 'yours' is in EU-RO-1, not in US-KS-2",
         "leave out --region"),
    ],
)  # fmt: skip
def test_volumes(renter: Renter, words: tuple[str, ...], say: str, hint: str) -> None:
    made = [("yours", "EU-RO-1"), ("twice", "EU-RO-1"), ("twice", "US-KS-2")]
    service = renter.fake.service
    ids = [
        service.create_volume(service.own, {"name": name, "size": 10, "dataCenter": place}).id for name, place in made
    ]
    filled = hint.format(yours=ids[0], twice0=ids[1], twice1=ids[2])
    expect(renter.type(*UP, *words, "--json"), say, filled, 2, renter)
    renter.expect_nothing_left()


def test_a_volume_is_where_it_is(renter: Renter) -> None:
    service = renter.fake.service
    volume = service.create_volume(service.own, {"name": "yours", "size": 10, "dataCenter": "EU-RO-1"})
    said = renter.type(*UP, "--volume", "yours", "--dry-run")
    assert "EU-RO-1" in said.out
    assert "note: the network volume yours is at /workspace; it costs money with a pod or without" in said.out
    renter.deaf()
    renter.type(*UP, "--volume", "yours")
    (asked,) = renter.fake.asked("POST", "/pods")
    assert asked.body["mounts"] == {"network": [{"volumeId": volume.id, "path": "/workspace"}]}
    assert asked.body["dataCenterIds"] == ["EU-RO-1"]
    assert list(renter.fake.volumes) == [volume.id]
    renter.expect_nothing_left()


# ---- money


def test_a_balance_that_does_not_last_an_hour(money: Renter) -> None:
    money.fake.balance = 0.35
    said = money.type(*UP, "--json")
    expect(said, f"{POOR}: insufficient balance", CREDIT, 3, money)
    assert re.search(r"note: the balance of \$0.35 lasts \d+:\d\d min at \$0.70/h: some providers rent for an hour at "
                     "least", said.err)  # fmt: skip
    money.expect_nothing_left()


def test_a_spend_limit_that_is_known_is_not_run_into(money: Renter) -> None:
    money.fake.balance = 1000.0
    (other,) = [money.fake.add_pod("mine", gpu={"id": "NVIDIA B200", "count": 8})]
    said = money.type(*UP[:5], "--gpu-type", "B200", "--gpus", "8", "--json")
    expect(said, "$47.85/h is too much: the account may spend $80.00/h and spends $47.85/h already",
           "end something, at the provider's console if need be, ask for less, or have the limit raised there", 3,
           money)  # fmt: skip
    assert money.fake.asked("POST", "/pods") == []
    money.fake.end(other, "GONE")
    money.expect_nothing_left()


def test_a_balance_that_nobody_tells(renter: Renter) -> None:
    """It is no reason to stop."""
    renter.deaf()
    said = renter.type(*UP)
    assert "not yet protected" in said.err
    assert len(renter.fake.asked("POST", "/pods")) == 1
    assert renter.fake.asked("POST", "/graphql") == []
    renter.expect_nothing_left()


# ---- looking


def test_doctor(renter: Renter) -> None:
    well = renter.type("doctor", "runpod")
    assert (well.code, "error" in well.out) == (0, False)
    assert "runpod\n  note: the account answers; its balance is unknown\n" in well.out
    told = json.loads(renter.type("doctor", "runpod", "--json").out)["findings"]
    assert "account" in [one["what"] for one in told]
    renter.key("rpa_NOBODYS")
    wrong = renter.type("doctor", "runpod")
    assert wrong.code == 3
    assert (
        "runpod\n  error: RunPod does not accept the API key: invalid bearer token\n"
        f"    hint: look at your keys: {CONSOLE}\n"
    ) in wrong.out
    renter.no_key()
    found = json.loads(renter.type("doctor", "runpod", "--json").out)["findings"]
    assert {"level": "error", "what": "setup", "say": NO_KEY, "hint": MAKE_ONE, "where": "runpod"}.items() <= next(
        one for one in found if one["where"] == "runpod"
    ).items()


# ---- the key stays here


def test_not_a_byte_of_a_key_goes_anywhere_else(shell: Shell, fake: FakeRunPod, tmp_path: Path) -> None:
    """A whole command, and the guard after it: what RunPod was told, what is written down, what every process shows."""
    account_key, others = "rpa_CANARYINTHEMINE0123456789ABCDEF", ["canary-of-aws-4711", "canary-of-wandb-4711"]
    fake.service.own.key = account_key
    shell.env |= {**fake.env, "HOME": str(tmp_path)}
    del shell.env["RUNPOD_API_KEY"]
    dotenv = shell.write(
        ".env", f"RUNPOD_API_KEY={account_key}\nAWS_SECRET_ACCESS_KEY={others[0]}\nWANDB_API_KEY={others[1]}\n"
    )
    fake.life = Life(address="127.0.0.1", port=free_port())
    fake.play(deaf_delete())
    up = shell.start("up", "runpod", "--yes", "--gpu-type", "4090", "--timeout", "0.05", "--name", "lab")
    shown = []
    while up.poll() is None:
        shown += command_lines()
        time.sleep(0.2)
    shown += command_lines()
    out, err = up.communicate()
    assert "was not ready" in err, err
    until(lambda: fake.running() == [], "the pod has ended")

    assert fake.requests
    for request in fake.requests:
        told = request.headers.pop("authorization")
        assert told == f"Bearer {account_key}"
        rest = f"{request.path} {request.query} {request.headers} {request.body} {request.raw!r}"
        for canary in (account_key, *others):
            assert canary not in rest, request
    written = [path for path in [*shell.home.rglob("*"), *shell.folder.rglob("*")] if path.is_file() and path != dotenv]
    assert shell.home / "guard.log" in written
    assert shell.home / "ledger.db" in written
    for canary in (account_key, *others):
        assert canary not in out + err
        assert not [line for line in shown if canary in line]
        assert not [path for path in written if canary.encode() in path.read_bytes()]
        assert not [pod for pod in fake.pods.values() if canary in f"{pod.env} {pod.args}"]


def command_lines() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_text(errors="replace"))
        except OSError:
            continue
    return found
