"""Somebody who rents at a RunPod that is played, with little patience: what they type, and the words they expect."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from gpuops.core.errors import BUG
from gpuops.core.polling import Clock
from gpuops.ledger.store import Ledger
from gpuops.offers import billing_account, price_terms, search
from provisioners.kit import json_api
from provisioners.runpod import account, pod_log
from provisioners.runpod.provisioner import RunpodProvisioner
from tests.conftest import HANG_S, until
from tests.fakes.runpod import FakeRunPod, Fault, Life
from tests.processes import command_line

if TYPE_CHECKING:
    from tests.desk import Desk, Said

UP = ("up", "runpod", "--yes", "--name", "lab", "--gpu-type", "4090", "--timeout", "0.015")
CONSOLE = "https://console.runpod.io/user/settings"
MAKE_ONE = f"make one at {CONSOLE} (API Keys), and export RUNPOD_API_KEY=… or put it into .env"
NO_KEY = "there is no RunPod API key: RUNPOD_API_KEY is not set"
CREDIT = "a pod needs credit for an hour, within the spend limit: https://console.runpod.io/user/billing"
POOR = "the balance or spend limit of the RunPod account does not let it create a pod with 1 x RTX 4090"
PROGRAM = account.PROGRAM
TWO = ("up", "runpod", "--yes", "--name", "lab", "--gpu-type", "H100 SXM", "--gpus", "8", "--nodes", "2", "--timeout")
SHORT, ENOUGH = (*TWO, "0.02"), (*TWO, "0.5")


@dataclass
class Renter:
    """Somebody with an account at RunPod."""

    desk: Desk
    fake: FakeRunPod
    patch: pytest.MonkeyPatch
    port: int = 0
    """Of this computer, where nobody listens, nor can."""

    last: Said | None = None
    """What came of the last command; for who reads a failure."""

    def type(self, *words: str) -> Said:
        self.last = self.desk.type(*words)
        return self.last

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
        assert self.live() == [], self.last
        assert not list(self.desk.home.glob("bug-*"))


def guards(folder: Path) -> list[str]:
    """Command lines of processes of ours under this folder."""
    found = []
    for pid in psutil.pids():
        line = " ".join(command_line(pid))
        if str(folder) in line and "gpuops" in line:
            found.append(line)
    return found


@pytest.fixture(scope="module")
def no_guard_stays(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    yield
    base = tmp_path_factory.getbasetemp()
    until(lambda: not guards(base), f"no guard is left, but {guards(base)}")


@contextmanager
def deaf_port() -> Iterator[int]:
    """A port that is taken, and behind which nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def count_waits(patch: pytest.MonkeyPatch) -> None:
    """Deadlines count what is waited for, and not how long this machine takes to do something."""
    waited = [0.0]

    def sleep(_clock: Clock, seconds: float) -> None:
        time.sleep(seconds)
        waited[0] += seconds + 0.001

    patch.setattr(Clock, "sleep", sleep)
    patch.setattr(Clock, "monotonic", lambda _: waited[0])


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
    monkeypatch.setattr(pod_log, "IMAGE_PULL_LOG_INTERVAL_S", 0.2)
    monkeypatch.setattr(pod_log, "LOG_LISTEN_S", HANG_S)
    fake.terse = True
    monkeypatch.setattr(json_api, "RETRY_DELAYS_S", (0.05, 0.05))
    monkeypatch.setattr(account, "PROGRAM", "raise SystemExit(1)")
    count_waits(monkeypatch)
    with deaf_port() as port:
        one = Renter(desk, fake, monkeypatch, port)
        yield one
    fake.script.clear()
    for name, value in fake.env.items():
        monkeypatch.setenv(name, value)
    (desk.folder / ".env").unlink(missing_ok=True)
    if one.live():
        assert desk.type("down", "--all", "--force").code == 0
    assert fake.running() == []


ERROR = """
class QueryError(Exception):
    pass
"""
GRAPHQL = """
import json, os, urllib.error, urllib.request
from runpod.error import QueryError

def run_graphql_query(query, api_key=None):
    headers = {"Authorization": "Bearer " + api_key, "Content-Type": "application/json", "User-Agent": "RunPod-SDK"}
    url = os.environ["RUNPOD_API_BASE_URL"] + "/graphql"
    request = urllib.request.Request(url, json.dumps({"query": query}).encode(), headers)
    try:
        answer = json.loads(urllib.request.urlopen(request, timeout=600).read())
    except urllib.error.HTTPError as error:
        answer = json.loads(error.read())
    if "errors" in answer:
        raise QueryError(answer["errors"][0]["message"])
    return answer
"""


@pytest.fixture
def money(renter: Renter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Renter:
    """Something stands in for RunPod's own package, so that the account's money is known."""
    package = tmp_path / "site" / "runpod" / "api"
    package.mkdir(parents=True)
    for name, text in {"../__init__.py": "", "../error.py": ERROR, "__init__.py": "", "graphql.py": GRAPHQL}.items():
        (package / name).write_text(text)
    program = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n"
    monkeypatch.setattr(account, "PROGRAM", program + PROGRAM)
    for module, patience in (
        (account, "QUERY_TIMEOUT_S"),
        (search, "ACCOUNT_WAIT_FOR_OFFERS_S"),
        (price_terms, "ACCOUNT_WAIT_S"),
        (billing_account, "PAYER_WAIT_S"),
    ):
        monkeypatch.setattr(module, patience, HANG_S)
    return renter


def pattern(text: str, renter: Renter) -> str:
    """The exact words, but for how long it took."""
    text = re.escape(text.replace("{port}", str(renter.port)).replace("{folder}", str(renter.desk.folder)))
    if "{mark}" in text.replace("\\", ""):
        text = text.replace(re.escape("{mark}"), renter.mark)
    text = text.replace(re.escape("{pod}"), "gpuops-[0-9a-f]+-lab-pod[a-z0-9]+")
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


def config(text: str) -> Callable[[Renter], object]:
    """In place of a key in the environment, what RunPod's own tools have stored."""

    def set_up(renter: Renter) -> None:
        renter.no_key()
        (renter.desk.home.parent / ".runpod").mkdir()
        (renter.desk.home.parent / ".runpod" / "config.toml").write_text(text)

    return set_up


def end_all(fake: FakeRunPod) -> None:
    for pod in fake.running():
        fake.end(pod, "GONE")
