"""Which errors of accept the agent survives."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

from gpuops.agent.rpc.server import ACCEPT_RETRY_INTERVAL_S, accept_connection


class Listener:
    """Raises some errors, then has a client."""

    def __init__(self, *errors: int) -> None:
        self._errors: Iterator[int] = iter(errors)

    def accept(self) -> tuple[str, None]:
        for number in self._errors:
            raise OSError(number, "played")
        return "a client", None


def test_a_client_that_cannot_be_accepted_now_is_accepted_later() -> None:
    pauses: list[float] = []
    listener = Listener(errno.EMFILE, errno.EMFILE, errno.ENFILE, errno.ECONNABORTED)
    client: socket.socket | str = accept_connection(listener, pauses.append)  # type: ignore[arg-type]
    assert client == "a client"
    assert pauses == [ACCEPT_RETRY_INTERVAL_S] * 4
