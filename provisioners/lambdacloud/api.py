"""Lambda's API v1 by the kit's `JsonApi`: where its key comes from, what is in its envelope, how often it may be asked.

Only the host cloud.lambda.ai: the former one may answer with a redirect, which no key follows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuops.core.errors import AuthFailed
from provisioners.base import Context, Credential
from provisioners.kit.api_key import checked_key, fingerprint
from provisioners.kit.http_api import checked_url
from provisioners.kit.http_client import Answer
from provisioners.kit.json_api import JsonApi, Service
from provisioners.kit.pacing import Pace, pace_file
from provisioners.lambdacloud.errors import failure

VARIABLE = "LAMBDA_API_KEY"
ADDRESS_VARIABLE = "LAMBDA_API_URL"
API = "https://cloud.lambda.ai/api/v1"
STORED = Path(".lambda_cloud") / "lambda_keys"
NO_KEY = "make one at https://cloud.lambda.ai/api-keys, and export LAMBDA_API_KEY=… or put it into .env"
REQUESTS_APART_S = 1.1
"""Lambda allows an account one request a second,"""
LAUNCHES_APART_S = 12.5
"""and one launch in 12 s (its API's description, 1.8.3); the rest is for the way there."""
WAIT_AT_429_S = 5.0
"""Its 429 comes from Cloudflare, as text, and says no time."""


class Api(JsonApi):
    """May be used from any thread. Construction touches nothing."""

    def __init__(self, context: Context) -> None:
        self._context = context
        pace = lambda: self.pace("requests", REQUESTS_APART_S)  # noqa: E731
        service = Service("Lambda", self._address, lambda: self.key, failure, pace, WAIT_AT_429_S)
        super().__init__(service, context.env, context.clock)

    def find_key(self) -> Credential:
        """The key and where it comes from. Raises NotSetUp, AuthFailed."""
        found = self._context.credential([VARIABLE], lambda: _stored(self._context))
        return checked_key(found, VARIABLE, "Lambda", NO_KEY)

    @property
    def key(self) -> str:
        return self.find_key().values[VARIABLE]

    def pace(self, what: str, apart_s: float) -> Pace:
        path = pace_file(self._context.home, "lambda", fingerprint(self.key), what)
        return Pace(path, apart_s, self._context.clock)

    def parse_json(self, answer: Answer, doing: str) -> Any:
        """What is in the envelope, `{"data": …}`."""
        document = super().parse_json(answer, doing)
        if not isinstance(document, dict) or document.get("data") is None:
            raise self.unreadable(document, doing)
        return document["data"]

    def _address(self) -> str:
        given = self._context.env.get(ADDRESS_VARIABLE, "").strip() or API
        return checked_url(given, ADDRESS_VARIABLE, API, "an API key")


def _stored(context: Context) -> Credential | None:
    """`api_key = …`, the line that SkyPilot's users have. A file that cannot be read may hold the key: AuthFailed."""
    try:
        path = Path(context.env.get("HOME") or Path.home()) / STORED
        lines = [line.partition("=") for line in path.read_text(encoding="utf-8").splitlines()]
    except (FileNotFoundError, NotADirectoryError, RuntimeError):  # RuntimeError: no home directory is known
        return None
    except (OSError, ValueError) as error:
        raise AuthFailed(f"{path} cannot be read, and {VARIABLE} is not set", NO_KEY) from error
    secret = next((value.strip().strip("\"'") for name, _, value in lines if name.strip() == "api_key"), "")
    return Credential(f"~/{STORED}", {VARIABLE: secret}) if secret else None
