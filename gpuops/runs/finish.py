"""The end of a run: results home and verified, a verdict, and the record of both."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpuops.core.context import Context
from gpuops.core.errors import GpuopsError, Interrupted, NodeError, Nonsense
from gpuops.core.format import SCHEMA, amount
from gpuops.core.models import Resource, RunRequest, Verdict
from gpuops.core.parallel import on_each
from gpuops.core.provider import Provisioner
from gpuops.core.reporting import Progress
from gpuops.ledger.store import ClusterRow, RowGone, RunRow
from gpuops.nodes.session import ClusterSession, admitted, how_ended, is_dead, is_over
from gpuops.runs.follow import Follower, OnBytes, lost
from gpuops.runs.remedies import held_back
from gpuops.runs.verdict import NODE_FAILED, how_far, judge, node_result, resume_hint
from gpuops.sync import RunHome, archive, bucket, fetch, sinks
from gpuops.sync.archive import Brought
from gpuops.sync.leftovers import exactly, left, sentence, worth
from gpuops.sync.outputs import inherit
from gpuops.sync.restore import outputs
from gpuops.transport.rpc import AgentClient

if TYPE_CHECKING:
    from gpuops.transport.answers import Run

LOOK_S = 0.2
ADMIT_S = 60.0
"""How often a provider is asked to let this computer in while a node does not answer, in seconds."""
GOING_S = 60.0
"""How long after a failed fetch machines that are being taken back are waited for to be gone, in seconds."""
GOING_LOOK_S = 2.0
STALL_S = 300.0
"""How long nodes that keep results elsewhere are waited for while they get no further, in seconds."""
SETTLE_S = 7200.0
"""How long they are waited for at most, whatever they say of their progress; with a longer `--grace`, so long."""
RELEASE_S = 10.0
"""How long a node may take to hear that its results are home, in seconds."""
HURRY_S = 10.0
"""How long a final fetch may go on after a second signal."""
NOT_OURS = "check that this node is yours; what came home of it is in the run's folder"
SILENT = ("node", "gone", "no-run")
"""Kinds of a lost node that nothing is fetched from (`follow.lost`)."""


@dataclass
class Conclusion:
    """What became of a run."""

    verdict: Verdict
    home: RunHome
    missing: str = ""
    """The sentence that says which results could not be brought home; empty when all are."""
    unsaved: str = ""
    """The same of those that another try may bring home: until then their nodes must not be destroyed."""
    nonsense: str = ""
    """The same of those on nodes that answer nonsense: no try would bring them."""
    unfetched: str = ""
    """Why what is in a bucket, and now nowhere else, could not be fetched: to begin anew would be without it."""
    document: Mapping[str, Any] = field(default_factory=dict)
    rest: Callable[[], Conclusion] | None = None
    """What is left is in a bucket and needs no machine: this fetches it and judges by that as well, once the machines
    have ended. Until then it is as if the bucket could not be asked: `gpuops pull` fetches it."""


@dataclass(frozen=True)
class _Fetched:
    """What came of the last fetch."""

    failed: str = ""
    """Why not all is home that another try may bring."""
    nonsense: str = ""
    """Why not all is home of nodes that answer nonsense: they are asked twice, and no more."""
    behind: str = ""
    """What stays on the nodes."""


@dataclass(frozen=True)
class _Heard:
    """What is known of a run when nothing more can come from its nodes."""

    over: float
    results: Mapping[int, Mapping[str, Any]]
    talking: Sequence[int]
    gone: Sequence[int]
    """Nodes that had told how they ended, and whose machines went before all was home."""
    fetched: _Fetched
    handed: Mapping[int, Mapping[str, int]]
    states: Mapping[int, Mapping[str, Any]]


def request_of(row: RunRow) -> RunRequest:
    """The run's request as the ledger kept it."""
    try:
        return RunRequest(**row.request)
    except TypeError as error:
        raise RowGone(
            f"what the ledger says of {row.name} cannot be read", f"its results so far are in {row.home}"
        ) from error


def follower(
    ctx: Context, live: ClusterSession, row: RunRow, on_bytes: OnBytes, say: Callable[[str], None]
) -> Follower:
    """Somebody who mirrors a run's logs and waits for its end."""
    provider = ctx.provisioner_of(live.row)

    def gone(index: int) -> bool:
        machine = live.machines[index]
        try:
            return is_dead(provider.describe(machine)) or is_over(live.row, machine, index)
        except GpuopsError:
            return False  # a provider that does not answer says nothing about its machine

    return Follower(
        live,
        row.name,
        RunHome(row.home),
        request_of(row).nodes,
        on_bytes=on_bytes,
        say=say,
        gone=gone,
        how_ended=lambda index: _how_ended(provider, live.machines[index]),
        admit=_Admitting(ctx, live.row, ctx.ledger.resources(live.row.id)),
    )


def _how_ended(provider: Provisioner, machine: Resource) -> Mapping[str, Any]:
    try:
        return how_ended(provider.describe(machine))
    except GpuopsError:
        return {}


class _Admitting:
    """Followers of several nodes find out at the same time that this computer's address has changed: one asks."""

    def __init__(self, ctx: Context, row: ClusterRow, resources: Sequence[Resource]) -> None:
        self._world, self._row = ctx, row
        self._resources = resources  # read beforehand: a ledger is one thread's
        self._lock = threading.Lock()
        self._asked = 0.0

    def __call__(self) -> None:
        with self._lock:
            if not self._asked or time.monotonic() - self._asked > ADMIT_S:
                admitted(self._world, self._row, self._resources)
                self._asked = time.monotonic()


def fetch_now(
    live: ClusterSession, row: RunRow, progress: Progress, *, final: bool, nodes: list[int] | None = None
) -> int:
    """Bring home what the run has made so far; with `final`, all of it, verified. Returns files fetched."""
    request = request_of(row)
    wanted = range(request.nodes) if nodes is None else nodes
    clients = {index: live.clients[index] for index in wanted}
    report = fetch(clients, row.name, row.tree, request.outs, RunHome(row.home), final=final, progress=progress)
    for conflict in report.conflicts:
        progress.say(conflict)
    return int(report.files)


def conclude(
    ctx: Context,
    live: ClusterSession,
    row: RunRow,
    results: Mapping[int, Mapping[str, Any]],
    progress: Progress,
    *,
    ending: bool = False,
) -> Conclusion:
    """Fetch and verify what is left, judge, and write it down. The nodes may be destroyed when `unsaved` is empty.

    `ending`: the caller does that next, and calls `rest` then: nodes that live bill while an archive is fetched.
    """
    over = row.ended or time.time()
    spoken = {index: result["reason"].get("kind") for index, result in sorted(results.items())}
    talking = [index for index, kind in spoken.items() if kind not in SILENT]
    with progress.during(f"looking at what {row.name} made"):
        fetched = _fetch_last(ctx, live, row, progress, talking)
        gone = _gone_meanwhile(ctx, live, talking, results) if fetched.failed else []
        if gone:
            talking = [index for index in talking if index not in gone]
            fetched = _fetch_last(ctx, live, row, progress, talking)
    # After the nodes' own, which may go as well: a bucket stays.
    silent = [index for index, kind in spoken.items() if kind in ("node", "gone") or index in gone]
    taken = silent or any(result["reason"].get("kind") == "reclaim" for result in results.values())
    handed = _handed(live, row, talking, silent) if taken else {}
    states = _kept(ctx, live, row, progress, talking) if request_of(row).sink else {}
    heard = _Heard(over, results, talking, gone, fetched, handed, states)

    def whole() -> Conclusion:
        return _judged(ctx, row, heard, *_recalled(ctx, row, silent, progress))

    def rest() -> Conclusion:
        end = whole()
        bucket.abandon(ctx, ctx.ledger.run(row.id))
        return end

    # One that cannot be reached may have more than the bucket, which only what has come from there can tell.
    safe = not fetched.failed and all(index in gone or spoken[index] == "gone" for index in silent)
    if ending and silent and talking and safe and archive.is_kept(row):
        waiting = archive.waiting(row, silent)
        end = _judged(ctx, row, heard, {}, waiting)
        end.rest, end.unfetched = rest, waiting
    else:
        end = whole()
    if not end.unsaved:
        release(live, row)
        if end.rest is None:  # else one that is just going may still close its archive
            bucket.abandon(ctx, ctx.ledger.run(row.id))
    return end


def _judged(ctx: Context, row: RunRow, heard: _Heard, brought: Mapping[int, Brought], trouble: str) -> Conclusion:
    """The verdict by what has come, and the record of it. `trouble`: why not all came from a bucket."""
    gone, talking, fetched = heard.gone, heard.talking, heard.fetched
    spoken = {index: result["reason"].get("kind") for index, result in sorted(heard.results.items())}
    results = {**heard.results, **{index: one.result for index, one in brought.items() if one.result}}
    kinds = {index: result["reason"].get("kind") for index, result in sorted(results.items())}
    kinds |= {index: "gone" for index in gone if index not in brought}
    kinds |= {index: "node" for index, one in brought.items() if one.missing and spoken[index] == "node"}
    inherit(RunHome(row.home), heard.handed)
    request = request_of(row)
    states = {**heard.states, **{index: {"state": "safe"} for index, one in brought.items() if not one.missing}}
    unsaved = _joined(fetched.failed, _named(kinds, "node", "cannot be reached any more"))
    missing = _joined(
        unsaved, fetched.nonsense, _named(kinds, "gone", "ended before all results were home"), archive.lacking(brought)
    )
    if trouble and talking:  # else the verdict says it
        missing = _joined(missing, f"{trouble}; `gpuops pull {row.name}` fetches it")
    if request.sink and all(states.get(index, {}).get("state") == "safe" for index in range(request.nodes)):
        unsaved = ""  # nothing is lost with the nodes
    skews = row.facts.get("skews") or [0.0] * request.nodes
    nodes = [node_result(index, dict(results[index]), skews[index]) for index in sorted(results)]
    home, place = RunHome(row.home), str((row.facts.get("bucket") or {}).get("place") or "")
    again = resume_hint(row.name, saved=bool(outputs(home)))
    verdict = judge(request, int(row.facts.get("world", 0)), nodes, again, row.name)
    if unsent := held_back(verdict.tail, row.facts.get("held") or []):
        verdict = dataclasses.replace(verdict, hint=unsent)
    if request.sink and not talking and "gone" in kinds.values() and verdict.outcome != "reclaimed":
        verdict = Verdict("unclear", NODE_FAILED, *sinks.unseen(request, row.name, place, trouble))
    if fetched.nonsense and not verdict.exit_code:
        say = f"{verdict.say}, but its results are not all home: {fetched.nonsense}"
        verdict = Verdict("unclear", NODE_FAILED, say, NOT_OURS)
    unfetched = trouble if not talking else ""
    if unfetched and verdict.outcome == "reclaimed":
        more_said, hint = sinks.unfetched(row.name, place, trouble)
        verdict = dataclasses.replace(verdict, say=verdict.say + more_said, hint=hint)
    kept = sinks.outcome(request, row.name, states, range(request.nodes), place) if request.sink else ""
    document = record(ctx, row, verdict, results, missing, heard.over)
    document |= {"left_behind": fetched.behind, "kept": kept, "progress": how_far(nodes)}
    home.write_record(document)
    ctx.ledger.set_run(
        row.id,
        state="ended" if unsaved else "home",
        owner_process=None,
        ended=heard.over,
        verdict=dataclasses.asdict(verdict),
        facts={**ctx.ledger.run(row.id).facts, **_in_bucket(row, kinds, results, states)},
    )
    return Conclusion(verdict, home, missing, unsaved, fetched.nonsense, unfetched, document)


def _gone_meanwhile(
    ctx: Context, live: ClusterSession, nodes: Sequence[int], results: Mapping[int, Mapping[str, Any]]
) -> list[int]:
    """Nodes whose machines went while their results were fetched. One that is being taken back is waited for."""
    provider, machines = ctx.provisioner_of(live.row), dict(enumerate(live.machines))
    reasons = [result["reason"] for result in results.values()]
    going = any(reason.get("kind") == "reclaim" or reason.get("reclaimed") for reason in reasons)
    deadline = time.monotonic() + (GOING_S if going else 0.0)
    while True:
        try:
            gone = [index for index in nodes if index in machines and is_dead(provider.describe(machines[index]))]
        except GpuopsError:
            gone = []
        if gone or ctx.signals.hurry or time.monotonic() >= deadline:
            return gone
        time.sleep(GOING_LOOK_S)


def _recalled(
    ctx: Context, row: RunRow, silent: Sequence[int], progress: Progress
) -> tuple[Mapping[int, Brought], str]:
    """What nodes that say nothing any more have kept in a bucket; and why not all could be fetched from there."""
    if not silent or not archive.is_kept(row):
        return {}, ""
    try:
        brought, errors = archive.bring(ctx, row, silent, progress)
        return brought, "; ".join(dict.fromkeys(error.say for error in errors))
    except GpuopsError as error:
        return {}, error.say
    except Interrupted as error:
        error.hint = f"gpuops pull {row.name} fetches what is in {row.facts['bucket']['place']}"
        raise


def _in_bucket(
    row: RunRow,
    kinds: Mapping[int, str | None],
    results: Mapping[int, Mapping[str, Any]],
    states: Mapping[int, Mapping[str, Any]],
) -> dict[str, Any]:
    """For whoever asks later: whose results can only be in the bucket, and what the others had told."""
    if not archive.is_kept(row):
        return {}
    silent = [index for index, kind in kinds.items() if kind in ("node", "gone")]
    told = {str(index): {**results[index], "sink": states.get(index) or {"state": ""}}
            for index in kinds if index not in silent}  # fmt: skip
    return {"in_bucket": silent, "told": told if silent else {}}


def release(live: ClusterSession, row: RunRow) -> None:
    """Tell the nodes that nobody needs what the run has left on them any more. One that is not told waits in vain."""
    request = request_of(row)
    if request.hold_s is None:
        return  # nothing is held

    def tell(index: int) -> None:
        with suppress(GpuopsError):
            live.clients[index].call("home", timeout=RELEASE_S, run=row.name)

    on_each(tell, range(min(request.nodes, len(live.clients))))


def _kept(
    ctx: Context, live: ClusterSession, row: RunRow, progress: Progress, nodes: list[int]
) -> dict[int, Mapping[str, Any]]:
    """What each node says of the results that it keeps elsewhere, once it is done with that or gets no further."""
    states: dict[int, Mapping[str, Any]] = {}
    end = time.monotonic() + max(SETTLE_S, request_of(row).hold_s or 0.0)

    def wait(index: int) -> None:
        with suppress(GpuopsError):
            states[index] = _settled(ctx, live.clients[index], row.name, end)

    elsewhere = "in its bucket" if sinks.is_bucket(request_of(row).sink) else "on its volume"
    with progress.during(f"waiting for what {row.name} keeps {elsewhere}"):
        on_each(wait, nodes)
    return states


def _settled(ctx: Context, client: AgentClient, run: str, end: float) -> Mapping[str, Any]:
    latest: Mapping[str, Any] = {}
    since = time.monotonic()
    while True:
        said: Run = client.call("run", run=run)
        state: Mapping[str, Any] = said.get("sink") or {}
        if state.get("state") not in ("claimed", "copying"):
            return state
        if state != latest:
            latest, since = state, time.monotonic()
        now = time.monotonic()
        if ctx.signals.hurry or now - since > STALL_S or now > end:
            return {**state, "why": "it was not waited for any longer"}
        time.sleep(LOOK_S)


def _bring_left(live: ClusterSession, row: RunRow, progress: Progress, nodes: list[int]) -> str:
    """What the run made and no pattern names comes home too; what is large only where it would go with its node.

    Returns what stays behind.
    """
    clients = {index: live.clients[index] for index in nodes}
    found = left(clients, request_of(row).outs, run=row.name)
    worthy, large = worth(found)
    if live.row.ephemeral and large:
        size = amount(sum(one.size for one in found))
        progress.say(f"bringing home {size} that no --out names: {sentence(large)}; next time --out '!GLOB' leaves it")
        worthy, large = found, []
    if worthy:
        fetch(clients, row.name, row.tree, exactly(worthy), RunHome(row.home), final=True, progress=progress)
    return sentence(large)


def _fetch_last(ctx: Context, live: ClusterSession, row: RunRow, progress: Progress, nodes: list[int]) -> _Fetched:
    """The final fetch. In a thread: a second signal leaves it `HURRY_S`, a first one here raises."""
    failures: list[BaseException] = []
    came: list[_Fetched] = []

    def bring(some: list[int]) -> str:
        fetch_now(live, row, progress, final=True, nodes=some)
        return _bring_left(live, row, progress, some)

    def fetch() -> None:
        try:
            came.append(_from_all(bring, nodes))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=fetch, daemon=True, name=f"last fetch {row.name}")
    thread.start()
    hurried: float | None = None
    while thread.is_alive():
        thread.join(LOOK_S)
        if ctx.signals.hurry:
            hurried = hurried or time.monotonic()
            if time.monotonic() - hurried > HURRY_S:
                return _Fetched("the last fetch was cut short")
    for error in failures:
        if not isinstance(error, GpuopsError):
            raise error
        return _Fetched(error.say)
    return came[0]


def _from_all(bring: Callable[[list[int]], str], nodes: list[int]) -> _Fetched:
    """From all nodes at once; where one answers nonsense, from each alone, so that it keeps nothing of the others
    away. `bring` returns what stays behind, and raises GpuopsError."""
    try:
        return _Fetched(behind=bring(nodes))
    except Nonsense:
        pass
    behind, nonsense = [], []
    for index in nodes:
        try:
            behind.append(bring([index]))
        except Nonsense as error:
            nonsense.append(error.say)
    return _Fetched(nonsense=_joined(*nonsense), behind=", ".join(filter(None, behind)))


def _handed(
    live: ClusterSession, row: RunRow, nodes: Sequence[int], silent: Sequence[int]
) -> Mapping[int, Mapping[str, int]]:
    """What nodes that stay were handed by nodes that went: it counts as what those made. One that answers gives its
    files itself: nobody else decides what it made."""
    handed: dict[int, Mapping[str, int]] = {}

    def ask(index: int) -> None:
        with suppress(GpuopsError):
            said: Run = live.clients[index].call("run", run=row.name)
            handed[index] = {path: node for path, node in (said.get("handed") or {}).items() if node in silent}

    on_each(ask, nodes)
    return handed


def _named(kinds: Mapping[int, str | None], kind: str, what: str) -> str:
    names = ", ".join(f"node{index}" for index, one in kinds.items() if one == kind)
    return f"{names} {what}" if names else ""


def _joined(*sentences: str) -> str:
    return "; ".join(filter(None, sentences))


def record(
    ctx: Context, row: RunRow, verdict: Verdict, results: Mapping[int, Mapping[str, Any]], missing: str, over: float
) -> dict[str, Any]:
    """What `run.json` keeps and `--json` prints. `over`: when the run had ended everywhere (UTC seconds).

    Of a cluster that is kept, a run is billed from its own beginning.
    """
    cluster = ctx.ledger.cluster(row.cluster)
    started = row.started or over
    until = cluster.ended or time.time()
    since = cluster.created if cluster.ephemeral else row.created
    return {
        "schema": SCHEMA,
        "run": row.name,
        "verdict": dataclasses.asdict(verdict),
        "request": dict(row.request),
        "cluster": cluster.name,
        "created": row.created,
        "started": row.started,
        "ended": over,
        "duration_s": over - started,
        "before_s": started - since,
        "cost": float(row.facts.get("per_hour") or 0.0) * (until - since) / 3600,
        "payer": dict(cluster.payer) or None,
        "rented": cluster.provider != "local" and bool(row.facts.get("per_hour")),
        "home": str(row.home),
        "missing": missing,
        **{name: fact for name, fact in row.facts.items() if name not in ("uploads", "told")},
        "nodes_ended": {
            str(index): {key: result[key] for key in ("outcome", "reason")} for index, result in results.items()
        },
    }


def unreached(
    row: RunRow, error: NodeError, *, gone: bool, told: Mapping[int, Mapping[str, Any]]
) -> dict[int, dict[str, Any]]:
    """Results for a run none of whose nodes can be reached any more. `gone`: their provider says that they ended;
    `told`: and how (`live.how_ended`)."""
    kind = "gone" if gone else "nonsense" if isinstance(error, Nonsense) else "node"
    return {index: lost(index, error.say, kind, told.get(index)) for index in range(request_of(row).nodes)}
