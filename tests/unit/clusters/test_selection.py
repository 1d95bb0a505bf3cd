"""Which cluster a command means: pure decisions, each with its sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.clusters.selection import choose_for_run, find_by_name, find_only_cluster, find_to_end, pick_cluster
from gpuops.core.errors import UsageError
from gpuops.core.models import Lease
from gpuops.ledger.rows import ClusterRow, ClusterState

HERE, THERE = Path("/here"), Path("/there")


def row(name: str, *, folder: Path = HERE, provider: str = "local", state: str = "up", ephemeral: bool = False,
        why: str = "") -> ClusterRow:  # fmt: skip
    at = ClusterState(state)
    return ClusterRow(1, name, provider, folder, at, ephemeral, "t", {}, {}, 0.0, Lease(), None, 0.0, None, None, why)


def choice(*history: ClusterRow, cluster: str | None = None, on: str | None = None) -> str:
    one = choose_for_run(history, HERE, cluster=cluster, on=on)
    return one.row.name if one.row else f"fresh {one.provider}"


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        ([], "fresh local"),
        ([row("a")], "a"),
        ([row("a", folder=THERE)], "fresh local"),
        ([row("a", ephemeral=True)], "fresh local"),
        ([row("a", state="ending")], "fresh local"),
        ([row("a", state="gone")], "fresh local"),
        ([row("a", state="gone", provider="runpod"), row("b")], "b"),
        ([row("a", state="gone", provider="runpod"), row("b", state="gone")], "fresh local"),
        ([row("a", state="gone", provider="runpod", ephemeral=True)], "fresh local"),
        ([row("a", state="gone", provider="runpod", folder=THERE)], "fresh local"),
    ],
)
def test_without_a_flag(history: list[ClusterRow], expected: str) -> None:
    assert choice(*history) == expected


def test_a_flag_decides() -> None:
    assert choice(row("a"), on="runpod") == "fresh runpod"
    assert choice(row("a"), row("b"), cluster="b") == "b"
    assert choice(row("a", folder=THERE), cluster="a") == "a"
    assert choice(row("a", state="gone", provider="runpod"), on="local") == "fresh local"


@pytest.mark.parametrize(
    ("history", "flags", "say", "hint"),
    [
        ([], {"cluster": "a"}, "there is no live cluster named a", "live clusters: there is none"),
        ([row("b", state="gone")], {"cluster": "b"}, "there is no live cluster named b",
         "live clusters: there is none"),
        ([row("b")], {"cluster": "a"}, "there is no live cluster named a", "live clusters: b"),
        ([row("a")], {"cluster": "a", "on": "local"}, "--cluster and --on exclude each other",
         "--cluster names a live one, --on a provider for a fresh one"),
        ([row("a"), row("b")], {}, "this folder has several live clusters: a, b", "name one: --cluster a"),
        ([row("a", state="gone", provider="runpod", why="gpuops down")], {},
         "a on runpod, the last cluster of this folder, is gone (gpuops down)",
         "bring it up again: gpuops up runpod; or insist on this machine: --on local"),
        ([row("a", state="creating", provider="runpod")], {},
         "a on runpod, the last cluster of this folder, is being created",
         "wait until it is up: gpuops status; or insist on this machine: --on local"),
        ([row("a", state="ending", provider="runpod")], {},
         "a on runpod, the last cluster of this folder, is being ended",
         "bring it up again: gpuops up runpod; or insist on this machine: --on local"),
        ([row("a", state="creating")], {"cluster": "a"}, "a is still being created",
         "wait until it is up: gpuops status; or end it: gpuops down a"),
    ],
)  # fmt: skip
def test_where_guessing_could_cost_or_surprise(
    history: list[ClusterRow], flags: dict[str, str], say: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        choice(*history, **flags)
    assert (caught.value.message, caught.value.hint, caught.value.exit_code) == (say, hint, 2)


def test_down_means_this_folders_else_the_only_one() -> None:
    assert find_only_cluster([row("a", folder=THERE), row("b")], HERE, "gpuops down").name == "b"
    assert find_only_cluster([row("a", folder=THERE)], HERE, "gpuops down").name == "a"
    assert find_by_name([row("a"), row("b")], "b").name == "b"
    with pytest.raises(UsageError, match="there is no live cluster"):
        find_only_cluster([], HERE, "gpuops down")
    with pytest.raises(UsageError, match="several clusters are live: a, b") as caught:
        find_only_cluster([row("a"), row("b")], HERE, "gpuops down")
    assert caught.value.hint == "name one: gpuops down a, or end all: gpuops down --all"


@pytest.mark.parametrize("name", ["a", None])
def test_nodes_of_a_cluster_that_is_being_created_cannot_be_reached_yet(name: str | None) -> None:
    with pytest.raises(UsageError, match="a is still being created") as caught:
        pick_cluster([row("a", state="creating")], HERE, name, "gpuops ssh")
    assert caught.value.hint == "wait until it is up: gpuops status; or end it: gpuops down a"
    assert pick_cluster([row("a"), row("b", state="creating")], HERE, "a", "gpuops ssh").name == "a"


def test_to_end_what_is_gone_already_is_no_mistake() -> None:
    old, live = row("a", state="gone"), row("b")
    assert find_to_end([old, live], "a") is old
    assert find_to_end([old, live], "b") is live
    again = row("a")
    assert find_to_end([old, live, again], "a") is again
    with pytest.raises(UsageError, match="there is no live cluster named c"):
        find_to_end([old, live], "c")
