"""Whether anything answers behind a forwarded port: said when it does, and before that once that it does not yet."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

ANSWER_S = 2.0
"""Who is silent for so long waits for us to speak first, as web servers do."""
LOOK_S = 2.0


def tell(port: int, say: Callable[[str], None], *, open_: str, closed: str, alive: Callable[[], bool]) -> None:
    """Look until something answers on a port of this computer, for as long as whoever holds it open is `alive`."""
    told = False
    while alive():
        state = answers(port)
        if state:
            return say(open_)
        if state is False and not told:
            say(closed)
            told = True
        time.sleep(LOOK_S if told else 0.1)
    return None


def answers(port: int) -> bool | None:
    """None while nobody holds the port; False where it is closed as soon as it is opened: nothing listens behind it."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S) as one:
            try:
                return one.recv(1) != b""
            except TimeoutError:
                return True
            except OSError:
                return False
    except ConnectionResetError:
        return False  # so soon that it had not even begun
    except OSError:
        return None
