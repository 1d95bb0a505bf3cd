"""Given a request and facts about nodes, then these command lines, environments and specs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gpuops.agent.run import command_and_environment
from gpuops.core.errors import UsageError
from gpuops.core.run_models import NodeFacts, RunRequest
from gpuops.nodes.gpu_shares import ranks_for
from gpuops.runs.launch_spec import SCRUB, node_specs, rank_command

TRAIN = RunRequest(kind="torchrun", mode="multinode", nodes=2, gpus=None, script="train.py", argv=("50", "10"))
COMMAND = RunRequest(kind="command", mode="run", nodes=1, gpus=None, argv=("bash", "-c", "echo $HOME"))
NODES = (
    NodeFacts(0, "/v/bin/python", ranks=2, cores=8, cores_share=0.5, interface="eth1", address="10.0.0.4"),
    NodeFacts(1, "/w/bin/python", ranks=3, cores=8, interface="eth0", address="10.0.0.5"),
)
MASTER, GANG = ("10.0.0.4", 23456), ("10.0.0.4", 23457)


def specs(request: RunRequest = TRAIN, nodes: tuple[NodeFacts, ...] = NODES, **changed: Any) -> list[dict[str, Any]]:
    given: dict[str, Any] = {"run": "digits-3", "cluster": "local-1", "tree": "project", "master": MASTER, "gang": GANG}
    return node_specs(request, nodes=nodes, **{**given, "attempt": 1, **changed})


def env(request: RunRequest = TRAIN, node: NodeFacts = NODES[0], **changed: Any) -> dict[str, str]:
    """Every variable of the spec, the user's over ours."""
    spec = specs(request, (node,), **changed)[0]
    return spec["env"] | spec["user_env"]


# The torchrun line.


def test_the_whole_line_of_the_second_of_two_nodes() -> None:
    assert specs(attempt=2)[1]["argv"] == [
        "/w/bin/python", "-m", "torch.distributed.run",
        "--nnodes=2", "--node-rank=1", "--nproc-per-node=3", "--master-addr=10.0.0.4", "--master-port=23456",
        "--rdzv-id=digits-3-a2", "--rdzv-conf=timeout=300", "--max-restarts=0", "--log-dir={run}/elastic",
        "--no-python", "{python}", "-I", "{agent}", "rank", "--node-run", "{run}", "--",
        "/w/bin/python", "train.py", "50", "10",
    ]  # fmt: skip


def test_in_an_image_its_own_python_starts_the_rank_wrapper() -> None:
    within = ["apptainer", "exec", "/srv/x.sif"]
    inside, outside = specs(nodes=(replace(NODES[0], within=within), NODES[1]))
    assert inside["within"] == within
    assert "within" not in outside
    at = inside["argv"].index("--no-python")
    assert inside["argv"][at : at + 4] == ["--no-python", "/v/bin/python", "-I", "{agent}"]
    assert outside["argv"][at + 1] == "{python}"


def test_one_node_needs_no_gang() -> None:
    (spec,) = specs(replace(TRAIN, nodes=1), NODES[:1], master=("127.0.0.1", 21000))
    assert spec["argv"][3:8] == [
        "--nnodes=1", "--node-rank=0", "--nproc-per-node=2", "--master-addr=127.0.0.1", "--master-port=21000",
    ]  # fmt: skip
    assert spec["gang"] is None
    assert spec["master"] == {"address": "127.0.0.1", "port": 21000}


def test_a_module_runs_with_m() -> None:
    assert rank_command(replace(TRAIN, script=None, module="pkg.train"), "py") == ["py", "-m", "pkg.train", "50", "10"]


def test_a_script_that_looks_like_an_option_is_still_a_script() -> None:
    assert rank_command(replace(TRAIN, script="-c.py", argv=()), "py") == ["py", "./-c.py"]


def test_the_rest_of_the_specs() -> None:
    request = replace(TRAIN, prelude=("module load cuda",), outs=("**/*.pt",), grace_s=3.0)
    first, second = specs(request)
    same = {
        "schema": 1, "run": "digits-3", "attempt": 1, "cluster": "local-1", "nodes": 2, "tree": "project",
        "kind": "torchrun",
        "scrub": list(SCRUB), "world": 5, "master": {"address": "10.0.0.4", "port": 23456},
        "gang": {"address": "10.0.0.4", "port": 23457}, "prelude": ["module load cuda"], "outs": ["**/*.pt"],
        "grace_s": 3.0, "join_timeout_s": 1800.0,
    }  # fmt: skip
    own = {"node", "ranks", "rank_base", "argv", "env", "user_env", "path_first", "here"}
    assert [{key: spec[key] for key in spec.keys() - own} for spec in (first, second)] == [same, same]
    assert [(spec["node"], spec["ranks"], spec["rank_base"]) for spec in (first, second)] == [(0, 2, 0), (1, 3, 2)]
    assert [spec["here"] for spec in (first, second)] == [{"nodes": 1, "ranks": 2}, {"nodes": 1, "ranks": 3}]
    assert json.loads(json.dumps(first)) == first


# Any command.


def test_a_command_runs_as_typed_on_the_first_node_alone() -> None:
    (spec,) = specs(COMMAND, master=None)
    assert spec["argv"] == ["bash", "-c", "echo $HOME"]
    assert (spec["nodes"], spec["ranks"], spec["world"], spec["master"], spec["gang"]) == (1, 0, 0, None, None)


def test_a_command_on_all_nodes_is_told_what_its_own_torchrun_line_needs() -> None:
    both = specs(replace(COMMAND, nodes=2, all_nodes=True), master=None)
    told = [
        {name: value for name, value in spec["env"].items() if name.startswith(("GPUOPS", "OMP", "TORCH"))}
        for spec in both
    ]
    assert told == [
        {"GPUOPS_NODE_RANK": "0", "GPUOPS_NODES": "2", "GPUOPS_HEAD": "10.0.0.4"},
        {"GPUOPS_NODE_RANK": "1", "GPUOPS_NODES": "2", "GPUOPS_HEAD": "10.0.0.4"},
    ]
    assert both[1]["gang"] == {"address": "10.0.0.4", "port": 23457}


# The environment.


def test_the_environment_of_a_torchrun_node() -> None:
    assert env() == {
        "PYTHONUNBUFFERED": "1", "SPT_NOENV": "1", "GLOO_SOCKET_IFNAME": "eth1", "NCCL_SOCKET_IFNAME": "=eth1",
        "OMP_NUM_THREADS": "2", "TORCHELASTIC_ERROR_FILE": "{run}/agent_error.json",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("cores", "share", "ranks", "threads"), [(8, 1.0, 2, "4"), (2, 0.5, 2, "1"), (7, 1.0, 2, "3"), (1, 0.1, 4, "1")]
)
def test_cores_are_shared_among_ranks(cores: int, share: float, ranks: int, threads: str) -> None:
    node = replace(NODES[0], cores=cores, cores_share=share, ranks=ranks)
    assert env(node=node)["OMP_NUM_THREADS"] == threads


@pytest.mark.parametrize(("gpus", "visible"), [([0, 3], "0,3"), ([], ""), (None, None)])
def test_a_node_sees_its_own_gpus_only(gpus: list[int] | None, visible: str | None) -> None:
    assert env(node=replace(NODES[0], gpus=gpus)).get("CUDA_VISIBLE_DEVICES") == visible


def test_what_a_provider_says_is_under_the_users_own() -> None:
    node = replace(NODES[0], env={"NCCL_NET": "Socket", "GLOO_SOCKET_IFNAME": "lo"})
    assert (env(node=node)["NCCL_NET"], env(node=node)["GLOO_SOCKET_IFNAME"]) == ("Socket", "eth1")
    assert env(replace(TRAIN, env={"NCCL_NET": "IB"}), node)["NCCL_NET"] == "IB"


def test_the_users_variables_win_but_for_who_a_process_is() -> None:
    request = replace(
        TRAIN,
        data="/data",
        env={"OMP_NUM_THREADS": "7", "GLOO_SOCKET_IFNAME": "ib0", "RANKING": "x", "GPUOPS_DATA": "/mine"}
        | dict.fromkeys(["RANK", "WORLD_SIZE", "MASTER_ADDR", "PET_NNODES", "TORCHELASTIC_ERROR_FILE"], "no")
        | dict.fromkeys(["GPUOPS_RUN", "GPUOPS_STOP_FILE", "GPUOPS_SNAPSHOT_FILE"], "no"),
    )
    ours = env(replace(request, env={}))
    assert env(request) == {
        **ours, "OMP_NUM_THREADS": "7", "GLOO_SOCKET_IFNAME": "ib0", "RANKING": "x", "GPUOPS_DATA": "/mine",
    }  # fmt: skip
    assert ours["GPUOPS_DATA"] == "/data"


def test_data_are_where_the_node_has_them() -> None:
    request = replace(TRAIN, data="/here")
    sent, shared = replace(NODES[0], data="/root/n0/datax/here"), NODES[1]
    assert env(request, sent)["GPUOPS_DATA"] == "/root/n0/datax/here"
    assert env(request, shared)["GPUOPS_DATA"] == "/here"


@pytest.mark.parametrize(
    ("workload", "data", "kept"), [("mnist", None, "mnist"), ("mnist", "/d", None), ("toy", None, None), (None,) * 3]
)
def test_a_workload_that_reads_data_keeps_what_it_downloads(
    workload: str | None, data: str | None, kept: str | None
) -> None:
    assert specs(replace(TRAIN, workload=workload, data=data))[0].get("data") == kept


def test_what_an_image_presets_is_scrubbed() -> None:
    preset = ["PET_NNODES", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK",
              "LOCAL_WORLD_SIZE", "ROLE_RANK", "TORCHELASTIC_RUN_ID"]  # fmt: skip
    kept = ["PATH", "HOME", "RANKS", "WORLD_SIZES", "NCCL_DEBUG"]
    assert [name for name in preset + kept if not command_and_environment.is_scrubbed(name, SCRUB)] == kept


# How many ranks.


@pytest.mark.parametrize(
    ("mode", "asked", "gpus", "ranks"),
    [
        ("single", None, 4, 1), ("single", None, 0, 1), ("multigpu", None, 4, 4), ("multinode", None, 1, 1),
        ("multinode", None, 0, 2), ("multigpu", 3, 4, 3), ("multigpu", 5, 0, 5), ("multigpu", 4, 4, 4),
    ],
)  # fmt: skip
def test_ranks_per_node(mode: Any, asked: int | None, gpus: int, ranks: int) -> None:
    assert ranks_for(replace(TRAIN, mode=mode, gpus=asked), gpus) == ranks


@pytest.mark.parametrize(("gpus", "have"), [(1, "1 GPU"), (2, "2 GPUs")])
def test_more_ranks_than_gpus_are_refused(gpus: int, have: str) -> None:
    with pytest.raises(UsageError) as refused:
        ranks_for(replace(TRAIN, gpus=4), gpus)
    assert refused.value.message == f"--gpus 4 was asked for, but a node has {have}"
    assert refused.value.hint == f"ask for --gpus {gpus} or fewer, or leave --gpus out"
