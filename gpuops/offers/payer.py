"""Who pays: named where money is agreed to, and never chosen by a file that came with the project."""

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
from gpuops.core.settings import KEYS, dotenv_values

KEY_ORDER = "an exported variable or profile, the provider's own file, .env"
PAYER_WAIT_S = 3.0
"""So long it is waited for an account's name where everything else is known."""


def payer(ctx: Context, request: Request) -> Payer | None:
    """Who would pay for a request; None where its provider does not tell."""
    tell: Any = getattr(ctx.provisioner(request.provider), "payer", None)
    found: Payer | None = tell(request, PAYER_WAIT_S) if tell else None
    return found


def payer_record(found: Payer | None) -> dict[str, Any]:
    """What the ledger keeps of it, with the offer (`ClusterRow.payer`): from before anything is made, since it says
    with which key that is found again."""
    return {"payer": dataclasses.asdict(found) if found else {}}


def refuse_tracked(folder: Path, names: Collection[str] = KEYS) -> None:
    """Raises UsageError where a `.env` that git tracks holds one of these: it came with the project, and may be its
    author's; or it is the user's own, and everybody who has the project has it too."""
    path = folder / DOTENV
    if (held := dotenv_values(folder, names)) and _is_tracked(folder, path):
        raise UsageError(
            f"{path} holds {', '.join(held)}, and git tracks that file: keys that come with a project are not used",
            f"git rm --cached {DOTENV}, and where it was ever pushed make a new key and delete this one",
        )


def _is_tracked(folder: Path, path: Path) -> bool:
    """By whatever name: some file systems take `.ENV` for it. Raises UsageError for a repository it cannot read."""
    if git(folder, "rev-parse", "--is-inside-work-tree") != "true\n":
        return False
    here = [name for name in (git(folder, "ls-files", "-z") or "").split("\0") if name and "/" not in name]
    return any(os.path.exists(folder / name) and os.path.samefile(folder / name, path) for name in here)


def refuse_dotenv(ctx: Context, provider: str) -> None:
    """Before a key is used to rent at a provider. Raises UsageError."""
    if is_rented(ctx.provisioner(provider)):
        refuse_tracked(ctx.folder)
