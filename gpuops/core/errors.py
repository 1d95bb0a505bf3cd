"""Every error gpuops knows, and the exit code it ends with.

    GpuopsError
    ├── UsageError              2    the command, a file or a setting is wrong
    ├── RunFailed               1    a rank's own error, or a world that never formed
    ├── ProviderError           3    the provider refused a request
    │   ├── NoCapacity                this offer is not available now
    │   ├── QuotaExceeded             the account may not have it
    │   ├── AuthFailed                credentials refused
    │   │   └── NotSetUp              no credentials were found
    │   ├── RateLimited               too many requests; `retry_after` seconds where stated
    │   ├── Rejected                  this request will never be accepted
    │   └── Unknown                   no readable answer: the request may have had its effect
    │       └── Partial               some regions answered; `found` is what they list
    ├── NodeError               4    a node or the network failed
    │   ├── ConnectionLost            the connection ended; the node may be well
    │   │   └── NoAnswer              it stands, and nothing came for `silent_s` seconds
    │   ├── MachineGone               its machine ended before a run was on it
    │   ├── NodeRefused               the agent refused a request; `kind` says why
    │   └── MalformedAnswer           it sent what no gpuops agent sends
    ├── LocalDisk               4    this computer cannot write: no node has failed
    └── StillBilling            5    something may still cost money

    Interrupted                 130  Ctrl-C, SIGTERM, SIGHUP: no failure, and no GpuopsError

What a user reads is always one sentence (`message`) and one thing to do (`hint`). Anything
else that escapes is a bug: exit code 70, and the traceback goes to a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

BUG = 70
"""Exit code of a bug in gpuops (sysexits' EX_SOFTWARE)."""


class GpuopsError(Exception):
    """A failure that a user can act on: one sentence, one thing to do, one exit code."""

    exit_code = 4

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(GpuopsError):
    exit_code = 2


class RunFailed(GpuopsError):
    exit_code = 1


class ProviderError(GpuopsError):
    exit_code = 3


class NoCapacity(ProviderError):
    pass


class QuotaExceeded(ProviderError):
    pass


class AuthFailed(ProviderError):
    pass


class NotSetUp(AuthFailed):
    """No credentials were found. Not reported for a provider at which nothing was ever rented."""


class RateLimited(ProviderError):
    def __init__(self, message: str, hint: str = "", retry_after: float | None = None) -> None:
        super().__init__(message, hint)
        # The provider's number is not trusted: a negative one would be no pause.
        self.retry_after = retry_after if retry_after is not None and 0 <= retry_after < float("inf") else None


class Rejected(ProviderError):
    pass


class Unknown(ProviderError):
    """`instead`: what the provider said to a later request for the same; it holds where nothing is found."""

    def __init__(self, message: str, hint: str = "", instead: ProviderError | None = None) -> None:
        super().__init__(message, hint)
        self.instead = instead


class Partial(Unknown):
    """`list_owned` was not answered everywhere. `found`: what those list that did answer (`models.Resource`)."""

    def __init__(self, message: str, hint: str = "", found: Sequence[Any] = ()) -> None:
        super().__init__(message, hint)
        self.found = found


class NodeError(GpuopsError):
    exit_code = 4


class ConnectionLost(NodeError):
    pass


class NoAnswer(ConnectionLost):
    """A node has sent nothing for `silent_s` seconds, on a connection that stands."""

    def __init__(self, message: str, hint: str = "", silent_s: float = 0.0) -> None:
        super().__init__(message, hint)
        self.silent_s = silent_s


class MachineGone(NodeError):
    """A machine was preempted, or ended for an unknown reason. `cluster`: its number in the ledger, where known;
    `per_hour`: what its machines cost while they were there, in $/h."""

    def __init__(
        self, message: str, hint: str = "", node: int | None = None, cluster: int | None = None, per_hour: float = 0.0
    ) -> None:
        super().__init__(message, hint)
        self.node = node
        self.cluster = cluster
        self.per_hour = per_hour


class RefusalKind(StrEnum):
    """Kinds of refusal that something is decided by; agents have more of them (docs/protocol.md)."""

    ENDED = "ended"
    NO_NODE = "no-node"
    """There is no node in its folder: it was removed, or is not there yet."""
    NO_AGENT = "no-agent"
    NO_RUN = "no-run"
    """The run was never started there."""
    NO_PYTHON = "no-python"
    GANG = "gang"
    CANNOT_START = "cannot-start"
    """The run's command is not there, or may not be executed."""
    UNKNOWN_VERB = "unknown-verb"
    """The agent is older than this gpuops."""


FINAL_REFUSALS = (RefusalKind.ENDED, RefusalKind.NO_NODE, RefusalKind.NO_RUN)
"""Those that a retry does not change for a run that was started; any other may come from a node that is still
starting."""


class NodeRefused(NodeError):
    """The agent on a node refused a request; `kind` is a RefusalKind, or another word of the protocol."""

    def __init__(
        self, message: str, hint: str = "", kind: str = "refused", data: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(message, hint)
        self.kind = kind
        self.data = data or {}


class MalformedAnswer(NodeError):
    """A node sent what no gpuops agent sends: it is broken or hostile. Retries do not help.

    `what`: what is wrong with it, without the node's own words.
    """

    def __init__(self, label: str, what: str) -> None:
        super().__init__(f"{label} answers nonsense ({what})", "check that this node is yours; `gpuops down` ends it")


class LocalDisk(GpuopsError):
    """This computer's disk failed. Retrying the node or the network does not help."""

    exit_code = 4


class StillBilling(GpuopsError):
    exit_code = 5


class Interrupted(BaseException):
    """The user or the system ends the command. No GpuopsError, so that `except GpuopsError` does not swallow it."""

    exit_code = 130

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


def worst_exit_code(*codes: int) -> int:
    """The exit code that wins when several apply (5 beats 130 beats 4 beats 3 beats 1)."""
    for code in (BUG, 5, 130, 4, 3, 2, 1):
        if code in codes:
            return code
    return 0


def find_auth_failure(error: BaseException | None) -> AuthFailed | None:
    """The refused credentials that an error comes from, if it does."""
    while error is not None and not isinstance(error, AuthFailed):
        error = error.__cause__
    return error
