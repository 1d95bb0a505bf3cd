"""Vast.ai's REST API: the requests that need more than `kit.json_api` has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from gpuops.core.errors import AuthFailed, ProviderError, Unknown
from provisioners.base import Context, Credential
from provisioners.kit.api_key import checked_key
from provisioners.kit.documents import Document, parse_document
from provisioners.kit.http_api import checked_url
from provisioners.kit.json_api import CALL_TIMEOUT_S, JsonApi, Service, path_segment
from provisioners.vast.errors import NO_KEY, failure

URL = "https://console.vast.ai"
KEY = "VAST_API_KEY"
PAGE = 25
"""The most that one page of instances has."""
MAX_PAGES = 400
RETRY_S = 1.0
"""How long a read waits after a 429: Vast.ai says no `Retry-After`, and lists once a second."""


class VastApi(JsonApi):
    """May be used from any thread. Construction touches nothing; errors are ProviderError and UsageError."""

    def __init__(self, context: Context) -> None:
        self._context = context
        service = Service("Vast.ai", self.address, lambda: self.credential().values[KEY], failure,
                          default_retry_after_s=RETRY_S)  # fmt: skip
        super().__init__(service, context.env, context.clock)

    def address(self) -> str:
        return checked_url(self._context.env.get("VAST_URL", "").strip() or URL, "VAST_URL", URL, "an API key")

    def credential(self) -> Credential:
        """VAST_API_KEY, else what Vast.ai's own client has stored, else `.env`. Raises AuthFailed."""
        found = self._context.credential([KEY], lambda: _stored(self._context.env))
        return checked_key(found, KEY, "Vast.ai", NO_KEY)

    def user(self) -> Document:
        """Whose key it is, and what money is left: `id`, `email`, `balance`."""
        document = self.get("/api/v0/users/current/", "look at the account")
        return document if isinstance(document, dict) else {}

    def create(self, ask: str, body: Document, doing: str) -> tuple[str, ProviderError | None]:
        """Rent an ask. Returns the id of what was made, and the refusal where it is made all the same, stopped, and
        bills its disk: a bid that is too low may do that (dstack 511c318c8, VastAICreateInstanceError). Every error but
        Unknown means that nothing was made."""
        content = json.dumps(body).encode()
        path = f"/api/v0/asks/{path_segment(ask)}/"
        request = self._request("PUT", path, CALL_TIMEOUT_S, body=content, new_connection=True)
        answer = self._send_once(request, doing, creating=True, accepted=range(400, 500))
        document = parse_document(answer.body.decode(errors="replace"))
        told = document if isinstance(document, dict) else {}
        is_refused = answer.status >= 300 or told.get("success") is False
        refusal = self._refused(answer, doing, creating=True) if is_refused else None
        if told.get("new_contract"):
            return str(told["new_contract"]), refusal
        raise refusal or self.unreadable(document, doing)

    def instances(self) -> list[Document]:
        """All of the account. Raises Unknown rather than return some of them."""
        found: dict[str, Document] = {}
        token: str | None = None
        for _ in range(MAX_PAGES):
            document = self.get("/api/v1/instances/", "list instances", limit=PAGE, after_token=token)
            page = document.get("instances") if isinstance(document, dict) else None
            if not isinstance(page, list) or not all(isinstance(one, dict) and one.get("id") for one in page):
                raise self.unreadable(document, "list instances")
            found |= {str(one["id"]): one for one in page}
            token = document.get("next_token")
            if not token:
                return list(found.values())
        raise Unknown("Vast.ai lists more instances than gpuops reads", "upgrade gpuops")

    def instance(self, id: str) -> Document | None:
        """One of them; None where Vast.ai does not know it, in so many words. A key that it does not know may be a 404,
        too."""
        path, doing = f"/api/v0/instances/{path_segment(id)}/?owner=me", "look at an instance"
        answer = self._get_with_retries(path, doing, absent_is_answer=True)
        if answer.status == 404:
            refused = self._refused(answer, doing)
            if isinstance(refused, AuthFailed):
                raise refused
            return None
        document = self.parse_json(answer, doing)
        found = document.get("instances", False) if isinstance(document, dict) else False
        if found is None or (isinstance(found, dict) and found.get("id")):
            return found
        raise self.unreadable(document, doing)


def _stored(env: Mapping[str, str]) -> Credential | None:
    """The files of Vast.ai's own client, the newer one first."""
    home = env.get("HOME", "")
    config = env.get("XDG_CONFIG_HOME") or f"{home}/.config"
    for path, said in ((f"{config}/vastai/vast_api_key", "~/.config/vastai/vast_api_key"),
                       (f"{home}/.vast_api_key", "~/.vast_api_key")):  # fmt: skip
        try:
            secret = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, ValueError):
            continue
        if secret:
            return Credential(said, {KEY: secret})
    return None
