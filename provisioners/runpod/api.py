"""One request, one answer, or one of our errors: RunPod's REST API v2 by urllib3.

A request that creates is sent once; one that reads is retried a few times within a minute, and as late as
RunPod says where it throttles.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from gpuops.core.errors import ProviderError, Unknown, UsageError
from provisioners.base import NOTHING
from provisioners.runpod import credentials
from provisioners.runpod.errors import failure, other_shape, retry_after_s

if TYPE_CHECKING:
    import urllib3

CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 45.0
"""From the end of the request to the end of the answer."""
CALL_TIMEOUT_S = CONNECT_TIMEOUT_S + ANSWER_TIMEOUT_S
"""The contract allows a request a minute."""
GRAPHQL_TIMEOUT_S = 20.0
READ_ATTEMPTS_S = 55.0
"""All attempts of one GET together."""
RETRY_AFTER_TOTAL_S = 65.0
"""All waits of one GET that RunPod asked for (`Retry-After`), beside its attempts: RunPod's shortest window is a
minute."""
RETRY_DELAYS_S = (0.5, 1.5)
MIN_RETRY_AFTER_S = 1.0
"""The shortest wait, where RunPod says `Retry-After: 0`."""
MAX_ANSWER_BYTES = 32 * 1024 * 1024
MAX_PAGES = 100
CURSORS = ("nextCursor", "next_cursor", "cursor", "nextPageToken", "next")


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


class NoAnswer(Exception):
    """No answer, or half of one. Its text says why."""


class Api:
    """May be used from any thread. Construction touches nothing; errors are ProviderError and UsageError."""

    def __init__(self, env: Mapping[str, str], dotenv: Mapping[str, str] = NOTHING) -> None:
        self._env = env
        self._dotenv = dotenv
        self._lock = threading.Lock()
        self._kept: urllib3.PoolManager | None = None

    @property
    def key(self) -> str:
        return credentials.key(self._env, self._dotenv)

    @property
    def base(self) -> str:
        return credentials.address(self._env)

    def get(self, path: str, doing: str, **query: Any) -> Any:
        """GET a path. Returns the parsed JSON."""
        return self._parse_json(self._get_with_retries(path, doing, query), doing)

    def pages(self, path: str, name: str, doing: str, **query: Any) -> list[dict[str, Any]]:
        """The list `name` of an answer, with all its pages. Raises Unknown rather than return some of them."""
        found: dict[str, dict[str, Any]] = {}
        more: dict[str, str] = {}
        for _ in range(MAX_PAGES):
            document = self.get(path, doing, **query, **more)
            page = document.get(name) if isinstance(document, dict) else None
            if not isinstance(page, list) or not all(isinstance(item, dict) and item.get("id") for item in page):
                raise self._unreadable(document, doing)
            fresh = {str(item["id"]): item for item in page if str(item["id"]) not in found}
            found |= fresh
            cursor = _next_cursor(document)
            if not cursor:
                return list(found.values())
            if not fresh:
                break
            more = {"cursor": cursor}
        raise Unknown(f"RunPod lists in pages that gpuops cannot turn, to {doing}", "upgrade gpuops")

    def post(self, path: str, body: Mapping[str, Any], doing: str) -> dict[str, Any]:
        """Create something; sent once. Every error but Unknown means that nothing was made.

        By a connection of its own: one that was kept may be cut just then, and what it did would not be known.
        """
        content = json.dumps(body).encode()
        return self._parse_object(
            self._send_once("POST", path, content, CALL_TIMEOUT_S, doing, creating=True, fresh=True), doing
        )

    def delete(self, path: str, doing: str) -> int:
        """The status: 2xx, 404 where it is gone already, 409 where it cannot go this way."""
        return self._send_once("DELETE", path, None, CALL_TIMEOUT_S, doing, accepted=(404, 409)).status

    def read_stream(self, path: str, limit_s: float, doing: str, **query: Any) -> bytes:
        """What a stream sends within the limit: it may not end by itself."""
        return self._send_once("GET", _with_query(path, query), None, limit_s, doing, partial=True).body

    def graphql(self, query: str) -> dict[str, Any]:
        """The `data` of a GraphQL answer (RunPod ends this API in early 2027); {} for any failure."""
        body = json.dumps({"query": query}).encode()
        try:
            answer = self._send("POST", "/graphql", body, GRAPHQL_TIMEOUT_S, base=credentials.graphql_base(self._env))
            data = json.loads(answer.body).get("data")
        except (NoAnswer, UsageError, ProviderError, ValueError, AttributeError, RecursionError):
            return {}
        return data if isinstance(data, dict) else {}

    def get_or_none(self, path: str, doing: str) -> dict[str, Any] | None:
        """GET an object that has an `id`; None for a 404."""
        answer = self._get_with_retries(path, doing, {}, gone=True)
        return None if answer.status == 404 else self._parse_object(answer, doing)

    def _parse_object(self, answer: Answer, doing: str) -> dict[str, Any]:
        """The object in an answer. Raises Unknown where it has no `id`."""
        document = self._parse_json(answer, doing)
        if not isinstance(document, dict) or not document.get("id"):
            raise self._unreadable(document, doing)
        return document

    def _send_once(
        self,
        method: str,
        path: str,
        body: bytes | None,
        limit_s: float,
        doing: str,
        *,
        creating: bool = False,
        accepted: Sequence[int] = (),
        **how: Any,
    ) -> Answer:
        """One request without a retry. Raises the error of an answer that is neither success nor `accepted`."""
        try:
            answer = self._send(method, path, body, limit_s, **how)
        except NoAnswer as error:
            raise self._unknown(str(error), doing) from error
        if answer.status < 300 or answer.status in accepted:
            return answer
        raise self._failure(answer, doing, creating=creating)

    def _get_with_retries(self, path: str, doing: str, query: Mapping[str, Any], *, gone: bool = False) -> Answer:
        """A GET with retries: a few for what may pass, and as late as RunPod says where it wants fewer requests.

        `gone`: a 404 is an answer, too.
        """
        deadline, patience = time.monotonic() + READ_ATTEMPTS_S, RETRY_AFTER_TOTAL_S
        delays = list(RETRY_DELAYS_S)
        while True:
            error: ProviderError
            retry_after: float | None = None
            try:
                answer = self._send("GET", _with_query(path, query), None, deadline - time.monotonic())
                if answer.status < 300 or (gone and answer.status == 404):
                    return answer
                error = self._failure(answer, doing)
                retry_after = retry_after_s(answer.headers) if answer.status in (429, 503) else None
            except NoAnswer as no_answer:
                error = self._unknown(str(no_answer), doing)
            if retry_after is not None and (wait := max(retry_after, MIN_RETRY_AFTER_S)) <= patience:
                patience, deadline = patience - wait, deadline + wait
                time.sleep(wait)
                continue
            may_pass = isinstance(error, Unknown) and bool(delays)
            if not may_pass or deadline - time.monotonic() < CONNECT_TIMEOUT_S + delays[0]:
                raise error
            time.sleep(delays.pop(0))

    def _send(
        self,
        method: str,
        path: str,
        body: bytes | None,
        limit_s: float,
        *,
        fresh: bool = False,
        partial: bool = False,
        base: str = "",
    ) -> Answer:
        """One request over the network. `partial`: what was received by the deadline is the answer. Raises NoAnswer."""
        import urllib3

        deadline = time.monotonic() + limit_s
        headers = {
            "Authorization": f"Bearer {self.key}",
            "Accept": "text/event-stream" if partial else "application/json",
            "User-Agent": f"gpuops/{version()}",
            **({} if body is None else {"Content-Type": "application/json"}),
        }
        timeout = urllib3.Timeout(connect=min(CONNECT_TIMEOUT_S, limit_s), read=min(ANSWER_TIMEOUT_S, limit_s))
        try:
            with self._pool(fresh) as pool:
                response = pool.request(
                    method, (base or self.base) + path, body=body, headers=headers, timeout=timeout,
                    retries=False, redirect=False, preload_content=False,
                )  # fmt: skip
                try:
                    data, whole = _read_body(response, deadline, partial)
                except BaseException:
                    response.close()
                    raise
                response.release_conn() if whole else response.close()  # a half-read one is of no use to the next
                if not whole and not (partial and response.status < 300):
                    raise NoAnswer("its answer was not at its end in time")
                return Answer(response.status, dict(response.headers.items()), data)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise NoAnswer(_describe_failure(error)) from error

    @contextmanager
    def _pool(self, fresh: bool) -> Iterator[urllib3.PoolManager]:
        if fresh:
            pool = self._new_pool()
            try:
                yield pool
            finally:
                pool.clear()
            return
        with self._lock:
            if self._kept is None:
                self._kept = self._new_pool()
        yield self._kept

    def _new_pool(self) -> urllib3.PoolManager:
        import certifi
        import urllib3

        tls = {"cert_reqs": "CERT_REQUIRED", "ca_certs": self._env.get("SSL_CERT_FILE") or certifi.where()}
        proxy = proxy_for(self.base, self._env)
        if not proxy:
            return urllib3.PoolManager(maxsize=8, **tls)  # type: ignore[arg-type]
        parts = urlsplit(proxy)
        login = f"{parts.username}:{parts.password or ''}" if parts.username else None
        headers = urllib3.make_headers(proxy_basic_auth=login) if login else None
        where = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        try:
            return urllib3.ProxyManager(where, proxy_headers=headers, maxsize=8, **tls)  # type: ignore[arg-type]
        except urllib3.exceptions.HTTPError as error:
            raise UsageError("HTTPS_PROXY is no address of a proxy", "write it like http://proxy:3128") from error

    def _parse_json(self, answer: Answer, doing: str) -> Any:
        try:
            return json.loads(answer.body)
        except (ValueError, RecursionError):
            raise self._unreadable(None, doing) from None

    def _unreadable(self, document: Any, doing: str) -> ProviderError:
        wrong = other_shape(document)
        if wrong:
            return self._without_key(Unknown(wrong, f"unset RUNPOD_API_URL, or set it to {credentials.API}"))
        return self._unknown("what it answered cannot be read", doing)

    def _unknown(self, why: str, doing: str) -> ProviderError:
        return self._without_key(Unknown(f"RunPod was asked to {doing}: {why}", "check the network, and try again"))

    def _failure(self, answer: Answer, doing: str, *, creating: bool = False) -> ProviderError:
        return self._without_key(failure(answer.status, answer.headers, answer.body, doing, creating=creating))

    def _without_key(self, error: ProviderError) -> ProviderError:
        """The error with the API key removed: an answer may have repeated it."""
        error.say = error.say.replace(self.key, "…")
        error.args = (error.say,)
        return error


def _read_body(response: Any, deadline: float, partial: bool) -> tuple[bytes, bool]:
    """The body received by the deadline, and whether it is complete. One read is made even past the deadline."""
    import urllib3

    parts: list[bytes] = []
    size = 0
    while (not parts or time.monotonic() < deadline) and size <= MAX_ANSWER_BYTES:
        if response.connection is not None and getattr(response.connection, "sock", None) is not None:
            response.connection.sock.settimeout(max(0.1, deadline - time.monotonic()))
        try:
            part = response.read1(65536)
        except urllib3.exceptions.ReadTimeoutError:
            if partial:
                break
            raise
        if not part:
            return b"".join(parts), True
        parts.append(part)
        size += len(part)
    return b"".join(parts), False


def _describe_failure(error: Exception) -> str:
    """One clause, without the addresses of objects that urllib3 puts into its messages."""
    import urllib3

    kinds: tuple[tuple[type[Exception], str], ...] = (
        (urllib3.exceptions.ProxyError, "the proxy does not let it through"),
        (urllib3.exceptions.NameResolutionError, "its name cannot be resolved"),
        (urllib3.exceptions.ConnectTimeoutError, "it cannot be reached"),
        (urllib3.exceptions.NewConnectionError, "it cannot be reached"),
        (urllib3.exceptions.SSLError, "its certificate is not one that this computer trusts"),
        (urllib3.exceptions.TimeoutError, "it did not answer in time"),
        (TimeoutError, "it did not answer in time"),
        (urllib3.exceptions.ProtocolError, "the connection was cut"),
    )
    return next((words for kind, words in kinds if isinstance(error, kind)), "the connection failed")


def version() -> str:
    try:
        return metadata.version("gpuops")
    except metadata.PackageNotFoundError:
        return "0"


def proxy_for(url: str, env: Mapping[str, str]) -> str:
    """The proxy of an address, as the environment says; empty where there is none, or it is not for this address."""
    parts = urlsplit(url)
    names = ("https_proxy", "HTTPS_PROXY") if parts.scheme == "https" else ("http_proxy",)
    proxy = next((env[name] for name in (*names, "all_proxy", "ALL_PROXY") if env.get(name)), "")
    beside = env.get("no_proxy") or env.get("NO_PROXY") or ""
    if not proxy or _bypasses_proxy(parts.hostname or "", beside):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _bypasses_proxy(host: str, listed: str) -> bool:
    """Whether a host stands in NO_PROXY: itself, a domain it is in, or `*`."""
    names = [name.strip().lstrip(".").lower() for name in listed.split(",")]
    return any(name and (name == "*" or host.lower() == name or host.lower().endswith(f".{name}")) for name in names)


def path_segment(name: str) -> str:
    """A name as a part of a path, whatever it holds."""
    return quote(name, safe="")


def _with_query(path: str, query: Mapping[str, Any]) -> str:
    given = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in query.items()
        if value is not None
    }
    return f"{path}?{urlencode(given)}" if given else path


def _next_cursor(document: Mapping[str, Any]) -> str:
    places = [document, *(document.get(name) for name in ("pagination", "meta", "page", "pageInfo"))]
    for place in places:
        for name in CURSORS if isinstance(place, dict) else ():
            if isinstance(place, dict) and isinstance(place.get(name), str) and place[name]:
                return str(place[name])
    return ""
