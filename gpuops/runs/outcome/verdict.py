"""The verdict on a run: one sentence, one hint, one exit code. Pure.

`judge` weighs the reports of all nodes. The order: a rank or a launcher with a cause of its own; then what ended the
run from outside (lease, preemption, a lost node, a stop); then deaths that only echo a peer's; then, when every process
ended well, whether the ranks had formed the world that was asked for.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from gpuops.agent.run_documents import Outcome
from gpuops.core.run_models import RunRequest, Verdict, VerdictOutcome
from gpuops.runs.launch_spec import line_to_start_once
from gpuops.runs.outcome import suggested_fixes
from gpuops.runs.outcome.failure_cause import (
    CULPRIT_WINDOW_S,
    OWN,
    PEER,
    Death,
    describe_death,
    drop_first_warnings,
    extract_exception,
    find_culprit,
    find_deaths,
    logs_command,
    suggest_fix,
)
from gpuops.runs.outcome.node_report import Joined, NodeReport, RankReport, ReasonKind

STOPPED = 130
"""Also for a run that `gpuops stop` ended from another terminal: nothing failed, and it is not done."""
FAILED = 1
NODE_FAILED = 4
NOT_STARTED = "not started: "
"""How the verdict begins on a run that was given up before its start."""
SEPARATE_RANKS_HINT = (
    "check that the script calls `torch.distributed.init_process_group` on this kind of machine; "
    "one that starts its ranks itself is for `{}`"
)
QUOTED_CHARS = 100
"""How much of a program's last line is quoted, in characters."""
RETRIES_HINT = "; with `--retries 2` it would have gone on by itself"


def read_progress(reports: Iterable[NodeReport]) -> dict[str, int]:
    """How far the run's program says it got: `step`, and `saved`, the step of its newest snapshot, where known."""
    progress: dict[str, int] = {}
    for report in reports:
        for name in ("step", "saved"):
            if name in report.progress:
                progress[name] = max(int(report.progress[name]), progress.get(name, 0))
    return progress


def _hint_to_go_on(run: str, saved: bool) -> str:
    """How to go on after a run that did not end by itself. `saved`: something it had made is home."""
    if not saved:
        return "run it again: it left no snapshot to continue from"
    return f"run it again with `--resume {run}` to continue from the newest snapshot that came home"


def judge(
    request: RunRequest,
    world_size: int,
    reports: Sequence[NodeReport],
    *,
    run: str,
    saved: bool,
    first_node: int | None = None,
) -> Verdict:
    """The verdict over all nodes' reports; `world_size` is the number of ranks that was asked for.

    `run`: its name, for what a hint tells to type. `saved`: something it had made is home. `first_node`: the node whose
    end the others heard of, where clocks cannot tell which was first.
    """
    again = _hint_to_go_on(run, saved)
    if not reports:
        return Verdict(VerdictOutcome.LOST, NODE_FAILED, "no node could say how the run ended", again)
    several = len(reports) > 1
    deaths = [death for report in reports for death in find_deaths(request.kind, report, several)]
    blamed = find_culprit(deaths, first_node)
    outside = _ended_from_outside(reports, again, request, world_size, saved)
    if blamed and blamed.weight == OWN and not (outside and _precedes(outside[0], blamed)):
        return _failed_verdict(blamed, reports, run)
    if outside:
        return outside[1]
    if blamed:
        return _failed_verdict(blamed, reports, run)
    return _judge_world(request, world_size, reports, run)


def is_port_clash(reports: Iterable[NodeReport]) -> bool:
    """Whether a run failed only because its port was taken: a relaunch with a fresh one helps.

    Torchrun finds out before it starts any rank; a port that
    the user's program opens is the user's.
    """
    known = list(reports)
    started = any(rank.started for report in known for rank in report.ranks)
    return not started and any(
        report.outcome is Outcome.FAILED and suggested_fixes.is_port_taken(report.tail) for report in known
    )


def _ended_from_outside(
    reports: Sequence[NodeReport], again: str, request: RunRequest, world_size: int, saved: bool
) -> tuple[NodeReport, Verdict] | None:
    """What ended the run although no process of it failed: lease, reclaim, loss, stop, in this order."""
    by_end = sorted(reports, key=lambda report: float("inf") if report.ended is None else report.ended)
    for report in by_end:
        if report.kind == ReasonKind.LEASE:
            say = f"the lease of node{report.node} ended the run"
            longer = f"give it longer (--max-hours, --max-cost, or in time `gpuops lease NAME --extend 2h`) and {again}"
            return report, Verdict(VerdictOutcome.STOPPED, NODE_FAILED, say, longer, node=report.node)
    if preemption := _find_preempted_node(by_end):
        return preemption, _preempted_verdict(preemption, reports, again)
    # A node that heard of the loss by the gang link is a witness only: the lost one itself speaks first.
    for report in sorted(by_end, key=lambda report: report.kind == ReasonKind.GANG):
        if report.outcome is Outcome.LOST:
            return report, _lost_verdict(report, again)
    for report in by_end:
        if report.kind == ReasonKind.END:  # not by a stop, which would have been reported as one
            return report, Verdict(
                VerdictOutcome.LOST, NODE_FAILED, f"node{report.node} was ended under the run", again, node=report.node
            )
    for report in by_end:
        if report.kind == ReasonKind.UNJOINED:
            say = f"{report.reason.say}: the run was ended"
            hint = (
                f"a script that starts its ranks itself is for `{line_to_start_once(request)}`; one that prepares for "
                "longer is given the time: --join-timeout MIN"
            )
            return report, Verdict(VerdictOutcome.UNFORMED, FAILED, say, hint, node=report.node)
    for report in by_end:
        if report.outcome is Outcome.STOPPED and report.kind != ReasonKind.GANG:
            joined = {rank.joined for other in reports for rank in other.ranks} if request.kind == "torchrun" else set()
            if Joined.NO in joined and Joined.YES not in joined and world_size > 1 and not saved:
                again = f"no rank had joined the others: {SEPARATE_RANKS_HINT.format(line_to_start_once(request))}"
            return report, Verdict(VerdictOutcome.STOPPED, STOPPED, "the run was stopped before its end", again)
    for report in by_end:
        if report.kind == ReasonKind.GANG and all(other.outcome is not Outcome.FAILED for other in reports):
            return report, _lost_verdict(report, again)
    return None


def _find_preempted_node(reports: Sequence[NodeReport]) -> NodeReport | None:
    """A node of those whose provider took a machine back: with notice, which all of them then know of, or without."""
    noticed = [report for report in reports if report.kind == ReasonKind.PREEMPTED]
    if noticed or any(report.kind == ReasonKind.STOP for report in reports):
        return min(noticed, key=lambda report: report.reason.origin is not None, default=None)
    return next((report for report in reports if report.reason.preempted), None)


def _preempted_verdict(report: NodeReport, reports: Sequence[NodeReport], again: str) -> Verdict:
    """`reclaimed by AWS at step 120 (node1 at 08:22:00Z); the newest snapshot is of step 100`."""
    reason, progress = report.reason, read_progress(reports)
    node, at = report.node if reason.node is None else reason.node, reason.at
    step = f" at step {progress['step']}" if "step" in progress else ""
    when = time.strftime(" at %H:%M:%SZ", time.gmtime(at)) if at is not None else ""
    say = f"reclaimed by {reason.by or 'its provider'}{step} (node{node}{when})"
    if "saved" in progress:
        say += f"; the newest snapshot is of step {progress['saved']}"
    return Verdict(VerdictOutcome.PREEMPTED, NODE_FAILED, say, again + RETRIES_HINT, node=node)


def _lost_verdict(report: NodeReport, again: str) -> Verdict:
    why = report.reason.say or "it was gone"
    node = report.node if report.reason.origin is None else report.reason.origin
    say = why if why.startswith(f"node{node}") else f"the run was lost on node{node}: {why}"
    return Verdict(VerdictOutcome.LOST, NODE_FAILED, say, again, node=node)


def _precedes(report: NodeReport, death: Death) -> bool:
    """Whether a lost node explains a death elsewhere that has its own words (a caught error)."""
    if report.outcome is not Outcome.LOST or death.oom:
        return False
    if report.kind in (ReasonKind.UNREACHABLE, ReasonKind.ENDED):
        return True  # it vanished and can say nothing; what its peers say then, they say of that
    if report.ended is None or death.ended is None:
        return False
    return report.ended <= death.ended + CULPRIT_WINDOW_S


def _failed_verdict(death: Death, reports: Sequence[NodeReport], run: str) -> Verdict:
    advice = suggest_fix(death, run)
    if death.weight == PEER:
        advice = _explain_early_exit(death, reports) or advice
    return Verdict(
        VerdictOutcome.FAILED,
        FAILED,
        describe_death(death),
        advice,
        death.rank,
        death.node,
        drop_first_warnings(death.tail),
    )


def _explain_early_exit(death: Death, reports: Sequence[NodeReport]) -> str:
    """A rank that ended well while its peers still needed it: nothing else would name it.

    One that leaves the world closes its connections before it ends, so its end may be the later one.
    """
    joining = suggested_fixes.was_joining(extract_exception(death.tail))
    for rank in (rank for report in reports for rank in report.ranks):
        if joining and rank.code == 0 and rank.joined is not Joined.NO:
            return f"rank {rank.rank} on node{rank.node} left while others still joined: {suggested_fixes.BARRIER}"
        if rank.code == 0 and rank.ended and death.ended and rank.ended <= death.ended:
            return (
                f"rank {rank.rank} on node{rank.node} had ended before, with exit code 0: "
                "let every rank take part in the same steps"
            )
    return ""


def _judge_world(request: RunRequest, world_size: int, reports: Sequence[NodeReport], run: str) -> Verdict:
    """All ended well; did they train together?"""
    if request.kind != "torchrun":
        return _judge_alone("the command ended well", [_last_line(report) for report in reports])
    ranks = [rank for report in reports for rank in report.ranks]
    if world_size <= 1:
        return _judge_alone("the run ended well", [_last_line(rank) for rank in ranks])
    together = sum(rank.joined is Joined.YES for rank in ranks)
    unwilling = not together and all(suggested_fixes.wants_gpus(_last_line(rank)) for rank in ranks)
    well = f"all {world_size} ranks ended well"
    if unwilling or any(rank.joined is Joined.NO for rank in ranks):
        formed = f"only {together} of them joined" if together else "none of them joined"
        say = f"{well}, but {formed} the world of {world_size} that was asked for"
        apart = {rank.rank: _last_line(rank) for rank in ranks if rank.joined is not Joined.YES}
        return Verdict(
            VerdictOutcome.UNFORMED,
            FAILED,
            f"{say}: {_describe_last_lines(apart)}",
            suggested_fixes.GPUS if unwilling else SEPARATE_RANKS_HINT.format(line_to_start_once(request)),
        )
    if together < world_size:
        say = f"{well}; whether they formed one world of {world_size} could not be seen: they were done too soon"
        return Verdict(
            VerdictOutcome.UNCLEAR,
            0,
            say,
            "nothing to do where the script only prints; where it trains, look for the world size in what rank 0 "
            f"printed: {logs_command(run)} --rank 0",
        )
    return Verdict(VerdictOutcome.DONE, 0, well)


def _judge_alone(well: str, last: Sequence[str]) -> Verdict:
    """Of what ran alone nothing is known but its exit code, 0, and its last line."""
    unwilling = next(filter(suggested_fixes.wants_gpus, last), "")
    if not unwilling:
        return Verdict(VerdictOutcome.DONE, 0, well if any(last) else f"{well}, and printed nothing")
    return Verdict(VerdictOutcome.UNCLEAR, 0, f"{well}, but it says {_quote(unwilling)}", suggested_fixes.GPUS)


def _last_line(report: RankReport | NodeReport) -> str:
    """The last line that it printed."""
    return suggested_fixes.last_line(report.out) or suggested_fixes.last_line(report.tail)


def _describe_last_lines(last: Mapping[int, str]) -> str:
    """What these ranks printed last, by rank."""
    rank, line = next(((rank, line) for rank, line in last.items() if line), (None, ""))
    if rank is None:
        return "they printed nothing"
    who = "they say" if len(last) > 1 and set(last.values()) == {line} else f"rank {rank} says"
    return f"{who} {_quote(line)}"


def _quote(line: str) -> str:
    return f'"{line}"' if len(line) <= QUOTED_CHARS else f'"{line[:QUOTED_CHARS]}…"'
