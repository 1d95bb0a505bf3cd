"""Results kept in a bucket: one archive of each node, sent with addresses that carry their own permission.

    <place>/node<i>.tar    result.json, logs/, out/ and, last of all, safe.json
    <place>/node<i>.json   how far it is, as `runs/<run>/sink.json` says it; newer each minute while it goes on

The addresses come with the launch, beside the spec, and newer ones before they end (verb `urls`): whoever has one may
do with it what it was made for and nothing else, until it ends. They lie in `runs/<run>/urls.json` (0600), for the
agent's successor, and go once they are used.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any, Callable, Mapping

from gpuops.agent.node import Node, Refusal, read_json, write_json
from gpuops.agent.retain import run_contents
from gpuops.agent.retain.object_requests import ask, length, patiently
from gpuops.agent.retain.upload import NEVER, Kept, Upload, too_large
from gpuops.agent.retain.virtual_tar import Archive

URLS = "urls.json"
PARTS = "parts.json"
"""What has been sent, for the agent's successor."""
TRY_S = 30.0
"""How long a store is tried before a run starts that is to be kept there."""
TELL_S = 30.0
LOOK_S = 15.0
"""How often the other nodes' archives are looked for."""

_sending: dict[str, dict[str, Any]] = {}
"""By the run's folder, the addresses of an upload that is on."""


def is_one(spec: Mapping[str, Any]) -> bool:
    return bool((spec.get("sink") or {}).get("bucket"))


def claim(node: Node, spec: Mapping[str, Any], urls: Mapping[str, Any]) -> str:
    """Before a run starts: its place can be written to from here. Returns the place. Raises Refusal(`sink`)."""
    folder, place = node.run(spec["run"]), str(spec["sink"]["bucket"])
    write_json(os.path.join(folder, URLS), urls)
    _remove(folder, PARTS)
    try:
        tell(node, spec, {"state": "claimed"}, TRY_S)
    except OSError as error:
        say = f"{place} cannot keep this run's results: {error.strerror or error}"
        raise Refusal("sink", say, "see that the node reaches the bucket, or leave out --sink") from error
    return place


def renew(node: Node, args: dict[str, Any], _emit: Any) -> dict[str, Any]:
    """Verb: newer addresses for a run's place, also for an upload that is on; of a run that needs none, or only some,
    no others are kept."""
    folder = node.run(args["run"])
    before = read_json(os.path.join(folder, URLS)) or {}
    urls = {name: value for name, value in dict(args["urls"]).items() if name in before}
    if urls:
        write_json(os.path.join(folder, URLS), urls)
        _sending.get(folder, {}).update(urls)
    return {}


def tell(node: Node, spec: Mapping[str, Any], state: Mapping[str, Any], limit_s: float = TELL_S) -> None:
    """Say in the bucket how far this node is. Raises OSError."""
    urls = read_json(os.path.join(node.run(spec["run"]), URLS)) or {}
    body = json.dumps({**state, "node": spec["node"], "at": time.time()}).encode()
    if urls.get("state"):
        url = urls["state"]
        patiently(lambda: ask("PUT", url, [body], len(body)), time.time() + limit_s)


def send(
    node: Node,
    spec: Mapping[str, Any],
    folder: str,
    deadline: Callable[[], float],
    teller: Callable[[int], Callable[[int], None]],
) -> Kept:
    """Send all that a run left, once, however often it is begun. `deadline`: UTC seconds until which this machine is
    there, as far as is known now; `teller`: told of the size, gives who is told of bytes. Raises OSError."""
    urls = read_json(os.path.join(folder, URLS))
    if not urls:
        raise OSError(2, "the permission to write to the bucket is not on this node any more")
    archive = Archive(run_contents.newest_first(list(run_contents.listing(node, spec, folder))))
    found = length(urls["head"], min(deadline(), float(urls["until"])))
    if found is not None:
        return Kept(len(archive.items), found, 0, [])  # the agent before this one had closed it
    if time.time() > urls["until"]:
        raise OSError(13, "the permission to write to the bucket has ended")
    if say := too_large(archive, urls):
        raise OSError(27, say)
    about = {"schema": 1, "run": spec["run"], "node": spec["node"]}
    path = os.path.join(folder, PARTS)

    def note(parts: dict[str, list[Any]]) -> None:
        write_json(path, parts)

    upload = Upload(archive, urls, about, deadline=deadline, tell=teller(archive.size),
                    noted=read_json(path) or {}, note=note)  # fmt: skip
    _sending[folder] = urls
    try:
        return upload.all()
    finally:
        del _sending[folder]


def deadline(spec: Mapping[str, Any], result: Mapping[str, Any]) -> float:
    """Until when this machine is there, as far as the run's end tells (UTC seconds)."""
    reason = result.get("reason") or {}
    ours = reason.get("kind") == "reclaim" and reason.get("node", spec["node"]) == spec["node"]
    return float(reason["at"]) if ours and isinstance(reason.get("at"), (int, float)) else NEVER


def used(folder: str) -> None:
    """The archive is closed: what is left of the addresses is what the other nodes are seen by."""
    urls = read_json(os.path.join(folder, URLS)) or {}
    left = {name: urls[name] for name in ("state", "heads", "states", "until") if name in urls}
    write_json(os.path.join(folder, URLS), left)
    _remove(folder, PARTS)


def forget(folder: str) -> None:
    """Nobody needs the addresses any more."""
    _remove(folder, URLS)
    _remove(folder, PARTS)


def _remove(folder: str, name: str) -> None:
    if os.path.exists(os.path.join(folder, name)):
        os.unlink(os.path.join(folder, name))


class Others:
    """The archives of a run's nodes, looked for now and then."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._safe: set[int] = set()
        self._alive: list[str] = []
        self._looked = -LOOK_S

    def all_safe(self, nodes: int) -> bool:
        self._look()
        return len(self._safe) >= nodes

    def alive(self) -> list[str]:
        """What each node said last of itself, as its tag: another one each time."""
        self._look()
        return self._alive

    def _look(self) -> None:
        if time.monotonic() - self._looked < LOOK_S:
            return
        self._looked = time.monotonic()
        urls = read_json(os.path.join(self._folder, URLS)) or {}
        for index, url in enumerate(urls.get("heads") or []):
            if index not in self._safe and _tag(url):
                self._safe.add(index)
        tags = [_tag(url) for url in urls.get("states") or []]
        # What could not be looked at is no sign of life: neither its absence, nor its being there again.
        self._alive = [new or old for new, old in zip(tags, self._alive or tags)]


def _tag(url: str) -> str:
    try:
        answer = ask("HEAD", url)
    except Exception:  # it is looked at again
        return ""
    return answer.headers.get("etag", "") if answer.status == 200 else ""
