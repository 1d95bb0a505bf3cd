"""Vast.ai's REST API: where its key lies, what its answers mean, and how its containers boot and end themselves."""

from __future__ import annotations

import re

from gpuops.core.errors import AuthFailed, NoCapacity, QuotaExceeded
from provisioners.kit.container_boot import ContainerBoot
from provisioners.kit.error_table import BAD_KEY, STANDARD, Row
from provisioners.kit.service import Service, StoredKey

LATER = "try again later, or let it be tried for you (--wait 2h)"
TAKEN = "it was rented by somebody else meanwhile"
GONE = re.compile(r"no_such_ask|no longer available|is not available", re.IGNORECASE)
NO_MONEY = re.compile(r"credit|balance|funds|billing", re.IGNORECASE)
UNKNOWN_KEY = re.compile(r"invalid user key|auth_error", re.IGNORECASE)
ERRORS = (
    Row(("404",), AuthFailed, BAD_KEY.say, BAD_KEY.hint, UNKNOWN_KEY),
    Row(("404", "410"), NoCapacity, TAKEN, LATER, GONE, creating=True),
    Row(("no_such_ask",), NoCapacity, TAKEN, LATER, creating=True),
    Row(("invalid_price",), NoCapacity, "the bid is too low by now{why}", "bid more: --bid", creating=True),
    Row(("402", "400", "403"), QuotaExceeded, "the credit at Vast.ai does not let it {doing}{why}",
        "{billing}", NO_MONEY),
    *STANDARD,
)  # fmt: skip

SERVICE = Service(
    name="Vast.ai",
    address="https://console.vast.ai",
    address_variable="VAST_URL",
    key_variable="VAST_API_KEY",
    keys_page="https://cloud.vast.ai/manage-keys/",
    billing_page="https://cloud.vast.ai/billing/",
    errors=ERRORS,
    said_wait=re.compile(r"threshold=(\d+(?:\.\d+)?)"),  # least seconds from one request of a kind to the next
    unsaid_wait_s=5.0,
    stored_keys=(StoredKey("~/.config/vastai/vast_api_key"), StoredKey("~/.vast_api_key")),  # the newer one first
    wait_at_429_s=1.0,  # it lists once a second
)
BOOT = ContainerBoot(
    key="CONTAINER_API_KEY",
    id="CONTAINER_ID",
    ways="""
ask DELETE "$api/api/v0/instances/$id/" '{}'
ask PUT "$api/api/v0/instances/$id/" '{"state":"stopped"}'
""",  # a stop ends the bill for the GPUs where the end is refused
    before="touch ~/.no_auto_tmux",
    max_chars=4048,
)
"""The `onstart` of an instance. Vast.ai's own first process stands before it, and has started sshd."""
