"""What cannot be exported is one sentence and one thing to do, before a line is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuops.commands.export.job import CPUS_PER_RANK, TIME_S, TargetOptions, clock_time, make_job
from gpuops.commands.export.targets import TARGETS, export_text
from gpuops.core.errors import UsageError
from gpuops.core.run_models import RunRequest

REQUEST = RunRequest(kind="torchrun", mode="multinode", nodes=2, gpus=4, script="train.py")
NONE = TargetOptions()


def refused(target: str, options: TargetOptions = NONE, **changed: Any) -> UsageError:
    with pytest.raises(UsageError) as caught:
        export_text(target, replace(REQUEST, **changed), options, port=1)
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize(
    ("target", "changed", "say"),
    [
        ("slurm", {"gpus": None}, "a launch that is written down says how many ranks a node has"),
        (
            "slurm", {"data": "s3://data/x"},
            "--data s3://data/x would be fetched by gpuops, and an exported launch does without it",
        ),
        ("k8s", {"data": "mnist"}, "--data mnist lies on this computer, and no container has it"),
        (
            "k8s", {"script": "toy.py", "workload": "toy"},
            "the workload toy lies on this computer, and no container has it",
        ),
        (
            "pbs", {"prelude": ("ulimit -n 9", "x=${LOCAL_RANK}")},
            (
                "the prelude line `x=${LOCAL_RANK}` reads LOCAL_RANK, and an exported launch runs preludes once per "
                "node, before torchrun has made any rank"
            ),
        ),
        ("slurm", {"secrets": ("A}; rm -r x; : ${A",)}, "--secret A}; rm -r x; : ${A names no variable"),
        ("slurm", {"argv": ("a\x1bb",)}, "'a\\x1bb' holds a character that nobody would see in a file (U+001B)"),
        ("slurm", {"argv": ("\udcff",)}, "'\\udcff' holds a character that nobody would see in a file (U+DCFF)"),
        ("k8s", {"env": {"A": "\u2028"}}, "'\\u2028' holds a character that nobody would see in a file (U+2028)"),
    ],
)  # fmt: skip
def test_refusals(target: str, changed: dict[str, Any], say: str) -> None:
    assert refused(target, TargetOptions(image="x") if target == "k8s" else TargetOptions(), **changed).message == say


@pytest.mark.parametrize(
    ("target", "options", "say"),
    [
        ("sbatch", {}, "'sbatch' is none of torchrun, slurm, pbs, k8s"),
        ("k8s", {}, "a pod is started from an image, and none is named"),
        ("slurm", {"image": "x"}, "--image says nothing to slurm"),
        ("slurm", {"select_extra": "x"}, "--select-extra says nothing to slurm"),
        ("pbs", {"qos": "x"}, "--qos says nothing to pbs"),
        ("torchrun", {"time": "2h"}, "--time says nothing to torchrun"),
        ("slurm", {"mem": 0}, "--mem 0 is too few"),
        ("torchrun", {"cpus": -1}, "--cpus -1 is too few"),
        ("slurm", {"time": "59s"}, "--time 59s is too short for a job"),
        ("slurm", {"time": "soon"}, "'soon' is not a length of time"),
        ("slurm", {"partition": "a b"}, "--partition 'a b' cannot stand in a header"),
        ("slurm", {"account": "a\n#SBATCH --x"}, "--account 'a\\n#SBATCH --x' cannot stand in a header"),
        ("slurm", {"qos": ""}, "--qos '' cannot stand in a header"),
        ("pbs", {"select_extra": "x\n"}, "--select-extra 'x\\n' cannot stand in a header"),
        ("k8s", {"image": 'x"\ny: z'}, "--image 'x\"\\ny: z' cannot stand in a header"),
        ("k8s", {"image": "x", "namespace": "A"}, "--namespace 'A' is no name for a job"),
        ("slurm", {"name": "a\nb"}, "--name 'a\\nb' is no name for a job"),
        ("k8s", {"image": "x", "name": "a" * 51}, f"--name '{'a' * 51}' is no name for a job"),
    ],
)
def test_options_that_cannot_be(target: str, options: dict[str, Any], say: str) -> None:
    assert refused(target, TargetOptions(**options)).message == say


def test_an_option_of_another_target_names_those_that_take_it() -> None:
    assert refused("torchrun", TargetOptions(mem=4)).hint == "leave it out; it is for slurm, pbs, k8s"


@pytest.mark.parametrize(
    ("typed", "written"),
    [("02:30:00", "02:30:00"), ("150min", "02:30:00"), ("2.5h", "02:30:00"), ("3d", "72:00:00"), (None, "01:00:00")],
)
def test_time_limits(typed: str | None, written: str) -> None:
    assert clock_time(make_job(REQUEST, TargetOptions(time=typed), in_image=False).time_s) == written
    assert TIME_S == 3600


def test_what_is_asked_for_without_options() -> None:
    job = make_job(REQUEST, TargetOptions(), in_image=False)
    assert (job.name, job.cpus, job.python) == ("train", 4 * CPUS_PER_RANK, "python3")
    assert make_job(REQUEST, TargetOptions(cpus=6), in_image=False).cpus == 6


def test_a_workload_is_named_by_its_whole_path() -> None:
    job = make_job(replace(REQUEST, workload="toy", script="toy.py"), TargetOptions(), in_image=False)
    assert Path(job.program[0]).is_absolute()
    assert Path(job.program[0]).is_file()


def test_a_script_whose_name_has_a_line_break_stays_in_its_comment() -> None:
    for target in TARGETS:
        options = TargetOptions(image="x") if target == "k8s" else TargetOptions()
        lines = export_text(target, replace(REQUEST, script="a\n#SBATCH --x\nb.py"), options, port=1).splitlines()
        first = next(line for line in lines if line.startswith("# a"))
        assert first == "# a #SBATCH --x b.py: 2 nodes, 4 ranks on each, one per GPU."
