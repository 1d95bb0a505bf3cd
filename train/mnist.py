"""Handwritten digits by a small convolutional network: PyTorch's MNIST example, on any number of processes.

    python mnist.py 1                                               one epoch, on a GPU where there is one
    python mnist.py 1 --device cpu                                  the same on the processor
    torchrun --standalone --nproc-per-node=4 mnist.py               one machine, four processes
    torchrun --nnodes=2 --node-rank=0 --nproc-per-node=4 \\
             --master-addr=10.0.0.1 --master-port=29500 mnist.py    two machines; the second says --node-rank=1

The first two lines compare a GPU with the processor: each epoch tells its seconds. They are those of its steps, from
the first batch to the last figure, and of its snapshot. Reading the files comes before, once, and is told apart; so
is the test. Move snapshots/mnist away between the two, or the second finds everything learnt already.

The data are downloaded once per machine, 11.6 MB, into data/mnist; `--data` names another folder, or a mirror. It
trains on a GPU per process where there are that many (nccl) and on the processor elsewhere (gloo). The first process
keeps snapshots in snapshots/mnist; the same command goes on from there. SIGUSR1 or SIGTERM to any process: all of them
stop together after the next step, with a snapshot.
"""

from __future__ import annotations

import argparse
import gzip
import math
import time
import zlib
from pathlib import Path

import numpy as np
import torch
from ddp.downloads import File, Unusable, add_data_option, fetch, load
from ddp.loader import Batches
from ddp.options import arguments
from ddp.trainer import Trainer
from ddp.world import World, launch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

# ---- what can be turned; the rest of the file is one straight path --------------------------------------------------
TOTAL_EPOCHS = 14
SAVE_EVERY = 1  # epochs between two snapshots
BATCH_SIZE = 64  # images per process and step: all processes together take world size times as many
LEARNING_RATE = 1.0  # of Adadelta
FACTOR = 0.7  # of the learning rate, after every epoch
SEED = 1  # of the first weights, the order of the images and the neurons that are dropped
SIDE = 28  # pixels
MEAN, DEVIATION = 0.1307, 0.3081  # of all pixels of the training images, from 0 to 1

# The site where MNIST was published (yann.lecun.com/exdb/mnist) has it no more. This is the copy that PyTorch keeps
# with the authors' permission. The checksums are those that TensorFlow Datasets, Keras' and others' copies have, too.
SOURCE = "https://ossci-datasets.s3.amazonaws.com/mnist"
TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS = FILES = [
    File(f"{name}.gz", f"{SOURCE}/{name}.gz", size, sha256, unpacked=name)
    for name, size, sha256 in (
        ("train-images-idx3-ubyte", 9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        ("train-labels-idx1-ubyte", 28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        ("t10k-images-idx3-ubyte", 1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        ("t10k-labels-idx1-ubyte", 4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    )
]


def train(world: World, options: argparse.Namespace) -> None:
    folder = fetch(world, options.data, "mnist", FILES)
    began = time.perf_counter()
    train_set, test_set = load(world, lambda: load_data(folder))
    seconds = time.perf_counter() - began
    world.say(f"{len(train_set)} images to learn and {len(test_set)} to test, read in {seconds:.1f} s from {folder}")

    torch.manual_seed(options.seed)  # the same first weights in every process
    model = build_model().to(world.device)
    optimizer = torch.optim.Adadelta(model.parameters(), LEARNING_RATE)
    batches = Batches(world, options, train_set, transform=normalise)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, len(batches), FACTOR)  # it is stepped after every batch
    trainer = Trainer(world, options, "mnist", model, optimizer, batches, metrics, scheduler)
    began, epochs = time.perf_counter(), 0
    for epoch in trainer.epochs():
        epochs += 1
        note = f", snapshot in {epoch.snapshot}" if epoch.snapshot else ""
        loss, accuracy = epoch.means["loss"], epoch.means["accuracy"]
        took = f"{epoch.seconds:.1f} s on {world.hardware()}"
        world.say(f"epoch {epoch.number}: loss {loss:.4f}, train accuracy {accuracy:.4f}, {took}{note}")
    seconds = time.perf_counter() - began

    accuracy = trainer.test(Batches(world, options, test_set, for_test=True, transform=normalise))["accuracy"]
    world.say(
        f"test accuracy {accuracy:.4f} ({accuracy * len(test_set):.0f} of {len(test_set)}), "
        f"{epochs} epoch{'s' * (epochs != 1)} in {seconds:.1f} s on {world.describe()}"
    )


def load_data(folder: Path) -> tuple[TensorDataset, TensorDataset]:
    """Train and test set: images (n, 1, 28, 28) in bytes, a quarter of what they are as floats, and labels (n,)."""
    return load_set(folder, TRAIN_IMAGES, TRAIN_LABELS), load_set(folder, TEST_IMAGES, TEST_LABELS)


def load_set(folder: Path, images: File, labels: File) -> TensorDataset:
    pixels, digits = read_idx(folder, images, (SIDE, SIDE)), read_idx(folder, labels, ())
    if len(pixels) != len(digits):
        raise Unusable(f"{folder / labels.name} has {len(digits)} labels for {len(pixels)} images")
    if len(digits) and digits.max() > 9:
        raise Unusable(f"{folder / labels.name} has a label {digits.max()}, where digits are expected")
    return TensorDataset(torch.from_numpy(pixels).unsqueeze(1), torch.from_numpy(digits).long())


def read_idx(folder: Path, file: File, item: tuple[int, ...]) -> np.ndarray:
    """An IDX file's content, (n, *item) in bytes.

    The format: two zeros, 8 for bytes, the number of dimensions, each dimension's length in 32 bits with the highest
    byte first, then the items one after the other.
    """
    packed = folder / file.name
    path = packed if packed.exists() else folder / file.unpacked
    try:
        content = path.read_bytes()
        if path == packed:
            content = gzip.decompress(content)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise Unusable(f"{path} is damaged: {error}") from None
    dimensions = 1 + len(item)
    head = 4 + 4 * dimensions
    if content[:4] != bytes([0, 0, 8, dimensions]) or len(content) < head:
        raise Unusable(f"{path} is not an IDX file of bytes in {dimensions} dimensions")
    shape = tuple(int(length) for length in np.frombuffer(content, ">u4", dimensions, offset=4))
    if shape[1:] != item:
        raise Unusable(f"{path} holds items of {shape[1:]} and not of {item}")
    if len(content) != head + math.prod(shape):
        raise Unusable(f"{path} has {len(content)} bytes, where its head promises {head + math.prod(shape)}")
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape).copy()  # torch wants to be able to write


def normalise(images: Tensor, labels: Tensor) -> list[Tensor]:
    """What the model gets of a batch, made on its device: pixels around 0, as wide as 1."""
    return [images.float().div(255).sub(MEAN).div(DEVIATION), labels]


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(64 * 12 * 12, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, 10),  # no softmax: cross_entropy has its own
    )


def metrics(model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """For each image its loss, and whether it was read right."""
    logits = model(images)
    return {
        "loss": nn.functional.cross_entropy(logits, labels, reduction="none"),
        "accuracy": logits.argmax(1) == labels,
    }


if __name__ == "__main__":
    parser = arguments(__doc__, TOTAL_EPOCHS, SAVE_EVERY, BATCH_SIZE, SEED)
    add_data_option(parser, "mnist")
    launch(train, parser.parse_args())
