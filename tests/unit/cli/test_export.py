"""`gpuops export` as it is typed: what it prints, what it writes, and that it leaves nothing else behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.desk import Desk

GOLDEN = Path(__file__).parents[2] / "golden" / "export"


@pytest.fixture
def project(desk: Desk) -> Desk:
    desk.write("train.py", "")
    return desk


def test_the_file_that_a_scheduler_takes(project: Desk) -> None:
    said = project.type(
        "export", "pbs", "train.py", "--nodes", "2", "--gpus", "4", "--partition", "gpu", "--account", "physics",
        "--mem", "64", "--time", "02:30:00", "--select-extra", "gpu_model=v100", "--env", "WANDB_MODE=offline",
        "--env", "NOTE=two words", "--secret", "HF_TOKEN", "--prelude", "module load cuda/12.4",
        "--", "50", "10", "--name", "it's",
    )  # fmt: skip
    assert (said.code, said.err) == (0, "")
    assert said.out == (GOLDEN / "job.pbs").read_text()
    assert not project.home.exists()
    assert [path.name for path in project.folder.iterdir()] == ["train.py"]


def test_a_file_of_its_own(project: Desk) -> None:
    line = ("export", "slurm", "train.py", "--gpus", "4", "-o", "job.sbatch", "--", "50", "10", "--name", "it's")
    assert project.type(*line) == project.type("export", "slurm", "train.py", "--gpus", "4", "--output", "b", "--", "x")
    assert (project.folder / "job.sbatch").read_bytes() == (GOLDEN / "one_node.sbatch").read_bytes()
    said = project.type(*line)
    assert said.code == 2
    assert said.err == "error: job.sbatch is there already\nhint: name another file, or remove that one\n"
    said = project.type("export", "slurm", "train.py", "--gpus", "4", "-o", "no/job")
    assert (said.code, said.err.splitlines()[0]) == (4, "error: no/job cannot be written: No such file or directory")


def test_json(project: Desk) -> None:
    said = project.type("export", "torchrun", "-m", "pkg.train", "--gpus", "2", "--json")
    document = json.loads(said.out)
    assert (document["kind"], document["target"]) == ("export", "torchrun")
    assert "    -m pkg.train\n" in document["text"]


def test_two_launches_by_hand_do_not_meet_at_one_port(project: Desk) -> None:
    texts = {project.type("export", "torchrun", "train.py", "--gpus", "2").out for _ in range(8)}
    assert len(texts) > 1


def test_what_gpuops_toml_says_of_train(project: Desk) -> None:
    toml = project.write("gpuops.toml", '[train]\nnodes = 3\ngpus = 2\nenv = ["A=b c"]\nsetup = "pip install x"\n')
    said = project.type("export", "slurm", "train.py")
    assert said.code == 2
    assert "you have not trusted this file with env" in said.err
    project.type("trust", "--yes")
    said = project.type("export", "slurm", "train.py")
    assert said.code == 0, said.err
    assert "note: setup of gpuops.toml is what gpuops does around a run: it is not written down here" in said.err
    assert "--nodes=3\n" in said.out
    assert "export A='b c'\n" in said.out
    toml.unlink()


@pytest.mark.parametrize(
    ("words", "say", "hint"),
    [
        (["slurm", "train.py"], "a launch that is written down says how many ranks a node has",
         "add --gpus 4: a rank per GPU"),
        (["train.py", "--gpus", "4"], "'train.py' is none of torchrun, slurm, pbs, k8s",
         "say first for what: gpuops export slurm train.py"),
        (["slurm", "no.py", "--gpus", "4"], "there is no script no.py",
         "check the path; it is looked for under the current folder"),
        (["slurm", "train.py", "50", "--gpus", "4"], "'50' is more than gpuops export takes",
         "what belongs to your script stands behind `--`: gpuops export slurm train.py --gpus 4 -- 50 10"),
        (["slurm", "train.py", "--gpus", "0"], "--gpus 0 is too few", "--gpus takes a number from 1"),
        (["slurm", "train.py", "--gpus", "4", "--env", "RANK=3"],
         "--env RANK cannot be set: it tells each process of the run which one it is",
         "leave it out; --nodes and --gpus say how many there are"),
        (["slurm", "train.py", "-m", "x", "--gpus", "4"],
         "SCRIPT and -m exclude each other", "name one thing to train"),
    ],
)  # fmt: skip
def test_one_sentence_and_one_thing_to_do(project: Desk, words: list[str], say: str, hint: str) -> None:
    said = project.type("export", *words)
    assert (said.code, said.out) == (2, "")
    assert said.err == f"error: {say}\nhint: {hint}\n"
    assert not project.home.exists()
