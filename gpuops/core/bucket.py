"""A prefix of a bucket (S3, or a service with its API), and whose keys open it, as values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar


class DotenvPolicy(Enum):
    """Whether the keys for a bucket are those of the project's `.env`. The values are those of the JSON form."""

    REQUIRED = True
    IGNORED = False
    UNDECIDED = None
    """Not checked yet, or checked by a version that preferred `.env` to AWS's own files."""


@dataclass(frozen=True)
class Bucket(ABC):
    """What requests to a bucket need. A subclass says what the bucket is for."""

    bucket: str
    prefix: str = ""
    """Without a slash at its end; empty: the whole bucket."""
    profile: str = ""
    """Name in ~/.aws; empty: keys of the environment, or the default profile."""
    dotenv: DotenvPolicy = DotenvPolicy.UNDECIDED
    region: str = ""
    """Empty until the bucket has been asked for it."""

    flag: ClassVar[str]
    """The flag that names the bucket."""

    def key(self, name: str) -> str:
        """The key of an object under the prefix."""
        return f"{self.prefix}/{name}" if self.prefix else name

    def url(self, name: str) -> str:
        """`s3://BUCKET/PREFIX/NAME`."""
        return f"s3://{self.bucket}/{self.key(name)}"

    @property
    @abstractmethod
    def grants(self) -> str:
        """What its keys must be allowed to do, as a hint says it."""

    @property
    @abstractmethod
    def absent_hint(self) -> str:
        """What to do where there is no such bucket."""
