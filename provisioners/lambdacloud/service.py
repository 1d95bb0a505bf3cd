"""Lambda's API v1: where its key lies, how often it may be asked, and what its codes mean, since it may change its
messages.

Only the host cloud.lambda.ai: the former one may answer with a redirect, which no key follows.
"""

from __future__ import annotations

import re

from gpuops.core.errors import AuthFailed, NoCapacity, QuotaExceeded, Unknown
from provisioners.kit.error_table import ANY, BAD_KEY, FAILED, STANDARD, Row
from provisioners.kit.service import Service, StoredKey

CONSOLE = "https://cloud.lambda.ai"
LAUNCHES_APART_S = 12.5
"""Lambda allows an account one launch in 12 s, and one request a second (its API's description, 1.8.3); what is more
is for the way there."""
UPSTREAM = re.compile("^provider/")
"""How the codes begin of what failed behind Lambda: whether it was done is not known."""
ERRORS = (
    Row((ANY,), Unknown, FAILED.say, FAILED.hint, UPSTREAM),
    Row(("global/invalid-api-key",), AuthFailed, BAD_KEY.say, BAD_KEY.hint),
    Row(("global/account-inactive",), AuthFailed, "the Lambda account is inactive{why}", f"activate it: {CONSOLE}"),
    Row(("global/invalid-address",), AuthFailed, "Lambda does not accept the account's billing address{why}",
        f"put it right: {CONSOLE}/settings/billing"),
    Row(("instance-operations/launch/insufficient-capacity",), NoCapacity,
        "Lambda has none free: it cannot {doing} now, though it may have listed it",
        "try again later, let it be tried for you (--wait 2h), or allow more kinds of machine"),
    Row(("global/quota-exceeded",), QuotaExceeded, "the Lambda account may not have more machines{why}",
        "end one, or ask Lambda's support for a higher quota"),
    *STANDARD,
)  # fmt: skip


def _find_key(text: str) -> str:
    """`api_key = …`, the line that SkyPilot's users have."""
    lines = [line.partition("=") for line in text.splitlines()]
    return next((value.strip().strip("\"'") for name, _, value in lines if name.strip() == "api_key"), "")


SERVICE = Service(
    name="Lambda",
    address=f"{CONSOLE}/api/v1",
    address_variable="LAMBDA_API_URL",
    key_variable="LAMBDA_API_KEY",
    keys_page=f"{CONSOLE}/api-keys",
    errors=ERRORS,
    stored_keys=(StoredKey("~/.lambda_cloud/lambda_keys", _find_key),),
    envelope="data",
    requests_apart_s=1.1,
    wait_at_429_s=5.0,  # it comes from Cloudflare, as text, and says no time
)
