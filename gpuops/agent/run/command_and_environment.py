"""What is started for a run: the command line and its environment. Pure functions of the launch spec.

Tokens such as `{run}` stand for values that only the node knows. They are replaced in gpuops' own parts of a spec;
the user's command, arguments and variables arrive byte for byte.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from typing import Callable, Mapping, Sequence

from gpuops.agent.run_documents import LaunchSpec, RunKind

PRELUDE_FAILED = "gpuops: the prelude line `{}` failed with exit code"
_PRELUDE_FAILED = re.compile(r"gpuops: (the prelude line `.*` failed with exit code [0-9]+)")
PRELUDE_HINT = "correct it, or go on in spite of it: --prelude 'LINE || true'"
PRELUDE_FAILED_CODE = 126
"""As a shell's own for a command that cannot be executed."""


def build_command(spec: LaunchSpec, tokens: Mapping[str, str]) -> list[str]:
    """The argv to start. Tokens are replaced in a torchrun line up to its first `--`, and in no user's command."""
    argv = list(spec.argv)
    if spec.kind == RunKind.COMMAND:
        return with_prelude(spec.prelude, argv)
    ours = argv.index("--") if "--" in argv else len(argv)
    return [replace_tokens(part, tokens) for part in argv[:ours]] + argv[ours:]


def with_prelude(
    lines: Sequence[str], argv: Sequence[str], which: Callable[[str], str | None] = shutil.which
) -> list[str]:
    """`argv` after lines of shell that run in the same process; the shell does not interpret argv."""
    if not lines:
        return list(argv)
    shell = which("bash") or "/bin/sh"
    return [shell, "-c", prelude_script(lines), shell, *argv]


def prelude_script(lines: Sequence[str]) -> str:
    """A shell script that runs each line, then its arguments in its own place. A line that fails ends it: what follows
    would run without what the line was to prepare."""
    return "\n".join([*map(_run_or_end, lines), 'exec "$@"'])


def _run_or_end(line: str) -> str:
    words = shlex.quote(PRELUDE_FAILED.format(" ".join(line.split())))
    return f"eval {shlex.quote(line)} || {{ printf '%s %s\\n' {words} $? >&2; exit {PRELUDE_FAILED_CODE}; }}"


def find_prelude_failure(text: str) -> str:
    """What a prelude line that failed left in a program's stderr, as a clause; empty where none did."""
    found = _PRELUDE_FAILED.findall(text)
    return found[-1] if found else ""


def build_environment(
    base: Mapping[str, str],
    spec: LaunchSpec,
    secrets: Mapping[str, str],
    tokens: Mapping[str, str],
    marker: Mapping[str, str],
) -> dict[str, str]:
    """`base` without the names in `scrub`, then the spec's `env`, its `user_env`, the secrets and the marker.

    Tokens are replaced in `env` only.
    """
    env = {name: value for name, value in base.items() if not is_scrubbed(name, spec.scrub)}
    env["PATH"] = os.pathsep.join([*spec.path_first, env.get("PATH", os.defpath)])
    env.update({name: replace_tokens(value, tokens) for name, value in spec.env.items()})
    env.update(spec.user_env)
    env.update(secrets)
    env.update(marker)
    return env


def is_scrubbed(name: str, scrub: Sequence[str]) -> bool:
    """Whether `scrub` has the variable's name, or an entry ending in `_` with which the name starts."""
    return any(name == entry or (entry.endswith("_") and name.startswith(entry)) for entry in scrub)


def replace_tokens(text: str, tokens: Mapping[str, str]) -> str:
    """Replace each token by its value, in one pass: a value may look like a token (a folder named `{run}`)."""
    return re.sub("|".join(map(re.escape, tokens)), lambda match: tokens[match[0]], text)


def token_values(program: Sequence[str], folder: str) -> dict[str, str]:
    """Values of the tokens. `program`: [python, "-I", artefact]; `folder`: the run's."""
    return {"{python}": program[0], "{agent}": program[-1], "{run}": os.path.abspath(folder)}
