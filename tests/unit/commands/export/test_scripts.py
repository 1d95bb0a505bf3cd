"""The whole text for each target, as it lies in tests/golden/export; and what changes it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuops.commands.export import kubernetes, pbs, shell, slurm, torchrun
from gpuops.commands.export.job import ExportJob, TargetOptions, make_job
from gpuops.core.models import DATA
from gpuops.core.run_models import NodeFacts, RunRequest
from gpuops.runs.launch_spec import OUTER_LAUNCHER, node_specs

GOLDEN = Path(__file__).parents[3] / "golden" / "export"
REQUEST = RunRequest(
    kind="torchrun", mode="multinode", nodes=2, gpus=4, script="train.py", argv=("50", "10", "--name", "it's"),
    env={"WANDB_MODE": "offline", "NOTE": "two words"}, secrets=("HF_TOKEN",), prelude=("module load cuda/12.4",),
)  # fmt: skip
SLURM = TargetOptions(partition="gpu", account="physics", qos="normal", mem=64, cpus=32, time="02:30:00")
PBS = TargetOptions(partition="gpu", account="physics", mem=64, time="02:30:00", select_extra="gpu_model=v100")
K8S = TargetOptions(image="pytorch/pytorch:2.8.0", namespace="ml", mem=64, time="02:30:00")
NONE = TargetOptions()


def job(request: RunRequest = REQUEST, options: TargetOptions = NONE, **changed: Any) -> ExportJob:
    return make_job(replace(request, **changed), options, in_image=options.image is not None)


TEXTS = {
    "job.sbatch": slurm.write(job(options=SLURM)),
    "one_node.sbatch": slurm.write(job(nodes=1, prelude=(), secrets=(), env={})),
    "job.pbs": pbs.write(job(options=PBS)),
    "one_node.pbs": pbs.write(job(nodes=1, prelude=(), secrets=(), env={})),
    "job.yaml": kubernetes.write(job(options=K8S)),
    "one_node.yaml": kubernetes.write(job(options=TargetOptions(image="x"), nodes=1, prelude=(), secrets=(), env={})),
    "launch.txt": torchrun.write(job(), port=23456),
}


@pytest.mark.parametrize("name", TEXTS)
def test_the_whole_text(name: str) -> None:
    assert TEXTS[name] == (GOLDEN / name).read_text(encoding="utf-8")


def test_every_golden_text_is_written() -> None:
    assert sorted(path.name for path in GOLDEN.iterdir()) == sorted(TEXTS)


def test_it_is_the_line_that_gpuops_itself_starts() -> None:
    """All options of torchrun's that form the world, with this script's variables for what only a launch knows."""
    nodes = [NodeFacts(index, "python3", ranks=4, cores=32, interface="$interface", address="h") for index in (0, 1)]
    specs = node_specs(
        REQUEST, run="r", cluster="c", tree="project", nodes=nodes, master=("h", 23456), gang=None, attempt=1
    )
    lines = TEXTS["launch.txt"].replace('"$HEAD"', "h").replace("train-23456", "r-a1").split("# Then on node ")[1:]
    for spec, line in zip(specs, lines, strict=True):
        ours = spec["argv"][: spec["argv"].index("--max-restarts=0") + 1]
        assert " ".join(ours) in " ".join(line.replace("\\\n", " ").split())
    for name, value in specs[0]["env"].items():
        if name not in ("SPT_NOENV", "TORCHELASTIC_ERROR_FILE"):  # the agent's own
            assert f"{name}={value}" in TEXTS["job.sbatch"] or f'"${{{name}:-{value}}}"' in TEXTS["job.sbatch"], name
    assert specs[0]["user_env"] == REQUEST.env


@pytest.mark.parametrize("name", TEXTS)
def test_what_an_outer_launcher_left_goes(name: str) -> None:
    for word in OUTER_LAUNCHER:
        assert (f'"${{!{word}@}}"' if word.endswith("_") else f" {word}") in TEXTS[name]
    assert "RUNPOD_API_KEY" not in TEXTS[name]


@pytest.mark.parametrize("name", TEXTS)
def test_no_secret_has_a_value(name: str) -> None:
    if "one_node" not in name:
        assert "HF_TOKEN" in TEXTS[name]
    assert "HF_TOKEN=" not in TEXTS[name].replace("--from-file=HF_TOKEN=/dev/stdin", "")


@pytest.mark.parametrize("name", TEXTS)
def test_no_line_is_long_or_ends_in_a_blank(name: str) -> None:
    for line in TEXTS[name].splitlines():
        assert len(line) <= 140, line
        assert line == line.rstrip()


def test_a_users_variable_wins_over_ours() -> None:
    text = torchrun.write(job(env={"OMP_NUM_THREADS": "3"}), port=1)
    assert "export OMP_NUM_THREADS=3\n" in text
    assert "$(env -u OMP_NUM_THREADS nproc)" not in text
    assert "export OMP_NUM_THREADS=3\n" in slurm.write(job(env={"OMP_NUM_THREADS": "3"}))


@pytest.mark.parametrize(
    ("typed", "written"),
    [
        ("module load cuda/12.4", "module load cuda/12.4"),
        ("export LIMIT=$HOME/x", "export LIMIT=$HOME/x"),
        ("a && b", "eval 'a && b\n:'"),
        ("if x", "eval 'if x\n:'"),
        ("echo 'it", "eval 'echo '\"'\"'it\n:'"),
        ("x \\", "eval 'x \\\n:'"),
        ("", "eval '\n:'"),
    ],
)
def test_a_prelude_line_stays_what_it_is_and_where_it_is(typed: str, written: str) -> None:
    assert shell.prelude_lines(job(prelude=(typed,)), ends=False) == [written]


def test_a_python_in_the_home_of_the_user_there() -> None:
    assert '"$HOME"/venv/bin/python -m torch.distributed.run' in torchrun.write(job(python="~/venv/bin/python"), 1)


def test_data_that_every_node_has_are_named_by_their_variable() -> None:
    assert f"export {DATA}='/scratch/my data'\n" in slurm.write(job(data="node:/scratch/my data"))
    assert f"export {DATA}=data/mnist\n" in pbs.write(job(data="data/mnist"))


def test_modules_and_scripts_that_look_like_options() -> None:
    assert TEXTS["launch.txt"].count("    train.py 50 10 --name 'it'\"'\"'s'\n") == 2
    assert "\n        -m pkg.train 50\n" in slurm.write(job(script=None, module="pkg.train", argv=("50",)))
    assert "\n        ./-x.py\n" in slurm.write(job(script="-x.py", argv=()))


def test_the_snapshot_is_asked_for_ten_minutes_before_the_end_or_halfway() -> None:
    assert "--signal=B:USR1@600\n" in slurm.write(job(options=TargetOptions(time="2h")))
    assert "--signal=B:USR1@300\n" in slurm.write(job(options=TargetOptions(time="10min")))


# Kubernetes: the fields that the API has (batch/v1, v1), their types, and those that must be there.

TEXT, NUMBER, FLAG = "text", "number", "flag"
QUANTITIES = {"*": TEXT}
METADATA = {"name!": TEXT, "namespace": TEXT}
CONTAINER = {
    "name!": TEXT, "image!": TEXT, "command": [TEXT], "args": [TEXT],
    "env": [{
        "name!": TEXT, "value": TEXT,
        "valueFrom": {"secretKeyRef": {"name!": TEXT, "key!": TEXT}, "fieldRef": {"fieldPath!": TEXT}},
    }],
    "resources": {"limits": QUANTITIES, "requests": QUANTITIES},
    "volumeMounts": [{"name!": TEXT, "mountPath!": TEXT}],
}  # fmt: skip
POD = {
    "subdomain": TEXT, "restartPolicy!": TEXT, "containers!": [CONTAINER],
    "volumes": [{"name!": TEXT, "emptyDir": {"medium": TEXT}}],
}  # fmt: skip
SCHEMAS: dict[str, Any] = {
    "Job": {
        "apiVersion!": TEXT, "kind!": TEXT, "metadata!": METADATA,
        "spec!": {
            "completionMode": TEXT, "completions": NUMBER, "parallelism": NUMBER, "backoffLimit": NUMBER,
            "activeDeadlineSeconds": NUMBER, "template!": {"spec!": POD},
        },
    },
    "Service": {
        "apiVersion!": TEXT, "kind!": TEXT, "metadata!": METADATA,
        "spec!": {"clusterIP": TEXT, "publishNotReadyAddresses": FLAG, "selector": {"*": TEXT}},
    },
}  # fmt: skip


def check(value: Any, schema: Any, path: str) -> None:
    if isinstance(schema, list):
        assert isinstance(value, list), path
        for index, one in enumerate(value):
            check(one, schema[0], f"{path}[{index}]")
    elif isinstance(schema, dict):
        assert isinstance(value, dict), path
        known = {name.rstrip("!"): kind for name, kind in schema.items()}
        assert not {name[:-1] for name in schema if name.endswith("!")} - value.keys(), path
        for name, one in value.items():
            assert "*" in known or name in known, f"{path}.{name}"
            check(one, known.get(name, known.get("*")), f"{path}.{name}")
    else:
        assert type(value) is {TEXT: str, NUMBER: int, FLAG: bool}[schema], (path, value)


def documents(text: str) -> dict[str, Any]:
    found = {one["kind"]: one for one in yaml.safe_load_all(text)}
    for kind, one in found.items():
        check(one, SCHEMAS[kind], kind)
    return found


def test_the_job_and_its_service() -> None:
    found = documents(TEXTS["job.yaml"])
    assert list(found) == ["Job", "Service"]
    spec, pod = found["Job"]["spec"], found["Job"]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert (found["Job"]["apiVersion"], found["Service"]["apiVersion"]) == ("batch/v1", "v1")
    assert found["Job"]["metadata"] == found["Service"]["metadata"] == {"name": "train", "namespace": "ml"}
    assert (spec["completionMode"], spec["completions"], spec["parallelism"], spec["backoffLimit"]) == (
        "Indexed",
        2,
        2,
        0,
    )
    assert (pod["restartPolicy"], pod["subdomain"], spec["activeDeadlineSeconds"]) == ("Never", "train", 9000)
    assert found["Service"]["spec"]["selector"] == {"job-name": "train"}
    assert found["Service"]["spec"]["clusterIP"] == "None"
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "4"}, "requests": {"cpu": "16", "memory": "64Gi"}}
    assert container["volumeMounts"] == [{"name": "shm", "mountPath": "/dev/shm"}]
    assert pod["volumes"] == [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    secret = next(one for one in container["env"] if one["name"] == "HF_TOKEN")
    assert secret["valueFrom"] == {"secretKeyRef": {"name": "hf-token", "key": "HF_TOKEN"}}
    assert "--master-addr=train-0.train " in container["args"][0]


def test_variables_whose_names_are_words_of_yaml() -> None:
    text = kubernetes.write(job(options=K8S, env={"NO": "no", "y": "1"}, secrets=("null", "Off")))
    env = documents(text)["Job"]["spec"]["template"]["spec"]["containers"][0]["env"]
    assert [one["name"] for one in env[2:6]] == ["NO", "y", "null", "Off"]
    assert [one["value"] for one in env[2:4]] == ["no", "1"]


def test_one_pod_needs_no_service() -> None:
    assert list(documents(TEXTS["one_node.yaml"])) == ["Job"]


@pytest.mark.parametrize(
    ("script", "escaped"),
    [("$(x)", "$$(x)"), ("a $x ${y}", "a $x ${y}"), ("$$", "$$$$"), ("$$(x)", "$$$$(x)"), ("$", "$"), ("(x)$", "(x)$")],
)
def test_what_the_kubelet_would_replace_is_escaped(script: str, escaped: str) -> None:
    assert kubernetes.escape(script) == escaped
