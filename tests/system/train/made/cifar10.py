"""A small CIFAR-10 that can be learnt, in the published format: bytes in files in a tar.gz."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np

FOLDER = "cifar-10-batches-bin"
NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
FILES = [f"data_batch_{number}.bin" for number in range(1, 6)]
ORDER = [FILES[0], "batches.meta.txt", *FILES[2:4], "test_batch.bin", "readme.html", FILES[4], FILES[1]]
"""Of the files in an archive: none that a reader may rely on."""


def make(folder: Path, per_file: int = 40) -> Path:
    """`cifar-10-binary.tar.gz` in a folder; the published one has 10,000 images in each of its six files."""
    path = folder / "cifar-10-binary.tar.gz"
    pack(path, contents(per_file))
    return path


def contents(per_file: int = 40) -> dict[str, bytes]:
    """The files, by name."""
    chance = np.random.default_rng(2009)
    scenes = chance.integers(0, 256, (10, 3, 4, 4)).repeat(8, axis=2).repeat(8, axis=3)  # one for each class
    files = {name: images(scenes, per_file, chance) for name in (*FILES, "test_batch.bin")}
    return {**files, "batches.meta.txt": ("\n".join(NAMES) + "\n\n").encode(), "readme.html": b"<html></html>\n"}


def images(scenes: np.ndarray, count: int, chance: np.random.Generator) -> bytes:
    """A label, then red, green and blue row by row; as many of each class as there can be, in any order."""
    labels = chance.permutation(np.arange(count) % 10).astype(np.uint8)
    pixels = 0.6 * scenes[labels].astype(np.float32) + chance.integers(0, 100, (count, 3, 32, 32), np.uint8)
    return np.concatenate([labels[:, None], pixels.astype(np.uint8).reshape(count, -1)], axis=1).tobytes()


def pack(path: Path, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        folder = tarfile.TarInfo(FOLDER)
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        archive.addfile(folder)
        for name in (name for name in ORDER if name in files):
            member = tarfile.TarInfo(f"{FOLDER}/{name}")
            member.size = len(files[name])
            archive.addfile(member, io.BytesIO(files[name]))


def unpack(folder: Path, files: dict[str, bytes]) -> Path:
    """The same without an archive."""
    path = folder / FOLDER
    path.mkdir()
    for name, content in files.items():
        (path / name).write_bytes(content)
    return path
