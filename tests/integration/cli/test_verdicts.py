"""What is said last: real gloo, real deaths; whoever began it is named, and nobody else.

Where no rank imports torch, its stub launches them: it is held to the real one by tests/integration/fakes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuops.agent.run.joined_ranks import MIN_SAMPLED_S
from tests.conftest import HANG_S, Shell, until
from tests.integration.cli.counting import PROGRAM, Counting, remove

real_torch = pytest.mark.real_torch

GANG = PROGRAM.parent / "gang.py"
TWO_BY_ONE = ("train", "multinode", "--nodes", "2", "--gpus", "1")
"""What costs time is how often torch is loaded: two ranks do for all but who is named of several on a node."""
MEMORY = Path("/sys/fs/cgroup/memory")
MORE = "`gpuops logs gang-1 --rank {last}` shows everything it said"


def last_words(text: str) -> list[str]:
    """What stands behind the receipt."""
    return text.rpartition("\nreport   ")[2].splitlines()[1:]


@real_torch
@pytest.mark.parametrize(
    ("what", "each", "words", "say", "hint"),
    [
        (
            "raise",
            2,
            "[rank3]: ValueError: the last rank has had enough",
            "rank 3 on node1 failed with exit code 1",
            f"hint: its last words are above; {MORE.format(last=3)}",
        ),
        pytest.param("exit", 1, None, "rank 1 on node1 failed with exit code 7", "hint: ", marks=pytest.mark.proof),
        pytest.param(
            *("segv", 1, None, "rank 1 on node1 was ended by SIGSEGV", "hint: native code crashed"),
            marks=pytest.mark.proof,
        ),
    ],
)
def test_the_last_rank_fails(shell: Shell, what: str, each: int, words: str | None, say: str, hint: str) -> None:
    """`each`: ranks on a node."""
    shell.write("gang.py", GANG.read_text())
    done = shell.run("train", "multinode", "--nodes", "2", "--gpus", str(each), "gang.py", "--", what)
    assert done.returncode == 1, done.stderr
    last = last_words(done.stderr)
    assert last[-2] == say
    assert last[-1].startswith(hint)
    if words:
        assert last[-3] == words
        assert any("Traceback (most recent call last)" in line for line in last)
    assert not any("gloo/transport" in line or "Connection closed" in line for line in last)
    assert sum(line.endswith("] met") for line in done.stdout.splitlines()) == 2 * each
    shell.expect_clean()


@real_torch
@pytest.mark.proof  # tests/system trains on two nodes
def test_real_training_is_done(shell: Shell) -> None:
    shell.write("gang.py", GANG.read_text())
    done = shell.run(*TWO_BY_ONE, "gang.py", "--", "train")
    assert done.returncode == 0, done.stderr
    assert last_words(done.stderr) == ["all 2 ranks ended well"]
    assert {f"[n{rank} r{rank}] trained as {rank} of 2" for rank in range(2)} <= set(done.stdout.splitlines())
    shell.expect_clean()


def test_ranks_that_never_met(shell: Shell) -> None:
    shell.write("alone.py", "import time\nprint('this needs GPUs')\ntime.sleep(4)\n")
    done = shell.run(*TWO_BY_ONE, "alone.py")
    assert done.returncode == 1, done.stderr
    say, hint = last_words(done.stderr)
    formed = "all 2 ranks ended well, but none of them joined the world of 2 that was asked for"
    assert say == f'{formed}: they say "this needs GPUs"'
    assert hint.startswith("hint: it wants GPUs: run it on a machine that has them")
    assert done.stdout.count("this needs GPUs") == 2


HELLO = """
import time
import torch.distributed as dist
dist.init_process_group("gloo")
print("hello from", dist.get_rank(), flush=True)
dist.barrier()  # a rank that leaves while another still connects ends that one,
time.sleep(1)  # and one that leaves before another has looked at the barrier's end, too
dist.destroy_process_group()
"""


@real_torch
def test_ranks_that_only_said_hello_are_not_called_apart(shell: Shell) -> None:
    """Seconds of imports, then a world for a moment."""
    shell.write("hello.py", HELLO)
    done = shell.run(*TWO_BY_ONE, "hello.py")
    assert done.returncode == 0, done.stderr
    assert last_words(done.stderr)[0].startswith("all 2 ranks ended well")
    assert "joined the world" not in done.stderr


def test_ranks_that_were_too_quick_to_tell(shell: Shell) -> None:
    shell.write("short.py", SHORT)
    done = shell.run(*TWO_BY_ONE, "short.py")
    said = last_words(done.stderr)[0]
    ages = [float(line.split()[-1]) for line in done.stdout.splitlines()]
    assert len(ages) == 2
    if max(ages) < MIN_SAMPLED_S / 2:
        assert said == (
            "all 2 ranks ended well; whether they formed one world of 2 could not be seen: they were done too soon"
        )
        assert done.returncode == 0, done.stderr
    else:  # on a machine as busy as that there was time to look
        assert said.startswith("all 2 ranks ended well, but "), said


SHORT = """
import os, time
began = int(open("/proc/self/stat").read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
print("hello after", time.clock_gettime(time.CLOCK_BOOTTIME) - began, flush=True)
os._exit(0)
"""


def test_a_command_fails(shell: Shell) -> None:
    done = shell.run("run", "--", "sh", "-c", "echo no such luck >&2; exit 5")
    assert done.returncode == 1
    assert last_words(done.stderr) == [
        "",
        "no such luck",
        "the command failed with exit code 5",
        "hint: its last words are above; `gpuops logs sh-1 --node 0` shows everything it said",
    ]


WANDB = "--secret WANDB_API_KEY, or --env WANDB_MODE=offline"
GOES_ON = "what it had made is home: `--resume python3-1` goes on from that"
ASKS = "import sys; open('a.pt', 'w').close(); print('wandb: Enter your choice:', file=sys.stderr); input()"


@pytest.mark.parametrize(
    ("words", "say", "hint"),
    [
        (
            ("--prelude", "modules load cuda", "--", "true"),
            "the command never began: the prelude line `modules load cuda` failed with exit code 127",
            "correct it, or go on in spite of it: --prelude 'LINE || true'",
        ),
        (
            ("--", "python3", "-c", ASKS),
            "the command failed with exit code 1",
            f"it asked for input, and nobody can answer there: {WANDB}; {GOES_ON}",
        ),
    ],
)
def test_what_a_command_died_of(shell: Shell, words: tuple[str, ...], say: str, hint: str) -> None:
    done = shell.run("run", *words)
    assert done.returncode == 1, done.stderr
    assert last_words(done.stderr)[-2:] == [say, f"hint: {hint}"]


def test_one_node_of_two_fails(shell: Shell) -> None:
    program = 'echo on $GPUOPS_NODE_RANK >&2; test "$GPUOPS_NODE_RANK" = 1 && exit 5; sleep 1000'
    done = shell.run("run", "--nodes", "2", "--all-nodes", "--", "sh", "-c", program)
    assert done.returncode == 1
    assert last_words(done.stderr)[1:3] == ["on 1", "the command on node1 failed with exit code 5"]
    shell.expect_clean()


@pytest.mark.parametrize(
    ("text", "words", "code", "hint"),
    [
        (
            "import not_there.at_all\n",
            "ModuleNotFoundError: No module named 'not_there'",
            1,
            "`--setup 'pip install not_there'` installs it on every node (or all: `-r requirements.txt`)",
        ),
        (
            "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('epochs')\nparser.parse_args()\n",
            "train.py: error: the following arguments are required: epochs",
            2,
            "a script's arguments stand behind `--`: … -- epochs",
        ),
    ],
)
def test_a_script_that_cannot_begin(shell: Shell, text: str, words: str, code: int, hint: str) -> None:
    shell.write("train.py", text)
    done = shell.run("train", "single", "train.py")
    assert done.returncode == 1
    assert last_words(done.stderr)[-3:] == [words, f"rank 0 on node0 failed with exit code {code}", f"hint: {hint}"]


@real_torch
def test_a_torchrun_of_the_users_own(shell: Shell) -> None:
    """Its summary comes after the traceback that matters; a summary is not the last word."""
    shell.write("fails.py", FAILS)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = shell.run("run", "--", *torchrun, "fails.py")
    assert done.returncode == 1
    last = last_words(done.stderr)
    assert last[-3] == "KeyError: 'the one thing that matters'"
    assert last[-2] == "rank 1 of the command failed with exit code 1"
    assert not any("ChildFailedError" in line or "torch/distributed" in line for line in last)


FAILS = """
import os, time

def depth(n):
    if n:
        return depth(n - 1)
    raise KeyError("the one thing that matters")

if os.environ["RANK"] == "1":
    depth(3)
time.sleep(1000)
"""


@real_torch
def test_a_node_that_vanishes(shell: Shell) -> None:
    """The ranks that are left end with words of their own; it is the node that is named."""
    shell.write("gang.py", GANG.read_text())
    process = shell.start(*TWO_BY_ONE, "gang.py", "--", "nothing", "patient")
    home = shell.folder / "runs/gang-1/logs"
    until(lambda: all("met" in text for text in texts(home)), "two ranks that met")
    vanish(shell, 1)
    _, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 4, err
    assert last_words(err)[-2] == "node1 ended without a word", err
    assert "giving up" in (home / "node0/rank0.err").read_text()
    shell.expect_clean()


def texts(home: Path) -> list[str]:
    paths = [home / f"node{rank}/rank{rank}.out" for rank in (0, 1)]
    return [path.read_text() if path.exists() else "" for path in paths]


def vanish(shell: Shell, index: int) -> None:
    """Everything on a node at once, as a machine whose power is cut; its folder goes with it."""
    import psutil

    counting = Counting(shell, shell.folder)
    folder = counting.node(index)
    watchdog = psutil.Process(counting.pid("watchdog", index))
    watchdog.suspend()
    everything = [watchdog, *watchdog.children(recursive=True)]
    for process in everything:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()
    remove(folder)
    for process in everything:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


@pytest.fixture
def small_memory() -> Iterator[Path]:
    """A memory cgroup of 1 GiB."""
    group = MEMORY / f"gpuops-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text("1G")
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    yield group
    until(lambda: not (group / "cgroup.procs").read_text(), "an empty cgroup")
    group.rmdir()


def test_a_rank_is_killed_for_memory(shell: Shell, small_memory: Path) -> None:
    def enter() -> None:
        (small_memory / "cgroup.procs").write_text(str(os.getpid()))

    shell.write("eat.py", "print('hungry', flush=True)\nx = b'x' * (4 << 30)\n")
    process = shell.start("train", "single", "eat.py", preexec_fn=enter)
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 1, err
    assert out.startswith("hungry\n")
    assert last_words(err)[-2:] == [
        "rank 0 on node0 was killed: the machine ran out of memory",
        "hint: use a smaller batch or fewer data-loader workers, or a machine with more memory",
    ]
    shell.expect_clean()


def test_a_rank_is_killed_with_memory_to_spare(shell: Shell) -> None:
    shell.write("killed.py", "import os\nos.kill(os.getpid(), 9)\n")
    done = shell.run("train", "single", "killed.py")
    assert done.returncode == 1
    assert last_words(done.stderr)[-2:] == [
        f"rank 0 on node0 was ended by {signal.Signals(9).name}",
        "hint: something outside gpuops killed it: if memory was short, use a smaller batch or fewer workers",
    ]
