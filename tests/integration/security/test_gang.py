"""The gang link against strangers on its port, and against somebody on the way between two nodes."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import queue
import resource
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuops.agent.network import probe
from gpuops.agent.network.unauthenticated_connections import (
    MAX_LINE_BYTES,
    MAX_STRANGERS,
    SHORTAGE_ERRORS,
    Strangers,
    proof,
)
from gpuops.agent.node import Node
from gpuops.agent.peers.authenticated_channel import (
    BYTES,
    HEAD,
    MAX_FRAME_BYTES,
    MESSAGE,
    Channel,
    Keys,
    Seal,
    session_keys,
)
from gpuops.agent.peers.link import GIVE, TAKE, Head, Member, Times
from gpuops.agent.workers import WORKERS
from tests.integration.agent.conftest import until
from tests.integration.agent.test_result_handover import HANG_S, Side
from tests.integration.security.relay import Passing, Relay, Way
from tests.ports import free_port

TIMES = Times(beat=0.05, silence=HANG_S, join=HANG_S, proof=HANG_S)
"""Nobody is lost because the machine is busy."""
SECRET = "the run's secret"
STRANGERS = 1100
ROOT = Path(__file__).parents[3]


def stop(node: int, why: str = "dinner") -> dict[str, Any]:
    return {"event": "stop", "node": node, "why": why, "how": "graceful"}


class Ends:
    """A head and its members, in this process; what each hears. No thread of theirs may end by an exception."""

    def __init__(self) -> None:
        self.place = ("127.0.0.1", free_port())
        self.links: list[Head | Member] = []
        self.broken: list[str] = []

    def head(self, times: Times = TIMES) -> tuple[Head, queue.Queue[Any]]:
        heard: queue.Queue[Any] = queue.Queue()
        return self._begun(Head(0, 3, self.place, SECRET, heard.put, times)), heard

    def member(self, index: int = 1, place: tuple[str, int] | None = None) -> tuple[Member, queue.Queue[Any]]:
        heard: queue.Queue[Any] = queue.Queue()
        return self._begun(Member(index, 3, place or self.place, SECRET, heard.put, TIMES)), heard

    def wire(self, index: int = 1, role: str = "member") -> Channel:
        """A member's end of a connection that has proven itself, to say what no member says."""
        wire = Member(index, 3, self.place, SECRET, lambda _event: None, TIMES).call_head(role)
        assert wire is not None
        return wire

    def _begun(self, link: Any) -> Any:
        self.links.append(link)
        link.start()
        return link

    def note(self, args: threading.ExceptHookArgs) -> None:
        self.broken.append(f"{args.thread}: {args.exc_type.__name__}: {args.exc_value}")


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    ends = Ends()
    monkeypatch.setattr(threading, "excepthook", ends.note)
    yield ends
    for link in ends.links:
        for node in range(3):
            link.send_event({"event": "ended", "node": node, "outcome": "done", "reason": {}})
        link.close()
    assert not ends.broken


# Strangers.


HEADED = """
import json, resource, sys
from gpuops.agent.peers.link import Head, Times
files, port = int(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
head = Head(0, 2, ("127.0.0.1", port), sys.argv[3], lambda event: print(json.dumps(event), flush=True),
            Times(beat=0.05, silence=600.0, join=600.0, proof=600.0))
head.start()
print("listens", flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def head_of_its_own(files: int, port: int) -> Iterator[subprocess.Popen[str]]:
    """Node 0 in a process that may open so many files; it prints what it hears."""
    argv = [sys.executable, "-c", HEADED, str(files), str(port), SECRET]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listens\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * STRANGERS:
        pytest.skip(f"this user may open {hard} files only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * STRANGERS), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def has_gone(connection: socket.socket) -> bool:
    """Whether the other side has closed it; what it said before is read away."""
    with contextlib.suppress(BlockingIOError):
        try:
            while connection.recv(4096, socket.MSG_DONTWAIT):
                pass
            return True
        except ConnectionResetError:
            return True
    return False


@pytest.mark.parametrize(("files", "strangers", "most"), [(1024, STRANGERS, MAX_STRANGERS), (32, 100, 32)],
                         ids=["a thousand strangers", "more than files may be opened"])  # fmt: skip
@pytest.mark.usefixtures("many_files")
def test_a_member_gets_in_past_idle_strangers(files: int, strangers: int, most: int) -> None:
    port = free_port()
    with head_of_its_own(files, port) as process, contextlib.ExitStack() as crowd:
        idle = [crowd.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(strangers)]
        member = Member(1, 2, ("127.0.0.1", port), SECRET, lambda _event: None, TIMES)
        member.start()
        member.send_event(stop(1))
        assert process.stdout is not None
        assert json.loads(process.stdout.readline()) == stop(1)
        until(lambda: sum(not has_gone(one) for one in idle) <= most, "the oldest made room")
        member.send_event(stop(1, "again"))
        assert json.loads(process.stdout.readline()) == stop(1, "again"), "who has proven itself stays"
        member._ended_nodes.add(0)
        member.close()


@pytest.mark.usefixtures("many_files")
def test_a_node_is_reached_past_idle_strangers() -> None:
    """The listeners of a probe, which have as little room for strangers."""
    node = Node("/nowhere")
    port = probe.listen(node, {"node": 0, "token": SECRET, "for_s": HANG_S, "ephemeral": 1}, None)["ephemeral"][0]
    place = ["127.0.0.1", port]
    wish = {"from": 1, "token": SECRET, "targets": [{"node": 0, "places": [place]}], "limit_s": probe.MAX_LISTEN_S}
    try:
        with contextlib.ExitStack() as crowd:
            for _ in range(300):
                crowd.enter_context(socket.create_connection(("127.0.0.1", port)))
            assert [one["state"] for one in probe.reach(node, wish, None)["tried"]] == ["ok"]
    finally:
        probe.release(node, {"token": SECRET}, None)


def test_who_says_little_at_a_time_has_one_deadline(ends: Ends) -> None:
    ends.head(TIMES._replace(proof=0.5))
    with socket.create_connection(ends.place) as slow:
        assert slow.recv(4096).endswith(b"\n")
        for _ in range(MAX_LINE_BYTES - 100):
            with contextlib.suppress(OSError):
                slow.sendall(b" ")
            if select.select([slow], [], [], 0.05)[0]:
                break
        else:
            pytest.fail("it may go on for ever")
        assert has_gone(slow)


def test_a_stranger_may_say_only_short_lines(ends: Ends) -> None:
    ends.head()
    with socket.create_connection(ends.place) as loud:
        loud.sendall(b"[" * (MAX_LINE_BYTES + 1))
        until(lambda: has_gone(loud), "nobody waits for the end of the line")


def test_one_that_plays_the_head_has_one_deadline() -> None:
    """On a shared host another user may have taken the port before node 0 did."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        member = Member(1, 2, listener.getsockname(), SECRET, lambda _event: None, TIMES._replace(proof=0.5))
        found: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=lambda: found.put(member.call_head("member")), daemon=True).start()
        connection, _ = listener.accept()
        with connection:
            for _ in range(MAX_LINE_BYTES - 100):
                if not found.empty():
                    break
                with contextlib.suppress(OSError):
                    connection.sendall(b" ")
                time.sleep(0.05)  # its pace
            assert found.get_nowait() is None


class Failing:
    """A listener whose accept fails so often."""

    def __init__(self, listener: socket.socket, *errors: OSError) -> None:
        self._listener = listener
        self._errors = list(errors)

    def accept(self) -> tuple[socket.socket, Any]:
        if self._errors:
            raise self._errors.pop(0)
        return self._listener.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._listener, name)


def test_an_accept_that_fails_is_not_the_last(ends: Ends) -> None:
    numbers = (*SHORTAGE_ERRORS, errno.ECONNABORTED, errno.EPROTO, errno.ENETDOWN, errno.EPERM, errno.EINTR)
    head = Head(0, 3, ends.place, SECRET, lambda _event: None, TIMES)
    head._listener = Failing(head._listener, *(OSError(number, "no") for number in numbers))  # type: ignore[assignment]
    ends._begun(head)
    _, heard = ends.member()
    head.send_event(stop(0))
    assert heard.get(timeout=HANG_S) == stop(0)


def test_a_shortage_frees_the_oldest_strangers_and_nothing_else_does() -> None:
    crowd, heard = Strangers(), queue.Queue[Any]()
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as clients:
        four = [clients.enter_context(socket.create_connection(listener.getsockname())) for _ in range(4)]
        assert all(crowd.accept(listener, heard.put, "hears") for _ in four)
        short = Failing(listener, OSError(errno.EMFILE, "too many"), OSError(errno.ECONNABORTED, "it went"))
        assert not crowd.accept(short, heard.put, "hears")  # type: ignore[arg-type]
        assert [one.recv(1) for one in four[:2]] == [b"", b""], "the older half makes room"
        assert not crowd.accept(short, heard.put, "hears")  # type: ignore[arg-type]
        assert not any(map(has_gone, four[2:])), "who went by itself costs nobody the place"


def test_a_machine_without_threads_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_work: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(WORKERS, "start", none)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname()) as client,
    ):
        assert not Strangers().accept(listener, lambda _one: None, "hears")
        assert client.recv(1) == b""


# The proof.


def answer(challenge: str, *, secret: str = SECRET, **other: Any) -> dict[str, Any]:
    """A good one, but for what is another."""
    good = {"node": 1, "role": "member", "nonce": "a" * 64, "proof": proof(secret, "member", 1, challenge)}
    return {**good, **other}


ATTACKS: dict[str, Callable[[str, dict[str, Any]], Any]] = {
    "another secret": lambda nonce, _old: answer(nonce, secret="guess"),
    "an empty secret": lambda nonce, _old: answer(nonce, secret=""),
    "no such node": lambda nonce, _old: answer(nonce, node=7, proof=proof(SECRET, "member", 7, nonce)),
    "a negative node": lambda nonce, _old: answer(nonce, node=-1, proof=proof(SECRET, "member", -1, nonce)),
    "the head itself": lambda nonce, _old: answer(nonce, node=0, proof=proof(SECRET, "member", 0, nonce)),
    "a node that is a truth": lambda nonce, _old: answer(nonce, node=True),
    "a node that is a text": lambda nonce, _old: answer(nonce, node="1"),
    "a node that is no number": lambda nonce, _old: answer(nonce, node=float("inf")),
    "a node that is a list": lambda nonce, _old: answer(nonce, node=[1]),
    "another node's proof": lambda nonce, _old: answer(nonce, node=2),
    "the head's role": lambda nonce, _old: answer(nonce, proof=proof(SECRET, "head", 1, nonce)),
    "another role's proof": lambda nonce, _old: answer(nonce, role=GIVE),
    "a role that there is not": lambda nonce, _old: answer(nonce, role="owner", proof=proof(SECRET, "owner", 1, nonce)),
    "a role that is none": lambda nonce, _old: answer(nonce, role={"member": 1}),
    "no role": lambda nonce, _old: {**answer(nonce), "role": None},
    "a proof from before": lambda _nonce, old: old,
    "the challenge sent back": lambda nonce, _old: answer(nonce, proof=nonce),
    "an empty proof": lambda nonce, _old: answer(nonce, proof=""),
    "half a proof": lambda nonce, _old: answer(nonce, proof=proof(SECRET, "member", 1, nonce)[:32]),
    "a proof in capitals": lambda nonce, _old: answer(nonce, proof=proof(SECRET, "member", 1, nonce).upper()),
    "a proof that is no ASCII": lambda nonce, _old: answer(nonce, proof="é" * 64),
    "a proof that is half a character": lambda nonce, _old: answer(nonce, proof="\ud800"),
    "a proof that is a list": lambda nonce, _old: answer(nonce, proof=[nonce]),
    "no proof": lambda nonce, _old: {"node": 1, "role": "member", "nonce": nonce},
    "no nonce": lambda nonce, _old: answer(nonce, nonce=None),
    "a nonce that smuggles words": lambda nonce, _old: answer(nonce, nonce="key head member 1 x"),
    "no object": lambda nonce, _old: [nonce],
    "nothing": lambda _nonce, _old: b"",
    "no UTF-8": lambda _nonce, _old: b"\xff\xfe",
    "no JSON": lambda _nonce, _old: b"{",
    "deeply nested": lambda _nonce, _old: b"[" * (MAX_LINE_BYTES - 2),
    "more digits than Python reads": lambda _nonce, _old: b'{"node": ' + b"1" * (MAX_LINE_BYTES - 20) + b"}",
}


def test_attacks_on_the_proof(ends: Ends) -> None:
    """Who does not know the secret, or has no part in the run, is told nothing and not heard."""
    _, heard = ends.head()
    with socket.create_connection(ends.place) as one, one.makefile("rwb") as file:
        old = answer(json.loads(file.readline())["nonce"])
        file.write(json.dumps(old).encode() + b"\n")
        file.flush()
        assert json.loads(file.readline()) == {"proof": proof(SECRET, "head", 1, "a" * 64)}, "a good one is good"
    for name, attack in ATTACKS.items():
        with socket.create_connection(ends.place) as one, one.makefile("rwb") as file:
            said = attack(json.loads(file.readline())["nonce"], old)
            file.write((said if isinstance(said, bytes) else json.dumps(said).encode()) + b"\n")
            file.write(json.dumps(stop(1)).encode() + b"\n")
            with contextlib.suppress(ConnectionResetError):
                file.flush()
                assert file.readline() == b"", name
    print(f"{len(ATTACKS)} attacks on the gang link's proof held")
    assert len(ATTACKS) >= 17
    assert heard.empty()


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(said=st.binary(max_size=2 * MAX_LINE_BYTES))
def test_any_bytes_before_the_proof(ends: Ends, said: bytes) -> None:
    if not ends.links:
        ends.head()
    with socket.create_connection(ends.place) as one, contextlib.suppress(OSError):
        one.sendall(said)
        one.shutdown(socket.SHUT_WR)
        while one.recv(4096):
            pass
    assert not ends.broken


def test_after_all_that_a_member_gets_in(ends: Ends) -> None:
    head, _ = ends.head()
    for said in (b"\n", b"{}\n", b"\0" * 600, b"\xff\n"):
        with socket.create_connection(ends.place) as one:
            one.sendall(said)
    _, heard = ends.member()
    head.send_event(stop(0))
    assert heard.get(timeout=HANG_S) == stop(0)


# Messages.


def forged(kind: int, content: bytes, key: bytes = b"guess", number: int = 0) -> bytes:
    seal = Seal(key)
    for _ in range(number):
        seal.next(kind, content)
    return HEAD.pack(len(content), kind, seal.next(kind, content)) + content


STOP = json.dumps(stop(2, "somebody on the way wants it")).encode()


class Meddling:
    """What is done to the third frame of one direction, or to the first after it that it changes; once."""

    def __init__(self, way: Way, do: Callable[[Passing, Way, bytes], bytes | None]) -> None:
        self._way = way
        self._do = do
        self._done = False

    def __call__(self, passing: Passing, way: Way, number: int, frame: bytes) -> bytes | None:
        if way != self._way or number < 2 or self._done:
            return frame
        changed = self._do(passing, way, frame)
        self._done = changed != frame
        return changed


def turned(frame: bytes, at: int) -> bytes:
    """With one bit the other way."""
    return frame[:at] + bytes([frame[at] ^ 1]) + frame[at + 1 :]


class Swapped:
    """Two frames the other way round."""

    def __init__(self, way: Way) -> None:
        self._way = way
        self._held = b""

    def __call__(self, _passing: Passing, way: Way, number: int, frame: bytes) -> bytes | None:
        if way != self._way or number not in (2, 3):
            return frame
        self._held, before = frame, self._held
        return frame + before if before else b""


def other(way: Way) -> Way:
    return "to head" if way == "to member" else "to member"


DEEDS: dict[str, Callable[[Passing, Way, bytes], bytes | None]] = {
    "a message that is not signed": lambda _passing, _way, frame: frame + STOP + b"\n",
    "a message with no MAC": lambda _passing, _way, frame: frame + HEAD.pack(len(STOP), MESSAGE, bytes(32)) + STOP,
    "a message signed with a guess": lambda _passing, _way, frame: frame + forged(MESSAGE, STOP, number=3),
    "one message in place of another": lambda _p, _way, frame: HEAD.pack(len(STOP), MESSAGE, frame[5:37]) + STOP,
    "a bit of a message": lambda _passing, _way, frame: turned(frame, HEAD.size + 2),
    "a bit of the MAC": lambda _passing, _way, frame: turned(frame, 5),
    "a bit of the kind": lambda _passing, _way, frame: turned(frame, 4),
    "a bit of the length": lambda _passing, _way, frame: turned(frame, 3),
    "a huge length": lambda _passing, _way, frame: b"\xff" * 4 + frame[4:],
    "a frame again": lambda _passing, _way, frame: frame + frame,
    "the first frame again": lambda passing, way, frame: frame + passing.seen[way][0],
    "a frame less": lambda _passing, _way, _frame: b"",
    "one from before, and then this": lambda passing, way, frame: passing.seen[way][1] + frame,
    "what the other side says": lambda passing, way, frame: frame + b"".join(passing.seen[other(way)][:3]),
    "half a frame and no more": lambda _passing, _way, frame: frame[: len(frame) // 2],
    "the end": lambda _passing, _way, _frame: None,
}


@pytest.mark.parametrize("way", ["to member", "to head"])
@pytest.mark.parametrize("deed", [*DEEDS, "two in another order"])
def test_who_is_on_the_way_changes_nothing_that_is_heard(ends: Ends, way: Way, deed: str) -> None:
    """The connection ends, is made again, and all that was said is heard: that, and nothing else."""
    head, at_head = ends.head()
    relay = Relay(ends.place, Meddling(way, DEEDS[deed]) if deed in DEEDS else Swapped(way))
    try:
        member, at_member = ends.member(place=relay.place)
        tells, hears = (head, at_member) if way == "to member" else (member, at_head)
        said = [stop(0 if tells is head else 1, str(number)) for number in range(6)]
        for event in said:
            tells.send_event(event)
        heard = []
        while not heard or heard[-1] != said[-1]:
            heard.append(hears.get(timeout=HANG_S))
        assert {event["why"] for event in heard} == {event["why"] for event in said}
        assert all(event in said for event in heard)
        until(lambda: len(relay.passed) >= 2, "the connection was made again")
        back = at_head if hears is at_member else at_member  # a member that comes back hears its own words again
        assert all(event in said for event in back.queue)
    finally:
        relay.close()


def test_what_was_said_on_another_connection_is_not_heard_on_this_one(ends: Ends) -> None:
    _, at_head = ends.head()
    kept: list[bytes] = []

    def record(_passing: Passing, way: Way, number: int, frame: bytes) -> bytes | None:
        if way == "to head":
            kept.append(frame)
        return frame if number < 4 else None

    def splice(_passing: Passing, way: Way, number: int, frame: bytes) -> bytes | None:
        return kept[number] if way == "to head" and number < len(kept) else frame

    relay = Relay(ends.place, record, splice)
    try:
        member, _ = ends.member(place=relay.place)
        member.send_event(stop(1, "once"))
        assert at_head.get(timeout=HANG_S) == stop(1, "once")
        until(lambda: len(relay.passed) >= 3, "the spliced connection was given up")
        assert at_head.empty()
    finally:
        relay.close()


def test_who_lets_a_member_prove_itself_has_no_key(ends: Ends) -> None:
    """The proof is passed on as it is; what is said after it needs the secret."""
    _, at_head = ends.head()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        member = Member(1, 3, listener.getsockname(), SECRET, lambda _event: None, TIMES)
        threading.Thread(target=lambda: member.call_head("member"), daemon=True).start()
        near, _ = listener.accept()
        with near, socket.create_connection(ends.place) as far, far.makefile("rb") as told, near.makefile("rb") as says:
            near.sendall(told.readline())
            far.sendall(says.readline())
            assert b"proof" in told.readline()
            far.sendall(STOP + b"\n" + forged(MESSAGE, STOP))
            until(lambda: has_gone(far), "the head gives it up")
    assert at_head.empty()


def test_a_plain_message_on_the_way_is_not_heard(ends: Ends) -> None:
    """Bytes as they come, without a thought of frames: a line as it was heard before messages were signed."""
    head, _ = ends.head()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        _, heard = ends.member(place=listener.getsockname())
        near, _ = listener.accept()
        with near, socket.create_connection(ends.place) as far:
            head.send_event(stop(0))
            while heard.empty():
                ready = select.select([near, far], [], [], HANG_S)[0]
                for one in ready:
                    (far if one is near else near).sendall(one.recv(65536))
            assert heard.get() == stop(0)
            near.sendall(STOP + b"\n")
            with contextlib.suppress(ConnectionError):
                until(lambda: has_gone(near), "the member gives it up")
    assert heard.empty() or heard.get() == stop(0)
    assert heard.empty()


KEYS = Keys(b"head", b"member")
MESSAGES = st.lists(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9), max_size=3), max_size=5)


def arrives(stream: bytes) -> list[dict[str, Any]]:
    """What a member hears of these bytes before it gives the connection up."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = threading.Thread(target=_send_all, args=(theirs, stream), daemon=True)
        sender.start()
        heard = list(Channel(ours, KEYS.member, KEYS.head, HANG_S).messages())
        ours.close()
        sender.join(HANG_S)
        return heard


def _send_all(end: socket.socket, stream: bytes) -> None:
    with contextlib.suppress(OSError):
        end.sendall(stream)
        end.shutdown(socket.SHUT_WR)


def frames(messages: list[dict[str, Any]]) -> list[bytes]:
    seal = Seal(KEYS.head)
    found = []
    for message in messages:
        content = json.dumps(message).encode()
        found.append(HEAD.pack(len(content), MESSAGE, seal.next(MESSAGE, content)) + content)
    return found


@given(stream=st.binary(max_size=3000))
def test_any_bytes_after_the_proof(stream: bytes) -> None:
    assert arrives(stream) == []


@given(messages=MESSAGES, data=st.data())
def test_of_what_was_said_a_beginning_is_heard_whatever_happens_on_the_way(messages: Any, data: Any) -> None:
    stream = b"".join(frames(messages))
    assert arrives(stream) == messages
    start, end = sorted(data.draw(st.integers(0, len(stream))) for _ in range(2))
    put = data.draw(st.binary(max_size=60) | st.just(stream[start:end]))
    heard = arrives(stream[:start] + put + stream[end:])
    assert heard == messages[: len(heard)]


@given(messages=MESSAGES, data=st.data())
def test_frames_in_another_order_are_heard_up_to_the_first_that_is_not_due(messages: Any, data: Any) -> None:
    sent = frames(messages)
    order = data.draw(st.lists(st.integers(0, max(0, len(sent) - 1)), max_size=8)) if sent else []
    due = next((at for at, number in enumerate(order) if number != at), len(order))
    assert arrives(b"".join(sent[number] for number in order)) == messages[:due]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(said=st.lists(st.dictionaries(
    st.sampled_from(["event", "node", "why", "reason", "beat"]),
    st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
                 lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2)),
), max_size=4))  # fmt: skip
def test_a_member_that_says_anything_ends_no_thread(ends: Ends, said: list[dict[str, Any]]) -> None:
    if not ends.links:

        def picky(event: Any) -> None:
            raise KeyError(event["why"]["reason"])

        ends._begun(Head(0, 3, ends.place, SECRET, picky, TIMES))
    wire = ends.wire()
    for message in said:
        wire.send(message)
    wire.finish()
    with contextlib.suppress(OSError):
        while wire.receive() is not None:
            pass
    wire.close()
    assert not ends.broken


def test_a_key_is_of_one_connection_role_node_and_direction() -> None:
    every = [
        key
        for role in ("member", GIVE, TAKE)
        for node in (1, 2)
        for challenge in ("a" * 64, "b" * 64)
        for nonce in ("a" * 64, "b" * 64)
        for key in session_keys(SECRET, role, node, challenge, nonce)
    ]
    assert len(set(every)) == len(every) == 48
    assert not {proof(SECRET, role, 1, "a" * 64).encode() for role in ("member", GIVE, TAKE, "head")} & set(every)


def test_a_connection_that_was_meddled_with_says_nothing_more() -> None:
    """Neither what follows the forged frame, nor what was there already."""
    good = frames([{"beat": 1}, {"beat": 2}])
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(forged(MESSAGE, STOP) + good[1])
        wire = Channel(ours, KEYS.member, KEYS.head, HANG_S)
        assert wire.receive() is None
        with pytest.raises(OSError, match="descriptor"):
            wire.receive()


# Files.


CUTS: dict[str, Callable[[bytes], bytes | None]] = {
    "cut within": lambda frame: frame[: len(frame) // 2],
    "a block less": lambda _frame: b"",
    "a bit": lambda frame: turned(frame, len(frame) - 1),
    "a block again": lambda frame: frame + frame,
    "whole too soon": lambda frame: frame + forged(BYTES, b"", number=3),
    "the end": lambda _frame: None,
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("block", [0, 2, 3], ids=["first", "last", "none: it is whole"])
def test_a_file_that_is_handed_over_arrives_as_it_is_or_not_at_all(tmp_path: Path, cut: str, block: int) -> None:
    """Three blocks and the frame that says so; somebody on the way wants less, more, or others."""

    def meddle(passing: Passing, way: Way, number: int, frame: bytes) -> bytes | None:
        if way != "to head" or number != 1 + block:  # the offer comes first
            return frame
        changed = CUTS[cut](frame)
        if changed is not None and len(changed) < len(frame):  # nothing of ours would follow: it may stay silent
            passing.ends["to head"].sendall(changed)
            return None
        return changed

    head = Side(tmp_path, 0, ("127.0.0.1", port := free_port()))
    relay = Relay(("127.0.0.1", port), meddle)
    giver = Side(tmp_path, 1, relay.place)
    try:
        # The giver's member link is the first to pass: the handover's is another, and is what is meddled with.
        until(lambda: relay.passed, "the link stands")
        relay._meddles = tuple([lambda *args: args[-1]] * len(relay.passed) + [meddle] * 50)
        content = giver.file("a.pt", os.urandom(2 * MAX_FRAME_BYTES + 17)).read_bytes()
        for side in (head, giver):
            side.handover.note(1, 60.0)
            side.done.set()
        giver.handover.begin()
        head.said("unhanded")
        added_after_its_end = block == 3 and cut in ("a block again", "whole too soon")
        assert head.files() == ({"a.pt": content} if added_after_its_end else {})
        assert not list(head.folder.glob(".gpuops-handed*"))
    finally:
        for side in (head, giver):
            side.link.open_until = 0.0
            side.link.send_event({"event": "ended", "node": side.spec["node"], "outcome": "done", "reason": {}})
            side.link.close()
        relay.close()
