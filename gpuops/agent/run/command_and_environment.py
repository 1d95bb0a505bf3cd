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
IN_BASH = '[ -z "${BASH_VERSION-}" ] ||'
"""Before what another shell does not know: there, a line that fails is passed over."""
MODULE_WORD = re.compile(r"(?:^|[\s;&|({])(?:module|ml)\s")
MODULE_FUNCTIONS = r"""
command -v module >/dev/null || {
    login=$(bash -lc 'printf "\n%s\n" "gpuops: functions"; declare -f
        declare -p ${!MODULE*} ${!LMOD*} LOADEDMODULES _LMFILES_ 2>/dev/null' </dev/null 2>/dev/null)
    eval "${login##*gpuops: functions}"
}
"""
"""`module` (environment modules, Lmod) is a function that a login shell alone has. No more is taken from one: its PATH
would not be the run's."""
END_OF_LINE = "\n:"
"""Behind a line: its last test that is false is no failure. One that cannot be parsed stays one."""


def build_command(spec: LaunchSpec, tokens: Mapping[str, str]) -> list[str]:
    """The argv to start. Tokens are replaced in a torchrun line up to its first `--`, and in no user's command."""
    argv = list(spec.argv)
    if spec.kind == RunKind.COMMAND:
        shell = {"which": lambda _: None} if spec.within else {}  # what is here need not be in the image
        return [*spec.within, *with_prelude(spec.prelude, argv, **shell)]
    ours = argv.index("--") if "--" in argv else len(argv)
    return [*spec.within, *(replace_tokens(part, tokens) for part in argv[:ours]), *argv[ours:]]


def with_prelude(
    lines: Sequence[str], argv: Sequence[str], which: Callable[[str], str | None] = shutil.which
) -> list[str]:
    """`argv` after lines of shell that run in the same process; the shell does not interpret argv."""
    if not lines:
        return list(argv)
    shell = which("bash") or "/bin/sh"
    return [shell, "-c", prelude_script(lines), shell, *argv]


def prelude_script(lines: Sequence[str]) -> str:
    """A shell script that runs each line, then its arguments in its own place. A command that fails ends it: what
    follows would run without what the line was to prepare.

    What counts as a failure is what `set -e` takes for one: the test in `[ -e x ] && . x` is none. Unlike `set -e`, a
    file that a line reads, and a function, fail as a whole only: `/etc/profile` may hold commands that fail.
    """
    guarded = (part for line in lines for part in (_trap_failure(line), f"eval {shlex.quote(line + END_OF_LINE)}"))
    modules = [f"{IN_BASH} {{ {MODULE_FUNCTIONS}}}"] if any(MODULE_WORD.search(line) for line in lines) else []
    return "\n".join([*modules, *guarded, f"{IN_BASH} trap - ERR", 'exec "$@"'])


def _trap_failure(line: str) -> str:
    words = shlex.quote(PRELUDE_FAILED.format(" ".join(line.split())))
    say = f"printf '%s %s\\n' {words} $? >&2"
    end = f"case ${{#BASH_SOURCE[@]}} in 0) {say}; exit {PRELUDE_FAILED_CODE};; esac"
    return f"{IN_BASH} trap {shlex.quote(end)} ERR"


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
