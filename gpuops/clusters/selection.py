"""Which cluster a command means: a pure decision over what the ledger knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuops.core.errors import UsageError
from gpuops.ledger.rows import ClusterState
from gpuops.ledger.store import ClusterRow


@dataclass(frozen=True)
class Choice:
    """Either a live cluster, or a provider on which a fresh one is brought up."""

    row: ClusterRow | None
    provider: str = ""
    say: str = ""
    """What the user should be told about the choice; empty where they named it."""


def find_by_name(live: Sequence[ClusterRow], name: str) -> ClusterRow:
    """The live cluster of that name. Raises UsageError."""
    for row in live:
        if row.name == name:
            return row
    known = ", ".join(row.name for row in live) or "there is none"
    raise UsageError(f"there is no live cluster named {name or repr(name)}", f"live clusters: {known}")


def find_to_end(history: Sequence[ClusterRow], name: str) -> ClusterRow:
    """The cluster that `down NAME` means: the live one, else the last of that name, which is gone already.

    `history`: every cluster ever, oldest first. Raises UsageError for a name that never was one.
    """
    named = [row for row in history if row.name == name]
    live = [row for row in history if row.state is not ClusterState.GONE]
    return named[-1] if named else find_by_name(live, name)


def find_only_cluster(live: Sequence[ClusterRow], folder: Path, verb: str) -> ClusterRow:
    """The one live cluster a command without a name can mean: of this folder, else the only one. Raises UsageError."""
    here = [row for row in live if row.folder == folder]
    candidates = here or list(live)
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise UsageError("there is no live cluster", "bring one up: gpuops up local")
    names = ", ".join(row.name for row in candidates)
    end_all = ", or end all: gpuops down --all" if verb == "gpuops down" else ""
    raise UsageError(f"several clusters are live: {names}", f"name one: {verb} {candidates[0].name}{end_all}")


def pick_cluster(live: Sequence[ClusterRow], folder: Path, name: str | None, verb: str) -> ClusterRow:
    """The live cluster of that name, whose nodes can be reached; without a name, the only one that `verb` can mean.
    Raises UsageError."""
    return refuse_unfinished(find_only_cluster(live, folder, verb) if name is None else find_by_name(live, name))


def refuse_unfinished(row: ClusterRow) -> ClusterRow:
    """The same cluster. Raises UsageError while it is being created: nothing is known yet of how to reach its nodes."""
    if row.state is ClusterState.CREATING:
        raise UsageError(
            f"{row.name} is still being created",
            f"wait until it is up: gpuops status; or end it: gpuops down {row.name}",
        )
    return row


def _not_up_error(last: ClusterRow) -> UsageError:
    """Why a run does not quietly go to this machine, where the folder's last cluster was a rented one."""
    state = {ClusterState.CREATING: "is being created", ClusterState.ENDING: "is being ended"}.get(
        last.state, "is gone"
    )
    why = f" ({last.why})" if last.why and last.state is ClusterState.GONE else ""
    again = (
        "wait until it is up: gpuops status"
        if last.state is ClusterState.CREATING
        else (f"bring it up again: gpuops up {last.provider}")
    )
    return UsageError(
        f"{last.name} on {last.provider}, the last cluster of this folder, {state}{why}",
        f"{again}; or insist on this machine: --on local",
    )


def choose_for_run(history: Sequence[ClusterRow], folder: Path, *, cluster: str | None, on: str | None) -> Choice:
    """Where `run` and `train` go. `history`: every cluster ever, oldest first.

    Raises UsageError where guessing could cost money or surprise.
    """
    live = [row for row in history if row.state is not ClusterState.GONE]
    if cluster and on:
        raise UsageError(
            "--cluster and --on exclude each other", "--cluster names a live one, --on a provider for a fresh one"
        )
    if cluster:
        return Choice(refuse_unfinished(find_by_name(live, cluster)))
    if on:
        return Choice(None, on)
    here = [row for row in live if row.folder == folder and not row.ephemeral and row.state is ClusterState.UP]
    if len(here) > 1:
        raise UsageError(
            f"this folder has several live clusters: {', '.join(row.name for row in here)}",
            f"name one: --cluster {here[0].name}",
        )
    if here:
        return Choice(here[0], say=f"using {here[0].name}, this folder's cluster")
    kept = [row for row in history if row.folder == folder and not row.ephemeral]
    if kept and kept[-1].provider != "local":
        raise _not_up_error(kept[-1])
    return Choice(None, "local", say="no cluster here: this machine plays the nodes (free)")
