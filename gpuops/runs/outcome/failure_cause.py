"""How processes of a run died, and what their last words mean. Pure: words in, sentences out.

When one rank dies, its peers die of it a moment later, with tracebacks of their own. A death is
therefore weighed before it is blamed: `OWN` causes come before deaths by a peer (`PEER`), and
those before what we ended ourselves (`OURS`). The texts that tell them apart were produced by
torch 2.13 with gloo on two nodes; NCCL's are those of its source.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from gpuops.agent.run.command_and_environment import PRELUDE_FAILED_CODE, PRELUDE_HINT, find_prelude_failure
from gpuops.agent.run_documents import Outcome
from gpuops.runs.outcome import suggested_fixes
from gpuops.runs.outcome.node_report import NodeReport, RankReport, ReasonKind

OWN, PEER, OURS = 0, 1, 2
"""How much a death explains: the fewer, the more."""

CULPRIT_WINDOW_S = 5.0
"""How much later than its victims a culprit may be seen to end, in seconds: writing a core file
takes a while, and clocks of nodes are corrected to a fraction of that only."""

SIGABRT, SIGBUS, SIGKILL, SIGSEGV, SIGTERM = 6, 7, 9, 11, 15
_SIGNALS = {
    1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", SIGABRT: "SIGABRT", SIGBUS: "SIGBUS", 8: "SIGFPE",
    SIGKILL: "SIGKILL", 10: "SIGUSR1", SIGSEGV: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE", SIGTERM: "SIGTERM",
    24: "SIGXCPU",
}  # fmt: skip
# Linux numbers, spelt out: the computer that says them may be Windows, which has few of them.

_PEER_WORDS = re.compile(
    r"Connection closed by peer|gloo/transport/\w+/(?:pair|unbound_buffer)|"
    r"(?:gloo|c10d|TCPStore|NCCL|Dist\w+Error).*(?:Connection re(?:set|fused)|Broken pipe|[Tt]imed out)|"
    r"remote process exited|ncclRemoteError|Watchdog caught collective operation timeout|"
    r"failed to pass monitoredBarrier|Connection was likely closed|(?:recv|send)(?:Bytes|Value|Vector) failed|"
    r"Timed out after \d+ seconds waiting for clients|client socket has timed out|"
    r"Dist(?:Network|Store)Error|Rendezvous(?:Connection|Timeout|Closed)Error"
)
_NO_MEETING = re.compile(r"waiting for clients|client socket has timed out|RendezvousTimeoutError")
_AT_EXIT = re.compile(r"terminate called without an active exception")
"""gloo's threads outliving the process group (seen with torch 2.13 when DDP's functions keep it alive)."""

_RANK_PREFIX = re.compile(r"^\[rank\d+\]: ?", re.MULTILINE)
_CPP_LOG = re.compile(r"^\[[IWE]\d{4} .*\n?", re.MULTILINE)
_FIRST_CPP_LOG = re.compile(r"\A(?:(?:\[rank\d+\]: ?)?\[[IW]\d{4} .*(?:\n|\Z))+")
_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = re.compile(
    r"(?:During handling of the above exception, another exception occurred"
    r"|The above exception was the direct cause of the following exception):\s*\Z"
)
_SUMMARY = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError"
_TORCHRUN_LOG = re.compile(r"^[IWE]\d{4} \S+ \d+ torch/distributed/.*\n?", re.MULTILINE)
FULL_DISK_BYTES = 1 << 20
"""A disk with fewer free bytes keeps no last words: what wrote them into a file has lost them."""
SHOWN_LINES = 40
"""How many of a program's last lines are shown."""
FINAL_WORDS_CHARACTERS = 120
"""The longest that is said of them in passing."""
_ROOT_CAUSE = re.compile(r"Root Cause.*?rank\s+: (\d+) \(.*?exitcode\s+: (-?\d+)", re.DOTALL)


@dataclass(frozen=True)
class Death:
    """One process of a run that did not end well."""

    who: str
    """`rank 3 on node1`, `torchrun on node0`, `the command`."""
    node: int
    rank: int | None
    code: int | None
    signal: int | None
    ended: float | None
    """On this computer's clock; None: not known."""
    weight: int
    tail: str
    oom: bool = False
    full: bool = False
    """Its node's disk had no room left for its last words."""
    said: str = ""
    """What the agent says happened, where no process can say it."""

    @property
    def explains(self) -> bool:
        """Whether something tells why it died, more than an exit code does."""
        return bool(self.tail or self.said or self.signal or self.oom or self.full)


def find_deaths(kind: str, report: NodeReport, several: bool) -> list[Death]:
    """Every death on one node, in the order of its ranks. `several`: the run has other nodes."""
    if kind == "command" and report.outcome is Outcome.FAILED:
        return [_command_death(report, several)]
    deaths = [_rank_death(report, rank) for rank in _complete_ranks(report) if rank.code or rank.signal]
    if report.outcome is Outcome.FAILED and not any(death.weight < OURS for death in deaths):
        deaths.append(_launcher_death("torchrun", report, several))
    return deaths


def find_culprit(deaths: Iterable[Death], first_node: int | None) -> Death | None:
    """The death that explains the others: the first by time that has a cause of its own.

    One that comes more than `CULPRIT_WINDOW_S` after the first death did not cause it. Of several within that time one
    that says why it died comes first. `first_node`: where the nodes' clocks cannot tell, the node that the others heard
    of first.
    """
    ordered = sorted(
        deaths,
        key=lambda death: (death.weight, first_node is not None and death.node != first_node, _end_time(death)),
    )
    if not ordered or ordered[0].weight != OWN:
        return ordered[0] if ordered else None
    first = ordered[0]
    peers = [death for death in ordered if death.weight == PEER and death.ended is not None]
    if peers and _end_time(first) > _end_time(peers[0]) + CULPRIT_WINDOW_S:
        return peers[0]
    together = (
        death for death in ordered if death.weight == OWN and _end_time(death) <= _end_time(first) + CULPRIT_WINDOW_S
    )
    return next((death for death in together if death.explains), first)


def describe_death(death: Death) -> str:
    """What happened, without a full stop."""
    if death.said:
        return death.said
    if death.oom:
        return f"{death.who} was killed: the machine ran out of memory"
    if death.signal == SIGTERM and death.rank is not None and death.weight == OWN:
        return f"{death.who} failed and was slow to end"
    if death.signal:
        return f"{death.who} was ended by {_SIGNALS.get(death.signal, f'signal {death.signal}')}"
    if death.code is None:
        return f"{death.who} ended without saying how"
    if death.code == PRELUDE_FAILED_CODE and (failed := find_prelude_failure(death.tail)):
        return f"{death.who} never began: {failed}"
    final = extract_exception(death.tail)
    if suggested_fixes.is_gpu_memory(final):
        return f"{death.who} ran out of GPU memory and failed with exit code {death.code}"
    if suggested_fixes.is_disk_full(final):
        return f"{death.who} found no space on its disk and failed with exit code {death.code}"
    return f"{death.who} failed with exit code {death.code}"


def suggest_fix(death: Death, run: str) -> str:
    """One thing to do. `run`: the run's name, for commands."""
    if death.rank is not None and not death.tail:
        everything = f"it said nothing; `{logs_command(run)}` shows all that was said"
    else:
        everything = f"`{_logs_command_of(death, run)}` shows everything it said"
    return next(_find_hints(death, run), f"its last words are above; {everything}" if death.tail else everything)


def extract_exception(tail: str) -> str:
    """The exception that ended a program, from the last lines of its stderr.

    Of a chain (`During handling of the above exception …`) the first: a barrier in a `finally:`
    fails too, but not first. Without a traceback everything that was said.
    """
    blocks = _RANK_PREFIX.sub("", tail).split(_TRACEBACK)
    index = len(blocks) - 1
    while index > 0 and _CHAINED.search(blocks[index - 1]):
        index -= 1
    # After an exception, warnings of libraries that lose their peers while the process ends say nothing.
    block = _CPP_LOG.sub("", _CHAINED.sub("", blocks[index])) if index else blocks[index]
    lines = block.strip("\n").split("\n")
    while len(lines) > 1 and lines[0].startswith((" ", "\t")):
        del lines[0]
    return "\n".join(lines)


def final_words(tail: str) -> str:
    """What ended a program, on one line: its exception's first, or the last that it said; empty where it was silent."""
    lines = [line.strip() for line in extract_exception(tail).splitlines() if line.strip()]
    if not lines:
        return ""
    return textwrap.shorten(lines[0] if _TRACEBACK in tail else lines[-1], FINAL_WORDS_CHARACTERS, placeholder=" …")


def last_output(rank: RankReport) -> str:
    """The last lines of a rank's stderr, or the message that `@record` kept, or what it printed last."""
    return rank.tail.rstrip() or rank.traceback or rank.out.rstrip()


def drop_first_warnings(tail: str) -> str:
    """Without the log lines of C++ that last words begin with (`[W… socket.cpp …`), where other words remain."""
    rest = _FIRST_CPP_LOG.sub("", tail)
    return rest if rest.strip() else tail


def drop_repeated_tracebacks(text: str) -> str:
    """Without the tracebacks that say the same as one before: those of a torchrun's other ranks."""
    before, *blocks = text.split(_TRACEBACK)
    different = [block for index, block in enumerate(blocks) if block.strip() not in map(str.strip, blocks[:index])]
    return _TRACEBACK.join([before, *different])


def strip_torchrun_summary(tail: str) -> str:
    """What a program had said before torchrun added its own traceback and table."""
    before, separator, _ = tail.rpartition(_SUMMARY)
    output, _, _ = before.rpartition(_TRACEBACK)
    return _TORCHRUN_LOG.sub("", output) if separator else tail


def _rank_death(report: NodeReport, rank: RankReport) -> Death:
    output = last_output(rank)
    return Death(
        who=f"rank {rank.rank} on node{rank.node}",
        node=rank.node,
        rank=rank.rank,
        code=rank.code,
        signal=rank.signal,
        ended=rank.ended,
        weight=_weigh(report, rank, output),
        tail=output,
        oom=rank.oom,
    )


def _weigh(report: NodeReport, rank: RankReport, output: str) -> int:
    if rank.after_stop:
        return OURS
    if rank.oom:
        return OWN
    ended_by_others = rank.signal in (SIGTERM, SIGKILL) or rank.code == 128 + SIGTERM
    headless = report.outcome is Outcome.LOST or report.kind == ReasonKind.LAUNCHER
    if ended_by_others and headless and rank.rank != _root_cause(report)[0]:
        return OURS  # what was left of a run whose agent or launcher had died
    if rank.signal == SIGTERM and _TRACEBACK in output:
        return _weigh_words(output)  # it had failed, and was slow to leave when a peer that died of that had ended
    if rank.signal == SIGTERM or rank.code == 128 + SIGTERM:
        return PEER  # torchrun ends the others so when one of its ranks has failed
    # An uncaught error of C++ (NCCL's watchdog) aborts; any other signal does not come from words.
    return _weigh_words(output) if rank.signal in (None, SIGABRT) else OWN


def _weigh_words(output: str) -> int:
    final = extract_exception(output)
    return PEER if _PEER_WORDS.search(final) and not suggested_fixes.is_port_taken(final) else OWN


def _command_death(report: NodeReport, several: bool) -> Death:
    """A plain command's; where it was a torchrun of the user's own, that of the rank which failed first."""
    output = (
        "\n".join(drop_repeated_tracebacks(strip_torchrun_summary(report.tail)).rstrip().splitlines()[-SHOWN_LINES:])
        or report.out.rstrip()
    )
    death = _launcher_death("the command", replace(report, tail=output), several)
    rank, code = _root_cause(report)
    if rank is None or death.code is None:
        return death
    who = f"rank {rank} of {death.who}"
    return replace(death, who=who, code=code if code > 0 else None, signal=-code if code < 0 else None)


def _launcher_death(who: str, report: NodeReport, several: bool) -> Death:
    where = f" on node{report.node}" if several else ""
    starting = report.kind == ReasonKind.START
    signal = report.reason.signal
    full = (
        not (starting or signal or report.tail.strip())
        and report.disk_free is not None
        and report.disk_free < FULL_DISK_BYTES
    )
    return Death(
        who=who + where,
        node=report.node,
        rank=None,
        code=report.launcher_code,
        signal=signal,
        ended=None if signal else report.ended,  # a signal comes first: all that follows is its work
        weight=OWN if signal or starting else _weigh_words(report.tail),
        tail=report.tail.rstrip(),
        full=full,
        said=_describe_silent_death(report, full),
    )


def _describe_silent_death(report: NodeReport, full: bool) -> str:
    """What happened, where no process could say it."""
    if report.kind == ReasonKind.START:
        return f"node{report.node} could not start the run: {report.reason.say}"
    return f"the run failed on node{report.node}, whose disk is full" if full else ""


def _complete_ranks(report: NodeReport) -> Iterator[RankReport]:
    """The node's ranks; one whose wrapper was killed is completed from torchrun's own report."""
    reported, code = _root_cause(report)
    for rank in report.ranks:
        if rank.rank == reported and rank.code is None and rank.signal is None:
            yield replace(rank, code=code if code > 0 else None, signal=-code if code < 0 else None)
        else:
            yield rank


def _root_cause(report: NodeReport) -> tuple[int | None, int]:
    """The rank that failed first and its exit code (negative: a signal), from torchrun's own report."""
    match = _ROOT_CAUSE.search(report.tail)
    return (int(match[1]), int(match[2])) if match else (None, 0)


def _end_time(death: Death) -> float:
    return float("-inf") if death.ended is None else death.ended


def _logs_command_of(death: Death, run: str) -> str:
    return (
        f"{logs_command(run)} --node {death.node}" if death.rank is None else f"{logs_command(run)} --rank {death.rank}"
    )


def logs_command(run: str) -> str:
    """The command that shows what a run said."""
    return f"gpuops logs {run}"


def _find_hints(death: Death, run: str) -> Iterator[str]:
    if death.code == PRELUDE_FAILED_CODE and find_prelude_failure(death.tail):
        yield PRELUDE_HINT
    final = extract_exception(death.tail)
    if death.oom:
        yield "use a smaller batch or fewer data-loader workers, or a machine with more memory"
    if death.full:
        yield suggested_fixes.DISK
    if death.signal == SIGBUS:
        yield suggested_fixes.SHARED_MEMORY
    if death.signal == SIGABRT and _AT_EXIT.search(death.tail):
        yield (
            "torch aborted while the program was ending: call dist.destroy_process_group() after the last use of "
            "the model, as train/digits.py does"
        )
    if death.signal == SIGSEGV:
        yield "native code crashed (a full /dev/shm can be why): `--env PYTHONFAULTHANDLER=1` shows where"
    if death.signal == SIGKILL:
        yield "something outside gpuops killed it: if memory was short, use a smaller batch or fewer workers"
    yield from suggested_fixes.advice(final, death.tail)
    if _NO_MEETING.search(final):
        yield "check that no firewall stands between the nodes: they did not find each other"
    if death.weight == PEER:
        yield f"another rank stopped taking part: `{logs_command(run)}` shows what every rank said"
