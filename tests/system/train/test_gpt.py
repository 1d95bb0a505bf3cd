"""train/gpt.py: one process, copies (DDP) and shards (FSDP) learn the same; shards of two nodes come home, and back."""

from __future__ import annotations

import os
import pickle
import re
import shutil
from pathlib import Path

import pytest
from late import torch

from tests.conftest import Shell

HEAD = re.compile(r"811,648 weights, ([\d,]+) of them on each of (\d) ranks; (\d) steps are done")
LINE = re.compile(r"step (\d): loss (\d\.\d{4}), test loss (\d\.\d{4}), [\d,]+ letters/s")


@pytest.mark.real_torch
def test_all_ways_learn_the_same_and_shards_come_home_as_one_folder_and_go_back(
    shell: Shell, world, tmp_path: Path
) -> None:
    """One process, copies and shards; then two nodes, each of which writes its own shards, with a stop in between."""
    learnt = {}
    for kind, ranks, held in (("fsdp", 1, "811,648"), ("ddp", 2, "811,648"), ("fsdp", 2, "405,824")):
        cwd = tmp_path / f"{kind}{ranks}"
        cwd.mkdir()
        out = world("gpt.py", "3", "3", "--parallel", kind, ranks=ranks, cwd=cwd).succeed().out()
        assert HEAD.fullmatch(out[0]).groups() == (held, str(ranks), "0")
        learnt[kind, ranks] = LINE.fullmatch(out[1]).groups()
        assert len("\n".join(out[2:])) >= 150, "what it writes"
    assert len(set(learnt.values())) == 1, learnt

    train = ("train", "multinode", "--gpus", "1", "--env", "OMP_NUM_THREADS=1", "--workload", "gpt")
    first = shell.run(*train, "--", "2", "1")
    assert first.returncode == 0, first.stderr
    home = shell.folder / "runs" / "gpt-1" / "out" / "snapshots" / "gpt"
    assert sorted(str(path.relative_to(home)) for path in home.rglob("*.*")) == sorted(
        f"{folder}/{name}" for folder in "ab" for name in (".metadata", "__0_0.distcp", "__1_0.distcp")
    )
    assert (home / "last").read_text() == "b"
    resumed = shell.run(*train, "--resume", "gpt-1", "--", "3", "3")
    assert resumed.returncode == 0, resumed.stderr
    assert "[n0 r0] 811,648 weights, 405,824 of them on each of 2 ranks; 2 steps are done" in resumed.stdout
    ours = weights(shell.folder / "runs" / "gpt-2" / "out", tmp_path / "ours.pt")
    whole = weights(tmp_path / "fsdp2", tmp_path / "whole.pt")
    assert ours.keys() == whole.keys()
    assert all(torch.equal(ours[name], whole[name]) for name in ours)

    (cwd / "snapshots/gpt/a/.metadata").write_bytes(pickle.dumps(Runs()))
    failed = world("gpt.py", "6", "3", cwd=cwd)
    failed.finish()
    assert failed.codes == [1]
    assert not (cwd / "run").exists(), "whoever wrote a snapshot runs nothing where it is loaded"


def test_shards_of_several_steps_are_no_snapshot(world, tmp_path: Path) -> None:
    """What a lost machine had sent home by then: `b` with a shard of the save before."""
    world("gpt.py", "2", "1", ranks=2, cwd=tmp_path).succeed()
    kept = tmp_path / "snapshots/gpt"
    shutil.copy(kept / "a/__1_0.distcp", kept / "b/__1_0.distcp")
    out = world("gpt.py", "3", "3", ranks=2, cwd=tmp_path).succeed().out()
    assert HEAD.fullmatch(out[0])[3] == "1", "the one before is whole"
    assert (kept / "last").read_text() == "b", "and is not what the next one is written over"
    shutil.copy(kept / "a/__1_0.distcp", kept / "b/__1_0.distcp")
    shutil.rmtree(kept / "a")
    failed = world("gpt.py", "4", "3", ranks=2, cwd=tmp_path)
    failed.finish()
    assert failed.codes == [1, 1]
    assert "error: shards of several steps lie in snapshots/gpt/b, and there is no other snapshot" in failed.err()


class Runs:
    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("run",)


def weights(folder: Path, file: Path) -> dict[str, torch.Tensor]:
    """All shards of a snapshot, put together by one process."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    dcp_to_torch_save(folder / "snapshots" / "gpt" / "a", file)
    model: dict[str, torch.Tensor] = torch.load(file, weights_only=True)["model"]
    return model
