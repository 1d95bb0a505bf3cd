"""Who pays: named where money is agreed to, and never chosen by a file that came with the project."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from gpuops.errors import UsageError
from gpuops.models import DOTENV, Payer, Request
from gpuops.push.git import git
from gpuops.settings import KEYS, read_dotenv
from gpuops.world import World

ORDER = "an exported variable or profile, the provider's own file, .env"
PATIENCE_S = 3.0
"""So long it is waited for an account's name where everything else is known."""


def payer(world: World, request: Request) -> Payer | None:
    """Who would pay for a request; None where its provider does not tell."""
    tell: Any = getattr(world.provisioner(request.provider), "payer", None)
    found: Payer | None = tell(request, PATIENCE_S) if tell else None
    return found


def refuse_tracked(folder: Path, names: Collection[str] = KEYS) -> None:
    """Raises UsageError where a `.env` that git tracks holds one of these: it came with the project, and may be its
    author's; or it is the user's own, and everybody who has the project has it too."""
    path = folder / DOTENV
    held = [name for name, value in read_dotenv(path).items() if name in names and value.strip()]
    if held and _is_tracked(folder, path):
        raise UsageError(
            f"{path} holds {', '.join(held)}, and git tracks that file: keys that come with a project are not used",
            f"git rm --cached {DOTENV}, and where it was ever pushed make a new key and delete this one",
        )


def _is_tracked(folder: Path, path: Path) -> bool:
    """By whatever name: some file systems take `.ENV` for it. Raises UsageError where git cannot tell."""
    if git(folder, "rev-parse", "--is-inside-work-tree") != "true\n":
        return False
    listed = (git(folder, "ls-files", "-z", "--", ":(glob)*") or "").split("\0")
    return any(name and os.path.exists(folder / name) and os.path.samefile(folder / name, path) for name in listed)


def refuse_dotenv(world: World, provider: str) -> None:
    """Before a key is used to rent at a provider. Raises UsageError."""
    if world.provisioner(provider).capabilities.get("rented") is True:
        refuse_tracked(world.folder)
