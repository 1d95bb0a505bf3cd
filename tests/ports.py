"""Ports for tests beside which others run."""

from __future__ import annotations

import itertools
import os
import random
import socket
from contextlib import suppress

LOWEST, SHARE, SHARES = 10_000, 1000, 10
"""Below the ports that agents choose for a run (from 20000), and below those that the kernel gives out."""

_PORTS = itertools.count(random.SystemRandom().randrange(SHARE))


def free_port() -> int:
    """A port that nobody listens on, and that nobody who asks the kernel for any gets meanwhile. Each worker has its
    own, and none comes twice soon."""
    first = LOWEST + SHARE * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % SHARES)
    for number in itertools.islice(_PORTS, SHARE):
        with socket.socket() as sock, suppress(OSError):
            sock.bind(("127.0.0.1", first + number % SHARE))
            return first + number % SHARE
    raise AssertionError("every port is taken")
