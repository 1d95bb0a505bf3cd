"""The real command line with a saboteur in it: the process kills itself at a chosen point.

python driver.py commit:7 run -- sh -c …       SIGKILL right after the 7th commit to the ledger
python driver.py before:create:1 up local      SIGKILL before the provisioner's first `create`
python driver.py after:destroy:1 down          SIGKILL after it
python driver.py lost:create up local          `create` does its work, the answer is lost
python driver.py signal:INT:gpuops.sync.upload:push_many train …    a signal to itself when it comes to that function
python driver.py call:start:2:KILL run …       a signal to itself before it asks a node for the 2nd `start`
python driver.py cut:discard:2 run …           the 2nd `discard` has its effect, and the connection is lost
python driver.py asked:before:sbatch:2 up slurm  SIGKILL before the 2nd such command at a login node, or `after` it
python driver.py asked:lost:sbatch:2 up slurm    it has its effect, and the connection is lost
python driver.py taken train …                 another program takes the first port that a node has found free
python driver.py impatient up runpod …          it waits for RunPod's answers for seconds, not for a minute
python driver.py none …                        nothing happens; prints the number of commits
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def sabotage_commits(at: int) -> None:
    """Die after the `at`-th transaction of this process (0: only count)."""
    from gpuops.ledger.store import Ledger

    real = Ledger._transaction
    counter = {"commits": 0}

    @contextmanager
    def counted(self: Ledger) -> Iterator[Any]:
        with real(self) as db:
            yield db
        counter["commits"] += 1
        if counter["commits"] == at:
            die()

    Ledger._transaction = counted  # type: ignore[method-assign]
    if at == 0:
        import atexit

        atexit.register(lambda: print(f"commits: {counter['commits']}", file=sys.stderr))


def sabotage_provider(when: str, method: str, nth: int) -> None:
    from gpuops.core.errors import Unknown
    from provisioners.local import LocalProvisioner

    real: Callable[..., Any] = getattr(LocalProvisioner, method)
    calls = {"n": 0}

    def wrapped(self: LocalProvisioner, *args: Any) -> Any:
        calls["n"] += 1
        hit = calls["n"] == nth
        if hit and when == "before":
            die()
        value = real(self, *args)
        if hit and when == "after":
            die()
        if hit and when == "lost":
            raise Unknown("the answer was lost", "look it up")
        return value

    setattr(LocalProvisioner, method, wrapped)


def sabotage_function(name: str, module: str, function: str) -> None:
    """A signal to this process as it enters a function of ours, by the name that its caller uses."""
    import importlib

    place = importlib.import_module(module)
    real: Callable[..., Any] = getattr(place, function)

    def wrapped(*args: Any, **options: Any) -> Any:
        os.kill(os.getpid(), getattr(signal, "SIG" + name))
        return real(*args, **options)

    setattr(place, function, wrapped)


def sabotage_call(verb: str, nth: int, name: str) -> None:
    from gpuops.transport.rpc import AgentClient

    real = AgentClient.call
    calls = {"n": 0}

    def wrapped(self: AgentClient, asked: str, *args: Any, **options: Any) -> Any:
        calls["n"] += asked == verb
        if asked == verb and calls["n"] == nth:
            os.kill(os.getpid(), getattr(signal, "SIG" + name))
        return real(self, asked, *args, **options)

    AgentClient.call = wrapped  # type: ignore[method-assign]


def cut_call(verb: str, nth: int) -> None:
    from gpuops.core.errors import ConnectionLost
    from gpuops.transport.rpc import AgentClient

    real = AgentClient.call
    calls = {"n": 0}

    def wrapped(self: AgentClient, asked: str, *args: Any, **options: Any) -> Any:
        answer = real(self, asked, *args, **options)
        calls["n"] += asked == verb
        if asked == verb and calls["n"] == nth:
            self.close()
            self.connection.close()
            raise ConnectionLost("the connection was cut", "try again")
        return answer

    AgentClient.call = wrapped  # type: ignore[method-assign]


def sabotage_asked(when: str, program: str, nth: int) -> None:
    from gpuops.core.errors import ConnectionLost
    from provisioners.batch.login_node import Answer, LoginNode, LoginNodes

    real = LoginNodes.ask
    calls = {"n": 0}

    def wrapped(self: LoginNodes, login: LoginNode, argv: Any, question: str = "") -> Answer:
        calls["n"] += program in " ".join(argv)
        hit = calls["n"] == nth and program in " ".join(argv)
        if hit and when == "before":
            die()
        answer = real(self, login, argv, question)
        if hit and when == "after":
            die()
        if hit and when == "lost":
            raise ConnectionLost("the answer was lost", "try again")
        return answer

    LoginNodes.ask = wrapped  # type: ignore[method-assign]


def take_port() -> None:
    """Listen on the first port that is said to be free, until this process ends."""
    import socket

    from gpuops.transport.rpc import AgentClient

    real = AgentClient.call
    taken: list[socket.socket] = []

    def wrapped(self: AgentClient, verb: str, *args: Any, **options: Any) -> Any:
        answer = real(self, verb, *args, **options)
        if verb == "port" and not taken:
            taken.append(socket.create_server((options["address"], answer.port)))
        return answer

    AgentClient.call = wrapped  # type: ignore[method-assign]


def be_impatient() -> None:
    from provisioners.kit import http_client, json_api

    http_client.CONNECT_TIMEOUT_S, http_client.ANSWER_TIMEOUT_S, json_api.READ_ATTEMPTS_S = 1.0, 4.0, 5.0


def main() -> None:
    what, *arguments = sys.argv[1:]
    kind, *rest = what.split(":")
    if kind == "commit":
        sabotage_commits(int(rest[0]))
    elif kind == "signal":
        sabotage_function(*rest)
    elif kind == "call":
        sabotage_call(rest[0], int(rest[1]), rest[2])
    elif kind == "cut":
        cut_call(rest[0], int(rest[1]))
    elif kind == "asked":
        sabotage_asked(rest[0], rest[1], int(rest[2]))
    elif kind == "taken":
        take_port()
    elif kind == "impatient":
        be_impatient()
    elif kind == "none":
        sabotage_commits(0)
    else:
        sabotage_provider(kind, rest[0], int(rest[1]) if len(rest) > 1 else 1)
    from gpuops.cli import main as cli

    cli(arguments)


if __name__ == "__main__":
    main()
