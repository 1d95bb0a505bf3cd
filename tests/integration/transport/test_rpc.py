"""A node that answers garbage, half lines, huge lines, nothing, or slowly: a sentence, soon, and no hang."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from sys import executable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuops.agent.wire_format import PROTOCOL
from gpuops.core.errors import ConnectionLost, MalformedAnswer, NodeError, NodeRefused
from gpuops.core.models import Resource
from gpuops.nodes import session
from gpuops.transport import rpc
from gpuops.transport.connection import ProcessConnection
from gpuops.transport.rpc import AgentClient, NodePaths
from gpuops.transport.schema_types import Sentence
from gpuops.transport.schemas import FreePort, ProgressLine
from tests.conftest import until

HANG_S = 120.0
SPEAK = "import sys, time, json\nout = sys.stdout.buffer\ndef say(data): out.write(data); out.flush()\n"
MAGIC = 'say(b"gpuops-agent 1\\n")\n'
PORT = 'say(b\'{"id": %d, "ok": {"port": 5}}\\n\' % request["id"])'
LAST = '{"id": 1, "ok": {"python": "/p", "version": "3.11.2", "torch": null, "cuda": null, "why": "", "more": 1}}\\n'
ECHO = SPEAK + MAGIC + "for line in sys.stdin.buffer:\n    request = json.loads(line)\n    "

Dial = Callable[..., AgentClient]


@pytest.fixture
def dial(tmp_path: Path) -> Iterator[Dial]:
    """Converse with a program in the agent's place."""
    connection = ProcessConnection("node0")
    (tmp_path / "agent").mkdir()

    def start(program: str, greeting_s: float = HANG_S) -> AgentClient:
        (tmp_path / "agent" / "fake.pyz").write_text(program)
        machine = Resource("machine", "m", "r", "n", False, data={"root": str(tmp_path), "python": executable})
        return AgentClient(connection, NodePaths(machine, "lab", 0, "fake"), greeting_s)

    began = time.monotonic()
    yield start
    connection.close()
    assert time.monotonic() - began < HANG_S, "it hangs"
    assert not [channel for channel in connection._channels if channel._process.poll() is None]


@pytest.mark.parametrize(
    ("program", "error", "say"),
    [
        ("", ConnectionLost, "the agent on node0 does not answer (nothing was said)"),
        ("print('no such file or directory')", ConnectionLost, "(no such file or directory)"),
        ("import sys; sys.exit('bash: python3: not found')", ConnectionLost, "(bash: python3: not found)"),
        (SPEAK + "say(b'gpuops-agent 2\\n')", ConnectionLost, "(gpuops-agent 2)"),
        (SPEAK + "say(b'gpuops-agent 1')", ConnectionLost, "(gpuops-agent 1)"),
        (SPEAK + "say(b'\\xff\\xfe\\x1b[2J')", ConnectionLost, "?[2J)"),
        (SPEAK + "say(b'x' * 100_000)", ConnectionLost, "(" + "x" * 199 + "…)"),
        (SPEAK + "say(b'x' * (3 << 20)); time.sleep(60)", ConnectionLost, "x…)"),
        ('import sys; sys.exit(\'{"error": {"kind": "ended", "say": "this node has ended"}}\')',
         NodeRefused, "node0: this node has ended"),
        ("import sys; sys.exit('{\"error\": 5}')", ConnectionLost, '({"error": 5})'),
        ("import sys; sys.exit('[' * 100_000)", ConnectionLost, "[[["),
    ],
)  # fmt: skip
def test_what_is_no_agent(dial: Dial, program: str, error: type[NodeError], say: str) -> None:
    with pytest.raises(error) as caught:
        dial(program)
    assert say in caught.value.message
    assert len(caught.value.message) < 300
    assert caught.value.message.isprintable()
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("program", ["import time; time.sleep(600)", SPEAK + "while True: say(b'x'); time.sleep(0.01)"])
def test_silence_and_chatter_have_a_limit(dial: Dial, program: str) -> None:
    with pytest.raises(ConnectionLost, match="has said nothing for 1 s"):
        dial(program, greeting_s=1.0)


def test_a_shell_may_talk_first(dial: Dial) -> None:
    noise = (
        SPEAK
        + "say(b'Welcome to gpuops-agent \\xff\\n' * 3000); say(b'gpuops-'); time.sleep(0.2); say(b'agent 1\\n')\n"
    )
    early = 'say(b\'{"id": 99, "ok": {"early": true}}\\n\')\n'
    client = dial(noise + early + ECHO.split(MAGIC)[1] + PORT)
    assert client.call("port") == FreePort(5)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\n", b"nonsense\n", b"\xff\xfe\n", b"[1, 2]\n", b"5\n", b"null\n", b"{}\n", b'{"id": {}, "ok": {}}\n',
        b'{"id": 99, "ok": {}}\n', b"[" * 100_000 + b"\n", b"1" * 10_000 + b"\n", b"x" * 1_000_000 + b"\n",
    ],
    ids=lambda data: repr(data[:20]),
)  # fmt: skip
def test_a_line_that_answers_nothing_is_passed_over(dial: Dial, garbage: bytes) -> None:
    """What a login's shell started may print at any time."""
    client = dial(ECHO + f"say({garbage!r}); {PORT}")
    assert client.call("port", timeout=HANG_S) == FreePort(5)
    assert client.call("port", timeout=HANG_S) == FreePort(5)


@pytest.mark.parametrize(
    "rest",
    [
        b"}", b', "ok": 5}', b', "ok": [1]}', b', "item": "x"}', b', "item": {}}', b', "error": null}', b', "ok": {}}',
        b', "ok": {"port": "5"}}', b', "ok": {"port": NaN}}', b', "ok": {"port": 1e999}}', b', "ok": {"port": -1}}',
        b', "ok": {"port": ' + b"9" * 5000 + b"}}", b', "ok": ' + b"[" * 100_000, b', "ok": {"port": \xff}}',
        b', "ok"', b', "error": {"say": 5}}', b', "error": {"kind": []}}', b', "error": {"data": "no"}}',
    ],
    ids=lambda data: repr(data[:25]),
)  # fmt: skip
def test_an_answer_that_is_none_fails_its_request_at_once(dial: Dial, rest: bytes) -> None:
    """And no other one: the conversation goes on."""
    client = dial(ECHO + f"if request['id'] == 1: say(b'{{\"id\": 1' + {rest!r} + b'\\n')\n"
                  f"    elif request['verb'] != 'cancel': {PORT}")  # fmt: skip
    with pytest.raises(MalformedAnswer) as caught:
        client.call("port", timeout=2 * HANG_S)
    assert caught.value.message.startswith("node0 answers nonsense (to 'port': ")
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 300
    assert caught.value.hint
    assert caught.value.exit_code == 4
    assert client.call("port", timeout=HANG_S) == FreePort(5)


def test_half_lines_are_put_together(dial: Dial) -> None:
    lines = b'{"id": 1, "item": {"say": "\\xc3\\xa4"}}\\n{"id": 1, "item": {"beat": 1.5}}\\n'.decode()
    client = dial(ECHO + f"for byte in b'{lines}{LAST}':\n        say(bytes([byte])); time.sleep(0.002)")
    stream = client.stream("python")
    assert list(stream) == [ProgressLine(Sentence("ä"))]
    assert stream.answer.version == "3.11.2"


def test_a_line_without_an_end_ends_the_conversation(dial: Dial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "MAX_LINE_BYTES", 1 << 20)
    client = dial(ECHO + "while True: say(b'x' * 65536)")
    with pytest.raises(ConnectionLost, match="the connection to node0 ended"):
        client.call("hello", timeout=HANG_S)


@pytest.mark.parametrize("after", ["pass", 'say(b\'{"id": 1, "ok"\')', 'say(b\'{"id": 2, "ok": {}}\\n\')'])
def test_no_answer_has_a_limit(dial: Dial, after: str) -> None:
    client = dial(ECHO + after)
    with pytest.raises(ConnectionLost, match="node0 has not answered 'hello' for 0 s"):
        client.call("hello", timeout=0.4)


def test_one_that_is_only_busy_is_not_waited_for(dial: Dial) -> None:
    """It beats for ever, so that it is never silent."""
    client = dial(ECHO + 'while True: say(b\'{"id": 1, "item": {"beat": 1}}\\n\'); time.sleep(0.01)')
    with pytest.raises(MalformedAnswer, match="to 'sums': no end after"):
        next(client.stream("sums", timeout=HANG_S, within=0.5, tree="project", paths=[]))


def test_an_agent_that_dies_says_so_to_all_who_wait(dial: Dial) -> None:
    client = dial(ECHO + "sys.exit()")
    for _ in range(2):
        with pytest.raises(ConnectionLost, match="ended"):
            client.call("hello", timeout=HANG_S)


def flood(times: int, after: str = "pass") -> str:
    """Says so much to `python` as fast as it is taken, and answers `port` behind it."""
    return (
        ECHO
        + 'item = b\'{"id": 1, "item": {"say": "\' + b\'x\' * 65536 + b\'"}}\\n\'\n'
        + f"    if request['verb'] == 'python':\n        for number in range({times}):\n"
        + "            say(item);\n"
        + f"        {after}\n"
        + f"    if request['verb'] == 'port': {PORT}"
    )


def test_what_nobody_takes_is_not_gathered(dial: Dial, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node waits meanwhile; once it is taken, all of it comes."""
    monkeypatch.setattr(rpc, "MAX_UNREAD_BYTES", 1 << 20)
    monkeypatch.setattr(rpc, "MAX_UNREAD_BYTES_WHILE_WAITING", 1 << 20)  # `next` waits as long as this machine likes
    client = dial(flood(400, f"say(b'{LAST}')"))
    stream = client.stream("python")
    assert next(stream).say == "x" * 2000, "a sentence is not longer"
    until(lambda: client._held > 1 << 20, "the first of it here", HANG_S)
    assert client._held < (1 << 20) + 70_000
    assert sum(1 for _ in stream) == 399
    assert stream.answer.version == "3.11.2"
    assert client._held == 0


def test_who_takes_one_answer_may_wait_for_another(dial: Dial, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lies behind what is taken only then."""
    monkeypatch.setattr(rpc, "MAX_UNREAD_BYTES", 1 << 16)
    client = dial(flood(100, f"say(b'{LAST}')"))
    stream = client.stream("python")
    next(stream)
    assert client.call("port", timeout=HANG_S) == FreePort(5)
    assert sum(1 for _ in stream) == 99


def test_who_left_keeps_nobody_waiting(dial: Dial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "MAX_UNREAD_BYTES", 1 << 16)
    client = dial(flood(300))
    stream = client.stream("python")
    next(stream)
    stream.close()
    assert client.call("port", timeout=HANG_S) == FreePort(5)
    assert client._held == 0


def test_who_takes_nothing_loses_the_connection(dial: Dial, monkeypatch: pytest.MonkeyPatch) -> None:
    """What had come is there all the same."""
    monkeypatch.setattr(rpc, "MAX_UNREAD_BYTES", 1 << 16)
    monkeypatch.setattr(rpc, "ANSWER_TIMEOUT_S", 0.5)
    client = dial(flood(300))
    stream = client.stream("python")
    next(stream)
    until(lambda: client._lost, "the connection lost", HANG_S)
    with pytest.raises(ConnectionLost, match="ended"):
        list(stream)
    assert client._held == 0


def test_a_node_that_takes_nothing_blocks_nobody(dial: Dial) -> None:
    """Requests beyond what the pipes hold: each runs into its own limit, and closing is quick."""
    client = dial(SPEAK + MAGIC + "time.sleep(600)")
    for _ in range(3):
        with pytest.raises(ConnectionLost, match="has not answered"):
            client.call("plan", timeout=0.3, files=["x" * 1_000_000])
    client.close()


@pytest.mark.parametrize("error", [{}, {"say": "no", "kind": "busy", "data": {"run": "r"}}])
def test_a_refusal(dial: Dial, error: dict[str, Any]) -> None:
    client = dial(ECHO + f"say(json.dumps({{'id': request['id'], 'error': {error!r}}}).encode() + b'\\n')")
    with pytest.raises(NodeRefused) as caught:
        client.call("start", timeout=HANG_S)
    assert caught.value.message.startswith("node0: ")
    assert (caught.value.kind, caught.value.data) == (error.get("kind", "refused"), error.get("data", {}))


def test_leaving_a_stream_cancels_it(dial: Dial, tmp_path: Path) -> None:
    heard = tmp_path / "heard"
    client = dial(ECHO + f"open({str(heard)!r}, 'a').write(request['verb'] + ' ')\n"
                  "    if request['verb'] == 'python':\n"
                  "        say(b'{\"id\": 1, \"item\": {\"say\": \"\"}}\\n' * 50)")  # fmt: skip
    stream = client.stream("python")
    next(stream)
    stream.close()
    until(lambda: heard.read_text() == "python cancel ", "the cancelling heard", HANG_S)


def test_two_streams_keep_their_own_last_words(dial: Dial) -> None:
    client = dial(ECHO + "say(json.dumps({'id': request['id'], 'ok': {'port': request['id']}}).encode() + b'\\n')")
    first, second = client.stream("port"), client.stream("port")
    assert list(first) == list(second) == []
    assert client.call("port") == FreePort(3)
    assert (first.answer, second.answer) == (FreePort(1), FreePort(2))


def hello_agent(protocol: int, hello_behind_s: float) -> str:
    """A clock 100 s behind ours in `ping`, and a `hello` that is dated by when it was asked for."""
    return (
        ECHO
        + f"ok = {{'ping': {{'time': time.time() - 1000}}, 'hello': {{'protocol': {protocol}, "
        + "'cores': 1, 'gpus': [], 'folder': '/n', "
        + f"'time': time.time() - {hello_behind_s}}}}}\n"
        + "    say(json.dumps({'id': request['id'], 'ok': ok[request['verb']]}).encode() + b'\\n')"
    )


def test_the_clock_is_asked_by_what_answers_at_once(dial: Dial) -> None:
    hello, skew = session._read_hello("lab", dial(hello_agent(PROTOCOL, 10_000)))
    assert hello.protocol == PROTOCOL
    assert 1000 - HANG_S < skew < 1000 + HANG_S


@pytest.mark.parametrize(("takes", "skew"), [((4.0, 1.0, 2.0), 100.5), ((4.0, 0.2), 100.1), ((0.0,), 100.0)])
def test_the_promptest_answer_says_what_time_it_is(
    monkeypatch: pytest.MonkeyPatch, takes: Sequence[float], skew: float
) -> None:
    """`takes`: seconds until an answer is here, that was given at their beginning."""
    now, rest = [1000.0], list(takes)

    class Slow:
        label = "node0"

        def call(self, verb: str) -> SimpleNamespace:
            if verb == "hello":
                return SimpleNamespace(protocol=PROTOCOL, time=0.0)
            said = now[0] - 100
            now[0] += rest.pop(0)
            return SimpleNamespace(time=said)

    monkeypatch.setattr(session, "time", SimpleNamespace(time=lambda: now[0], monotonic=lambda: now[0]))
    assert session._read_hello("lab", cast(AgentClient, Slow()))[1] == pytest.approx(skew)
    assert not rest


def test_an_agent_of_another_version_is_refused(dial: Dial) -> None:
    with pytest.raises(NodeRefused) as caught:
        session._read_hello("lab", dial(hello_agent(PROTOCOL + 1, 0)))
    assert caught.value.message == "node0 was started by another version of gpuops"
    assert (caught.value.hint, caught.value.kind) == ("gpuops down lab", "protocol")
    hello, _ = session._read_hello("lab", dial(hello_agent(PROTOCOL + 1, 0)), any_version=True)
    assert hello is None, "nothing else that it says of itself is relied on"


def test_nodes_are_logged_in_to_at_once(tmp_path: Path) -> None:
    """Each of these agents greets only once the other has been started."""
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "fake.pyz").write_text(
        SPEAK
        + f"import pathlib\nhere = pathlib.Path({str(tmp_path)!r})\n"
        + "(here / ('met-' + sys.argv[-1][-1])).touch()\n"
        + f"end = time.monotonic() + {HANG_S}\n"
        + "while len(list(here.glob('met-*'))) < 2:\n"
        + "    time.sleep(0.02)\n"
        + "    if time.monotonic() > end: sys.exit('alone')\n"
        + hello_agent(PROTOCOL, 0)
    )
    data = {"root": str(tmp_path), "python": executable, "artefact": "fake", "connection": "process"}
    machines = [Resource("machine", name, "r", name, False, data=data) for name in ("a", "b")]
    found = session.contact_cluster(SimpleNamespace(name="lab"), machines)  # type: ignore[arg-type]
    assert [client.label for client in found.clients] == ["node0", "node1"]
    found.close()


def test_a_node_that_is_away_among_others(tmp_path: Path) -> None:
    """It is no reason to leave the others alone: asked for, it answers with why it is away."""
    (tmp_path / "agent").mkdir()
    gone = "if sys.argv[-1].endswith('n1'): sys.exit('no way there')\n"
    (tmp_path / "agent" / "fake.pyz").write_text(SPEAK + gone + hello_agent(PROTOCOL, 0))
    data = {"root": str(tmp_path), "python": executable, "artefact": "fake", "connection": "process"}
    machines = [Resource("machine", name, "r", name, False, data=data) for name in ("a", "b")]
    row = SimpleNamespace(name="lab")
    with pytest.raises(ConnectionLost, match="no way there"):
        session.contact_cluster(row, machines)  # type: ignore[arg-type]
    found = session.contact_cluster(row, machines, some=True)  # type: ignore[arg-type]
    assert found.clients[0].call("ping")
    for ask in (lambda: found.clients[1].call("ping"), lambda: found.clients[1].bulk("left")):
        with pytest.raises(ConnectionLost, match="no way there"):
            ask()
    found.close()


def test_closing_ends_what_the_program_started(dial: Dial) -> None:
    """A login shell with a child that holds the pipes: both go, and the reader with them."""
    client = dial(
        "import subprocess, sys\n"
        + SPEAK
        + MAGIC
        + "subprocess.run([sys.executable, '-c', 'import time; time.sleep(600)'])"
    )
    client.close()
    with pytest.raises(ConnectionLost):
        client.call("hello", timeout=HANG_S)
