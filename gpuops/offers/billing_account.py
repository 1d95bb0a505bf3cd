"""The account that pays: named where a price is approved, and never chosen by a file that came with the project."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from gpuops.core.context import Context
from gpuops.core.errors import UsageError
from gpuops.core.git import git
from gpuops.core.models import DOTENV, Payer, Request
from gpuops.core.provider import is_rented
from gpuops.core.settings import KEYS, dotenv_values, not_from_dotenv, select

KEY_ORDER = "an exported variable or profile, the provider's own file, .env"
PAYER_WAIT_S = 3.0
"""How long an account's name is waited for where everything else is known."""


def find_payer(ctx: Context, request: Request) -> Payer | None:
    """The account that would pay for a request; None where its provider does not say."""
    return ctx.provisioner(request.provider).payer(request, PAYER_WAIT_S)


def payer_record(payer: Payer | None) -> dict[str, Any]:
    """The payer as the ledger keeps it with the offer (`ClusterRow.payer`). It is written before anything is created,
    since it says with which key the resources are found again."""
    return {"payer": dataclasses.asdict(payer) if payer else {}}


def refuse_tracked(folder: Path, names: Collection[str]) -> None:
    """Raises UsageError where git tracks a `.env` with one of these keys: it may be the author's of the project, or it
    is the user's own and everyone with the project has it."""
    path = folder / DOTENV
    if (held := dotenv_values(folder, names)) and _is_tracked(folder, path):
        raise UsageError(
            f"{path} holds {', '.join(held)}, and git tracks that file: keys that come with a project are not used",
            f"git rm --cached {DOTENV}, and where it was ever pushed make a new key and delete this one",
        )


def _is_tracked(folder: Path, path: Path) -> bool:
    """Whether git tracks the file, also as `.ENV` on a disk that ignores case. Raises UsageError for an unreadable
    repository."""
    if git(folder, "rev-parse", "--is-inside-work-tree") != "true\n":
        return False
    here = [name for name in (git(folder, "ls-files", "-z") or "").split("\0") if name and "/" not in name]
    return any(os.path.exists(folder / name) and os.path.samefile(folder / name, path) for name in here)


def refuse_dotenv(ctx: Context, provider: str) -> None:
    """Raises UsageError, before a provider's key is used to rent, where one stands in a tracked `.env`, or where `.env`
    would choose the account or address that the key is for."""
    provisioner = ctx.provisioner(provider)
    if not is_rented(provisioner):
        return
    refuse_tracked(ctx.folder, {*KEYS, *provisioner.credentials})
    if chosen := select(ctx.dotenv, provisioner.surroundings):
        raise not_from_dotenv(next(iter(chosen)))
