"""Every workload through the command, on real hosts: trained, stopped, gone on with elsewhere, and without internet."""

from __future__ import annotations

import hashlib
import importlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuops.sync.workloads_and_data import WORKLOADS
from tests.conftest import HANG_S, until
from tests.system.lab.available import why_no_lab
from tests.system.lab.hosts import Host, Lab
from tests.system.lab.laptop import Laptop, root

pytestmark = pytest.mark.real_torch

MULTINODE = ("train", "multinode", "--gpus", "1", "--env", "OMP_NUM_THREADS=1")
"""Two hosts of one rank each: what costs time is how often torch is loaded. Each host believes that all cores are its
own, so that threads of both would wait for each other."""


@pytest.fixture(scope="module")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laptop]:
    """One laptop for all tests here, with a cluster `lab` of two hosts, and two hosts more."""
    if reason := why_no_lab():
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("workloads")
    (folder / "project").mkdir()
    with Lab(folder / "lab") as lab, tempfile.TemporaryDirectory(prefix="gpuops-") as home:
        one = Laptop(Path(home), folder / "project", prefix=lab.enter, lab=lab)
        for name in "abcd":
            lab.host(name)
        one.up(*lab.hosts[:2])
        yield one
        one.end()


def made(laptop: Laptop, name: str) -> Path:
    """A workload's data, small and in the published format, on the laptop."""
    folder = laptop.folder.parent / name
    if not folder.exists():
        folder.mkdir()
        importlib.import_module(f"tests.system.train.made.{name}").make(folder)
    return folder


def kept(host: Host, name: str) -> Path:
    """Where a host keeps what a workload downloads."""
    (folder,) = root(host).glob(f"root/.gpuops-*/data/{name}")
    return folder


def home(laptop: Laptop, run: str) -> Path:
    return laptop.folder / "runs" / run / "out"


def weights(laptop: Laptop, run: str) -> str:
    """SHA-256 of the model in a run's last snapshot."""
    import torch

    folder = home(laptop, run) / "snapshots" / run.rpartition("-")[0]
    state = torch.load(folder / (folder / "last").read_text().strip(), weights_only=True)["model"]
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in state.values())).hexdigest()


RESULTS = {"mnist": "test accuracy", "cifar10": "1 epoch took", "movielens": "test HR@10"}
"""With what the line of a tutorial's own result begins."""


@pytest.mark.proof  # test_data.py sends data to hosts, tests/system/train/ reads each workload's
@pytest.mark.parametrize("name", [name for name, known in WORKLOADS.items() if known.reads])
def test_a_workload_reads_data_that_were_sent(laptop: Laptop, name: str) -> None:
    """Epochs that the small data take a moment for."""
    data = made(laptop, name)
    done = laptop.run(*MULTINODE, "--cluster", "lab", "--workload", name, "--data", str(data), "--", "1")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "all 2 ranks ended well" in done.stderr
    assert f"\n[n0 r0] {RESULTS[name]} " in done.stdout
    assert "data: kept in" not in done.stderr, "nothing is downloaded"
    assert (home(laptop, f"{name}-1") / "snapshots" / name / "last").exists()
    assert {path.name for path in home(laptop, f"{name}-1").iterdir()} - {".gpuops.jsonl"} <= {"snapshots", "outputs"}
    for host in laptop.lab.hosts[:2]:
        (there,) = root(host).glob(f"root/.gpuops-*/lab/n?/data*/{name}")
        assert {path.name for path in there.iterdir()} == {path.name for path in data.iterdir()}


@pytest.mark.proof
@pytest.mark.parametrize(
    ("gpus", "line", "steps"),
    [
        (2, "[n1 r3] [GPU3] Epoch 47 | Batchsize: 32 | Steps: 16", 800),
        (8, "[n1 r11] [GPU11] Epoch 47 | Batchsize: 32 | Steps: 4", 200),
    ],
    ids=["4 ranks", "16 ranks"],
)
def test_toy_on_many_ranks_says_the_tutorials_line(laptop: Laptop, gpus: int, line: str, steps: int) -> None:
    """The line of so many ranks, without hosts: tests/system/train/test_toy.py."""
    words = ("train", "multinode", "--gpus", str(gpus), "--cluster", "lab", "--workload", "toy")
    done = laptop.run(*words, "--", "50", "10")
    assert done.returncode == 0, done.stderr
    assert f"all {2 * gpus} ranks ended well" in done.stderr
    assert line in done.stdout.splitlines()
    run = max((laptop.folder / "runs").glob("toy-*")).name
    assert (home(laptop, run) / "snapshots" / "toy" / "last").read_text() == f"step-{steps:08}.pt\n"


def test_a_stopped_run_goes_on_on_other_hosts_to_the_same_weights(laptop: Laptop) -> None:
    """It has far more to do than anybody waits for, and then a few epochs more than it had done: however fast it is."""
    a, b, c, d = laptop.lab.hosts
    process = laptop.start(
        *MULTINODE, "--on", "ssh", *laptop.naming(a, b), "--workload", "digits", "--", "9999", "9999"
    )
    log = laptop.folder / "runs" / "digits-1" / "logs" / "node0" / "rank0.out"
    until(lambda: log.exists() and "epoch 1: " in log.read_text(), "the first epoch")
    assert laptop.run("stop", "digits-1").returncode == 0
    said, errors = process.communicate(timeout=HANG_S)
    assert process.returncode == 130, errors
    assert "\n[n0 r0] stopped " in said, said
    last = said.count("[n0 r0] epoch ") + 3
    epochs = ("--workload", "digits", "--", str(last), "9999")

    words = (*MULTINODE, "--on", "ssh", *laptop.naming(c, d), "--resume", "digits-1")
    other = laptop.run(*words, "--workload", "toy")
    assert (other.returncode, other.stderr.splitlines()[-2:]) == (
        2, ["error: digits-1 trained digits, this is toy", "hint: name it: --workload digits"],
    )  # fmt: skip
    resumed = laptop.run(*words, *epochs)
    assert resumed.returncode == 0, resumed.stderr
    assert "[n0 r0] resumed from snapshots/digits/step-" in resumed.stdout
    assert "epoch 1: " not in resumed.stdout
    whole = laptop.run(*MULTINODE, "--on", "ssh", *laptop.naming(a, b), *epochs)
    assert whole.returncode == 0, whole.stderr
    assert "[n0 r0] epoch 1: " in whole.stdout
    assert f"[n0 r0] epoch {last}: " in whole.stdout
    assert weights(laptop, "digits-2") == weights(laptop, "digits-3") != weights(laptop, "digits-1")
    laptop.expect_hosts_clean(c, d)


def test_without_internet_a_sentence_and_what_is_put_there_by_hand_is_found(laptop: Laptop) -> None:
    a, b = laptop.lab.hosts[:2]
    words = ("train", "single", "--cluster", "lab", "--workload", "mnist", "--", "1")
    failed = laptop.run(*words)
    assert failed.returncode == 1, failed.stderr
    error, verdict, hint = failed.stderr.splitlines()[-3:]
    assert error.startswith("error: train-images-idx3-ubyte.gz could not be downloaded from https://"), failed.stderr
    assert verdict == "rank 0 on node0 failed with exit code 1"
    assert hint.startswith("hint: have it here")

    made_there = kept(a, "mnist")
    for path in made(laptop, "mnist").iterdir():
        (made_there / path.name).write_bytes(path.read_bytes())
    again = laptop.run(*words)
    assert again.returncode == 0, again.stderr
    assert "; what is missing there is downloaded once" in again.stderr
    assert "test accuracy" in again.stdout
    assert not list((laptop.folder / "runs").glob("mnist-*/out/data")), "data are no results"
    assert laptop.run("down", "lab").returncode == 0
    laptop.expect_hosts_clean(a, b)
