"""A long command of the agent's own, its output passed on as it comes, ended when nobody waits for it."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from typing import Any, Callable, Sequence

from gpuops.agent.interpreters import Spawn

LOOK_EVERY_S = 0.5
BEAT_S = 5.0
"""How often `beat` is called while the command is silent, in seconds."""
GRACE_S = 5.0


def run(
    argv: Sequence[str],
    take: Callable[[bytes], None],
    beat: Callable[[], None],
    spawn: Spawn,
    limit_s: float | None = None,
    **popen: Any,
) -> int | None:
    """Run `argv` to its end; its exit code (a signal's is negative), or None when `limit_s` ended it.

    `take` gets stdout and stderr as they come. When `take` or `beat` raises (the client is gone),
    the command and what it started are ended first. What it leaves in the background is not waited for.
    """
    process = spawn(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        **popen,
    )
    try:
        return _follow(process, take, beat, limit_s)
    finally:
        if process.poll() is None:
            _end(process)
        assert process.stdout
        process.stdout.close()


def _follow(
    process: subprocess.Popen[bytes], take: Callable[[bytes], None], beat: Callable[[], None], limit_s: float | None
) -> int | None:
    started = spoke = time.monotonic()
    assert process.stdout
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            ended = process.poll()
            if selector.get_map() and selector.select(0 if ended is not None else LOOK_EVERY_S):
                # One read takes all that a pipe holds; a daemon left behind may write for ever.
                chunk = os.read(process.stdout.fileno(), 65536)
                if chunk:
                    take(chunk)
                    spoke = time.monotonic()
                else:
                    selector.unregister(process.stdout)
            elif ended is None and not selector.get_map():
                _pause(process)
            if ended is not None:
                return ended
            now = time.monotonic()
            if limit_s is not None and now - started > limit_s:
                return None
            if now - spoke >= BEAT_S:
                beat()
                spoke = now


def _pause(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(LOOK_EVERY_S)
    except subprocess.TimeoutExpired:
        pass  # it has closed its output and goes on


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL, to the command and to all that stayed in its session's group."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.wait(GRACE_S)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
