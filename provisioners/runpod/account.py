"""Whose account a key is, and what money is on it.

RunPod tells both over GraphQL alone, which its own package speaks: a process of its own runs that. Where the package is
not installed, or does not answer, nothing is known, which is no error.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping

from provisioners.kit.account import AccountFacts
from provisioners.kit.documents import inner

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
