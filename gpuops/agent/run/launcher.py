"""What is started for a run: which command line, in which environment. Pure."""

from __future__ import annotations

import os
import re
import shutil
from typing import Any, Callable, Mapping, Sequence


def command(spec: Mapping[str, Any], tokens: Mapping[str, str]) -> list[str]:
    """The argv to start. Only what is ours may hold tokens: all of a torchrun line up to its first `--`.

    A user's command, and what follows the `--` (a script and its arguments), arrive byte for byte.
    """
    argv = list(spec["argv"])
    if spec["kind"] == "command":
        return with_prelude(spec.get("prelude") or [], argv)
    ours = argv.index("--") if "--" in argv else len(argv)
    return [replaced(part, tokens) for part in argv[:ours]] + argv[ours:]


def with_prelude(
    lines: Sequence[str], argv: Sequence[str], which: Callable[[str], str | None] = shutil.which
) -> list[str]:
    """`argv` behind lines of shell that run in the same process; the shell never reads argv itself."""
    if not lines:
        return list(argv)
    shell = which("bash") or "/bin/sh"
    return [shell, "-c", "\n".join([*lines, 'exec "$@"']), shell, *argv]


def environment(
    base: Mapping[str, str],
    spec: Mapping[str, Any],
    secrets: Mapping[str, str],
    tokens: Mapping[str, str],
    marker: Mapping[str, str],
) -> dict[str, str]:
    """The agent's own environment without what `scrub` names, with the spec's, the user's, the secrets and the marker.

    `env` is ours and may hold tokens; `user_env` is the user's and arrives byte for byte.
    """
    scrub = list(spec.get("scrub") or [])
    env = {name: value for name, value in base.items() if not is_scrubbed(name, scrub)}
    env["PATH"] = os.pathsep.join([*(spec.get("path_first") or []), env.get("PATH", os.defpath)])
    env.update({name: replaced(value, tokens) for name, value in (spec.get("env") or {}).items()})
    env.update(spec.get("user_env") or {})
    env.update(secrets)
    env.update(marker)
    return env


def is_scrubbed(name: str, scrub: Sequence[str]) -> bool:
    """Whether a variable is named, or starts with an entry that ends in `_`."""
    return any(name == entry or (entry.endswith("_") and name.startswith(entry)) for entry in scrub)


def replaced(text: str, tokens: Mapping[str, str]) -> str:
    """`text` with each token's value. In one pass: a value may look like a token (a folder named `{run}`)."""
    return re.sub("|".join(map(re.escape, tokens)), lambda match: tokens[match[0]], text)


def tokens(program: Sequence[str], folder: str) -> dict[str, str]:
    """`program`: [python, "-I", artefact]; `folder`: the run's."""
    return {"{python}": program[0], "{agent}": program[-1], "{run}": os.path.abspath(folder)}
