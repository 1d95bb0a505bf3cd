"""Where a run's results are kept besides this computer (`--sink`), as values: a bucket, or a folder on a volume.

`document` is the JSON form, as the ledger keeps it with the run's request; `parse_document` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from gpuops.core.bucket import Bucket, DotenvPolicy


@dataclass(frozen=True)
class BucketSink(Bucket):
    """Objects under a prefix of a bucket, one archive per node."""

    end: bool = False
    """Whether the nodes end once everything is kept."""
    place: str = ""
    """`s3://BUCKET/KEY` of one launch, under which its nodes write; not stored."""

    flag: ClassVar[str] = "--sink"

    @property
    def grants(self) -> str:
        actions = "s3:PutObject, s3:GetObject, s3:AbortMultipartUpload, s3:ListMultipartUploadParts"
        return f"{actions} on arn:*:s3:::{self.bucket}/{self.key('*')}"

    @property
    def absent_hint(self) -> str:
        return f"make it (aws s3 mb s3://{self.bucket}), or name another"

    def key_of(self, url: str) -> str:
        """The key in an `s3://` URL of this bucket."""
        return url.removeprefix(f"s3://{self.bucket}/")

    def document(self) -> dict[str, Any]:
        return {"bucket": self.bucket, "prefix": self.prefix, "profile": self.profile, "dotenv": self.dotenv.value,
                "region": self.region, "end": self.end}  # fmt: skip


@dataclass(frozen=True)
class FolderSink:
    """A folder on a network volume that is mounted on every node."""

    volume: str
    """The volume's name."""
    mount: str = ""
    """Where the nodes have it; empty until there are nodes."""
    end: bool = False
    """Whether the nodes end once everything is kept."""
    id: str = ""
    """Fresh for each run: a folder of another run with the same name is not written to."""

    def document(self) -> dict[str, Any]:
        return {"volume": self.volume, "mount": self.mount, "end": self.end, "id": self.id}


Sink = BucketSink | FolderSink


class SinkStatus(StrEnum):
    """How far a node is with keeping results in its sink. The values are those of the node protocol."""

    CLAIMED = "claimed"
    COPYING = "copying"
    SAFE = "safe"
    FAILED = "failed"
    UNKNOWN = ""

    @classmethod
    def _missing_(cls, _value: object) -> SinkStatus:
        return cls.UNKNOWN

    @property
    def is_in_progress(self) -> bool:
        return self in (SinkStatus.CLAIMED, SinkStatus.COPYING)


@dataclass(frozen=True)
class SinkProgress:
    """What became of the results that one node keeps in its sink."""

    status: SinkStatus = SinkStatus.UNKNOWN
    folder: str = ""
    why: str = ""
    """Why not all is there."""
    done: int = 0
    """Bytes copied so far."""

    @property
    def is_safe(self) -> bool:
        return self.status is SinkStatus.SAFE

    def document(self) -> dict[str, Any]:
        """The JSON form, as the ledger keeps it beside a node's result."""
        fields = {"folder": self.folder, "why": self.why, "done": self.done}
        return {"state": self.status.value, **{name: value for name, value in fields.items() if value}}

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> SinkProgress:
        return cls(
            SinkStatus(document.get("state", "")),
            str(document.get("folder") or ""),
            str(document.get("why") or ""),
            int(document.get("done") or 0),
        )


BUCKET_FIELDS = ("bucket", "prefix", "profile", "region", "end")
FOLDER_FIELDS = ("volume", "mount", "end", "id")


def parse_document(document: Mapping[str, Any] | None) -> Sink | None:
    """The sink of a JSON form; None without one. Raises ValueError for what is no sink."""
    if not document:
        return None
    try:
        if document.get("bucket"):
            known = {name: document[name] for name in BUCKET_FIELDS if name in document}
            return BucketSink(**known, dotenv=DotenvPolicy(document.get("dotenv")))
        return FolderSink(**{name: document[name] for name in FOLDER_FIELDS if name in document})
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"this is no sink: {document!r:.200}") from error


def find_bucket(document: Mapping[str, Any] | None) -> BucketSink | None:
    """The bucket of a JSON form that was stored; None for every other, also one that cannot be read: what asks for it
    ends and looks, and must go on."""
    try:
        sink = parse_document(document)
    except ValueError:
        return None
    return sink if isinstance(sink, BucketSink) else None
