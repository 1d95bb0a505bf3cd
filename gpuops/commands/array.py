"""Runs an array: a queue of indices over places on one cluster, each of them nodes on which runs follow one another.

Code and data are sent once, to all places. Each place has a thread, which starts the next index where the one before
has ended; the main thread hears signals and relays them, so that every run is stopped as one run is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gpuops.agent.workers import WORKERS, Job
from gpuops.clusters.virtual_nodes import add_virtual_nodes
from gpuops.commands.array_plan import (
    Array,
    IndexOutcome,
    choose_slots,
    describe_outcomes,
    documents,
    format_indices,
    gpus_of_run,
    request_of_index,
    summarise,
)
from gpuops.commands.array_queue import IndexQueue
from gpuops.core.context import Context
from gpuops.core.errors import GpuopsError, Interrupted, NodeError, RunFailed, worst_exit_code
from gpuops.core.format import plural
from gpuops.core.reporting import PrefixedReporter, Silent
from gpuops.core.run_models import RunRequest
from gpuops.core.settings import Settings, secret_values
from gpuops.core.signals import HandOver
from gpuops.core.timings import Whose
from gpuops.ledger.rows import ClusterState, RunState
from gpuops.ledger.store import ClusterRow, LedgerUnwritable, RunRow
from gpuops.nodes.gpu_shares import count_gpus, is_virtual
from gpuops.nodes.session import ClusterSession
from gpuops.runs import prepare
from gpuops.runs.outcome.verdict import RETRIES_HINT
from gpuops.runs.prepare import Prepared
from gpuops.runs.ready_nodes import ReadyNodes, Sending, clear_for_next, put_back, ready_nodes
from gpuops.runs.receipt import receipt_rows
from gpuops.runs.results import retention
from gpuops.runs.retries import JobOutcome
from gpuops.runs.taken_over import TakenOver
from gpuops.runs.turn import refuse_second_run, while_unreachable
from gpuops.sync.run_record import RunRecord

POLL_INTERVAL_S = 0.2
TOLD_AT_ONCE = ("kept", "not home", "left")
"""Lines of each run's receipt that are printed at its end."""
HAND_OVER_TIMEOUT_S = 10.0
"""How long the runs' threads may take to let go once the terminal is gone."""


@dataclass
class Place:
    """Some nodes of a cluster, on which an array's runs follow one another."""

    session: ClusterSession
    ready: ReadyNodes
    sending: Sending
    values: Mapping[str, str]
    """The secrets."""
    facts: Callable[[], Mapping[str, Any]]
    """What the ledger keeps with its next run."""
    resume: str | None
    """The run that every index resumes; another is what a retry resumes."""
    first: tuple[RunRow, RunRequest] | None = None
    """The run that stood for the array in the ledger while it waited for its turn: its first index's."""
    used: bool = False
    """Whether a run has been there since the nodes were made ready."""
    is_preparing: bool = False

    def prepare(self, ctx: Context, request: RunRequest) -> Prepared:
        """Make the next run ready for launch. Raises GpuopsError."""
        if self.first is not None:
            (row, request), self.first = self.first, None
        else:
            request = prepare.with_outputs(request)
            row = prepare.add_run(ctx, self.session, request, self.facts())
        with prepare.noted_unless_started(ctx, row):
            ctx.signals.check()
            prepare.create_home(row)
            try:
                self.is_preparing = True
                self._bring_files(ctx, request, row)
            except GpuopsError:
                ctx.signals.check()  # `interrupt` has cut it
                raise
            finally:
                self.is_preparing = False
            prepared = prepare.complete(ctx, self.session, request, row, self.ready, self.values)
            ctx.ensure_guard(self.session.row)
            _refuse_if_being_ended(ctx, self.session.row)
            return prepared

    def _bring_files(self, ctx: Context, request: RunRequest, row: RunRow) -> None:
        """Once more where a connection is lost meanwhile: a cut of a minute must not end what takes a night."""
        tries = 0

        def bring() -> None:
            nonlocal tries
            tries += 1
            if tries == 2:
                ctx.out.say(f"{self.session.row.name} does not answer; trying again")
            if tries > 1:
                _refuse_if_being_ended(ctx, self.session.row)
                for index in range(len(self.session.clients)):
                    self.session.reconnect(index)
            if self.used and request.resume == self.resume:
                is_again = tries > 1  # what was taken off before is not listed now
                clear_for_next(
                    ctx, self.session, request, self.sending, row, self.ready, ctx.progress, push_again=is_again
                )
            else:  # the first run, or a retry of the one before
                put_back(ctx, self.session.clients, request, row.tree, ctx.progress)

        while_unreachable(ctx, self.session, bring)
        self.used = True

    def interrupt(self) -> None:
        """Cut what is sent to its nodes before a run, which may take hours, once its thread was told of a signal."""
        for client in self.session.clients if self.is_preparing else ():
            client.close()
            client.connection.close()


RunOne = Callable[[Context, Place, RunRequest], JobOutcome]
"""Carries one run out, with its retries, and brings its results home."""


def run_array(
    ctx: Context,
    settings: Settings,
    session: ClusterSession,
    request: RunRequest,
    array: Array,
    sending: Sending,
    run_one: RunOne,
) -> JobOutcome:
    """Carry an array out. Raises GpuopsError where it cannot begin, HandOver, TakenOver."""
    queue = IndexQueue(array.indices)
    places = _make_places(ctx, settings, session, request, array, sending, queue)
    on = f"{plural(len(array.indices), 'run')}, {len(places)} at once" if len(places) > 1 else "one run after another"
    ctx.out.say(f"array {array.text}: {on}; results come to {ctx.folder / 'runs'}")
    with ctx.progress.during(f"array {array.text}", whose=Whose.SCRIPT, aside=True):
        jobs: list[Job] = []
        try:
            for number, place in enumerate(places):
                jobs.append(WORKERS.start(partial(_serve, ctx, place, queue, request, run_one), f"place {number}"))
            _wait(ctx, jobs, queue)
        except HandOver as error:
            _let_go(ctx, session.row, places, jobs, queue, error)
            raise
        except Interrupted as error:
            queue.stop("interrupted")
            while any(job.is_alive() for job in jobs):
                queue.relay(ctx.signals.count, error)
                for place in places:
                    place.interrupt()
                ctx.clock.sleep(POLL_INTERVAL_S)
    if queue.error is not None:
        if waiting := queue.format_waiting():
            ctx.out.say(f"note: no run was started for --array {waiting}")
        raise queue.error
    return _outcome_of_all(ctx, session, array, queue.outcomes(interrupted=bool(ctx.signals.count)))


def _make_places(
    ctx: Context,
    settings: Settings,
    session: ClusterSession,
    request: RunRequest,
    array: Array,
    sending: Sending,
    queue: IndexQueue,
) -> list[Place]:
    """Take the array's turn on the cluster, send code and data to all its nodes, and make them ready. Raises
    GpuopsError."""
    values = secret_values(request.secrets, ctx.folder, ctx.env)
    machines = [machine for machine in session.machines if not is_virtual(machine)]
    slots = choose_slots(count_gpus(machines, session.gpus()), request, array)
    count = max(node for slot in slots for node in slot) + 1
    # What one run and all of them need at once; a plain command is on each of the nodes, whatever it is for a run.
    of_all = dataclasses.replace(
        prepare.with_outputs(request),
        nodes=count,
        gpus=gpus_of_run(request),
        all_nodes=request.kind == "command",
        resume=None,  # each place is given the files as the nodes of one run are
    )
    if not sending.queue:
        refuse_second_run(ctx, session, None, request)
    if len(slots[0]) == 1:  # those of a run on several nodes are made with its turn
        add_virtual_nodes(ctx, session, of_all)
    per_hour = sum(machine.per_hour for machine in machines) * len(slots[0]) / count
    known = {"array": [ctx.me.pid, ctx.me.start], "per_hour": per_hour}

    def facts() -> Mapping[str, Any]:
        return {**known, "array_waiting": queue.format_waiting()}

    first = request_of_index(prepare.with_outputs(request), array.indices[0], slots[0])
    first = retention.complete_request(ctx, session, first)
    row = prepare.take_turn(ctx, session, first, sending, ctx.progress, facts())
    with prepare.noted_unless_started(ctx, row):
        fresh = dataclasses.replace(sending, fresh=True)  # an index must not go on from what another made
        ready = ready_nodes(
            ctx, settings, session, of_all, fresh, row, ctx.progress, apart=all(len(slot) == 1 for slot in slots)
        )
    places = [Place(session.part(slot), ready.part(slot), sending, values, facts, request.resume) for slot in slots]
    places[0].first = row, first
    return places


def _serve(ctx: Context, place: Place, queue: IndexQueue, request: RunRequest, run_one: RunOne) -> None:
    """A place's thread: one index after the other, while its nodes last."""
    try:
        index = queue.indices[0] if place.first else queue.take()
        while index is not None:
            one = ctx.for_thread(PrefixedReporter(ctx.out, f"[{index}] "), Silent())
            queue.begin(index, one)
            with closing(one.ledger):
                outcome = _run_index(one, place, queue, index, request, run_one)
                queue.end(outcome)
                if _is_being_ended(one, place.session.row):
                    queue.stop(f"another command ends {place.session.row.name}")
            if outcome.ends_place:
                return
            index = queue.take()
    except TakenOver as taken:
        queue.stop("the guard has taken over", taken)
    except HandOver:
        pass  # the main thread does it
    except BaseException as error:
        queue.stop("an error of gpuops", error)


def _run_index(
    ctx: Context, place: Place, queue: IndexQueue, index: int, request: RunRequest, run_one: RunOne
) -> IndexOutcome:
    """Raises HandOver, TakenOver."""
    try:
        outcome = run_one(ctx, place, request_of_index(request, index, place.session.part_of or (0,)))
    except (HandOver, TakenOver):
        raise
    except (GpuopsError, Interrupted) as error:
        ctx.out.say(f"error: {error.message}" + (f"\nhint: {error.hint}" if error.hint else ""))
        own = isinstance(error, RunFailed)  # its command, such as ./job-{index}.sh; the next would meet any other error
        return IndexOutcome(index, error.exit_code, error.message, ends_place=not own)
    if outcome.taken:
        queue.stop(f"another command ends {place.session.row.name}")
    document = outcome.document
    record = RunRecord.parse(document)
    for label, text in receipt_rows(record):
        if label in TOLD_AT_ONCE:
            ctx.out.say(f"{label:<9}{text}")
    verdict = record.verdict
    say, hint = (verdict.say, verdict.hint) if verdict else ("it ended", "")
    hint = hint.removesuffix(RETRIES_HINT)  # an array's machines are not replaced
    if verdict and verdict.tail and verdict.exit_code:
        ctx.out.say(verdict.tail)
    ctx.out.say(say + (f"\nhint: {hint}" if hint else ""))
    if record.missing:
        say += "; not all of it is home"
    return IndexOutcome(
        index,
        outcome.exit_code,
        say,
        str(document.get("run") or ""),
        document.get("duration_s"),
        str(document.get("home") or ""),
        document,
        ends_place=outcome.exit_code == NodeError.exit_code or outcome.finished is None,
    )


def _is_being_ended(ctx: Context, cluster: ClusterRow) -> bool:
    """Whether another command ends the cluster: it has taken runs that go on, and would not know of a new one."""
    with suppress(LedgerUnwritable):
        live = [run for run in ctx.ledger.runs(cluster=cluster.id) if run.state is RunState.RUNNING]
        ours = [run for run in live if run.facts.array_holder(ctx.ledger.beats) == ctx.me]
        is_up = ctx.ledger.cluster(cluster.id).state is ClusterState.UP
        return not is_up or any(run.has_live_owner(besides=ctx.me) for run in ours)
    return False


def _refuse_if_being_ended(ctx: Context, cluster: ClusterRow) -> None:
    if _is_being_ended(ctx, cluster):
        raise NodeError(f"another command ends {cluster.name}", "start it on another cluster")


def _wait(ctx: Context, jobs: Sequence[Job], queue: IndexQueue) -> None:
    """Until every place has nothing left to do. Raises Interrupted, HandOver."""
    while any(job.is_alive() for job in jobs):
        ctx.progress.waits(queue.describe())
        ctx.clock.sleep(POLL_INTERVAL_S)


def _let_go(
    ctx: Context,
    cluster: ClusterRow,
    places: Sequence[Place],
    jobs: Sequence[Job],
    queue: IndexQueue,
    error: HandOver,
) -> None:
    """The terminal is gone: the guard brings home what runs, and nobody begins the rest, which is left word of."""
    queue.stop("the terminal is gone")
    queue.relay(0, error)
    for place in places:
        place.interrupt()
    deadline = ctx.clock.monotonic() + HAND_OVER_TIMEOUT_S
    for job in jobs:
        job.join(max(0.0, deadline - ctx.clock.monotonic()))
    with suppress(LedgerUnwritable):
        runs = ctx.ledger.runs(cluster=cluster.id)
        ours = [run for run in runs if run.facts.array_holder(ctx.ledger.beats) == ctx.me]
        started = {run.request.get("array_index") for run in ours if run.started}
        for run in ours[-1:]:  # the guard need not tell it as well
            ctx.ledger.set_run(run.id, facts={**run.facts, "array_waiting": ""})
        if rest := [index for index in queue.indices if index not in started]:
            ctx.ledger.add_notice(
                f"{len(rest)} of {len(queue.indices)} runs of an array on {cluster.name} were not started, since its "
                f"terminal went: --array {format_indices(rest)} starts them"
            )


def _outcome_of_all(
    ctx: Context, session: ClusterSession, array: Array, outcomes: Sequence[IndexOutcome]
) -> JobOutcome:
    code = worst_exit_code(*(one.exit_code for one in outcomes))
    document = {"cluster": session.row.name, "array": array.text, "runs": [*documents(outcomes)], "exit_code": code}
    shown = [dataclasses.replace(one, results=_as_typed(ctx.folder, one.results)) for one in outcomes]
    return JobOutcome(
        code, document, [*describe_outcomes(shown, ctx.out.columns(ctx.out.err)), *summarise(outcomes).splitlines()]
    )


def _as_typed(folder: Path, results: str) -> str:
    path = Path(results)
    return str(path.relative_to(folder)) if results and path.is_relative_to(folder) else results
