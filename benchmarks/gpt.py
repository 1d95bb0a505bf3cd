"""train/gpt.py beside nanoGPT, where a checkout of it is named: the same model, text, steps and recipe on one process.

git clone https://github.com/karpathy/nanoGPT
python -m benchmarks gpt --nanogpt nanoGPT
"""

from __future__ import annotations

import os
import pickle
import re
import shutil
import statistics
import tempfile
from array import array
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import PYTHON, ROOT, Failed, Options, Skip, Table, run, version

TEXT = ROOT / "train/data/shakespeare.txt"
STEPS, BATCH, BLOCK = 500, 12, 64
HANG_S = 900.0
THEIR_WAY = (
    "config/train_shakespeare_char.py", "--device=cpu", "--compile=False", "--eval_iters=20", "--log_interval=1",
    f"--block_size={BLOCK}", f"--batch_size={BATCH}", "--n_layer=4", "--n_head=4", "--n_embd=128", "--dropout=0.0",
)  # fmt: skip
"""nanoGPT's own way for a cheap computer, from its README."""


def tables(options: Options) -> Iterator[Table]:
    if version("torch") == "not installed":
        raise Skip("there is no torch here")
    steps = 4 if options.tiny else STEPS
    with tempfile.TemporaryDirectory(prefix="gpuops-b") as folder:
        rows = [["`gpt.py`", *ours(Path(folder), steps)]]
        if options.nanogpt:
            rows.append(["nanoGPT", *theirs(Path(folder), options.nanogpt, steps)])
    note = (
        f"{steps} steps of {BATCH} x {BLOCK} letters, 4 layers of 128, one process; each draws batches and "
        "first weights of its own. nanoGPT shares the weights of its first and last layer."
    )
    yield Table("A GPT, letter by letter", ("program", "letters/s", "loss", "test loss"), rows, [note])


def ours(folder: Path, steps: int) -> list[str]:
    said = run([PYTHON, ROOT / "train/gpt.py", steps, steps // 2], cwd=folder, env=_environment(), hang_s=HANG_S)
    found = re.search(rf"step {steps}: loss ([\d.]+), test loss ([\d.]+), ([\d,]+) letters/s", said)
    if found is None:
        raise Failed("gpt.py told no figures")
    return [found[3], found[1], found[2]]


def theirs(folder: Path, checkout: Path, steps: int) -> list[str]:
    """In a copy, with our text in its format."""
    copy = folder / "nanogpt"
    shutil.copytree(checkout, copy, ignore=shutil.ignore_patterns(".git"))
    text = TEXT.read_text(encoding="utf-8")
    letters = sorted(set(text))
    codes = [letters.index(letter) for letter in text]
    data, split = copy / "data/shakespeare_char", int(0.9 * len(codes))
    (data / "train.bin").write_bytes(array("H", codes[:split]).tobytes())
    (data / "val.bin").write_bytes(array("H", codes[split:]).tobytes())
    (data / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": len(letters)}))
    counts = (f"--max_iters={steps}", f"--lr_decay_iters={steps}", f"--eval_interval={steps}")
    said = run([PYTHON, "train.py", *THEIR_WAY, *counts], cwd=copy, env=_environment(), hang_s=HANG_S)
    losses = re.search(rf"step {steps}: train loss ([\d.]+), val loss ([\d.]+)", said)
    times = [float(ms) for ms in re.findall(r"iter \d+: loss [\d.]+, time ([\d.]+)ms", said)]
    if losses is None:
        raise Failed("nanoGPT told no figures")
    rate = BATCH * BLOCK / (statistics.mean(times[len(times) // 2 : -1]) / 1000)  # the last one contains the test
    return [f"{rate:,.0f}", losses[1], losses[2]]


def _environment() -> dict[str, str]:
    return {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
