"""Whose account a key is, and what money is on it.

RunPod tells both over GraphQL alone, which its own package speaks: a process of its own runs that. Where the package is
not installed, or does not answer, nothing is known, which is no error.
"""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuops.core.errors import AuthFailed, UsageError
from gpuops.core.models import Payer, Resource
from gpuops.core.polling import Clock
from provisioners.kit.api_key import fingerprint, has_other_key, kept_account, other_key
from provisioners.kit.documents import inner
from provisioners.runpod import credentials
from provisioners.runpod.credentials import graphql_base, key

QUERY_TIMEOUT_S = 20.0
BALANCE_VALID_S = 10.0
"""How long an answer about money counts as the present one."""
QUERIES = tuple(
    f"query {{ myself {{ id {email}clientBalance currentSpendPerHr spendLimit }} }}" for email in ("email ", "")
)
"""The second where a key may see the money and not the address."""
PROGRAM = """
import json, os, sys
given = json.load(sys.stdin)
os.environ["RUNPOD_API_BASE_URL"] = given["base"]
os.environ["RUNPOD_API_KEY"] = given["key"]
out = os.dup(1)
os.dup2(2, 1)
from runpod.api.graphql import run_graphql_query
from runpod.error import QueryError
for query in given["queries"]:
    try:
        answer = run_graphql_query(query, api_key=given["key"])
    except QueryError:
        continue
    os.write(out, json.dumps(answer).encode())
    break
"""


@dataclass(frozen=True)
class AccountFacts:
    """What RunPod says of an account. Money is in $, None where it is not known; text is empty then."""

    id: str = ""
    email: str = ""
    balance: float | None = None
    spend_per_hr: float | None = None
    """$/h that the account spends now."""
    spend_limit: float | None = None
    """$/h that it may spend."""

    def document(self) -> dict[str, Any]:
        """By name, those that are known."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value not in ("", None)}


def query_account(key: str, base: str, environ: Mapping[str, str]) -> AccountFacts:
    """What RunPod says of a key's account, by one process of at most QUERY_TIMEOUT_S."""
    without_key = {name: value for name, value in environ.items() if not name.startswith("RUNPOD_")}
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", PROGRAM],
            input=json.dumps({"key": key, "base": base, "queries": QUERIES}),
            env=without_key,
            capture_output=True,
            text=True,
            timeout=QUERY_TIMEOUT_S,
            check=True,
        )
        return parse_facts(json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError):
        return AccountFacts()


def parse_facts(answer: object) -> AccountFacts:
    """The facts in GraphQL's answer."""
    myself = inner(inner(answer if isinstance(answer, dict) else {}, "data"), "myself")
    return AccountFacts(
        id=str(myself.get("id") or ""),
        email=str(myself.get("email") or ""),
        balance=_dollars(myself.get("clientBalance")),
        spend_per_hr=_dollars(myself.get("currentSpendPerHr")),
        spend_limit=_dollars(myself.get("spendLimit")),
    )


def _dollars(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


class Account:
    """The account of the key that `credentials.find` finds. May be used from any thread."""

    def __init__(self, env: Mapping[str, str], dotenv: Mapping[str, str], clock: Clock) -> None:
        self._env = env
        self._dotenv = dotenv
        self._clock = clock
        self._lock = threading.Lock()
        self._known: AccountFacts | None = None
        self._asked_at = 0.0
        """By the monotonic clock."""

    def payer(self, patience_s: float) -> Payer:
        """Whose key this is; RunPod is asked unless it was before, for at most `patience_s`. Raises AuthFailed."""
        source = credentials.find(self._env, self._dotenv).source
        if patience_s > 0 and self._known is None:
            asking = threading.Thread(target=self.facts, daemon=True, name="payer")
            asking.start()
            asking.join(patience_s)
        known = self._known or AccountFacts()
        return Payer(known.email or (f"RunPod account {known.id}" if known.id else ""), source)

    def facts(self, max_age_s: float = float("inf")) -> AccountFacts:
        """What RunPod says of the account; it is asked again where its answer is older than `max_age_s`. Whose account
        it is stays known where a later question is not answered."""
        with self._lock:
            if self._known is None or self._clock.monotonic() - self._asked_at >= max_age_s:
                known = self._known or AccountFacts()
                try:
                    facts = query_account(key(self._env, self._dotenv), graphql_base(self._env), self._env)
                except (AuthFailed, UsageError):
                    facts = AccountFacts()
                self._known = facts if facts.id else dataclasses.replace(facts, id=known.id, email=known.email)
                self._asked_at = self._clock.monotonic()
            return self._known

    def data(self) -> dict[str, str]:
        """What a resource keeps of its account: the key's fingerprint, and the id where that is known."""
        known_id = self._known.id if self._known else ""
        return {"key": fingerprint(key(self._env, self._dotenv)), "id": known_id}

    def check(self, resource: Resource) -> None:
        """Raises AuthFailed where what RunPod does not find may be another account's, and go on there."""
        if not has_other_key(resource, key(self._env, self._dotenv)):
            return
        kept_id = kept_account(resource).get("id")
        if not kept_id or kept_id != self.facts().id:
            raise other_key(resource, credentials.VARIABLE)
