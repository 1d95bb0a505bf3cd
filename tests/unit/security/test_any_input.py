"""Whatever a file, a host or an agent says: one sentence or the right thing, never a traceback, never a hang."""

from __future__ import annotations

import io
import itertools
import json
import socket
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuops.agent.node import Node
from gpuops.agent.rpc.server import VERBS, Conversation
from gpuops.agent.wire_format import MAGIC
from gpuops.cli.context import tables
from gpuops.cli.request import _read_lines
from gpuops.core import settings as project
from gpuops.core.errors import GpuopsError, NodeError
from gpuops.core.models import Lease, Option, Resource
from gpuops.core.processes import Identity
from gpuops.core.run_models import RunRequest
from gpuops.ledger.store import Ledger
from gpuops.runs.launch_spec import request_of
from gpuops.sync.run_record import RunRecord
from gpuops.transport import schemas
from gpuops.transport.rpc import AgentClient, NodePaths
from gpuops.transport.ssh import host_resolution
from provisioners.ssh.hosts import HostBook
from tests.conftest import HANG_S

COUNTS = pytest.mark.parametrize("examples", [40, pytest.param(1000, marks=pytest.mark.proof)])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
TABLES = tables()


def explore(examples: int, check: Callable[..., None], **strategies: Any) -> None:
    """Check so many examples: the same ones every time."""
    quiet = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
    given(**strategies)(settings(max_examples=examples, derandomize=True, deadline=None, database=None,
                                 suppress_health_check=quiet)(check))()  # fmt: skip


def one_sentence(error: GpuopsError) -> None:
    assert error.message
    assert "\n" not in error.message
    assert "Traceback" not in error.message


def lines_of(*words: str) -> st.SearchStrategy[bytes]:
    """Files that are nearly right: known words and anything, a line each."""
    some = st.sampled_from([*words, "", " ", "=", "#", "[", "]", '"', "'", "\\", "\0", "\ufeff", "é", "\u2028"])
    line = st.lists(some | st.text(max_size=4), max_size=5).map("".join)
    text = st.lists(line, max_size=5).map(lambda lines: "\n".join(lines).encode("utf-8", "surrogatepass"))
    return text | st.binary(max_size=60)


@COUNTS
def test_dot_env(tmp_path: Path, examples: int) -> None:
    def check(content: bytes) -> None:
        (tmp_path / ".env").write_bytes(content)
        try:
            found = project.load(tmp_path, {}, TABLES)
            assert all(isinstance(value, str) for value in found.env_values.values())
        except GpuopsError as error:
            one_sentence(error)
        kept, wrong = project.load_leniently(tmp_path, {}, TABLES)
        assert set(kept.env_values) <= set(project.FROM_DOTENV)
        assert all("\n" not in sentence for sentence in wrong)

    explore(examples, check, content=lines_of("GPUOPS_HOME=", "GPUOPS_TORCH_SPEC", "=x", "export ", "A=1", "${A}"))


@COUNTS
def test_gpuops_toml(tmp_path: Path, examples: int) -> None:
    def check(content: bytes) -> None:
        (tmp_path / "gpuops.toml").write_bytes(content)
        try:
            found = project.read_toml(tmp_path / "gpuops.toml", TABLES).tables
        except GpuopsError as error:
            return one_sentence(error)
        for table, options in found.items():
            assert all(type(value) is TABLES[table][name] for name, value in options.items())
        return None

    words = ("[up]", "[run]", "[train]", "nodes", " = ", "2", "-1", "1e999", "true", "'x'", "['*.pt']", "1979-05-27",
             "{a=1}", "gpu-type", "identity", "proxy", "max-hours", "[[up]]")  # fmt: skip
    explore(examples, check, content=lines_of(*words))


@COUNTS
@pytest.mark.parametrize("counts", [True, False])
def test_files_of_hosts_and_what_is_typed(tmp_path: Path, examples: int, counts: bool) -> None:
    def check(content: bytes) -> None:
        (tmp_path / "hosts").write_bytes(content)
        try:
            for line in _read_lines(Option("hosts", "", "lines", counts=counts), str(tmp_path / "hosts")):
                place = host_resolution.parse_host_spec(line)
                assert not place.host.startswith("-")
                assert place.port is None or 0 < place.port < 65536
        except GpuopsError as error:
            one_sentence(error)

    words = ("root@", "10.0.0.5", ":22", ":", "[::1]", "ssh://", "-oProxyCommand=id", "host", "9" * 5000, "%eth0", "/")
    explore(examples, check, content=lines_of(*words))


@COUNTS
def test_what_ssh_says_of_a_host(examples: int) -> None:
    def check(said: dict[str, list[str]]) -> None:
        try:
            target = host_resolution.target_from_ssh_config(host_resolution.parse_host_spec("me@there"), said, {})
        except GpuopsError as error:
            return one_sentence(error)
        assert not any(char in "".join([target.proxy, *target.identities]) for char in "\0\n")
        return None

    names = st.sampled_from(["hostname", "port", "user", "identityfile", "identitiesonly", "proxyjump", "proxycommand",
                             "userknownhostsfile", "hostkeyalias", "ciphers", "certificatefile"])  # fmt: skip
    words = st.text(st.characters(codec="utf-8", exclude_characters="\0\r\n"), max_size=8)
    values = words | st.sampled_from(["22", "0", "99999", "-1", "none", "yes", "%h:%p", "a,b", "~/x", "$X"])
    explore(examples, check, said=st.dictionaries(names, st.lists(values, max_size=3), max_size=6))


class Spoken:
    """A connection to a node on which this, and no more, is ever said."""

    label = "node0"

    def __init__(self, words: bytes) -> None:
        self.stdin = io.BytesIO()
        self.stdout = io.BytesIO(words)

    def open(self, _argv: Sequence[str], _early: bytes = b"") -> Any:
        return self

    def wait(self, timeout: float | None = None) -> int:  # noqa: ARG002 (a channel's signature)
        return 0

    def errors(self) -> str:
        return ""

    def close(self) -> None:
        pass


MACHINE = Resource("machine", "m", "r", "n", bills=False, data={"root": "/r", "python": "python3"})


@COUNTS
def test_an_agent_that_says_anything(examples: int) -> None:
    def check(messages: list[Any], cut: int, greeting: bytes) -> None:
        said = b"".join(one if isinstance(one, bytes) else json.dumps(one).encode() + b"\n" for one in messages)
        connection = Spoken(greeting + MAGIC + said[: len(said) - cut])
        try:
            client = AgentClient(connection, NodePaths(MACHINE, "lab", 0, "a"), HANG_S)  # type: ignore[arg-type]
            assert isinstance(client.call("hello", timeout=HANG_S), schemas.NodeHello | schemas.OtherHello)
        except NodeError as error:
            one_sentence(error)

    reply = st.fixed_dictionaries({"id": st.just(1) | JSON}, optional={
        "ok": JSON, "item": JSON, "error": JSON | st.fixed_dictionaries({"say": JSON, "data": JSON, "kind": JSON}),
    })  # fmt: skip
    explore(examples, check, messages=st.lists(reply | JSON | st.binary(max_size=20), max_size=5),
            cut=st.integers(0, 3), greeting=st.binary(max_size=20))  # fmt: skip


ASKED = sorted(set(VERBS) - {"leave", "start", "setup", "python", "listen", "reach", "sample"} | {"no-such-verb"})
"""Verbs that start nothing here, and answer without being cancelled."""


@COUNTS
def test_an_agent_that_is_asked_anything(tmp_path: Path, examples: int) -> None:
    """Every question that has a number gets one answer, and the next one is answered too."""
    here, there = socket.socketpair()
    node = Node(str(tmp_path))
    (tmp_path / "runs" / "a-1").mkdir(parents=True)
    thread = threading.Thread(target=Conversation(node, there).listen, daemon=True)
    thread.start()
    here.settimeout(HANG_S)
    numbers = itertools.count(1)
    with here, here.makefile("rb") as answers:

        def check(verb: str, args: Any, noise: bytes) -> None:
            here.sendall(noise.replace(b"\n", b"") + b"\n")
            first, second = next(numbers), next(numbers)
            for question in ({"id": first, "verb": verb, "args": args}, {"id": second, "verb": "ping"}):
                here.sendall(json.dumps(question).encode() + b"\n")
            last: dict[int, dict[str, Any]] = {}
            while len(last) < 2:
                message = json.loads(answers.readline())
                if "item" not in message:
                    last[message["id"]] = message
            assert "ok" in last[second]
            assert "ok" in last[first] or "Traceback" not in last[first]["error"]["say"]

        known = st.fixed_dictionaries({}, optional={
            "run": st.just("a-1") | JSON, "tree": st.just("project") | JSON, "files": JSON, "paths": JSON, "to": JSON,
            "patterns": JSON, "push": JSON, "offsets": JSON, "ends_in": JSON, "token": JSON, "how": JSON,
        })  # fmt: skip
        explore(examples, check, verb=st.sampled_from(ASKED), args=known | JSON, noise=st.binary(max_size=20))
    thread.join(HANG_S)
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def ledger_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A ledger with a cluster, a machine, a run and a notice."""
    home = tmp_path_factory.mktemp("whole")
    ledger = Ledger.open(home)
    row = ledger.intend(provider="local", name="lab", folder=home, ephemeral=True, token="t", request={"nodes": 1},
                        boot_deadline=1.0, lease=Lease(2.0, 3.0), owner_process=Identity(1, 2.0), now=1.0)  # fmt: skip
    ledger.got(row.id, Resource("machine", "m", "r", "gpuops-0-lab-0", bills=True))
    request = {"kind": "command", "mode": "run", "nodes": 1, "gpus": None}
    ledger.add_run(stem="a", cluster=row.id, folder=home, tree="project", request=request, facts={"world": 1},
                   owner_process=Identity(1, 2.0), now=1.0)  # fmt: skip
    ledger.add_notice("something happened")
    ledger.close()
    return (home / "ledger.db").read_bytes()


@COUNTS
def test_the_bytes_of_the_ledger(tmp_path_factory: pytest.TempPathFactory, ledger_bytes: bytes, examples: int) -> None:
    """Cut, or with bytes turned: what is read is of its types, or the file is kept aside, or a sentence says so."""
    used = [at for at, byte in enumerate(ledger_bytes) if byte]

    def check(flips: list[tuple[int, int]], cut: int | None) -> None:
        home = tmp_path_factory.mktemp("torn")
        content = bytearray(ledger_bytes)
        for at, byte in flips:
            content[used[at % len(used)]] = byte
        (home / "ledger.db").write_bytes(content[:cut])
        try:
            ledger = Ledger.open(home)
        except GpuopsError as error:
            return one_sentence(error)
        try:
            for row in ledger.clusters(live=False):
                assert [isinstance(row.created, int | float), isinstance(row.name, str)] == [True, True]
                ledger.resources(row.id)
            for run in ledger.runs():
                assert isinstance(request_of(run), RunRequest)
            ledger.take_notices()
        except GpuopsError as error:
            one_sentence(error)
        finally:
            ledger.close()
        return None

    explore(examples, check, flips=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=3),
            cut=st.none() | st.integers(0, len(ledger_bytes)))  # fmt: skip


def test_a_cell_of_another_type(tmp_path: Path, ledger_bytes: bytes) -> None:
    """SQLite keeps whatever it is given in whatever column."""
    (tmp_path / "ledger.db").write_bytes(ledger_bytes)
    with sqlite3.connect(tmp_path / "ledger.db") as db:
        db.execute("UPDATE notices SET say = x'ff00', at = 'soon'")
    db.close()
    ledger = Ledger.open(tmp_path)
    with pytest.raises(GpuopsError, match="a row of it cannot be read"):
        ledger.take_notices()
    ledger.close()


@COUNTS
def test_the_book_of_hosts(tmp_path: Path, examples: int) -> None:
    book = HostBook(tmp_path / "hosts.json")

    def check(content: Any) -> None:
        book.path.write_text(content if isinstance(content, str) else json.dumps(content))
        try:
            for name in book.names():
                book.get(name)
        except GpuopsError as error:
            one_sentence(error)

    entry = st.fixed_dictionaries({}, optional={"target": JSON | st.fixed_dictionaries({"host": JSON, "options": JSON}),
                                                "root": JSON, "python": JSON, "at": JSON})  # fmt: skip
    explore(examples, check, content=st.text(max_size=20) | JSON | st.dictionaries(st.text(max_size=3), entry | JSON))


@COUNTS
def test_the_record_of_a_run(examples: int) -> None:
    """`run.json` lies in the user's folder: a run is taken for ended only where that is what it says."""

    def check(record: dict[str, Any]) -> None:
        parsed = RunRecord.parse(record)
        assert parsed.verdict is None or isinstance(parsed.verdict.say, str)
        assert (parsed.missing == "") is (record.get("missing") == "")

    verdict = st.fixed_dictionaries({"outcome": JSON, "exit_code": JSON, "say": JSON | st.just("done")})
    explore(examples, check, record=st.dictionaries(st.text(max_size=4), JSON, max_size=3)
            | st.fixed_dictionaries({"verdict": verdict | JSON, "missing": st.just("") | JSON}))  # fmt: skip
