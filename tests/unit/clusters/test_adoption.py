"""A launch spec tells which request it was written from: what a lost ledger's runs are rebuilt with."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuops.agent.wire_format import PROTOCOL
from gpuops.clusters.adoption import _Node, merge_leases
from gpuops.clusters.run_files_on_nodes import LaunchSpec, find_run_home, parse_spec, rebuild_request
from gpuops.core.models import Lease
from gpuops.core.run_models import NodeFacts, RunRequest
from gpuops.runs.launch_spec import node_specs
from gpuops.transport.schemas import NodeHello, WatchdogLease

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
NODES = [NodeFacts(index, "/venv/bin/python", 2, 4, address=f"10.0.0.{index}") for index in range(2)]


def specs(request: RunRequest, nodes: int = 2) -> list[dict[str, Any]]:
    return node_specs(request, run="digits-1", cluster="lab", tree="train" if request.workload else "project",
                      nodes=NODES[:nodes], master=("10.0.0.0", 1), gang=("10.0.0.0", 2), attempt=1)  # fmt: skip


def parsed(document: dict[str, Any], index: int = 0) -> LaunchSpec:
    spec = parse_spec(document, "digits-1", index)
    assert spec
    return spec


@given(
    program=st.sampled_from([{"script": "a.py"}, {"script": "-odd.py"}, {"module": "pkg.main"},
                             {"script": "digits.py", "workload": "digits"}]),
    argv=st.lists(TEXT | st.just("--"), max_size=4),
    outs=st.lists(TEXT, max_size=2),
    prelude=st.lists(TEXT, max_size=2),
    env=st.dictionaries(st.from_regex(r"[A-Z]{1,3}", fullmatch=True), TEXT, max_size=2),
)  # fmt: skip
def test_a_request_for_torchrun_comes_back(
    program: dict[str, str], argv: list[str], outs: list[str], prelude: list[str], env: dict[str, str]
) -> None:
    asked = RunRequest("torchrun", "multinode", 2, 2, argv=argv, outs=outs, prelude=prelude, env=env, **program)
    for index, spec in enumerate(specs(asked)):
        assert rebuild_request(parsed(spec, index)) == asked


@given(argv=st.lists(TEXT, min_size=1, max_size=4), everywhere=st.booleans())
def test_a_command_comes_back(argv: list[str], everywhere: bool) -> None:
    found = rebuild_request(parsed(specs(RunRequest("command", "run", 2, None, argv=argv, all_nodes=everywhere))[0]))
    assert (list(found.argv), found.mode, found.gpus, found.all_nodes) == (argv, "run", None, everywhere)
    assert found.nodes == (2 if everywhere else 1)


@given(st.data())
def test_a_spec_that_is_not_ours_is_not_believed(data: st.DataObject) -> None:
    """Whatever one field is: it is left out, or read without a word of Python's."""
    spec = copy.deepcopy(specs(RunRequest("torchrun", "multinode", 2, 2, script="a.py"))[0])
    anything = (
        st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.lists(TEXT | st.integers(), max_size=3)
    )
    spec[data.draw(st.sampled_from(sorted(spec)))] = data.draw(anything | st.dictionaries(TEXT, TEXT, max_size=2))
    launch_spec = parse_spec(spec, "digits-1", 0)
    assert launch_spec is None or rebuild_request(launch_spec).document()


def test_a_lease_is_what_the_watchdogs_keep_by_our_clock() -> None:
    def node(skew: float = 0.0, **lease: Any) -> _Node:
        return _Node(NodeHello(PROTOCOL, 1, [], "/n", lease=WatchdogLease(**lease)), skew)

    assert merge_leases([node(hard_wall=100.0, idle_s=60.0), node(-30.0, hard_wall=120.0), _Node()]) == (
        Lease(90.0, 60.0), False,
    )  # fmt: skip
    assert merge_leases([node(hard_wall=None, boot_wall=5.0)]) == (Lease(), True)
    assert merge_leases([_Node(NodeHello(PROTOCOL, 1, [], "/n"))]) == (Lease(), False)


@pytest.mark.parametrize(
    ("here", "name"),
    [({}, "sh-1"), ({0: b"one\n"}, "sh-1"), ({0: b"one\ntwo\n", 1: b""}, "sh-1"), ({0: b"other\n"}, "sh-1-of-lab"),
     ({0: b"one\ntwo\nthree\n"}, "sh-1-of-lab")],
)  # fmt: skip
def test_results_do_not_come_into_the_folder_of_another_run(tmp_path: Path, here: dict[int, bytes], name: str) -> None:
    for node, text in here.items():
        log = tmp_path / "runs" / "sh-1" / "logs" / f"node{node}" / "events.jsonl"
        log.parent.mkdir(parents=True)
        log.write_bytes(text)
    assert find_run_home(tmp_path, "sh-1", "lab", {0: b"one\ntwo\n", 1: b"x\n"}) == tmp_path / "runs" / name


def test_nor_into_that_of_one_without_a_journal(tmp_path: Path) -> None:
    record = tmp_path / "runs" / "sh-1" / "run.json"
    record.parent.mkdir(parents=True)
    record.write_text('{"cluster": "other"}')
    assert find_run_home(tmp_path, "sh-1", "lab", {}).name == "sh-1-of-lab"
    record.write_text("not json")
    assert find_run_home(tmp_path, "sh-1", "lab", {}).name == "sh-1"
