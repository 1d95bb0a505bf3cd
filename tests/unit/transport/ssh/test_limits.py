"""Starting logins: how many at once, how often again. On a fake clock."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpuops.core.errors import ConnectionLost
from gpuops.transport.ssh import errors
from gpuops.transport.ssh.limits import Gate, Limits, pause
from gpuops.transport.ssh.target import Target


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def gate(clock: Clock, **changes: float) -> Gate:
    return Gate(Limits(**changes), clock.sleep, lambda: clock.now, lambda: 0.5)  # type: ignore[arg-type]


def test_those_turned_away_wait_longer_each_time() -> None:
    clock, tries = Clock(), []

    def act() -> str:
        tries.append(clock.now)
        if len(tries) < 4:
            raise errors.Refused("busy")
        return "in"

    assert gate(clock).start("host", act) == "in"
    assert clock.slept == [pytest.approx(0.3), pytest.approx(0.6), pytest.approx(1.2)]


def test_both_limits_hold() -> None:
    clock, tries = Clock(), []

    def refuse() -> None:
        tries.append(clock.now)
        clock.now += 7
        raise errors.Refused("busy")

    with pytest.raises(errors.Refused):
        gate(clock).start("host", refuse)
    assert len(tries) == 4  # 30 s are over
    tries.clear()
    with pytest.raises(errors.Refused):
        gate(clock, retry_s=1e9).start("host", refuse)
    assert len(tries) == 5


@pytest.mark.parametrize("error", [ConnectionLost("no"), errors.Denied("no"), ValueError("no")])
def test_nothing_else_is_tried_again(error: Exception) -> None:
    tries = []

    def fail() -> None:
        tries.append(1)
        raise error

    with pytest.raises(type(error)):
        gate(Clock()).start("host", fail)
    assert tries == [1]


def test_pauses_are_spread_and_bounded() -> None:
    assert pause(1, 0.0) < pause(1, 1.0) < pause(4, 0.5) < pause(9, 1.0) <= 12.0


def test_eight_at_once_per_address_and_a_jump_host_is_one() -> None:
    one, inside, most = Gate(), 0, 0
    lock, full = threading.Lock(), threading.Event()

    def act() -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
            if inside == 8:
                full.set()
        full.wait(60)
        with lock:
            inside -= 1

    targets = [Target(f"host{number}", proxy="ssh -W [%h]:%p jump") for number in range(20)]
    with ThreadPoolExecutor(20) as threads:
        list(threads.map(lambda target: one.start(target.address, act), targets))
    assert most == 8
    assert len({Target(f"host{number}").address for number in range(3)}) == 3


@pytest.mark.parametrize(
    ("words", "kind", "said"),
    [
        ("kex_exchange_identification: Connection closed by remote host", errors.Refused, "closed the connection"),
        ("Connection reset by 10.0.0.1 port 22", errors.Refused, "closed the connection"),
        ("ssh: connect to host h port 22: Connection refused", ConnectionLost, "refuses connections"),
        ("ssh: connect to host h port 22: Connection timed out", ConnectionLost, "does not answer"),
        ("ssh: Could not resolve hostname h: Name or service not known", ConnectionLost, "not known"),
        ("me@h: Permission denied (publickey).", errors.Denied, "permission denied for me@h"),
        ("SHA256:abcdefghijklmnopqrstuvwxyz0123456789ABCDEFG.\nHost key verification failed.", errors.HostKeyChanged,
         "got SHA256:abcdefghijklmnopqrstuvwxyz0123456789ABCDEFG;"),
        ("command-line: line 0: \x1b[31mBad thing", ConnectionLost, "Bad thing"),
        ("", ConnectionLost, "ssh said nothing"),
    ],
)  # fmt: skip
def test_what_ssh_says_becomes_one_sentence(words: str, kind: type[Exception], said: str) -> None:
    error = errors.from_openssh(Target("h", user="me"), words)
    assert type(error) is kind
    assert said in error.message
    assert error.hint
    assert all(char.isprintable() for char in error.message)
