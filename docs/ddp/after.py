"""ResNet-18 learns CIFAR-10 on all GPUs: torchrun --standalone --nproc-per-node=gpu after.py 20"""

import argparse
import os
import tarfile
import urllib.request

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # torch loads it later by itself, and it then holds on to the group
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.functional import cross_entropy, pad
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
BATCH_SIZE, LEARNING_RATE, SEED = 128, 0.1, 0
SNAPSHOT = "snapshot.pt"
RANK, LOCAL_RANK = int(os.environ.get("RANK", 0)), int(os.environ.get("LOCAL_RANK", 0))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", 1))


def download(folder):
    """Where the pictures are; 170 MB are fetched first if they are not here."""
    path = os.path.join(folder, "cifar-10-batches-bin")
    if not os.path.exists(path):
        os.makedirs(folder, exist_ok=True)
        archive, _ = urllib.request.urlretrieve(URL, os.path.join(folder, "cifar-10-binary.tar.gz"))
        with tarfile.open(archive) as tar:
            tar.extractall(folder)
    return path


class CIFAR10(Dataset):
    """In the files each picture is a byte of label and 3 x 32 x 32 bytes of color."""

    def __init__(self, folder, names, augment):
        files = [np.fromfile(os.path.join(folder, name), np.uint8).reshape(-1, 3073) for name in names]
        records = torch.from_numpy(np.concatenate(files))
        self.labels, self.images = records[:, 0].long(), records[:, 1:].view(-1, 3, 32, 32)
        self.augment = augment

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = self.images[index] / 127.5 - 1
        if self.augment:
            top, left, mirrored = (int(torch.randint(n, ())) for n in (9, 9, 2))
            image = pad(image, (4, 4, 4, 4))[:, top : top + 32, left : left + 32]
            image = image.flip(2) if mirrored else image
        return image, self.labels[index]


class Block(nn.Module):
    def __init__(self, before, after, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after)
        self.conv2, self.norm2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after)
        self.short = nn.Identity()
        if stride > 1:
            self.short = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x):
        y = self.norm1(self.conv1(x)).relu()
        return (self.norm2(self.conv2(y)) + self.short(x)).relu()


def resnet18():
    layers = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    for before, after, stride in ((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)):
        layers += [Block(before, after, stride), Block(after, after, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def run_epoch(model, loader, device, optimizer=None):
    """Mean loss and accuracy; with an optimizer the model learns."""
    totals = torch.zeros(3, dtype=torch.float64, device=device)  # loss, right answers, pictures
    for images, labels in loader:
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        logits = model(images)
        loss = cross_entropy(logits, labels)
        if optimizer:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        totals[0] += loss.detach() * len(labels)
        totals[1] += (logits.argmax(1) == labels).sum()
        totals[2] += len(labels)
    dist.all_reduce(totals)
    return (totals[:2] / totals[2]).tolist()


def train(options):
    torch.manual_seed(SEED + RANK)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    if LOCAL_RANK == 0:
        download(options.data)
    dist.barrier()
    folder = download(options.data)  # it is there by now
    train_set = CIFAR10(folder, [f"data_batch_{i}.bin" for i in range(1, 6)], augment=True)
    test_set = CIFAR10(folder, ["test_batch.bin"], augment=False)
    settings = {"num_workers": options.workers, "pin_memory": device.type == "cuda"}
    sampler = DistributedSampler(train_set, seed=SEED)
    train_loader = DataLoader(train_set, BATCH_SIZE // WORLD_SIZE, sampler=sampler, **settings)
    test_share = Subset(test_set, range(RANK, len(test_set), WORLD_SIZE))
    test_loader = DataLoader(test_share, BATCH_SIZE, **settings)

    model = resnet18().to(device)
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), LEARNING_RATE, momentum=0.9, weight_decay=5e-4, nesterov=True)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs)

    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    there = RANK == 0 and os.path.exists(SNAPSHOT)
    found = [torch.load(SNAPSHOT, map_location="cpu", weights_only=True) if there else {"epochs": 0}]
    dist.broadcast_object_list(found)
    epochs_done = found[0]["epochs"]
    if epochs_done:
        for name, part in parts.items():
            part.load_state_dict(found[0][name])

    for epoch in range(epochs_done, options.epochs):
        sampler.set_epoch(epoch)
        model.train()
        loss, _ = run_epoch(ddp, train_loader, device, optimizer)
        scheduler.step()
        model.eval()
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)
        with torch.no_grad():
            test_loss, accuracy = run_epoch(model, test_loader, device)
        if RANK == 0:
            print(f"epoch {epoch + 1}: loss {loss:.4f}, test loss {test_loss:.4f}, test accuracy {accuracy:.4f}")
            state = {name: part.state_dict() for name, part in parts.items()}
            torch.save({"epochs": epoch + 1, **state}, SNAPSHOT + ".part")
            os.replace(SNAPSHOT + ".part", SNAPSHOT)
    if RANK == 0:
        torch.save(model.state_dict(), "cifar10.pt")


@record  # an exception's traceback goes where torchrun looks for it
def main(options):
    if torch.cuda.is_available():
        torch.cuda.set_device(LOCAL_RANK)  # "cuda" means this one from here on
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    store = None if "RANK" in os.environ else dist.HashStore()  # plain python: a world of one
    dist.init_process_group(backend, store=store, rank=RANK, world_size=WORLD_SIZE)
    train(options)
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("epochs", nargs="?", type=int, default=20)
    parser.add_argument("--data", default="data")
    parser.add_argument("--workers", type=int, default=2)
    main(parser.parse_args())
