"""A request as the fake heard it, what is answered, and the ways in which AWS says no."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.web import Heard


@dataclass(eq=False)
class Request(Heard):
    service: str
    """As it is signed, and as permissions name it: ec2, servicequotas, ssm, pricing, sts, s3; unsigned: s3."""
    action: str
    region: str
    parameters: dict[str, Any]
    """As boto3 is given them."""
    method: str
    path: str
    """As it was asked for, with what is behind the question mark."""
    headers: dict[str, str]
    """By their names in lower case."""
    raw: bytes = b""
    form: dict[str, str] = field(default_factory=dict)
    """Of a service that is asked with a form."""
    key: str = ""
    """The id of the access key; "": nobody's."""
    error: str = ""
    """The code that was answered; "" where all went well."""

    @property
    def permission(self) -> str:
        """As a policy names it."""
        return f"{self.service}:{self.action}"

    def __str__(self) -> str:
        return f"{self.permission} {self.region} {self.status or '-'} {self.error}".rstrip()


@dataclass
class Answer:
    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    error: str = ""
    half: bool = False
    """Only the first half of the body is sent, and the connection ends."""


class Refusal(Exception):
    """An answer that is an error, in the code and the words of the service."""

    def __init__(self, code: str, message: str, http: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.http = http


@dataclass(frozen=True)
class Kept:
    """An answer made of moto's objects, not of what boto3 will hand out."""

    thing: Any


class Unreachable(Exception):
    """There is nobody at this address: the connection ends."""


def tags_of(specifications: Any, kind: str) -> dict[str, str]:
    """The tags that a create call's TagSpecifications give to one kind of thing."""
    found: dict[str, str] = {}
    for one in specifications or []:
        if one.get("ResourceType") == kind:
            found |= {tag["Key"]: tag.get("Value", "") for tag in one.get("Tags", [])}
    return found


def tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]
