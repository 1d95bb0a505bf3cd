"""What `gpuops ssh` starts on nodes: a shell, a program, a line for a shell; on one node or on all."""

from __future__ import annotations

import errno
import io
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuops.cli.terminal.output import Output
from gpuops.commands import ssh, ssh_all_nodes
from gpuops.commands.ssh import needs_terminal, node_command
from gpuops.core.context import Context
from gpuops.core.errors import NodeError, UsageError
from gpuops.core.models import MACHINE, Resource

ROW = cast("Any", SimpleNamespace(id=1, name="lab"))
MACHINES = [Resource(MACHINE, f"m{index}", "", f"m{index}", False, data={"root": "/r"}) for index in range(3)]


@pytest.mark.parametrize(
    ("typed", "started"),
    [
        (["nvidia-smi"], ["nvidia-smi"]),
        (["ls", "-l", "my file"], ["ls", "-l", "my file"]),
        (["pwd; ls"], ["sh", "-c", "pwd; ls"]),
        (["ls *.py"], ["sh", "-c", "ls *.py"]),
        (["echo $HOME"], ["sh", "-c", "echo $HOME"]),
        (["a|b"], ["sh", "-c", "a|b"]),
        (["python3", "-c", "print(1); print(2)"], ["python3", "-c", "print(1); print(2)"]),
        (["/opt/bin/train-2.py"], ["/opt/bin/train-2.py"]),
    ],
)
def test_one_word_that_is_a_line_is_a_shells(typed: list[str], started: list[str]) -> None:
    argv = node_command(ROW, MACHINES[0], 1, typed)
    assert argv[:2] == ["sh", "-c"]
    assert argv[3:] == ["sh", "/r/lab/n1/project", "/r/lab/n1/image.sh", *started]
    assert argv[2].endswith('exec "$@"')


def test_the_port_that_is_proposed_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    def taken() -> None:
        raise OSError(errno.EADDRINUSE, "Address already in use")

    monkeypatch.setattr(ssh.socket, "socket", taken)
    for port, other in ((80, 6007), (6007, 6008)):
        with pytest.raises(UsageError) as caught:
            ssh.check_free(port)
        assert caught.value.hint == f"name another: --local {other}"


class Stream(io.StringIO):
    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


@pytest.mark.parametrize(
    ("inside", "outside", "command", "made"),
    [
        (True, True, ["watch", "uptime"], True),
        (True, False, ["watch", "uptime"], False),
        (False, True, ["watch", "uptime"], False),
        (True, True, [], True),
        (True, False, [], True),
        (False, False, [], False),
    ],
)
def test_programs_that_want_a_terminal_get_one(
    monkeypatch: pytest.MonkeyPatch, inside: bool, outside: bool, command: list[str], made: bool
) -> None:
    """`inside`: the input is a terminal, `outside`: the output is one."""
    monkeypatch.setattr("sys.stdin", Stream(is_terminal=inside))
    out = Output(out=Stream(is_terminal=outside), err=Stream(is_terminal=True))
    assert needs_terminal(cast("Any", SimpleNamespace(out=out)), command) is made


class Program:
    """One that has printed this, in pieces, and ends with this code."""

    def __init__(self, code: int, *pieces: bytes) -> None:
        self.code, self.pieces = code, [*pieces, b""]
        self.stdin = self.stdout = cast("Any", self)

    def read(self, _: int) -> bytes:
        return self.pieces.pop(0)

    def wait(self) -> int:
        return self.code

    def close(self) -> None:
        pass


def test_lines_of_all_nodes_are_told_apart(monkeypatch: pytest.MonkeyPatch, world: Context) -> None:
    programs = {0: Program(0, b"one\ntw", b"o\r\n"), 2: Program(-9, b"no end")}
    started: list[list[str]] = []

    class Connection:
        def __init__(self, node: int) -> None:
            self.node = node

        def open(self, argv: list[str], _early: bytes = b"") -> Program:
            started.append(argv)
            if self.node not in programs:
                raise NodeError("node1 does not answer", "look after it")
            return programs[self.node]

        def close(self) -> None:
            pass

    monkeypatch.setattr(ssh_all_nodes, "connect", lambda _, node: Connection(node))
    out, err = io.StringIO(), io.StringIO()
    world.out = Output(out=out, err=err)
    assert ssh_all_nodes.run_on_all_nodes(world, ROW, MACHINES, ["nvidia-smi"]) == 137, "the worst of 0, 4 and SIGKILL"
    lines = out.getvalue().splitlines()
    assert [line for line in lines if line.startswith("[n0]")] == ["[n0] one", "[n0] two"]
    assert [line for line in lines if line.startswith("[n2]")] == ["[n2] no end"]
    assert err.getvalue() == "[n1] error: node1 does not answer\n[n1] hint: look after it\n"
    assert all(argv[2].startswith("exec 2>&1; ") for argv in started), "errors are told apart as well"
