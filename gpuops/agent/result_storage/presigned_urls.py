"""The presigned URLs with which a node stores one run's results in a bucket, in `runs/<run>/urls.json` (0600).

They come with the launch, beside the spec, and newer ones before they expire. Each permits one kind of request on one
object. Kinds that are not needed any more are removed, and do not come back with newer ones.
"""

from __future__ import annotations

import os
from typing import Any, Mapping, NamedTuple, Sequence

from gpuops.agent.node import read_json, remove_file, write_json

FILE = "urls.json"


class PresignedUrls(NamedTuple):
    """A kind that this node has no URLs of is empty. `heads` and `states` are of all nodes of the run."""

    parts: Sequence[str] = ()
    """To upload one part of the archive each, in order."""
    complete: str = ""
    """To complete the archive."""
    head: str = ""
    """To read the archive's size."""
    state: str = ""
    """To write this node's state."""
    heads: Sequence[str] = ()
    states: Sequence[str] = ()
    until: float = 0.0
    """When all of them expire (UTC seconds)."""

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> PresignedUrls:
        return cls(**{name: document[name] for name in cls._fields if name in document})


def read_urls(folder: str) -> PresignedUrls | None:
    """The URLs of the run in `folder`; None where it has none."""
    document = read_json(os.path.join(folder, FILE))
    return PresignedUrls.parse(document) if document else None


def store_urls(folder: str, urls: PresignedUrls) -> None:
    document = {name: value for name, value in urls._asdict().items() if value}
    write_json(os.path.join(folder, FILE), document)


def renew_urls(folder: str, newer: PresignedUrls) -> PresignedUrls | None:
    """Store newer URLs, of the kinds that are still there. Returns them; None where there are none."""
    present = read_urls(folder)
    if present is None:
        return None
    kept = {name: value for name, value in newer._asdict().items() if getattr(present, name)}
    urls = PresignedUrls(**kept)
    store_urls(folder, urls)
    return urls


def remove_upload_urls(folder: str) -> None:
    """Remove all URLs but those that show the state of the nodes: the archive is complete."""
    urls = read_urls(folder)
    if urls is not None:
        store_urls(folder, urls._replace(parts=(), complete="", head=""))


def remove_urls(folder: str) -> None:
    remove_file(os.path.join(folder, FILE))
