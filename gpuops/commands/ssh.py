"""`gpuops ssh` and `forward`: open a shell on a node, run one command there, or hold one of its ports open here."""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from enum import Enum
from fnmatch import fnmatch
from pathlib import Path

from gpuops.clusters import selection
from gpuops.core.context import Context
from gpuops.core.errors import ConnectionLost, NodeError, UsageError
from gpuops.core.format import plural
from gpuops.core.models import Resource
from gpuops.core.platform import HERE, System
from gpuops.core.polling import Clock, Poller
from gpuops.ledger.store import ClusterRow
from gpuops.nodes.gpu_shares import host_index
from gpuops.nodes.session import explain_connection_loss, nodes_of, readmit_this_computer
from gpuops.transport.connect import connect

PORT_TIMEOUT_S = 2.0
"""Seconds of silence after which a port counts as served: web servers wait for the client to speak first."""
FORWARDING_POLL_INTERVAL_S = 0.1
"""Seconds between two looks while `ssh` logs in and opens the port here."""
INNER_LOGIN_S = 5.0
"""Seconds in which a login node should have a way into a machine of a job."""
PORT_POLL_INTERVAL_S = 2.0
"""Seconds between two looks at a port where nothing listens yet."""


class PortState(Enum):
    """What is behind a forwarded port."""

    NOT_FORWARDED = "not forwarded"
    """The port is not open on this computer yet."""
    CLOSED = "closed"
    """A connection is closed at once: nothing listens on the node."""
    SERVED = "served"


def report_port(
    port: int,
    say: Callable[[str], None],
    clock: Clock,
    *,
    open_: str,
    closed: str,
    alive: Callable[[], bool],
    opening_s: float = 0.0,
) -> None:
    """Report once that nothing listens behind a forwarded port, and then when something does.

    `open_`, `closed`: the sentences; `alive`: whether the process that forwards it still runs; `opening_s`: how long
    the way to the port may take to open, where it opens only once something listens.
    """
    is_reported, opened_at = False, clock.monotonic() + opening_s
    poller = Poller.every(clock, FORWARDING_POLL_INTERVAL_S)
    for attempt in poller:
        if not alive():
            return
        state = probe_port(port)
        if state is PortState.SERVED:
            say(open_)
            return
        is_closed = state is PortState.CLOSED or opening_s > 0
        if is_closed and not is_reported and attempt.started >= opened_at:
            say(closed)
            is_reported = True
        if is_reported:
            poller.retry_after(PORT_POLL_INTERVAL_S)


def probe_port(port: int) -> PortState:
    """Connect to a forwarded port of this computer."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=PORT_TIMEOUT_S) as connection:
            try:
                return PortState.SERVED if connection.recv(1) else PortState.CLOSED
            except TimeoutError:
                return PortState.SERVED
            except OSError:
                return PortState.CLOSED
    except ConnectionResetError:
        return PortState.CLOSED  # closed before the connection was complete
    except OSError:
        return PortState.NOT_FORWARDED


SHELL = r"""
cd "$1" 2>/dev/null
[ -r "$2" ] || exec "${SHELL:-/bin/sh}" -l
export GPUOPS_IMAGE="$2"
exec "${SHELL:-/bin/sh}" -l -c '. "$GPUOPS_IMAGE"; unset GPUOPS_IMAGE; exec "${SHELL:-/bin/sh}"'
"""
"""A login shell. The environment of an image is set after /etc/profile, which would reset its PATH."""
COMMAND = 'cd "$1" 2>/dev/null; [ ! -r "$2" ] || . "$2"; shift 2; exec "$@"'
MERGED = "exec 2>&1; "
"""Before COMMAND: errors go where the output goes."""
SHELL_SIGNS = re.compile(r"[\s;&|<>$`*?(){}\[\]~'\"\\!#]")
"""What makes a single word a line for a shell, as `ssh HOST "pwd; ls"` takes it."""
DIRECTIVE = re.compile(r'\s*(?P<word>\w+)(?:\s*=\s*|\s+)(?:"(?P<quoted>[^"]+)"|(?P<plain>[^\s"#]\S*))')
"""A line of ssh_config: its keyword and its first value."""
SSH_FAILED = 255
"""Exit code of ssh when it cannot log in; a remote command may end with it as well."""


def pick_nodes(ctx: Context, name: str | None, verb: str) -> tuple[ClusterRow, Sequence[Resource]]:
    """The cluster and the machines of its nodes, which may be virtual. Raises UsageError, NodeError."""
    live = ctx.ledger.clusters()
    row = selection.pick_cluster(live, ctx.folder, name, f"gpuops {verb}")
    machines = nodes_of(ctx, row)
    if not machines:
        raise NodeError(f"{row.name} has no machines", f"gpuops down {row.name}")
    return row, machines


def pick_node(ctx: Context, name: str | None, node: int, verb: str) -> tuple[ClusterRow, Resource]:
    """The cluster and the machine of one node, which may be virtual. Raises UsageError, NodeError."""
    row, machines = pick_nodes(ctx, name, verb)
    if not 0 <= node < len(machines):
        raise UsageError(
            f"{row.name} has {plural(len(machines), 'node')}, not node {node}", f"--node 0 to {len(machines) - 1}"
        )
    return row, machines[node]


def open_shell(ctx: Context, row: ClusterRow, machine: Resource, node: int, command: Sequence[str]) -> int:
    """Open a shell on a node, or run one command, in the project's folder there. Returns its exit code."""
    argv = node_command(row, machine, node, command, terminal=needs_terminal(ctx, command))
    if machine.data.get("connection") == "process":
        return run_foreground(argv)
    from gpuops.transport import ssh

    host, terminal = host_index(machine, node), needs_terminal(ctx, command)
    if not machine.data.get("inside_modes"):  # else the way inside is part of the command
        argv = [*machine.data.get("inside", ()), *argv]
    line = ssh.command_line(ctx.home / "ssh", row.name, host, argv, tty=terminal, quiet=True)
    return _run_ssh(ctx, row, machine, node, lambda: run_foreground(line))


def node_command(
    row: ClusterRow,
    machine: Resource,
    node: int,
    command: Sequence[str],
    *,
    merged: bool = False,
    terminal: bool = False,
) -> list[str]:
    """The argv, on a node, of a command in the project's folder there; of a shell where there is no command.

    A single word with a blank or a sign of the shell is a line for `sh`. `merged`: its errors go where its output goes.
    `terminal`: it has one.
    """
    folder = f"{machine.data['root']}/{row.name}/n{node}"
    if len(command) == 1 and SHELL_SIGNS.search(command[0]):
        command = ["sh", "-c", command[0]]
    script = (MERGED if merged else "") + (COMMAND if command else SHELL)
    inside = machine.data.get("inside_terminal" if terminal else "inside_shell") or ()
    return [*inside, "sh", "-c", script, "sh", f"{folder}/project", f"{folder}/image.sh", *command]


def needs_terminal(ctx: Context, command: Sequence[str]) -> bool:
    """Whether a terminal is made on the node: for a shell at a terminal, and for a command (`top`, `watch`) whose input
    and output both are one. What is piped stays as it was printed."""
    return ctx.out.interactive and (not command or ctx.out.out.isatty())


def _run_ssh(ctx: Context, row: ClusterRow, machine: Resource, node: int, run: Callable[[], int]) -> int:
    """Run `ssh` and return its exit code. Raises NodeError.

    255 is both a failed login and a code of the command: a login of our own tells them apart. Where the provider admits
    only this computer's address, a new one is registered and `ssh` is run again.
    """
    code = run()
    if code != SSH_FAILED:
        return code
    try:
        _log_in(machine, node)
    except ConnectionLost as error:
        if not readmit_this_computer(ctx, row, ctx.ledger.resources(row.id)):
            raise explain_connection_loss(ctx, row, error) from error
        _log_in(machine, node)
        return run()
    return code


def _log_in(machine: Resource, node: int) -> None:
    with closing(connect(machine, node)) as connection:
        connection.open(["true"]).close()


def forward(ctx: Context, row: ClusterRow, machine: Resource, node: int, port: int, local_port: int) -> int:
    """Hold a port of the node open on this computer until Ctrl-C, which is 0; else the exit code of `ssh`."""
    argv = _forwarding_argv(ctx, row, machine, node, port, local_port)
    check_free(local_port)
    url = f"http://127.0.0.1:{local_port}"

    def report(process: subprocess.Popen[bytes]) -> None:
        report_port(
            local_port,
            ctx.out.say,
            ctx.clock,
            open_=f"{url} is port {port} of node{node} of {row.name}; Ctrl-C ends it",
            closed=f"nothing listens on port {port} of node{node} yet; {url} is it as soon as something does",
            alive=lambda: process.poll() is None,
            opening_s=INNER_LOGIN_S if machine.data.get("inside_forward") else 0.0,
        )

    return run_foreground(argv, report)


def _forwarding_argv(
    ctx: Context, row: ClusterRow, machine: Resource, node: int, port: int, local_port: int
) -> list[str]:
    """The program that holds the port open here, as long as its input is. Raises UsageError."""
    inside = machine.data.get("inside_forward")
    if machine.data.get("connection") == "process":
        if inside:
            return [*inside, f"127.0.0.1:{local_port}", str(port)]
        raise UsageError(f"the nodes of {row.name} are this machine", f"open http://127.0.0.1:{port} as it is")
    from gpuops.transport import ssh

    there = f"127.0.0.1:{port}"
    if inside:  # one more step, from the login node on
        there = f"/tmp/gpuops-{secrets.token_hex(8)}/port"
    words = [*inside, there, str(port)] if inside else ()
    program, *rest = ssh.command_line(
        ctx.home / "ssh", row.name, host_index(machine, node), words, forwards=(f"{local_port}:{there}",)
    )
    # What `ssh` says of each attempt to reach a port where nothing listens is said once, by us.
    return [program, "-o", "LogLevel=ERROR", *rest]


def check_free(port: int) -> None:
    """Raises UsageError where a port of this computer is taken."""
    try:
        with socket.socket() as probe:
            if not HERE.windows:  # there it would take a port that another program has
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
    except OSError as error:
        other = 6007 if port != 6007 else 6008
        raise UsageError(
            f"port {port} of this computer cannot be had: {error.strerror}", f"name another: --local {other}"
        ) from error


def run_foreground(argv: Sequence[str], beside: Callable[[subprocess.Popen[bytes]], None] | None = None) -> int:
    """Run a program in the foreground; Ctrl-C goes to it. Returns its exit code, for a signal as a shell reports it.

    `beside` is called with the process, in a thread; the program's input is open then, and empty, and Ctrl-C is how it
    ends well: 0, whatever the program says of it (255 of `ssh`).
    """
    # Without the mark by which the processes of a run are found: this command may be typed inside one.
    environment = {name: value for name, value in os.environ.items() if name != "GPUOPS_RUN"}
    try:
        process = subprocess.Popen(list(argv), env=environment, stdin=subprocess.PIPE if beside else None)
    except OSError as error:
        raise UsageError(f"{argv[0]} cannot be started: {error.strerror}", HERE.install_ssh) from error
    if beside is not None:
        threading.Thread(target=beside, args=(process,), daemon=True, name="beside").start()
    for name in ("SIGTERM", HERE.hang_up):  # passed on, or the program would outlive this command
        signal.signal(getattr(signal, name), lambda *_: process.terminate())
    interrupted = False
    while True:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            interrupted = True  # the program got the same signal and decides
            continue
        if interrupted and beside is not None:
            return 0
        return code if code >= 0 else 128 - code


def host_name_lines(ctx: Context, row: ClusterRow, machines: Sequence[Resource]) -> list[str]:
    """Sentences: how the nodes of a cluster are reached by plain `ssh` and by editors; none for local nodes."""
    if any(machine.data.get("connection") != "ssh" for machine in machines):
        return []
    if any(machine.data.get("inside") for machine in machines):
        return [f"log in: gpuops ssh {row.name}"]
    folder = ctx.home / "ssh"
    hosts = f"gpuops-{row.name}-0" + (f" to gpuops-{row.name}-{len(machines) - 1}" if len(machines) > 1 else "")
    include = _how_to_include(_read_user_config(), folder, row.name)
    urls = [f"node{index}: {url}" for index, machine in enumerate(machines) for url in machine.data.get("urls") or ()]
    return [f"log in: gpuops ssh {row.name}", f"plain ssh and VS Code: {hosts}{include}", *urls]


def _user_ssh_folder() -> str:
    return os.path.expanduser("~/.ssh")


def _read_user_config() -> str:
    try:
        return Path(_user_ssh_folder(), "config").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _how_to_include(config: str, folder: Path, cluster: str) -> str:
    """What is left to do, in the user's own file, for plain `ssh` to know a cluster's hosts; empty where it does.

    `ssh` takes the first value that it meets. So our file has to be the first thing in theirs: what stands above it
    counts for our nodes as well (`Host *`, `ForwardAgent yes`), or leaves it out (`Host work`).
    """
    include = f"Include {_include_pattern(folder)}"
    for number, line in enumerate(config.splitlines()):
        if not _includes_file(line, folder / f"{cluster}.conf"):
            continue
        preceding = [text.strip() for text in config.splitlines()[:number]]
        above = [text for text in preceding if text and not text.startswith("#")]
        if not above:
            return ""
        return (
            f", once the line {include} is the first in ~/.ssh/config: "
            f"what stands above it ({above[0]}) counts there too"
        )
    return f", once ~/.ssh/config begins with the line: {include}"


def _includes_file(line: str, file: Path) -> bool:
    """Whether a line of ssh_config includes a file before any other."""
    directive = DIRECTIVE.match(line)
    if not directive or directive["word"].lower() != "include":
        return False
    path = os.path.expanduser(directive["quoted"] or directive["plain"])
    return fnmatch(os.path.normpath(file), os.path.normpath(os.path.join(_user_ssh_folder(), path)))


def _include_pattern(folder: Path, system: System = HERE) -> str:
    """Our files of hosts, as ssh_config names them."""
    text = f"{system.config_path(str(folder))}/*.conf"
    return f'"{text}"' if " " in text else text
