"""Verbs `route`, `port` and `addresses`: this node's interfaces and addresses, and a free port to meet at.

On Linux the kernel is asked by netlink (rtnetlink(7)), so that no program such as `ip` is needed.
"""

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
from gpuops.agent.machine_resources import boot_id
from gpuops.agent.node import Emit, Node, Refusal, read_text

LOWEST_PORT = 20000
MAX_PORT_ATTEMPTS = 200
DEFAULT_EPHEMERAL_START = 49152
"""Of a system that does not show it: that of IANA, which macOS uses."""
LINUX_EPHEMERAL_START = 32768
KERNEL_LIMIT_S = 5.0
ROUTE_LIMIT_S = 20.0
DISCARD_PORT = 9
"""A port for datagram sockets that are connected and never used."""
RTM_GETROUTE = 26
RTA_DST, RTA_OIF = 1, 4
NLM_F_REQUEST = 1


def route(_node: Node, args: dict[str, Any], _emit: Emit) -> dict[str, Any]:
    """Verb: `{interface, address}` that the kernel uses towards `to`. Raises Refusal(`no-route`)."""
    to = str(args["to"]).strip("[]")
    try:
        family, _, _, _, target = socket.getaddrinfo(to, DISCARD_PORT, type=socket.SOCK_DGRAM)[0]
        source = source_address(family, target)
        return {"interface": find_interface(family, str(target[0])), "address": source}
    except OSError as error:
        raise Refusal("no-route", f"this node has no way to {to}: {error}", "check its network") from error


def source_address(family: int, target: Any) -> str:
    """This node's own address towards a socket address. Raises OSError where there is no route."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)  # sends nothing: the kernel chooses the route
        return str(probe.getsockname()[0])


def find_interface(family: int, address: str) -> str:
    """The interface towards an address. Raises OSError."""
    return (
        _interface_from_netlink(family, address) if sys.platform.startswith("linux") else _interface_from_route(address)
    )


def _interface_from_netlink(family: int, address: str) -> str:
    packed = socket.inet_pton(family, address.partition("%")[0])
    attribute = struct.pack("=HH", 4 + len(packed), RTA_DST) + packed
    request = struct.pack("=BBBBBBBBI", family, 8 * len(packed), 0, 0, 0, 0, 0, 0, 0) + attribute
    header = struct.pack("=IHHII", 16 + len(request), RTM_GETROUTE, NLM_F_REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(KERNEL_LIMIT_S)
        kernel.send(header + request)
        answer = kernel.recv(65536)
    length, kind = struct.unpack_from("=IH", answer)
    if kind == RTM_GETROUTE - 2:
        for name, value in parse_attributes(answer[16 + 12 : length]):
            if name == RTA_OIF:
                return socket.if_indextoname(struct.unpack("=I", value)[0])
    number = -struct.unpack_from("=i", answer, 16)[0]
    raise OSError(number, os.strerror(number))


def parse_attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The attributes of a netlink message: number and value."""
    while len(data) >= 4:
        length, name = struct.unpack_from("=HH", data)
        yield name, data[4:length]
        data = data[max(4, (length + 3) & ~3) :]


def _interface_from_route(address: str) -> str:
    """The interface that macOS's program `route` names. Raises OSError."""
    process = processes.start_helper(["route", "-n", "get", address], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    output = processes.read_output(process, ROUTE_LIMIT_S) or (b"", b"")
    for line in output[0].decode(errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "interface":
            return value.strip()
    raise OSError("route names no interface")


def port(_node: Node, args: dict[str, Any], _emit: Emit) -> dict[str, Any]:
    """Verb: a TCP port that is free on `address`. Raises Refusal(`no-port`)."""
    address = str(args["address"]).strip("[]")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    last_error = ""
    for number in port_candidates():
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((address, number))
                return {"port": number}
            except OSError as error:
                last_error = str(error)
    raise Refusal("no-port", f"no port could be opened on {address}: {last_error}", "check the node's address")


def port_candidates() -> list[int]:
    """Random ports for a launch to listen on, below the ephemeral ones."""
    return random.SystemRandom().sample(range(LOWEST_PORT, ephemeral_start()), MAX_PORT_ATTEMPTS)


def ephemeral_start() -> int:
    """The first port that the kernel gives to outgoing connections, which may take any of those at any moment."""
    limits = read_text("/proc/sys/net/ipv4/ip_local_port_range").split()
    first = int(limits[0]) if limits and limits[0].isdigit() else DEFAULT_EPHEMERAL_START
    # Some machines use nearly all ports for that; then no port is safer than another.
    return first if first >= LOWEST_PORT + MAX_PORT_ATTEMPTS else LINUX_EPHEMERAL_START


RTM_NEWADDR, RTM_GETADDR = 20, 22
NLM_F_REQUEST_DUMP = 0x301
IFA_ADDRESS, IFA_LOCAL, IFA_LABEL, IFA_FLAGS = 1, 2, 3, 8
UNUSABLE_FLAGS = 0x01 | 0x08 | 0x20 | 0x40
"""Flags IFA_F_TEMPORARY, DADFAILED, DEPRECATED, TENTATIVE: addresses that do not work, or not for long."""
SCOPE_LINK = 253
TUNNEL_TYPES = ("65534", "512")
"""ARPHRD_NONE and ARPHRD_PPP: WireGuard, Tailscale, OpenVPN."""
FAMILIES = {int(socket.AF_INET): "ipv4", int(socket.AF_INET6): "ipv6"}
UNASSIGNED_ADDRESSES = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Addresses for documentation: the kernel's route towards them is this node's default route."""


class Address(NamedTuple):
    """One address. `device`: its interface's number; `label`: the interface's name in getifaddrs, which may differ."""

    family: int
    text: str
    prefix_len: int
    device: int
    label: str


def addresses(_node: Node, _args: dict[str, Any], _emit: Emit) -> dict[str, Any]:
    """Verb: `{machine, addresses: [{interface, address, prefix_len, family, kind, speed}]}`, in the kernel's order,
    without loopback and link-local ones.

    Nodes with the same `machine` share a machine and its network namespace. `kind`: `direct`, `bridge` or `tunnel`;
    `speed`: the interface's in Mbit/s, 0 where unknown.
    """
    try:
        known = list(_read_addresses())
    except (OSError, AttributeError, struct.error):
        known = []  # not Linux, or netlink is not permitted
    entries = [entry for address in known for entry in _describe_usable(address)]
    return {"machine": machine_id(), "addresses": entries or list(_default_routes())}


def machine_id() -> str:
    """Equal for nodes that share a machine and its network namespace, and for no others."""
    boot = boot_id()
    try:
        return f"{boot}-{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return boot or f"{platform.node()}-{uuid.getnode()}"


def _read_addresses() -> Iterator[Address]:
    request = struct.pack("=IHHIIBBBBI", 24, RTM_GETADDR, NLM_F_REQUEST_DUMP, 1, 0, 0, 0, 0, 0, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(KERNEL_LIMIT_S)
        kernel.send(request)
        while True:
            data = kernel.recv(1 << 18)
            while len(data) >= 16:
                length, kind = struct.unpack_from("=IH", data)
                if kind != RTM_NEWADDR:
                    return  # the end, or an error
                yield from parse_address(data[16:length])
                data = data[(length + 3) & ~3 :]


def parse_address(message: bytes) -> list[Address]:
    """The address in the body of one RTM_NEWADDR; none where other machines cannot use it."""
    family, prefix_len, flags, scope, index = struct.unpack_from("=BBBBI", message)
    values = dict(parse_attributes(message[8:]))
    if IFA_FLAGS in values:
        (flags,) = struct.unpack("=I", values[IFA_FLAGS])
    # On a point-to-point link IFA_ADDRESS is the peer's.
    packed = values.get(IFA_LOCAL) or values.get(IFA_ADDRESS)
    if family not in FAMILIES or packed is None or flags & UNUSABLE_FLAGS or scope >= SCOPE_LINK:
        return []
    label = values.get(IFA_LABEL, b"").rstrip(b"\0").decode(errors="replace")
    return [Address(family, socket.inet_ntop(family, packed), prefix_len, index, label)]


def _describe_usable(address: Address) -> list[dict[str, Any]]:
    try:
        name = socket.if_indextoname(address.device)
    except OSError:
        return []  # removed meanwhile
    if not is_reachable(address.text) or _read_attribute(name, "operstate") == "down":
        return []
    described = _describe(name, address.text, address.prefix_len, address.family)
    return [{**described, "interface": address.label or name}]


def is_reachable(text: str) -> bool:
    """Whether another machine could reach this one at this address."""
    address = ipaddress.ip_address(text.partition("%")[0])
    return not (address.is_loopback or address.is_link_local or address.is_multicast or address.is_unspecified)


def _describe(name: str, text: str, prefix_len: int, family: int) -> dict[str, Any]:
    speed = _read_attribute(name, "speed")
    kind = "tunnel" if _read_attribute(name, "type") in TUNNEL_TYPES else "direct"
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


def _read_attribute(name: str, attribute: str) -> str:
    """An interface's attribute in sysfs; empty where it has none."""
    return read_text(f"/sys/class/net/{name}/{attribute}")


def _default_routes() -> Iterator[dict[str, Any]]:
    """The addresses that the kernel uses towards the internet, for systems that do not list all addresses."""
    for family, target in UNASSIGNED_ADDRESSES:
        try:
            source, name = source_address(family, (target, DISCARD_PORT)), find_interface(family, target)
        except OSError:
            continue
        if is_reachable(source):
            yield _describe(name, source, 8 * len(socket.inet_pton(family, source)), int(family))
