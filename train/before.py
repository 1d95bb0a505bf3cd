"""Handwritten digits on one GPU, or on the processor: python before.py 20"""

import argparse
import os

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

BATCH_SIZE, LEARNING_RATE, SEED = 64, 5e-3, 1998
DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data/digits.csv.gz")


def load_data(path):
    """1,500 images to learn from and 297 to test with: (n, 1, 8, 8) from 0 to 1, and the digits (n,)."""
    table = torch.from_numpy(np.loadtxt(path, delimiter=",", dtype=np.float32))  # 64 pixels in 0..16, then the digit
    table = table[torch.randperm(len(table), generator=torch.Generator().manual_seed(SEED))]
    images, digits = table[:, :64].view(-1, 1, 8, 8) / 16, table[:, 64].long()
    return TensorDataset(images[:1500], digits[:1500]), TensorDataset(images[1500:], digits[1500:])


def build_model():
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, 10)),
    )


def run_epoch(model, loader, device, optimizer=None):
    """Mean loss and accuracy over all samples; with an optimizer the model learns."""
    totals = torch.zeros(3, device=device)  # loss, right answers, samples
    for images, digits in loader:
        images, digits = images.to(device), digits.to(device)
        logits = model(images)
        loss = cross_entropy(logits, digits)
        if optimizer:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        right = (logits.argmax(1) == digits).sum()
        totals += torch.stack([loss.detach() * len(digits), right, right.new_tensor(len(digits))])
    return (totals[:2] / totals[2]).tolist()


def train(options, device):
    torch.manual_seed(SEED)
    train_set, test_set = load_data(options.data)
    train_loader = DataLoader(train_set, BATCH_SIZE, shuffle=True)
    test_loader = DataLoader(test_set, BATCH_SIZE)

    model = build_model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE)

    for epoch in range(options.total_epochs):
        loss, _ = run_epoch(model, train_loader, device, optimizer)
        with torch.no_grad():
            _, accuracy = run_epoch(model, test_loader, device)
        print(f"[GPU0] Epoch {epoch} | Batchsize: {BATCH_SIZE} | Steps: {len(train_loader)}")
        print(f"loss {loss:.4f}, test accuracy {accuracy:.4f}")
    torch.save(model.state_dict(), "first.pt")


def main(options):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train(options, device)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("total_epochs", nargs="?", type=int, default=20)
    parser.add_argument("--data", default=DATA)
    main(parser.parse_args())
