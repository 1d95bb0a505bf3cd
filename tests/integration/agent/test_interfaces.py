"""Listening and reaching on loopback, and what the kernel's list of addresses is taken for."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gpuops.agent.network import interfaces, probe, unauthenticated_connections
from gpuops.agent.node import Node, Refusal

HERE = Node("/nowhere")
TOKEN = "secret"
HANG_S = 60.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sides are threads of this process, on a machine that may be busy."""
    monkeypatch.setattr(probe, "CONVERSATION_LIMIT_S", HANG_S)
    monkeypatch.setattr(probe, "BURST_LIMIT_S", HANG_S)


@contextmanager
def listening(node: int = 0, token: str = TOKEN, **ports: int) -> Iterator[dict[str, list[int]]]:
    answer = probe.listen(HERE, {"node": node, "token": token, "for_s": HANG_S, **ports}, None)
    try:
        yield answer
    finally:
        probe.release(HERE, {"token": token}, None)


def reach(*places: tuple[str, int], node: int = 0, limit_s: float = HANG_S, **more: Any) -> list[dict[str, Any]]:
    target = {"node": node, "places": [list(place) for place in places]}
    args = {"from": 1, "token": TOKEN, "targets": [target], "limit_s": limit_s, **more}
    tried: list[dict[str, Any]] = probe.reach(HERE, args, None)["tried"]
    return tried


def states(*places: tuple[str, int], **more: Any) -> list[str]:
    return [one["state"] for one in reach(*places, **more)]


def test_every_address_of_both_families_and_every_port() -> None:
    with listening(fresh=2, ephemeral=1) as ports:
        assert (len(ports["fresh"]), len(ports["ephemeral"])) == (2, 1)
        assert all(interfaces.LOWEST_PORT <= port < interfaces.ephemeral_start() for port in ports["fresh"])
        numbers = [*ports["fresh"], *ports["ephemeral"]]
        tried = reach(*[(address, port) for address in ("127.0.0.1", "127.0.0.7", "::1") for port in numbers])
    assert {one["state"] for one in tried} == {"ok"}
    assert {one["address"]: one["source"] for one in tried} == {
        "127.0.0.1": "127.0.0.1", "127.0.0.7": "127.0.0.1", "::1": "::1",
    }  # fmt: skip


def test_released_ports_are_free_at_once() -> None:
    with listening(fresh=1) as ports:
        (port,) = ports["fresh"]
        assert states(("127.0.0.1", port)) == ["ok"]
    assert states(("127.0.0.1", port)) == ["refused"]
    with socket.create_server(("127.0.0.1", port)):
        pass
    probe.release(HERE, {"token": TOKEN}, None)  # once more is no error


def test_listeners_go_by_themselves() -> None:
    listeners = probe.Listeners(0, TOKEN)
    port = listeners.open(0)
    listeners.begin(0.1)
    assert listeners._job is not None
    listeners._job.join(HANG_S)
    assert listeners.is_over()
    assert states(("127.0.0.1", port)) == ["refused"]
    listeners.close()


def test_another_node_or_another_probe_is_not_who_was_meant() -> None:
    with listening(node=2, fresh=1) as ports:
        assert states(("127.0.0.1", ports["fresh"][0]), node=0) == ["other"]
        assert states(("127.0.0.1", ports["fresh"][0]), node=2) == ["ok"]
    with listening(token="another", fresh=1) as ports:
        assert states(("127.0.0.1", ports["fresh"][0])) == ["other"]


def test_a_stranger_who_answers_or_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as talker, socket.create_server(("127.0.0.1", 0)) as mute:

        def greet() -> None:
            connection, _ = talker.accept()
            connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n" * 2)
            connection.recv(1 << 16)
            connection.close()

        threading.Thread(target=greet, daemon=True).start()
        assert states(talker.getsockname()) == ["other"]
        assert states(mute.getsockname(), limit_s=0.3) == ["timed-out"]


def test_no_way_and_nonsense_are_answers_too() -> None:
    assert states(("255.255.255.255", 9), ("no address", 9)) == ["no-route", "failed"]


def test_who_was_reached_is_not_waited_for_at_its_other_addresses() -> None:
    with listening(fresh=1) as ports, socket.create_server(("127.0.0.7", 0)) as mute:
        place = ("127.0.0.1", ports["fresh"][0])
        assert states(place, mute.getsockname(), settle_s=0.05) == ["ok", "timed-out"]


def test_who_was_reached_is_waited_for_on_its_other_ports() -> None:
    """It is busy; another verdict would say that a firewall stands in between."""
    with listening(fresh=1) as ports, socket.create_server(("127.0.0.1", 0)) as busy:

        def answer() -> None:
            connection, _ = busy.accept()
            _, _, nonce, *_ = unauthenticated_connections.read_line(connection, time.monotonic() + HANG_S).split()
            time.sleep(0.4)
            connection.sendall(unauthenticated_connections.proof(TOKEN, "listens", 0, nonce.decode()).encode() + b"\n")

        threading.Thread(target=answer, daemon=True).start()
        assert states(("127.0.0.1", ports["fresh"][0]), busy.getsockname(), settle_s=0.05) == ["ok", "ok"]


def test_how_fast_it_is() -> None:
    with listening(ephemeral=1) as ports:
        (one,) = reach(("127.0.0.1", ports["ephemeral"][0]), burst=True)
    assert one["state"] == "ok"
    assert one["mb_s"] > 0
    assert one["ms"] >= 0


def test_a_measurement_that_breaks_off_is_no_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            _, _, nonce, _, count = unauthenticated_connections.read_line(connection, time.monotonic() + HANG_S).split()
            assert int(count) == probe.BURST_BYTES
            connection.sendall(unauthenticated_connections.proof(TOKEN, "listens", 0, nonce.decode()).encode() + b"\n")
            connection.close()

        threading.Thread(target=answer, daemon=True).start()
        (one,) = reach(server.getsockname(), burst=True)
    assert (one["state"], one["mb_s"]) == ("ok", None)


def test_noise_does_not_end_the_listening() -> None:
    with listening(fresh=1) as ports:
        (port,) = ports["fresh"]
        for noise in (
            b"",
            b"GET / HTTP/1.0\r\n\r\n",
            b"\xff" * 600,
            b"gpuops-probe x y z 0\n",
            b"gpuops-probe 1 \xc3\xa9 p 0\n",
        ):
            with socket.create_connection(("127.0.0.1", port)) as stranger:
                stranger.sendall(noise)
        assert states(("127.0.0.1", port)) == ["ok"]


def test_a_port_that_cannot_be_had_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(probe, "port_candidates", lambda: [port])
        with pytest.raises(Refusal) as refused:
            probe.listen(HERE, {"node": 0, "token": TOKEN, "for_s": 1, "fresh": 1}, None)
    assert refused.value.kind == "no-port"


# Addresses.


def message(
    family: int, packed: bytes, scope: int = 0, flags: int = 0, local: bytes = b"", label: bytes = b""
) -> bytes:
    body = struct.pack("=BBBBI", family, 24, 0, scope, 2)
    values = {interfaces.IFA_ADDRESS: packed, interfaces.IFA_FLAGS: struct.pack("=I", flags)}
    values.update({interfaces.IFA_LOCAL: local} if local else {})
    values.update({interfaces.IFA_LABEL: label + b"\0"} if label else {})
    for name, value in values.items():
        body += struct.pack("=HH", 4 + len(value), name) + value + b"\0" * (-len(value) % 4)
    return body


FOUR, SIX = int(socket.AF_INET), int(socket.AF_INET6)
OWN, PEER = socket.inet_aton("10.0.0.5"), socket.inet_aton("10.0.0.1")
ULA = socket.inet_pton(socket.AF_INET6, "fd00::5")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (message(FOUR, OWN), [("10.0.0.5", "")]),
        (message(FOUR, PEER, local=OWN, label=b"eth0:1"), [("10.0.0.5", "eth0:1")]),
        (message(SIX, ULA), [("fd00::5", "")]),
        (message(SIX, ULA, scope=253), []),
        (message(SIX, ULA, flags=0x01), []),
        (message(SIX, ULA, flags=0x40), []),
        (message(SIX, ULA, flags=0x80), [("fd00::5", "")]),
        (message(28, ULA), []),
    ],
)
def test_the_kernels_messages(data: bytes, expected: list[tuple[str, str]]) -> None:
    assert [(one.text, one.label) for one in interfaces.parse_address(data)] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("127.0.0.1", False), ("::1", False), ("169.254.1.1", False), ("fe80::1", False), ("0.0.0.0", False),
     ("10.0.0.5", True), ("8.8.4.4", True), ("fd00::5", True)],
)  # fmt: skip
def test_what_another_machine_could_mean(text: str, expected: bool) -> None:
    assert interfaces.is_reachable(text) is expected


def test_this_machines_own_addresses() -> None:
    answer = interfaces.addresses(HERE, {}, None)
    assert answer["machine"] == interfaces.machine_id() != ""
    for one in answer["addresses"]:
        assert one["interface"]
        assert interfaces.is_reachable(one["address"])
        with socket.socket(FOUR if one["family"] == "ipv4" else SIX) as mine:
            mine.bind((one["address"], 0))
