"""A request as the fake heard it, and who asks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.fakes.runpod.problems import Refusal, denied, not_found
from tests.fakes.runpod.records import Account, Pod
from tests.fakes.web import Heard


@dataclass(eq=False)
class Request(Heard):
    method: str
    path: str
    """Without the API's version: /pods/abc, /graphql; as it is where it has none."""
    query: dict[str, str]
    headers: dict[str, str]
    """By their names in lower case."""
    body: Any
    """From JSON; None where there is none, or none that can be read."""
    raw: bytes = b""
    answer: Any = None

    def __str__(self) -> str:
        return f"{self.method} {self.path} {self.status or '-'}"


@dataclass(frozen=True)
class Caller:
    """Whom a key stands for: an account, or one pod of it alone."""

    account: Account
    may_write: bool = True
    pod: Pod | None = None

    def check(self, method: str, path: str) -> None:
        """Refuse what this key may not do."""
        if self.pod:
            own = (f"/pods/{self.pod.id}", f"/pods/{self.pod.id}/action", f"/pods/{self.pod.id}/logs")
            if path not in own or method == "PATCH":
                raise denied()
            if method == "DELETE":  # only the action is known to be open to it; 404 is "not accessible to the caller"
                raise not_found()
        elif not self.may_write and method != "GET":
            raise denied()


@dataclass
class Answer:
    status: int
    body: Any = None
    """For JSON; None: no body."""
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    raw: bytes | None = None
    follow: Pod | None = None
    """The pod whose log is the answer."""

    @classmethod
    def refuse(cls, refusal: Refusal) -> Answer:
        return cls(refusal.status, refusal.body, refusal.headers, "application/problem+json")
