"""ResNet-18 on CIFAR-10 by DistributedDataParallel: one program for one process, many GPUs or many machines.

    python cifar10.py 2 1                                                  one process, two epochs, and their seconds
    python cifar10.py --amp bf16                                           the whole recipe on one GPU
    torchrun --standalone --nproc-per-node=4 cifar10.py 50 10              one machine, four processes
    torchrun --nnodes=2 --node-rank=0 --nproc-per-node=8 \\
             --master-addr=10.0.0.1 --master-port=29500 cifar10.py 50 10   two machines; the second says --node-rank=1

60,000 photographs of 32 x 32 pixels in ten classes, 10,000 of them to test with. They are downloaded once per machine
(170 MB, checked) into data/cifar10 and read from the archive as it is; --data names a folder that has it already
(cifar-10-binary.tar.gz, or cifar-10-batches-bin/ from it), or a mirror.

It trains on a GPU per process where there are that many (nccl) and on the processor elsewhere (gloo; OMP_NUM_THREADS
sets the threads of each process), where --width 16 makes a model that is small enough to wait for. The first process
keeps snapshots in snapshots/cifar10; the same command goes on from there. SIGUSR1 or SIGTERM to any process: all of
them stop together after the next step, with a snapshot.

The recipe is SGD with Nesterov's momentum, weight decay, crops and flips, 128 images per step, published twice: in 200
epochs it comes to 0.9528, the mean of five runs (DeVries and Taylor 2017, https://arxiv.org/abs/1708.04552); with the
learning rate up and down in straight lines, as here, and a slightly other ResNet-18, in 40 epochs above 0.94 in 6 of 7
runs (DAWNBench 2018, examples/dawn/basenet.json in https://github.com/bkj/basenet). The 50 epochs that are the default
here lie between; they are not yet run.
"""

from __future__ import annotations

import argparse
import gzip
import tarfile
import time
import zlib
from pathlib import Path

import numpy as np
import torch
from ddp.downloads import File, Unusable, add_data_option, fetch, load
from ddp.loader import Batches
from ddp.options import arguments, positive
from ddp.trainer import Trainer
from ddp.world import World, launch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import TensorDataset

# ---- what can be turned; the rest of the file is one straight path --------------------------------------------------
TOTAL_EPOCHS = 50
SAVE_EVERY = 10  # epochs between two snapshots
BATCH_SIZE = 128  # images per process and step: all processes together take world size times as many
LEARNING_RATE = 0.1  # at its peak, for each 128 images of a step on all processes together
PER_IMAGES = 128
WARM_UP = 0.3  # of all steps: the learning rate rises from zero to its peak, then falls to zero again
MOMENTUM = 0.9  # Nesterov's
WEIGHT_DECAY = 5e-4  # of all weights, BatchNorm's too, as in both recipes
WIDTH = 64  # channels of the first stage; the fourth has eight times as many
PADDING = 4  # black pixels around an image, of which a crop may show some
SEED = 2009  # of the first weights, the order of the images, crops and flips

# The version for C programs. The one for Python is made of pickles, and to read a stranger's pickle is to run his code.
# MD5 by its author, https://www.cs.toronto.edu/~kriz/cifar.html: c32a1d4ab5d03f1284b67883e8d87530. SHA-256 as in
# https://github.com/JuliaML/MLDatasets.jl and https://github.com/ankane/torchvision-ruby.
ARCHIVE = File(
    name="cifar-10-binary.tar.gz",
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    size=170_052_171,
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    unpacked="cifar-10-batches-bin",
)
TRAIN_FILES = [f"data_batch_{number}.bin" for number in range(1, 6)]
TEST_FILES = ["test_batch.bin"]
SIDE, CLASSES = 32, 10
RECORD = 1 + 3 * SIDE * SIDE  # bytes of an image: its label; red, green and blue, each row by row
MEAN = (125.3, 123.0, 113.9)  # of red, green and blue in the training images,
SPREAD = (63.0, 62.1, 66.7)  # and their standard deviation


def train(world: World, options: argparse.Namespace) -> None:
    folder = fetch(world, options.data, "cifar10", [ARCHIVE])
    train_set, test_set = load(world, lambda: read_data(folder))

    torch.manual_seed(options.seed)  # the same first weights in every process
    # Each pixel's channels side by side: what GPUs multiply fastest in 16 bits, and no slower elsewhere.
    model = build_model(options.width).to(world.device, memory_format=torch.channels_last)
    looks = Looks(world.device)
    batches = Batches(world, options, train_set, transform=looks.augmented)

    # An average over twice the images is half as noisy, and twice as long a step in its direction is as safe. Else
    # twice the processes would take half the steps of the same length, and get half as far. With warm-up this is known
    # to hold for a few thousand images per step, on other data (Goyal and others 2017, https://arxiv.org/abs/1706.02677).
    together = batches.batch * world.size
    rate = LEARNING_RATE * together / PER_IMAGES
    world.say(f"{together} images per step: learning rate {rate:g} at its peak, {LEARNING_RATE} for each {PER_IMAGES}")
    optimizer = torch.optim.SGD(model.parameters(), rate, MOMENTUM, weight_decay=WEIGHT_DECAY, nesterov=True)
    steps = options.total_epochs * len(batches)
    scheduler = LambdaLR(optimizer, lambda step: share_of_peak((step + 1) / (steps + 1)))

    trainer = Trainer(world, options, "cifar10", model, optimizer, batches, metrics, scheduler)
    began, epochs = time.perf_counter(), 0
    for epoch in trainer.epochs():
        epochs += 1
        note = f", snapshot in {epoch.snapshot}" if epoch.snapshot else ""
        loss, accuracy = epoch.means["loss"], epoch.means["accuracy"]
        world.say(f"epoch {epoch.number}: loss {loss:.4f}, train accuracy {accuracy:.4f}{note}")
    seconds = time.perf_counter() - began

    accuracy = trainer.test(Batches(world, options, test_set, for_test=True, transform=looks.plain))["accuracy"]
    world.say(f"test accuracy {accuracy:.4f} ({accuracy * len(test_set):.0f} of {len(test_set)})")
    world.say(f"{epochs} epoch{'s' * (epochs != 1)} took {seconds:.1f} seconds on {world.hardware()}")


# ---- the data -------------------------------------------------------------------------------------------------------


def read_data(folder: Path) -> tuple[TensorDataset, TensorDataset]:
    """Train and test set: images (n, 3, 32, 32) in bytes, as they are published, and labels (n,)."""
    where = folder / ARCHIVE.name
    if where.exists():
        contents = unpack(where)
    else:
        where = folder / ARCHIVE.unpacked
        contents = {path.name: path.read_bytes() for path in where.iterdir() if path.suffix == ".bin"}
    check(where, contents)
    return decode(contents, TRAIN_FILES), decode(contents, TEST_FILES)


def unpack(path: Path) -> dict[str, bytes]:
    """The data files in an archive, by their names."""
    contents = {}
    try:
        with gzip.open(path) as stream, tarfile.open(fileobj=stream, mode="r:") as archive:
            for member in archive:  # in their order: to go back in a compressed file is to begin again
                content = archive.extractfile(member)
                if content and member.name.endswith(".bin"):
                    contents[Path(member.name).name] = content.read()
            stream.read()  # to its end, where the checksum is
    except (gzip.BadGzipFile, zlib.error, EOFError, tarfile.TarError) as error:
        raise Unusable(f"{path} is damaged: {str(error).lower()}") from None
    return contents


def check(where: Path, contents: dict[str, bytes]) -> None:
    """Raise Unusable unless the files are there, whole, and of labels from 0 to 9."""
    first = TRAIN_FILES[0]
    for name in TRAIN_FILES + TEST_FILES:
        if name not in contents:
            raise Unusable(f"{where} has no {name}")
        size = len(contents[name])
        if not size or size % RECORD:
            raise Unusable(f"{name} in {where} has {size} bytes, which is no number of images of {RECORD} bytes each")
        if size != len(contents[first]):
            raise Unusable(f"{name} in {where} is cut: it has {size} bytes, and {first} has {len(contents[first])}")
        highest = max(contents[name][::RECORD])
        if highest >= CLASSES:
            raise Unusable(f"{name} in {where} has a label {highest}; labels are 0 to {CLASSES - 1}")


def decode(contents: dict[str, bytes], names: list[str]) -> TensorDataset:
    records = np.frombuffer(b"".join(contents[name] for name in names), np.uint8).reshape(-1, RECORD)
    images, labels = torch.tensor(records[:, 1:]), torch.tensor(records[:, 0])
    return TensorDataset(images.view(-1, 3, SIDE, SIDE), labels.long())


class Looks:
    """What the model gets to see of a batch of images, made where they lie: on the device, all of them at once.

    There the whole data set takes 184 MB as bytes, and four times that as the floats that a batch becomes here.
    """

    def __init__(self, device: torch.device) -> None:
        self.mean, self.spread = (torch.tensor(each, device=device).view(1, 3, 1, 1) for each in (MEAN, SPREAD))

    def plain(self, images: Tensor, labels: Tensor) -> list[Tensor]:
        return [((images - self.mean) / self.spread).contiguous(memory_format=torch.channels_last), labels]

    def augmented(self, images: Tensor, labels: Tensor) -> list[Tensor]:
        """Each image moved by up to 4 pixels either way, and half of them, by chance, in a mirror.

        By this rank's own random numbers, on the device: snapshots keep them, so that a resumed run crops and flips as
        an uninterrupted one.
        """
        top, left = torch.randint(2 * PADDING + 1, (2, len(images)), device=images.device)
        mirrored = torch.rand(len(images), device=images.device) < 0.5
        return self.plain(crop(images, top, left, mirrored), labels)


def crop(images: Tensor, top: Tensor, left: Tensor, mirrored: Tensor) -> Tensor:
    """Of each image in a black frame its own 32 x 32 pixels, beginning at its own (top, left), as one look-up."""
    framed = nn.functional.pad(images, [PADDING] * 4)
    along = torch.arange(SIDE, device=images.device)
    columns = torch.where(mirrored[:, None], SIDE - 1 - along, along) + left[:, None]
    rows = along + top[:, None]
    which, colour = (torch.arange(count, device=images.device) for count in framed.shape[:2])
    return framed[which[:, None, None, None], colour[:, None, None], rows[:, None, :, None], columns[:, None, None, :]]


# ---- the model ------------------------------------------------------------------------------------------------------


def build_model(width: int = WIDTH) -> nn.Sequential:
    """ResNet-18 (He and others 2015, https://arxiv.org/abs/1512.03385) as it is used for images this small: it begins
    with 3 x 3 pixels instead of 7 x 7 and a pool, which would leave 8 x 8 of 32 x 32. 11.2 million weights.

    Every BatchNorm looks at its own process's images only. With 128 of them it knows enough, and is what both recipes
    had; SyncBatchNorm would make all processes wait for each other twice in each of 20 layers, forward and backward.
    It is for those who have but a few images per process.
    """
    return nn.Sequential(
        *(convolution(3, width), nn.BatchNorm2d(width), nn.ReLU(inplace=True)),
        *(Block(width, width, 1), Block(width, width, 1)),
        *(Block(width, 2 * width, 2), Block(2 * width, 2 * width, 1)),
        *(Block(2 * width, 4 * width, 2), Block(4 * width, 4 * width, 1)),
        *(Block(4 * width, 8 * width, 2), Block(8 * width, 8 * width, 1)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, CLASSES)),
    )


class Block(nn.Module):
    """What is added to its input; where that has another shape, to a projection of it."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.added = nn.Sequential(
            *(convolution(before, after, stride=stride), nn.BatchNorm2d(after), nn.ReLU(inplace=True)),
            *(convolution(after, after), nn.BatchNorm2d(after)),
        )
        self.kept: nn.Module = nn.Identity()
        if stride > 1 or before != after:
            self.kept = nn.Sequential(convolution(before, after, size=1, stride=stride), nn.BatchNorm2d(after))

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.relu(self.added(images) + self.kept(images), inplace=True)


def convolution(before: int, after: int, size: int = 3, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(before, after, size, stride, padding=size // 2, bias=False)  # BatchNorm has one


def wide_enough(text: str) -> int:
    """Below 8 channels the library under PyTorch that computes convolutions on processors without AVX-512 writes beyond
    its memory (https://github.com/uxlfoundation/oneDNN/issues/6035): crashes, or gradients that are wrong in silence.
    """
    if positive(text) < 8:
        raise argparse.ArgumentTypeError(f"{text} is too narrow: from 8 channels on, every processor computes it right")
    return int(text)


def share_of_peak(done: float) -> float:
    """The learning rate after so much of the training, as a share of its peak: up and down in straight lines."""
    return min(done / WARM_UP, (1 - done) / (1 - WARM_UP))


def metrics(model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
    """For each image its loss, and whether it was recognised.

    The model ends without a softmax: cross_entropy has its own. With a second one in front of it, as some tutorials
    have, its inputs lie between 0 and 1, and even for an image that is recognised beyond doubt, with a 1 and nine
    zeros, the loss is -ln(e / (e + 9)) = ln(e + 9) - 1 = 1.461. It says so for ever, and hardly learns from what is
    wrong.
    """
    logits = model(images)
    return {
        "loss": nn.functional.cross_entropy(logits, labels, reduction="none"),
        "accuracy": logits.argmax(1) == labels,
    }


if __name__ == "__main__":
    parser = arguments(__doc__, TOTAL_EPOCHS, SAVE_EVERY, BATCH_SIZE, SEED)
    add_data_option(parser, "cifar10")
    parser.add_argument(
        "--width",
        type=wide_enough,
        default=WIDTH,
        metavar="CHANNELS",
        help=f"channels of the first stage (default {WIDTH}, which is ResNet-18); smaller to try the program on a "
        "processor, where half the width computes a quarter, and learns less",
    )
    launch(train, parser.parse_args())
