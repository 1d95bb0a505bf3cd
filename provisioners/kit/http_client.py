"""One HTTP request and its answer, by urllib3: a deadline for the whole exchange, kept connections, and a proxy.

All it knows of a provider is how a request shows its key. Nothing is retried and no redirect followed: both would
show the key, or repeat what creates, without the caller's decision.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from gpuops.core.errors import UsageError
from gpuops.core.polling import Clock
from provisioners.kit.http_api import ServerClock

if TYPE_CHECKING:
    import urllib3

CONNECT_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 45.0
"""From the end of the request to the end of the answer."""
MAX_ANSWER_BYTES = 32 * 1024 * 1024
MIN_READ_TIMEOUT_S = 0.1
READ_BYTES = 65536


@dataclass(frozen=True)
class Request:
    method: str
    url: str
    key: str = field(repr=False)
    """The API key."""
    limit_s: float
    """For the whole exchange."""
    body: bytes | None = None
    """JSON."""
    new_connection: bool = False
    """Whether it gets a connection of its own: one that was kept may be cut just then."""
    is_stream: bool = False
    """Whether what was received by the deadline is the answer: a stream may not end by itself."""

    def headers(self) -> dict[str, str]:
        return {
            "Authorization": f"Bearer {self.key}",
            "Accept": "text/event-stream" if self.is_stream else "application/json",
            "User-Agent": f"gpuops/{version()}",
            **({} if self.body is None else {"Content-Type": "application/json"}),
        }


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    """Found by a name in any case."""
    body: bytes


class NoAnswer(Exception):
    """No answer, or half of one. Its text says why."""


class HttpClient:
    """May be used from any thread. Construction touches nothing."""

    def __init__(self, env: Mapping[str, str], clock: Clock) -> None:
        self._env = env
        self._clock = clock
        self._lock = threading.Lock()
        self._kept_pools: dict[str, urllib3.PoolManager] = {}
        """By proxy."""
        self.server_clock = ServerClock(clock)

    def send(self, request: Request) -> Answer:
        """Send one request. Raises NoAnswer, or UsageError for a proxy that cannot be one."""
        import urllib3

        deadline = self._clock.monotonic() + request.limit_s
        timeout = urllib3.Timeout(
            connect=min(CONNECT_TIMEOUT_S, request.limit_s), read=min(ANSWER_TIMEOUT_S, request.limit_s)
        )
        try:
            with self._pool(request) as pool:
                response = pool.request(
                    request.method, request.url, body=request.body, headers=request.headers(), timeout=timeout,
                    retries=False, redirect=False, preload_content=False,
                )  # fmt: skip
                return self._receive(response, request, deadline)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise NoAnswer(_describe_failure(error)) from error

    def _receive(self, response: urllib3.BaseHTTPResponse, request: Request, deadline: float) -> Answer:
        try:
            data, is_complete = self._read_body(response, request, deadline)
        except BaseException:
            response.close()
            raise
        self.server_clock.note(response.headers.get("Date"))
        response.release_conn() if is_complete else response.close()  # a half-read one is of no use to the next
        if not is_complete and not (request.is_stream and response.status < 300):
            raise NoAnswer("its answer was not at its end in time")
        return Answer(response.status, response.headers, data)

    def _read_body(self, response: urllib3.BaseHTTPResponse, request: Request, deadline: float) -> tuple[bytes, bool]:
        """The body received by the deadline, and whether it is complete. One read is made even past the deadline: an
        empty answer would be taken for the whole."""
        import urllib3

        parts: list[bytes] = []
        size = 0
        while (not parts or self._clock.monotonic() < deadline) and size <= MAX_ANSWER_BYTES:
            sock = getattr(response.connection, "sock", None)
            if sock is not None:
                sock.settimeout(max(MIN_READ_TIMEOUT_S, deadline - self._clock.monotonic()))
            try:
                part = response.read1(READ_BYTES)
            except urllib3.exceptions.ReadTimeoutError:
                if request.is_stream:
                    break
                raise
            if not part:
                return b"".join(parts), True
            parts.append(part)
            size += len(part)
        return b"".join(parts), False

    @contextmanager
    def _pool(self, request: Request) -> Iterator[urllib3.PoolManager]:
        proxy = proxy_for(request.url, self._env)
        if request.new_connection:
            pool = self._new_pool(proxy)
            try:
                yield pool
            finally:
                pool.clear()
            return
        with self._lock:
            pool = self._kept_pools.get(proxy) or self._kept_pools.setdefault(proxy, self._new_pool(proxy))
        yield pool

    def _new_pool(self, proxy: str) -> urllib3.PoolManager:
        import certifi
        import urllib3

        tls = {"cert_reqs": "CERT_REQUIRED", "ca_certs": self._env.get("SSL_CERT_FILE") or certifi.where()}
        if not proxy:
            return urllib3.PoolManager(maxsize=8, **tls)  # type: ignore[arg-type]
        parts = urlsplit(proxy)
        login = unquote(f"{parts.username}:{parts.password or ''}") if parts.username else None
        headers = urllib3.make_headers(proxy_basic_auth=login) if login else None
        address = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        try:
            return urllib3.ProxyManager(address, proxy_headers=headers, maxsize=8, **tls)  # type: ignore[arg-type]
        except urllib3.exceptions.HTTPError as error:
            raise UsageError("HTTPS_PROXY is no address of a proxy", "write it like http://proxy:3128") from error


def _describe_failure(error: Exception) -> str:
    """One clause, without the addresses of objects that urllib3 puts into its messages."""
    import urllib3

    clauses: tuple[tuple[type[Exception], str], ...] = (
        (urllib3.exceptions.ProxyError, "the proxy does not let it through"),
        (urllib3.exceptions.NameResolutionError, "its name cannot be resolved"),
        (urllib3.exceptions.ConnectTimeoutError, "it cannot be reached"),
        (urllib3.exceptions.NewConnectionError, "it cannot be reached"),
        (urllib3.exceptions.SSLError, "its certificate is not one that this computer trusts"),
        (urllib3.exceptions.TimeoutError, "it did not answer in time"),
        (TimeoutError, "it did not answer in time"),
        (urllib3.exceptions.ProtocolError, "the connection was cut"),
    )
    return next((clause for kind, clause in clauses if isinstance(error, kind)), "the connection failed")


def version() -> str:
    """The version of gpuops; "0" where it is not installed."""
    try:
        return metadata.version("gpuops")
    except metadata.PackageNotFoundError:
        return "0"


def proxy_for(url: str, env: Mapping[str, str]) -> str:
    """The proxy of an address, as the environment says; empty where there is none, or it is not for this address."""
    parts = urlsplit(url)
    names = ("https_proxy", "HTTPS_PROXY") if parts.scheme == "https" else ("http_proxy",)
    proxy = next((env[name] for name in (*names, "all_proxy", "ALL_PROXY") if env.get(name)), "")
    excluded = env.get("no_proxy") or env.get("NO_PROXY") or ""
    if not proxy or _bypasses_proxy(parts.hostname or "", excluded):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _bypasses_proxy(host: str, excluded: str) -> bool:
    """Whether a host stands in NO_PROXY: itself, a domain it is in, or `*`."""
    names = [name.strip().lstrip(".").lower() for name in excluded.split(",")]
    return any(name and (name == "*" or host.lower() == name or host.lower().endswith(f".{name}")) for name in names)
