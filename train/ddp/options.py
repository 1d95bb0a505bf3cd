"""The arguments that all programs share, in the tutorials' form: `50 10 --batch_size 32`."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any


class Arguments(argparse.ArgumentParser):
    """A parser that speaks on rank 0 only: torchrun gives all processes the same arguments, and one answer will do."""

    def _print_message(self, message: str, file: Any = None) -> None:
        if message and os.environ.get("RANK", "0") == "0":
            super()._print_message(message, file or sys.stderr)


class Given(argparse.Action):
    """Of an argument that has a flag as well (tutorials have both): argparse calls it with the default where it was
    left out, which must not take away what the flag has said."""

    def __call__(self, _parser: Any, namespace: argparse.Namespace, value: Any, _flag: Any = None) -> None:
        if value is not self.default:
            setattr(namespace, self.dest, value)


def arguments(teach: str, total_epochs: int, save_every: int, batch_size: int, seed: int) -> Arguments:
    """The parser, for the program to add its own to; `teach` is the program's docstring."""
    parser = Arguments(description=teach, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    parser.set_defaults(default_batch_size=batch_size)
    for name, default, what in (
        ("total_epochs", total_epochs, "epochs in all, those of earlier runs too"),
        ("save_every", save_every, "epochs between two snapshots"),
    ):
        add(name, nargs="?", type=positive, default=default, action=Given, help=f"{what}; or --{name} N ({default})")
        flags = f"--{name}", f"--{name.replace('_', '-')}"
        add(*flags, dest=name, type=positive, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    add(
        "--batch_size",
        "--batch-size",
        type=positive,
        metavar="N",
        help=f"samples per process and step (default {batch_size}); all processes together take world size times as "
        "many: with more processes lower this to train the same (cifar10 raises its learning rate instead, by itself)",
    )
    add(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="auto (default): a GPU per process where there are that many, else the processor; cpu: the processor; "
        "cuda: a GPU per process or an error, and the only one that a process sees, as Slurm may hand them out",
    )
    add(
        "--amp",
        choices=("off", "bf16", "fp16"),
        default="off",
        help="compute in 16 bits where that is safe, keep weights in 32; bf16 wherever the GPU has it (2020 and "
        "later), fp16 on older ones, with a scaler that keeps small gradients from becoming zero",
    )
    add("--save_steps", "--save-steps", type=positive, metavar="N", help="also a snapshot every N steps")
    add(
        "--seed",
        type=int,
        default=seed,
        metavar="N",
        help=f"of the first weights, the order of the samples and all else that is random (default {seed})",
    )
    add(
        "--deterministic",
        action="store_true",
        help="on GPUs: only kernels that give the same bits each time (torch.use_deterministic_algorithms); slower",
    )
    add("--tensorboard", action="store_true", help="write the scalars of every epoch for TensorBoard, to outputs/")
    add(
        "--profile",
        action="store_true",
        help="write a trace of a few steps of each rank to outputs/, for https://ui.perfetto.dev",
    )
    return parser


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return number
