"""Verbs `route` and `port`: by which way the other nodes are reached, and where they can meet."""

from __future__ import annotations

import ipaddress
import os
import platform
import random
import socket
import struct
import subprocess
import sys
import uuid
from typing import Any, Iterator, NamedTuple

from gpuops.agent import processes
from gpuops.agent.lease import boot_id
from gpuops.agent.node import Node, Refusal

LOWEST_PORT = 20000
TRIES = 200
RTM_GETROUTE = 26
RTA_DST, RTA_OIF = 1, 4
NLM_F_REQUEST = 1


def route(_node: Node, args: dict[str, Any], _emit: Any) -> dict[str, Any]:
    """Verb: `{interface, address}` that the kernel would use towards `to`. Raises Refusal(`no-route`)."""
    to = str(args["to"]).strip("[]")
    try:
        family, _, _, _, target = socket.getaddrinfo(to, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # sends nothing: the kernel chooses our address
            own = str(probe.getsockname()[0])
        return {"interface": interface(family, str(target[0])), "address": own}
    except OSError as error:
        raise Refusal("no-route", f"this node has no way to {to}: {error}", "check its network") from error


def interface(family: int, address: str) -> str:
    """The interface towards an address. Raises OSError."""
    return _ask_kernel(family, address) if sys.platform.startswith("linux") else _ask_route(address)


def _ask_kernel(family: int, address: str) -> str:
    packed = socket.inet_pton(family, address.partition("%")[0])
    attribute = struct.pack("=HH", 4 + len(packed), RTA_DST) + packed
    request = struct.pack("=BBBBBBBBI", family, 8 * len(packed), 0, 0, 0, 0, 0, 0, 0) + attribute
    header = struct.pack("=IHHII", 16 + len(request), RTM_GETROUTE, NLM_F_REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(5.0)
        kernel.send(header + request)
        answer = kernel.recv(65536)
    length, kind = struct.unpack_from("=IH", answer)
    if kind == RTM_GETROUTE - 2:
        for name, value in attributes(answer[16 + 12 : length]):
            if name == RTA_OIF:
                return socket.if_indextoname(struct.unpack("=I", value)[0])
    number = -struct.unpack_from("=i", answer, 16)[0]
    raise OSError(number, os.strerror(number))


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Netlink's attributes, by number."""
    while len(data) >= 4:
        length, name = struct.unpack_from("=HH", data)
        yield name, data[4:length]
        data = data[max(4, (length + 3) & ~3) :]


def _ask_route(address: str) -> str:
    process = processes.helper(["route", "-n", "get", address], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    out, _ = process.communicate(timeout=20)
    for line in out.decode(errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "interface":
            return value.strip()
    raise OSError("route names no interface")


def port(_node: Node, args: dict[str, Any], _emit: Any) -> dict[str, Any]:
    """Verb: a TCP port that nobody uses on `address`. Raises Refusal(`no-port`)."""
    address = str(args["address"]).strip("[]")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    problem = ""
    for number in random.SystemRandom().sample(range(LOWEST_PORT, ephemeral_start()), TRIES):
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((address, number))
                return {"port": number}
            except OSError as error:
                problem = str(error)
    raise Refusal("no-port", f"no port could be opened on {address}: {problem}", "check the node's address")


def ephemeral_start() -> int:
    """Where the ports begin that the kernel gives to outgoing connections: one of those may be taken any moment."""
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            first = int(file.read().split()[0])
    except (OSError, ValueError):
        first = 49152
    # Some machines give out nearly all ports; then none is safer than another.
    return first if first >= LOWEST_PORT + TRIES else 32768


RTM_NEWADDR, RTM_GETADDR = 20, 22
NLMSG_DONE, NLM_F_REQUEST_DUMP = 3, 0x301
IFA_ADDRESS, IFA_LOCAL, IFA_LABEL, IFA_FLAGS = 1, 2, 3, 8
UNFIT = 0x01 | 0x08 | 0x20 | 0x40
"""IFA_F_TEMPORARY, DADFAILED, DEPRECATED, TENTATIVE: of no use, or of none for long."""
SCOPE_LINK = 253
NO_DEVICE, PPP = "65534", "512"
"""Kinds of interface (ARPHRD) that stand for a tunnel: WireGuard, Tailscale, OpenVPN."""
FAMILIES = {int(socket.AF_INET): "ipv4", int(socket.AF_INET6): "ipv6"}
ELSEWHERE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Addresses that belong to nobody: what the kernel would use towards them is this node's way out."""


class Address(NamedTuple):
    """One address. `device`: its interface's number; `label`: what getifaddrs calls it, where that may differ."""

    family: int
    text: str
    prefix_len: int
    device: int
    label: str


def addresses(_node: Node, _args: dict[str, Any], _emit: Any) -> dict[str, Any]:
    """Verb: `{machine, addresses: [{interface, address, prefix_len, family, kind, speed}]}`, in the kernel's order,
    without loopback and link-local ones.

    Two nodes with the same `machine` are on one machine, in one network namespace. `kind`: `direct`, `bridge` or
    `tunnel`; `speed` is the interface's in Mbit/s, 0 where it does not say.
    """
    try:
        found = list(_from_kernel())
    except (OSError, AttributeError, struct.error):
        found = []  # not Linux, or one that does not tell
    entries = [entry for one in found for entry in _entry(one)]
    return {"machine": machine(), "addresses": entries or list(_ways_out())}


def machine() -> str:
    """What two nodes have in common that share a machine and its network, and no others do."""
    boot = boot_id()
    try:
        return f"{boot}-{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return boot or f"{platform.node()}-{uuid.getnode()}"


def _from_kernel() -> Iterator[Address]:
    request = struct.pack("=IHHIIBBBBI", 24, RTM_GETADDR, NLM_F_REQUEST_DUMP, 1, 0, 0, 0, 0, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(5.0)
        kernel.send(request)
        while True:
            data = kernel.recv(1 << 18)
            while len(data) >= 16:
                length, kind = struct.unpack_from("=IH", data)
                if kind != RTM_NEWADDR:
                    return  # the end, or an error
                yield from parse(data[16:length])
                data = data[(length + 3) & ~3 :]


def parse(message: bytes) -> list[Address]:
    """The body of one RTM_NEWADDR; nothing where the address is none to be reached at."""
    family, prefix_len, flags, scope, index = struct.unpack_from("=BBBBI", message)
    values = dict(attributes(message[8:]))
    if IFA_FLAGS in values:
        (flags,) = struct.unpack("=I", values[IFA_FLAGS])
    # On a point-to-point link IFA_ADDRESS is the other end's.
    packed = values.get(IFA_LOCAL) or values.get(IFA_ADDRESS)
    if family not in FAMILIES or packed is None or flags & UNFIT or scope >= SCOPE_LINK:
        return []
    label = values.get(IFA_LABEL, b"").rstrip(b"\0").decode(errors="replace")
    return [Address(family, socket.inet_ntop(family, packed), prefix_len, index, label)]


def _entry(one: Address) -> list[dict[str, Any]]:
    try:
        name = socket.if_indextoname(one.device)
    except OSError:
        return []  # it has just gone
    if not fit(one.text) or _about(name, "operstate") == "down":
        return []
    return [{**_described(name, one.text, one.prefix_len, one.family), "interface": one.label or name}]


def fit(text: str) -> bool:
    """Whether another machine could mean this one by this address."""
    address = ipaddress.ip_address(text.partition("%")[0])
    return not (address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified)


def _described(name: str, text: str, prefix_len: int, family: int) -> dict[str, Any]:
    speed = _about(name, "speed")
    kind = "tunnel" if _about(name, "type") in (NO_DEVICE, PPP) else "direct"
    if os.path.isdir(f"/sys/class/net/{name}/bridge"):
        kind = "bridge"
    return {
        "interface": name,
        "address": text,
        "prefix_len": prefix_len,
        "family": FAMILIES[family],
        "kind": kind,
        "speed": int(speed) if speed.isdigit() else 0,
    }


def _about(name: str, what: str) -> str:
    try:
        with open(f"/sys/class/net/{name}/{what}") as file:
            return file.read().strip()
    except OSError:
        return ""  # `speed` of an interface that has none is an error


def _ways_out() -> Iterator[dict[str, Any]]:
    """Where the kernel does not list them: the addresses that it would use towards the world."""
    for family, target in ELSEWHERE:
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((target, 9))  # sends nothing
                own = str(probe.getsockname()[0])
            name = interface(family, target)
        except OSError:
            continue
        if fit(own):
            yield _described(name, own, 8 * len(socket.inet_pton(family, own)), int(family))
