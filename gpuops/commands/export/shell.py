"""Parts of a bash script that every target uses. A line may hold line breaks inside quotes: it is never split again.

Names, values and the program's words come from a user and are quoted; what is ours may hold shell variables.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence

from gpuops.agent.run.command_and_environment import END_OF_LINE, PRELUDE_FAILED_CODE
from gpuops.commands.export.job import ExportJob
from gpuops.runs.launch_spec import (
    JOIN_TIMEOUT_S,
    OUTER_LAUNCHER,
    UNBUFFERED,
    interface_variables,
    threads_per_rank,
    torchrun_options,
    user_variables,
)

SIMPLE_COMMAND = re.compile(r"\w[\w./~:=@%+,*$ -]*", re.ASCII)
RESERVED = ("if", "for", "while", "until", "case", "select", "function", "coproc", "time")
FIND_INTERFACE = """
import fcntl, socket, struct, sys
way = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
way.connect((sys.argv[1], 9))  # sends nothing: the kernel chooses the way
for _, name in socket.if_nameindex():
    try:
        first = fcntl.ioctl(way, 0x8915, struct.pack("256s", name.encode()))[20:24]  # SIOCGIFADDR
        if socket.inet_ntoa(first) == way.getsockname()[0]:
            print(name)
    except OSError:
        pass  # without an IPv4 address
"""


def join(lines: Sequence[str], indent: str = "") -> str:
    """Lines as text; the indent stands before each, and not behind a line break inside one."""
    return "".join(f"{indent}{line}\n" if line else "\n" for line in lines)


def python_word(job: ExportJob) -> str:
    """The Python for a shell; `~` in front is the user's home there."""
    if job.python.startswith("~/"):
        return '"$HOME"/' + shlex.quote(job.python[2:])
    return shlex.quote(job.python)


def scrub_lines() -> list[str]:
    return [
        "# What an outer launcher may have left here, and torchrun would believe.",
        unset([name for name in OUTER_LAUNCHER if name.endswith("_")]),
        unset([name for name in OUTER_LAUNCHER if not name.endswith("_")]),
    ]


def unset(names: Sequence[str]) -> str:
    """Unset variables; a name that ends with `_` stands for all that begin so."""
    return "unset " + " ".join(f'"${{!{name}@}}"' if name.endswith("_") else name for name in names)


def constants(job: ExportJob) -> dict[str, str]:
    """The environment that is known now: ours, then the user's over it."""
    return {
        **UNBUFFERED,
        "OMP_NUM_THREADS": str(threads_per_rank(job.cpus, job.ranks)),
        **user_variables(job.request),
    }


def export_lines(variables: Mapping[str, str]) -> list[str]:
    return [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]


def prelude_lines(job: ExportJob, *, ends: bool = True) -> list[str]:
    """The user's lines, which run once per node: the ranks inherit what they set. `ends`: one that fails ends the
    shell. What a line calls (a function, a file that it reads) may hold commands that fail."""
    lines = [_prelude_line(line) for line in job.request.prelude]
    if not (lines and ends):
        return lines
    say = 'echo "the prelude line failed: $BASH_COMMAND" >&2'
    return [
        "# Preludes, once per node: the ranks inherit what they set, and nothing goes on where one fails.",
        "depth=${#BASH_SOURCE[@]}",
        f"trap '((${{#BASH_SOURCE[@]}} > depth)) || {{ {say}; exit {PRELUDE_FAILED_CODE}; }}' ERR",
        *lines,
        "trap - ERR",
    ]


def _prelude_line(line: str) -> str:
    """A simple command as it was typed; anything else as one word, so that it cannot swallow what follows."""
    simple = SIMPLE_COMMAND.fullmatch(line) and line.split()[0] not in RESERVED
    return line if simple else f"eval {shlex.quote(line + END_OF_LINE)}"


def secret_lines(job: ExportJob, say: str) -> list[str]:
    """Stop where a secret is missing. `say`: a sentence on where it comes from."""
    return [f': "${{{name}:?{say}}}"' for name in job.request.secrets]


def interface_function(job: ExportJob) -> list[str]:
    """Defines `interface_towards`; nothing where one node needs none."""
    if job.nodes == 1:
        return []
    return [
        "# The network interface on the way to a host. Left to themselves, gloo and NCCL may take that of containers,",
        "# or the loopback, where a host's own name is 127.0.1.1.",
        "interface_towards() {",
        f'    {python_word(job)} -c {shlex.quote(FIND_INTERFACE)} "$1"',
        "}",
    ]


def interface_lines(job: ExportJob, peer: str) -> list[str]:
    """Tell gloo and NCCL the interface on the way to `peer`, a shell word. What a site or a user has set stays."""
    if job.nodes == 1:
        return ["export " + " ".join(f"{name}={value}" for name, value in interface_variables("lo").items())]
    return [
        f"if read -r interface < <(interface_towards {peer}); then",
        *(f'    export {name}="${{{name}:-{value}}}"' for name, value in interface_variables("$interface").items()),
        "fi",
    ]


def torchrun_line(
    job: ExportJob,
    *,
    node: str,
    head: str,
    port: str,
    run: str,
    join_timeout_s: int = JOIN_TIMEOUT_S,
    indent: str = "",
) -> str:
    """The line that starts a node's ranks, broken as a person would. `node`, `head`, `port`, `run`: numbers, words or
    shell variables. `indent`: of the line itself, which `join` adds."""
    options = torchrun_options(
        nodes=job.nodes, node=node, ranks=job.ranks, master=(head, port), rendezvous=run, join_timeout_s=join_timeout_s
    )
    quoted = [_with_variables(option) for option in options]
    parts = [quoted[:3], quoted[3:5], quoted[5:], [shlex.quote(word) for word in job.program]]
    start = f"{python_word(job)} -m torch.distributed.run"
    return f" \\\n{indent}    ".join([start, *(" ".join(part) for part in parts)])


def _with_variables(option: str) -> str:
    """`--name=$value` with the value in double quotes."""
    name, equals, value = option.partition("=")
    return f'{name}{equals}"{value}"' if "$" in value else option
