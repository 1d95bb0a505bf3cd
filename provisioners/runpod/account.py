"""Whose account a key is, and what money is on it: RunPod tells both over GraphQL alone, by its own package."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from gpuops.core.errors import AuthFailed, UsageError
from gpuops.core.models import Payer, Resource
from provisioners.base import NOTHING
from provisioners.runpod import credentials
from provisioners.runpod.credentials import fingerprint, graphql_base, key

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


def ask(key: str, base: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """`id`, `email`, `balance`, `spend_per_hr`, `spend_limit` in $, those that are known. {} where nothing is."""
    hidden = {name: value for name, value in environ.items() if not name.startswith("RUNPOD_")}
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", PROGRAM],
            input=json.dumps({"key": key, "base": base, "queries": QUERIES}),
            env=hidden,
            capture_output=True,
            text=True,
            timeout=QUERY_TIMEOUT_S,
            check=True,
        )
        return read(json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}


def read(answer: Any) -> dict[str, Any]:
    """The facts in GraphQL's answer, by our names; {} where it has none."""
    data = answer.get("data") if isinstance(answer, dict) else None
    myself = data.get("myself") if isinstance(data, dict) else None
    if not isinstance(myself, dict):
        return {}
    names = (("balance", "clientBalance"), ("spend_per_hr", "currentSpendPerHr"), ("spend_limit", "spendLimit"))
    found: dict[str, Any] = {name: str(myself[name]) for name in ("id", "email") if myself.get(name)}
    for ours, theirs in names:
        value = myself.get(theirs)
        if isinstance(value, int | float) and not isinstance(value, bool):
            found[ours] = float(value)
    return found


class Account:
    """The account of the key that `credentials.find` finds. May be used from any thread."""

    def __init__(self, env: Mapping[str, str], dotenv: Mapping[str, str] = NOTHING) -> None:
        self._env = env
        self._dotenv = dotenv
        self._lock = threading.Lock()
        self._facts: tuple[float, dict[str, Any]] | None = None

    def payer(self, patience_s: float) -> Payer:
        """Whose key this is; RunPod is asked unless it was before, for at most `patience_s`. Raises AuthFailed."""
        source = credentials.find(self._env, self._dotenv).source
        if patience_s > 0 and self._facts is None:
            asking = threading.Thread(target=self.facts, daemon=True, name="payer")
            asking.start()
            asking.join(patience_s)
        known = self._facts[1] if self._facts else {}
        account = known.get("email") or (f"RunPod account {known['id']}" if known.get("id") else "")
        return Payer(str(account), source)

    def facts(self, fresh_s: float = float("inf")) -> dict[str, Any]:
        """`id`, `email`, `balance`, `spend_per_hr`, `spend_limit` ($, $/h), those that are known. RunPod is asked again
        where the answer is older than `fresh_s`."""
        with self._lock:
            if self._facts is None or time.monotonic() - self._facts[0] >= fresh_s:
                try:
                    found = ask(key(self._env, self._dotenv), graphql_base(self._env), self._env)
                except (AuthFailed, UsageError):
                    found = {}
                self._facts = (time.monotonic(), found)
            return self._facts[1]

    def data(self) -> dict[str, str]:
        """What a resource keeps of its account: the key's fingerprint, and the id where that is known."""
        known = self._facts[1] if self._facts else {}
        return {"key": fingerprint(key(self._env, self._dotenv)), "id": str(known.get("id") or "")}

    def check(self, resource: Resource) -> None:
        """Raises AuthFailed where what RunPod does not find may be another account's, and go on there."""
        kept = resource.data.get("account")
        theirs = kept if isinstance(kept, dict) else {}
        if not theirs.get("key") or theirs["key"] == self.data()["key"]:
            return
        if theirs.get("id") and theirs["id"] == str(self.facts().get("id") or ""):
            return
        raise AuthFailed(
            f"{resource.name} was made with another API key, and this one does not see it",
            "use that key again: export RUNPOD_API_KEY=…",
        )
