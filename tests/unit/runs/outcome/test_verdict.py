"""Given how each process of a run ended, then this sentence, this exit code and these last words.

The texts of gloo, the rendezvous and torchrun are those of torch 2.13, from two nodes of two ranks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from gpuops.core.run_models import RunRequest, Verdict, VerdictOutcome
from gpuops.runs.outcome import verdict as verdicts
from gpuops.runs.outcome.failure_cause import drop_first_warnings, extract_exception, final_words
from gpuops.runs.outcome.node_report import NodeReport, Reason, parse_report
from gpuops.runs.outcome.verdict import is_port_clash

TRAIN = RunRequest(kind="torchrun", mode="multinode", nodes=2, gpus=None, script="train.py")
COMMAND = RunRequest(kind="command", mode="run", nodes=1, gpus=None, argv=("make",))

CLOSED = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/me/train.py", line 12, in <module>
[rank0]:     dist.all_reduce(x)
[rank0]:   File "/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83, in wrapper
[rank0]:     return func(*args, **kwargs)
[rank0]:            ^^^^^^^^^^^^^^^^^^^^^
[rank0]: RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed \
by peer [127.0.0.1]:30107. This is typically caused by a remote worker crashing. Check the logs of the remote \
worker before reporting an error. GLHF! 🏖️
"""
RESET = CLOSED.replace(
    "pair.cc:553] Connection closed by peer [127.0.0.1]:30107. This is typically caused by a remote worker crashing.",
    "pair.cc:537] Read error [127.0.0.1]:403: Connection reset by peer. This is typically caused by a remote worker "
    "hanging or bugs in the application.",
)
MEETING = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/home/me/hello.py", line 3, in <module>
[rank3]:     dist.init_process_group("gloo")
[rank3]: RuntimeError: Gloo connectFullMesh failed with [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/\
pair.cc:553] Connection closed by peer [127.0.0.1]:44717. This is typically caused by a remote worker crashing. Check \
the logs of the remote worker before reporting an error. GLHF! 🏖️
"""
RAISED = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/home/me/train.py", line 7, in <module>
[rank3]:     if how=="raise": raise ValueError("loss is nan")
[rank3]: ValueError: loss is nan
"""
CHAINED = "\nDuring handling of the above exception, another exception occurred:\n\n"
CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
NCCL = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 9, in <module>
[rank1]: torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:275, remote \
process exited or there was a network error, NCCL version 2.21.5
[rank1]: ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.
"""
WATCHDOG = """\
[rank1]:[E1120 17:54:52.1 ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught collective operation timeout: \
WorkNCCL(SeqNum=7, OpType=ALLREDUCE) ran for 600026 milliseconds before timing out.
terminate called after throwing an instance of 'c10::DistBackendError'
"""
STORE = """\
Traceback (most recent call last):
  File "train.py", line 2, in <module>
torch.distributed.DistNetworkError: failed to recv, got 0 bytes. Connection was likely closed. Did the remote server \
shutdown or crash?
"""
PORT = """\
    self._store = TCPStore(  # type: ignore[call-arg]
                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 20777, \
useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use
"""
PRELUDE = """\
bash: line 1: module: command not found
gpuops: the prelude line `module load cuda` failed with exit code 127
"""
NO_PEER = "torch.distributed.DistStoreError: Timed out after 6 seconds waiting for clients. 1/2 clients joined.\n"
NO_HEAD = (
    "torch.distributed.DistNetworkError: The client socket has timed out after 5000ms while trying to connect to "
    "(127.0.0.1, 20778).\n"
)
CHILD_FAILED = """\
torch.distributed.elastic.multiprocessing.errors.ChildFailedError: 
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-20_17:54:52
  rank      : 2 (local_rank: 0)
  exitcode  : -15 (pid: 6326)  (SIGTERM)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-20_17:54:52
  host      : localhost
  rank      : 3 (local_rank: 1)
  exitcode  : -9 (pid: 6327)  (SIGKILL)
  error_file: <N/A>
============================================================
"""  # noqa: W291 - as torchrun prints it
TORCHRUN_SAYS = """\
W1120 17:54:52.100000 5 torch/distributed/elastic/multiprocessing/api.py:923] Sending process 6326 closing SIGTERM
E1120 17:54:52.200000 5 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 1
Traceback (most recent call last):
  File "/venv/bin/torchrun", line 8, in <module>
    raise ChildFailedError(
"""
GPU_MEMORY = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "train.py", line 5, in <module>
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 15 GiB
"""
NO_SCRIPT = "/venv/bin/python: can't open file '/root/n1/project/trian.py': [Errno 2] No such file or directory\n"
NO_MODULE = (
    "Traceback (most recent call last):\n  File \"t.py\", line 1\nModuleNotFoundError: No module named 'timm.x'\n"
)
DISK_FULL = """\
Traceback (most recent call last):
  File "/home/me/train.py", line 3, in <module>
    np.save("b.npy", array)
OSError: [Errno 28] No space left on device
"""
SAVE_FULL = """\
Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/torch/serialization.py", line 1312, in _save
    zip_file.write_record(name, storage, num_bytes)
RuntimeError: basic_ios::clear: iostream error

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "train.py", line 3, in <module>
  File "/venv/lib/python3.11/site-packages/torch/serialization.py", line 834, in __exit__
    self.file_like.write_end_of_file()
RuntimeError: [enforce fail at inline_container.cc:672] . unexpected pos 576 vs 534
"""
BUS = """\
Traceback (most recent call last):
  File "train.py", line 3, in <module>
RuntimeError: DataLoader worker (pid 77) is killed by signal: Bus error. It is possible that dataloader's workers are \
out of shared memory. Please try to raise your shared memory limit.
"""
SHM_FULL = "RuntimeError: unable to write to file </torch_77_123>: No space left on device (28)\n"
DOWNLOAD = (
    'Traceback (most recent call last):\n  File "t.py"\nConnectionResetError: [Errno 104] Connection reset by peer\n'
)
NOISE = "[rank3]:[W1120 17:54:52.9 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl: Connection reset by peer\n"

RESUME = "run it again with `--resume toy-1` to continue from the newest snapshot that came home"


def rank(number: int, code: int | None = 0, ended: float | None = 100.0, tail: str = "", **more: Any) -> dict[str, Any]:
    """One rank in a node's result.json."""
    more = {"joined": True, "signal": None, "started": 1.0, **more}
    return {"rank": number, "local": number % 2, "code": code, "ended": ended, "tail": tail, **more}


def killed(number: int, signal: int, ended: float = 100.0, tail: str = "", **more: Any) -> dict[str, Any]:
    return rank(number, None, ended, tail, signal=signal, **more)


def silent(number: int) -> dict[str, Any]:
    """A rank that never wrote its record."""
    return rank(number, None, None)


def node(
    index: int, outcome: str, *ranks: dict[str, Any], why: str = "rank", ended: float | None = 101.0, **more: Any
) -> NodeReport:
    """A node's result; `say`, `origin`, `code`, `signal` and `tail` where they matter."""
    reason = {"kind": why, "say": more.get("say", "")}
    if "origin" in more:
        reason["from"] = more["origin"]
    raw = {
        "run": "digits-1", "node": index, "outcome": outcome, "reason": reason, "started": 0.0, "ended": ended,
        "launcher": {"code": more.get("code", 0), "signal": more.get("signal")}, "ranks": list(ranks),
        "tail": more.get("tail", ""), "out": more.get("out", ""), "disk_free": more.get("disk_free"), "left": 0,
        "progress": more.get("progress"),
    }  # fmt: skip
    raw["reason"].update(more.get("told") or {})
    return parse_report(index, raw)


def gang(index: int, *ranks: dict[str, Any], origin: int) -> NodeReport:
    """A node that another one's end has stopped."""
    return node(index, "stopped", *ranks, why="gang", origin=origin, say=f"node{origin}: it ended")


NOTICE = {"by": "AWS", "at": 1795162920.0, "node": 1}
"""What AWS said to node1; the others have it from there."""


def taken(index: int, *ranks: dict[str, Any], **more: Any) -> NodeReport:
    """A node whose run was stopped since AWS takes node1 back."""
    told = NOTICE | ({} if index == 1 else {"from": 1})
    say = "AWS takes node1 back at 08:22:00Z"
    return node(index, "stopped", *ranks, why="reclaim", say=say, told=told, **more)


def vanished(index: int, **told: Any) -> NodeReport:
    """A machine that ended without a word, and what its provider says of that."""
    return node(index, "lost", why="gone", ended=None, say=f"node{index} ended without a word", told=told)


class Then(NamedTuple):
    exit_code: int
    outcome: str
    say: str
    hint: str = ""
    """Words that must be in it."""
    rank: int | None = None
    node: int | None = None


GOOD0 = node(0, "done", rank(0), rank(1), why="launcher")
GOOD1 = node(1, "done", rank(2), rank(3), why="launcher")
VICTIM0 = node(0, "failed", rank(0, 1, 99.8, CLOSED), killed(1, 15, 99.9), code=1)
STOPPED0 = gang(0, killed(0, 15, after_stop=True), killed(1, 15, after_stop=True), origin=1)


def blames_3(say: str, advice: str = "", exit_code: int = 1) -> Then:
    return Then(exit_code, "failed", f"rank 3 on node1 {say}", advice, rank=3, node=1)


SHM = "shared memory (/dev/shm) is probably too small"

RANKS: dict[str, tuple[list[NodeReport], Then]] = {
    "an exit code": (
        [VICTIM0, node(1, "failed", killed(2, 15), rank(3, 3, 99.9, "bad config\n"), code=1)],
        blames_3("failed with exit code 3", "`gpuops logs toy-1 --rank 3` shows everything it said"),
    ),
    "a prelude line that fails": (
        [VICTIM0, node(1, "failed", rank(3, 126, 100.0, PRELUDE))],
        blames_3(
            "never began: the prelude line `module load cuda` failed with exit code 127",
            "correct it, or go on in spite of it: --prelude 'LINE || true'",
        ),
    ),
    "no space left on the device": (
        [VICTIM0, node(1, "failed", rank(3, 1, tail=DISK_FULL))],
        blames_3("found no space on its disk and failed with exit code 1", "make room on that disk"),
    ),
    "a snapshot for which there was no space": (
        [VICTIM0, node(1, "failed", rank(3, 1, tail=SAVE_FULL))],
        blames_3("found no space on its disk and failed with exit code 1", "make room on that disk"),
    ),
    "words that were printed, not said on stderr": (
        [VICTIM0, node(1, "failed", rank(3, 2, out="step 1\nneed at least 2 GPUs\n"))],
        blames_3("failed with exit code 2", "it wants GPUs"),
    ),
    "an exception, after its victims by the clock": (
        [VICTIM0, node(1, "failed", killed(2, 15), rank(3, 1, 103.0, RAISED), code=1)],
        blames_3("failed with exit code 1", "its last words are above"),
    ),
    "an exception, when the other node was stopped in time": (
        [STOPPED0, node(1, "failed", killed(2, 15), rank(3, 1, 99.0, RAISED), code=1)],
        blames_3("failed with exit code 1"),
    ),
    "victims by a reset connection": (
        [node(0, "failed", rank(0, 1, 99.0, RESET), rank(1, 1, 99.0, RESET)), node(1, "failed", rank(3, 3))],
        blames_3("failed with exit code 3"),
    ),
    "victims by NCCL": (
        [node(0, "failed", rank(0, 1, 99.0, NCCL), killed(1, 6, 99.0, WATCHDOG)), node(1, "failed", rank(3, 3))],
        blames_3("failed with exit code 3"),
    ),
    "a victim by the store": (
        [node(0, "failed", rank(0, 1, 99.0, STORE)), node(1, "failed", rank(3, 3))],
        blames_3("failed with exit code 3"),
    ),
    "a barrier in a finally": (
        [VICTIM0, node(1, "failed", rank(3, 1, 100.0, RAISED + CHAINED + CLOSED))],
        blames_3("failed with exit code 1"),
    ),
    "its own exception, then warnings about its peers": (
        [VICTIM0, node(1, "failed", rank(3, 1, 100.0, RAISED + NOISE))],
        blames_3("failed with exit code 1"),
    ),
    "the first of two with causes of their own": (
        [node(0, "failed", rank(0, 4, 100.5)), node(1, "failed", rank(3, 3, 100.0))],
        blames_3("failed with exit code 3"),
    ),
    "SIGKILL": (
        [VICTIM0, node(1, "failed", killed(2, 15), killed(3, 9))],
        blames_3("was ended by SIGKILL", "something outside gpuops killed it"),
    ),
    "SIGKILL of the rank's wrapper, known to torchrun alone": (
        [VICTIM0, node(1, "failed", killed(2, 15), silent(3), tail=CHILD_FAILED, code=1)],
        blames_3("was ended by SIGKILL", "something outside gpuops killed it"),
    ),
    "out of memory": (
        [VICTIM0, node(1, "failed", killed(3, 9, oom=True))],
        blames_3("was killed: the machine ran out of memory", "use a smaller batch or fewer data-loader workers"),
    ),
    "out of memory, and the agent with it": (
        [VICTIM0, node(1, "lost", killed(3, 9, oom=True), why="agent")],
        blames_3("was killed: the machine ran out of memory", "a machine with more memory"),
    ),
    "out of GPU memory": (
        [VICTIM0, node(1, "failed", rank(3, 1, tail=GPU_MEMORY))],
        blames_3("ran out of GPU memory and failed with exit code 1", "`--gpu-mem`"),
    ),
    "SIGSEGV": (
        [VICTIM0, node(1, "failed", killed(3, 11))],
        blames_3("was ended by SIGSEGV", "`--env PYTHONFAULTHANDLER=1` shows where"),
    ),
    "SIGBUS": ([VICTIM0, node(1, "failed", killed(3, 7))], blames_3("was ended by SIGBUS", SHM)),
    "a data loader's bus error": (
        [VICTIM0, node(1, "failed", rank(3, 1, tail=BUS))],
        blames_3("failed with exit code 1", SHM),
    ),
    "shared memory that is full": (
        [VICTIM0, node(1, "failed", rank(3, 1, tail=SHM_FULL))],
        blames_3("failed with exit code 1", SHM),
    ),
    "a signal without a name": ([node(1, "failed", killed(3, 64))], blames_3("was ended by signal 64")),
    "a missing script": (
        [VICTIM0, node(1, "failed", rank(3, 2, tail=NO_SCRIPT))],
        blames_3("failed with exit code 2", "there is no /root/n1/project/trian.py"),
    ),
    "a missing module": (
        [VICTIM0, node(1, "failed", rank(3, 1, tail=NO_MODULE))],
        blames_3("failed with exit code 1", "`--setup 'pip install timm'` installs it on every node"),
    ),
    "a port that the script opens": (
        [VICTIM0, node(1, "failed", rank(3, 1, tail="OSError: [Errno 98] Address already in use\n"))],
        blames_3("failed with exit code 1", "one that the script opens itself must be free"),
    ),
    "a download that was cut": (
        [VICTIM0, node(1, "failed", rank(3, 1, tail=DOWNLOAD))],
        blames_3("failed with exit code 1"),
    ),
    "a traceback kept by @record alone": (
        [VICTIM0, node(1, "failed", rank(3, 1, error={"message": {"message": "ValueError: x"}}))],
        blames_3("failed with exit code 1", "its last words are above"),
    ),
    "victims only: the first of them": (
        [node(0, "failed", rank(0, 1, 100.0, CLOSED)), node(1, "failed", rank(3, 1, 99.0, RESET))],
        blames_3("failed with exit code 1", "another rank stopped taking part"),
    ),
    "a rank that left early": (
        [node(0, "failed", rank(0, 0, 90.0), rank(1, 1, 100.0, CLOSED)), node(1, "failed", rank(3, 1, 99.0, RESET))],
        blames_3("failed with exit code 1", "rank 0 on node0 had ended before, with exit code 0"),
    ),
    "a rank that left while others still joined": (
        [node(0, "failed", rank(0, 0, 99.5), killed(1, 15)), node(1, "failed", rank(3, 1, 99.0, MEETING))],
        blames_3("failed with exit code 1", "rank 0 on node0 left while others still joined: let the script call "
                 "`dist.barrier()` before `dist.destroy_process_group()`"),
    ),
    "a rank that could not join others that ended as badly": (
        [node(0, "failed", killed(1, 15)), node(1, "failed", rank(3, 1, 99.0, MEETING))],
        blames_3("failed with exit code 1", "another rank stopped taking part"),
    ),
    "a rank that could not join one that never wanted to": (
        [node(0, "done", rank(0, 0, 99.5, joined=False)), node(1, "failed", rank(3, 1, 99.0, MEETING))],
        blames_3("failed with exit code 1", "another rank stopped taking part"),
    ),
    "a death long after its alleged victims": (
        [node(0, "failed", rank(0, 1, 130.0)), node(1, "failed", rank(3, 1, 99.0, RESET))],
        blames_3("failed with exit code 1"),
    ),
    "SIGTERM from outside, before its victims": (
        [VICTIM0, node(1, "failed", killed(3, 15, 99.0))],
        blames_3("was ended by SIGTERM"),
    ),
    "its own error, though its victim was quicker to leave": (
        [VICTIM0, node(1, "failed", rank(2, 1, 99.9, CLOSED), killed(3, 15, 101.0, RAISED))],
        blames_3("failed and was slow to end"),
    ),
    "its own error although a stop followed": (
        [node(0, "stopped", rank(0, 1, after_stop=True), why="stop"), node(1, "failed", rank(3, 3, 99.0))],
        blames_3("failed with exit code 3"),
    ),
}  # fmt: skip

IDLE = "no rank had joined the others, and nothing was printed or worked on for 30 min"
OUTSIDE: dict[str, tuple[list[NodeReport], Then]] = {
    "no rank joined": (
        [node(0, "stopped", killed(0, 15, after_stop=True), killed(1, 15, after_stop=True), why="unjoined", say=IDLE),
         gang(1, killed(2, 15, after_stop=True), killed(3, 15, after_stop=True), origin=0)],
        Then(1, "unformed", f"{IDLE}: the run was ended", "`gpuops run -- python train.py`", node=0),
    ),
    "torchrun killed": (
        [node(0, "failed", killed(0, 9), killed(1, 9, after_stop=True), why="launcher", code=None, signal=9), GOOD1],
        Then(1, "failed", "torchrun on node0 was ended by SIGKILL", "something outside gpuops killed it", node=0),
    ),
    "torchrun killed, and its peers with words of their own": (
        [node(0, "failed", silent(0), why="launcher", code=None, signal=9), node(1, "failed", rank(2, 3, 99.0))],
        Then(1, "failed", "torchrun on node0 was ended by SIGKILL", node=0),
    ),
    "the port was taken": (
        [node(0, "failed", silent(0), why="launcher", code=1, tail=PORT), gang(1, silent(2), origin=0)],
        Then(1, "failed", "torchrun on node0 failed with exit code 1", "gpuops takes a fresh port each time", node=0),
    ),
    "nodes that did not find each other": (
        [node(0, "failed", silent(0), why="launcher", code=1, tail=NO_PEER, ended=102.0),
         node(1, "failed", silent(2), why="launcher", code=1, tail=NO_HEAD, ended=101.0)],
        Then(1, "failed", "torchrun on node1 failed with exit code 1", "no firewall stands between the nodes", node=1),
    ),
    "torchrun without torch": (
        [node(0, "failed", why="launcher", code=1, tail="/usr/bin/python3: No module named torch.distributed\n")],
        Then(1, "failed", "torchrun failed with exit code 1", "`--setup 'pip install torch'`", node=0),
    ),
    "nothing could be started": (
        [node(0, "failed", why="start", code=None, say="cannot start /v/python: No such file or directory")],
        Then(1, "failed", "node0 could not start the run: cannot start /v/python: No such file or directory",
             "`gpuops logs toy-1 --node 0`", node=0),
    ),
    "a full disk, on which nothing could be said": (
        [node(0, "failed", silent(0), silent(1), why="launcher", code=1, disk_free=0),
         node(1, "failed", rank(2, 1, 99.0, CLOSED), killed(3, 15), disk_free=9 << 30)],
        Then(1, "failed", "the run failed on node0, whose disk is full", "make room on that disk", node=0),
    ),
    "nothing was said, on a disk with room": (
        [node(0, "failed", silent(0), why="launcher", code=1, disk_free=9 << 30)],
        Then(1, "failed", "torchrun failed with exit code 1", "`gpuops logs toy-1 --node 0`", node=0),
    ),
    "something was said, and the disk is full now": (
        [node(0, "failed", silent(0), why="launcher", code=1, tail=PORT, disk_free=0)],
        Then(1, "failed", "torchrun failed with exit code 1", "a fresh port each time", node=0),
    ),
    "the agent killed": (
        [node(0, "lost", killed(0, 9), silent(1), why="agent", say="gpuops' agent on this node was killed"),
         node(1, "failed", rank(2, 1, 99.0, CLOSED), killed(3, 15))],
        Then(4, "lost", "the run was lost on node0: gpuops' agent on this node was killed", RESUME, node=0),
    ),
    "the agent killed, and a peer that caught the error": (
        [node(0, "lost", killed(0, 9), why="agent", say="killed"), node(1, "failed", rank(2, 5, 99.0, "giving up\n"))],
        Then(4, "lost", "the run was lost on node0: killed", node=0),
    ),
    "the watchdog killed": (
        [STOPPED0, node(1, "lost", killed(2, 15), why="watchdog", say="the watchdog was killed")],
        Then(4, "lost", "the run was lost on node1: the watchdog was killed", node=1),
    ),
    "a node that vanished": (
        [node(0, "failed", rank(0, 1, 99.0, CLOSED)),
         node(1, "lost", why="node", ended=None, say="node1 ended without a word")],
        Then(4, "lost", "node1 ended without a word", RESUME, node=1),
    ),
    "a node that vanished, and a peer with words of its own": (
        [node(0, "failed", rank(0, 3, 99.0, "the peers are gone, giving up\n")),
         node(1, "lost", why="node", ended=None, say="node1 ended without a word")],
        Then(4, "lost", "node1 ended without a word", RESUME, node=1),
    ),
    "a node that only the others lost": (
        [gang(0, killed(0, 15, after_stop=True), origin=1), GOOD1],
        Then(4, "lost", "node1: it ended", node=1),
    ),
    "a lease": (
        [node(0, "stopped", rank(0, after_stop=True), why="lease", say="its hard end"),
         node(1, "failed", rank(2, 1, 101.0, CLOSED))],
        Then(4, "stopped", "the lease of node0 ended the run", RESUME, node=0),
    ),
    "a stop by the user": (
        [node(0, "stopped", killed(0, 15, after_stop=True), why="stop"),
         node(1, "failed", rank(2, 1, 100.0, CLOSED), killed(3, 15))],
        Then(130, "stopped", "the run was stopped before its end", RESUME),
    ),
    "a node that was ended under the run, and could still say so": (
        [gang(0, killed(0, 15, after_stop=True), origin=1), node(1, "stopped", killed(1, 15), why="end")],
        Then(4, "lost", "node1 was ended under the run", RESUME, node=1),
    ),
    "reclaimed, with notice": (
        [taken(0, killed(0, 15, after_stop=True), progress={"step": 120, "saved": 100, "epoch": 3}),
         taken(1, killed(2, 15, after_stop=True))],
        Then(4, "reclaimed", "reclaimed by AWS at step 120 (node1 at 08:22:00Z); the newest snapshot is of step 100",
             f"{RESUME}; with `--retries 2` it would have gone on by itself", node=1),
    ),
    "reclaimed, and every rank ended well when it was asked to": (
        [taken(0, rank(0), rank(1)), taken(1, rank(2), rank(3))],
        Then(4, "reclaimed", "reclaimed by AWS (node1 at 08:22:00Z)", RESUME, node=1),
    ),
    "reclaimed, and of its program no more is known than the step": (
        [taken(0, progress={"step": 7}), taken(1)],
        Then(4, "reclaimed", "reclaimed by AWS at step 7 (node1 at 08:22:00Z)", RESUME, node=1),
    ),
    "reclaimed, and gone before it could say how its part ended": (
        [taken(0, killed(0, 15, after_stop=True)), vanished(1, reclaimed=True, by="AWS")],
        Then(4, "reclaimed", "reclaimed by AWS (node1 at 08:22:00Z)", RESUME, node=1),
    ),
    "reclaimed without notice": (
        [gang(0, rank(0, 1, 99.0, "the peers are gone, giving up\n"), origin=1), vanished(1, reclaimed=True, by="AWS")],
        Then(4, "reclaimed", "reclaimed by AWS (node1)", RESUME, node=1),
    ),
    "reclaimed without notice, by whom is not said": (
        [gang(0, origin=1), vanished(1, reclaimed=True)],
        Then(4, "reclaimed", "reclaimed by its provider (node1)", RESUME, node=1),
    ),
    "ended, and its provider did not take it back": (
        [gang(0, origin=1), vanished(1, reclaimed=False)],
        Then(4, "lost", "node1 ended without a word", RESUME, node=1),
    ),
    "reclaimed after a person had stopped it": (
        [node(0, "stopped", killed(0, 15, after_stop=True), why="stop"), gang(1, origin=0)],
        Then(130, "stopped", "the run was stopped before its end", RESUME),
    ),
    "a rank's own error before the notice": (
        [taken(0, killed(0, 15, after_stop=True)), node(1, "failed", rank(3, 3, 99.0))],
        blames_3("failed with exit code 3"),
    ),
}  # fmt: skip


WANTS = "Unable to locate sufficient 2 gpus to run this example. Exiting."
ASKED = "the world of 4 that was asked for"


def joined(*seen: bool | None, out: tuple[str, ...] = ("", "", "", "")) -> list[NodeReport]:
    ranks = [rank(number, joined=value, out=text) for number, (value, text) in enumerate(zip(seen, out, strict=True))]
    return [node(0, "done", *ranks[:2], why="launcher"), node(1, "done", *ranks[2:], why="launcher")]


def unformed(say: str, advice: str = "torch.distributed.init_process_group") -> Then:
    return Then(1, "unformed", f"all 4 ranks ended well, but {say}", advice)


FORMED: dict[str, tuple[list[NodeReport], Then]] = {
    "all joined": ([GOOD0, GOOD1], Then(0, "done", "all 4 ranks ended well")),
    "none joined, and none said why": (
        joined(False, False, False, False),
        unformed(f"none of them joined {ASKED}: they printed nothing", "`gpuops run -- python train.py`"),
    ),
    "none joined, and all said the same": (
        joined(False, False, False, False, out=("hello\n",) * 4),
        unformed(f'none of them joined {ASKED}: they say "hello"'),
    ),
    "none joined, for want of GPUs": (
        joined(False, False, False, False, out=(f"{WANTS}\n\n",) * 4),
        unformed(f'none of them joined {ASKED}: they say "{WANTS}"', "it wants GPUs"),
    ),
    "too soon to tell, but they want GPUs": (
        joined(None, None, None, None, out=(f"hello\n{WANTS}\n",) * 4),
        unformed(f'none of them joined {ASKED}: they say "{WANTS}"', "it wants GPUs"),
    ),
    "some joined": (
        joined(True, True, False, None, out=("", "", "", "x" * 101)),
        unformed(f'only 2 of them joined {ASKED}: rank 3 says "{"x" * 100}…"'),
    ),
    "all but one joined": (
        joined(True, True, True, False, out=("a", "b", "c", "alone")),
        unformed(f'only 3 of them joined {ASKED}: rank 3 says "alone"'),
    ),
    "too soon to tell": (
        joined(None, True, None, None),
        Then(0, "unclear",
             "all 4 ranks ended well; whether they formed one world of 4 could not be seen: they were done too soon",
             hint="nothing to do where the script only prints; where it trains, look for the world size in what rank"),
    ),
}  # fmt: skip

ROWS = RANKS | OUTSIDE | FORMED

SOCKET = (
    "[W1124 14:58:01.123456789 socket.cpp:767] [c10d] The client socket cannot be initialized to connect to [::1]\n"
)


@pytest.mark.parametrize(
    ("tail", "shown"),
    [
        (f"{SOCKET}{SOCKET}ValueError: no\n", "ValueError: no\n"),
        (f"[rank3]:{SOCKET}ValueError: no", "ValueError: no"),
        (f"ValueError: no\n{SOCKET}", f"ValueError: no\n{SOCKET}"),
        (SOCKET, SOCKET),
        ("", ""),
    ],
)
def test_last_words_do_not_begin_with_warnings_of_others(tail: str, shown: str) -> None:
    assert drop_first_warnings(tail) == shown


def judge(
    request: RunRequest, world_size: int, results: list[NodeReport], run: str = "toy-1", saved: bool = True
) -> Verdict:
    return verdicts.judge(request, world_size, results, run=run, saved=saved)


def check(verdict: Verdict, then: Then) -> None:
    assert (verdict.exit_code, verdict.outcome, verdict.say) == (then.exit_code, then.outcome, then.say)
    assert (verdict.rank, verdict.node) == (then.rank, then.node)
    assert then.hint in verdict.hint
    assert bool(verdict.hint) == (verdict.outcome != "done")


@pytest.mark.parametrize("row", ROWS)
def test_verdict(row: str) -> None:
    results, then = ROWS[row]
    check(judge(TRAIN, 4, results), then)
    check(judge(TRAIN, 4, results[::-1]), then)  # whichever node answers first


@pytest.mark.parametrize(("apart_s", "blamed"), [(0.2, 0), (4.9, 0), (5.1, 3)])
def test_of_those_who_died_together_one_that_says_why_is_blamed(apart_s: float, blamed: int) -> None:
    usage = "usage: ddp.py [-h]\nddp.py: error: argument --lr: invalid float value: 'x'\n"
    results = [node(0, "failed", rank(0, 2, 100.0 + apart_s, usage)), node(1, "failed", rank(3, 2, 100.0))]
    verdict = judge(TRAIN, 4, results)
    assert (verdict.rank, verdict.tail) == (blamed, "" if blamed else usage.rstrip())


def test_nobody_is_sent_to_read_the_log_of_a_silent_rank() -> None:
    verdict = judge(TRAIN, 4, [VICTIM0, node(1, "failed", rank(3, 3))], run="boom-1")
    assert verdict.hint == "it said nothing; `gpuops logs boom-1` shows all that was said"


def test_what_a_hint_tells_to_type_names_the_run() -> None:
    """By the time it is typed another may be the latest."""
    results, _ = RANKS["an exit code"]
    assert "`gpuops logs boom-1 --rank 3`" in judge(TRAIN, 4, results, run="boom-1").hint


COMMANDS: dict[str, tuple[list[NodeReport], Then]] = {
    "well": ([node(0, "done", why="command", out="hi\n")], Then(0, "done", "the command ended well")),
    "well, with words on stderr": (
        [node(0, "done", why="command", tail="hi\n")], Then(0, "done", "the command ended well")
    ),
    "well, without a word": (
        [node(0, "done", why="command")], Then(0, "done", "the command ended well, and printed nothing")
    ),
    "well, for want of GPUs": (
        [node(0, "done", why="command", out=f"{WANTS}\n", tail="a warning of torchrun's\n")],
        Then(0, "unclear", f'the command ended well, but it says "{WANTS}"', "it wants GPUs"),
    ),
    "well, on a CPU where there were no GPUs": (
        [node(0, "done", why="command", out="CUDA is not available, using the CPU\nloss 0.1\n")],
        Then(0, "done", "the command ended well"),
    ),
    "code": (
        [node(0, "failed", why="command", code=3, tail="make: no rule\n")],
        Then(1, "failed", "the command failed with exit code 3", "its last words are above", node=0),
    ),
    "signal": (
        [node(0, "failed", why="command", code=None, signal=11)],
        Then(1, "failed", "the command was ended by SIGSEGV", "PYTHONFAULTHANDLER", node=0),
    ),
    "a torchrun of the user's own": (
        [node(0, "failed", why="command", code=1, tail=RAISED + TORCHRUN_SAYS + CHILD_FAILED)],
        Then(1, "failed", "rank 3 of the command was ended by SIGKILL", "if memory was short", node=0),
    ),
    "the first of two nodes": (
        [node(0, "failed", why="command", code=1, ended=101.0, tail=CLOSED),
         node(1, "failed", why="command", code=3, ended=102.0)],
        Then(1, "failed", "the command on node1 failed with exit code 3", node=1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("row", COMMANDS)
def test_verdict_on_a_command(row: str) -> None:
    results, then = COMMANDS[row]
    check(judge(COMMAND, 0, results), then)


def test_nothing_is_said_about_forming_a_world_of_one() -> None:
    verdict = judge(TRAIN, 1, [node(0, "done", rank(0, joined=False, out="loss 0.1"), why="launcher")])
    assert verdict == Verdict(VerdictOutcome.DONE, 0, "the run ended well")


def test_a_world_of_one_that_wants_gpus_is_quoted() -> None:
    verdict = judge(TRAIN, 1, [node(0, "done", rank(0, joined=False, out=WANTS), why="launcher")])
    check(verdict, Then(0, "unclear", f'the run ended well, but it says "{WANTS}"', "it wants GPUs"))


def test_silence_is_not_success() -> None:
    check(judge(TRAIN, 4, []), Then(4, "lost", "no node could say how the run ended", RESUME))


def test_the_last_words_are_those_of_the_rank_to_blame() -> None:
    results = [VICTIM0, node(1, "failed", rank(3, 1, 100.0, RAISED), tail=CHILD_FAILED)]
    assert judge(TRAIN, 4, results).tail == RAISED.rstrip()


def test_torchruns_summary_is_not_the_last_word_of_a_command() -> None:
    results = [node(0, "failed", why="command", code=1, tail=RAISED + TORCHRUN_SAYS + CHILD_FAILED)]
    assert judge(COMMAND, 0, results).tail == RAISED.rstrip()


def test_the_same_traceback_of_several_ranks_is_shown_once() -> None:
    trace = RAISED.replace("[rank3]: ", "")
    results = [node(0, "failed", why="command", code=1, tail="hi\n" + 2 * trace + TORCHRUN_SAYS + CHILD_FAILED)]
    assert judge(COMMAND, 0, results).tail == "hi\n" + trace.rstrip()


def test_of_a_command_no_more_is_shown_than_of_a_rank() -> None:
    results = [node(0, "failed", why="command", code=1, tail="".join(f"{number}\n" for number in range(100)))]
    assert judge(COMMAND, 0, results).tail.splitlines() == [str(number) for number in range(60, 100)]


def test_a_rank_whose_wrapper_was_killed_is_known_from_torchruns_report() -> None:
    results = [STOPPED0, node(1, "failed", killed(2, 15), silent(3), why="launcher", code=1, tail=CHILD_FAILED)]
    check(judge(TRAIN, 4, results), blames_3("was ended by SIGKILL", "something outside gpuops killed it"))


@pytest.mark.parametrize(("saved", "hint"), [(True, "`--resume digits-2`"), (False, "it left no snapshot")])
def test_the_hint_names_the_run_to_go_on_from(saved: bool, hint: str) -> None:
    results = [node(0, "stopped", killed(0, 15, after_stop=True), why="stop")]
    assert hint in judge(TRAIN, 1, results, run="digits-2", saved=saved).hint


@pytest.mark.parametrize(
    ("saved", "joined", "hint"),
    [
        (False, False, "itself is for `gpuops run -- python train.py`"),
        (False, True, "run it again: it left no snapshot"),
        (True, False, "--resume digits-2"),
    ],
)
def test_who_stops_a_run_that_no_rank_joined_is_told_the_line(saved: bool, joined: bool, hint: str) -> None:
    others = gang(1, killed(2, 15, joined=None), killed(3, 15, joined=None), origin=0)
    results = [node(0, "stopped", killed(0, 15, joined=False), killed(1, 15, joined=joined), why="stop"), others]
    assert hint in judge(TRAIN, 4, results, run="digits-2", saved=saved).hint


def test_a_message_kept_by_record_stands_in_for_missing_words() -> None:
    kept = {"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": "Traceback …\nValueError: x\n"}}}
    assert judge(TRAIN, 1, [node(0, "failed", rank(0, 1, error=kept))]).tail == "Traceback …\nValueError: x"


def test_clocks_are_corrected_before_anything_is_compared() -> None:
    def result(index: int, number: int, ended: float, skew: float) -> NodeReport:
        raw = {"outcome": "failed", "reason": {}, "started": 1.0, "ended": ended, "ranks": [rank(number, 3, ended)]}
        return parse_report(index, raw).shifted(skew)

    fast = result(1, 3, 1000.0, -901.0)
    assert (fast.started, fast.ended, fast.ranks[0].started, fast.ranks[0].ended) == (-900.0, 99.0, -900.0, 99.0)
    assert judge(TRAIN, 4, [result(0, 0, 100.0, 0.0), fast]).rank == 3


def test_a_result_with_nothing_but_its_outcome_is_read() -> None:
    assert parse_report(1, {"outcome": "lost"}).shifted(5.0) == NodeReport(1, "lost", Reason(), None, None, None)


@pytest.mark.parametrize(
    ("tail", "said"),
    [
        (RAISED, "ValueError: loss is nan"),
        (RAISED + CHAINED + CLOSED, "ValueError: loss is nan"),
        (RAISED + CAUSED + CLOSED, "ValueError: loss is nan"),
        (CLOSED + "recovered\n" + RAISED, "ValueError: loss is nan"),
        ("no such option\n", "no such option"),
        ("", ""),
    ],
)
def test_last_words(tail: str, said: str) -> None:
    assert extract_exception(tail) == said


RAW_CLASH = {"outcome": "failed", "ranks": [{"rank": 0, "started": None}], "tail": PORT}


@pytest.mark.parametrize(
    ("change", "clash"),
    [
        ({}, True),
        ({"ranks": [{"rank": 0, "started": 5.0}]}, False),
        ({"tail": NO_HEAD}, False),
        ({"outcome": "stopped"}, False),
    ],
)
def test_only_torchruns_own_port_is_worth_a_relaunch(change: dict[str, Any], clash: bool) -> None:
    peer = {"outcome": "stopped", "reason": {"kind": "gang"}, "ranks": [], "tail": ""}
    assert is_port_clash(map(parse_report, (0, 1), [peer, {**RAW_CLASH, **change}])) is clash


@pytest.mark.parametrize(
    ("tail", "said"),
    [
        ("", ""),
        ("a warning\na bad batch\n", "a bad batch"),
        (
            (
                '[rank1]: Traceback (most recent call last):\n[rank1]:   File "a.py", line 1\n'
                "[rank1]: RuntimeError: CUDA error: out of memory\n[rank1]: Compile with TORCH_USE_CUDA_DSA"
            ),
            "RuntimeError: CUDA error: out of memory",
        ),
        ("word " * 40, "word " * 23 + "…"),
    ],
)
def test_what_ended_a_program_in_one_line(tail: str, said: str) -> None:
    assert final_words(tail) == said
