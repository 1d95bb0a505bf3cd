"""A small MNIST that can be learnt, in the published format: four gzipped IDX files."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

SIDE = 28


def make(folder: Path, train: int = 320, test: int = 97) -> None:
    """The four files in a folder; the published ones have 60,000 and 10,000 images."""
    for name, content in contents(train, test).items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(content, 1, mtime=0))


def contents(train: int = 320, test: int = 97) -> dict[str, bytes]:
    """The unpacked files, by name."""
    chance = np.random.default_rng(1998)
    figures = chance.integers(0, 256, (10, 7, 7)).repeat(4, axis=1).repeat(4, axis=2)  # one for each digit
    files = {}
    for name, count in (("train", train), ("t10k", test)):
        labels = chance.permutation(np.arange(count) % 10).astype(np.uint8)
        images = 0.6 * figures[labels] + chance.integers(0, 100, (count, SIDE, SIDE), np.uint8)
        files[f"{name}-images-idx3-ubyte"] = idx(images.astype(np.uint8))
        files[f"{name}-labels-idx1-ubyte"] = idx(labels)
    return files


def idx(array: np.ndarray) -> bytes:
    """Two zeros, the type (8: bytes), the number of dimensions, their lengths, the items."""
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()
