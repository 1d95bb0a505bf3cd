"""The table of commands: name, module, one sentence; and the text of `gpuops --help`, printed from it.

The table imports nothing, and only the module of the typed command is imported: importing takes most of the time of a
short command.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Command(NamedTuple):
    module: str
    """Under `gpuops.cli`."""
    does: str
    """One sentence, which is also the first of the command's help."""


GROUPS: dict[str, dict[str, Command]] = {
    "Training": {
        "train": Command("train_run", "Train through torchrun on one GPU, one node or several."),
        "run": Command("train_run", "Run any command on a node."),
        "logs": Command("logs", "Show a run's output, running or past."),
        "stop": Command("stop", "Stop a run in good order; the cluster stays."),
        "runs": Command("runs", "List runs, the latest last."),
        "tensorboard": Command("tensorboard", "Show runs in TensorBoard, on this computer; Ctrl-C ends it."),
        "report": Command("report", "Write a run as one HTML file: curves, use, time and money."),
        "export": Command("export", "Write the launch of a script for a scheduler, or as torchrun lines to type."),
    },
    "Clusters": {
        "offers": Command("offers", "Show what every provider would rent now, and what it costs in all."),
        "up": Command("up", "Bring up a cluster and leave it up."),
        "status": Command("status", "Show what is up, and until when."),
        "top": Command("top", "Show what every node does now: processors, memory, GPUs, ranks, money."),
        "lease": Command("lease", "Show until when a cluster may live, or extend it."),
        "push": Command("push_pull", "Send the project to a cluster's nodes."),
        "pull": Command("push_pull", "Bring results home again."),
        "ssh": Command("ssh", "Open a shell on a node, in the project's folder."),
        "forward": Command("ssh", "Open a port of a node on this computer."),
        "down": Command("down", "End clusters; results come home first."),
    },
    "When in doubt": {
        "doctor": Command("doctor", "Say what would keep a run from going well, and what to do about it."),
        "trust": Command("trust", "Let this project's gpuops.toml reach beyond the project, as it is now."),
        "quota": Command("quota", "Show what an account may have at once, whether a request fits, and ask for more."),
        "policy": Command("policy", "Print the least that an account must allow for what gpuops does."),
        "reap": Command(
            "reap", "Find resources with our mark that the ledger does not know: end them, or take them back."
        ),
        "prove": Command("prove", "Show with real machines that a provider keeps what gpuops promises."),
    },
}
COMMANDS: dict[str, Command] = {name: command for group in GROUPS.values() for name, command in group.items()}

HEAD = "A PyTorch script to N rented GPU nodes, and everything home, with one command."
OPTIONS = {
    "--version": "Print the version.",
    "--install-completion": "Install completion for the current shell.",
    "--show-completion": "Print what --install-completion would install.",
    "-h, --help": "Show this message and exit.",
}
FOOT = "gpuops COMMAND --help explains each, with examples. First: gpuops train multinode --nodes 2"


def short_answer(arguments: Sequence[str]) -> str | None:
    """The answer to `gpuops`, `--help` and `--version`, which need no parser; None for any other line."""
    if list(arguments) == ["--version"]:
        from gpuops import __version__

        return f"gpuops {__version__}"
    return overview() if list(arguments) in ([], ["-h"], ["--help"]) else None


def overview() -> str:
    """The text of `gpuops --help`."""
    lines = ["Usage: gpuops COMMAND [OPTIONS] [ARGS]...", "", f"  {HEAD}"]
    for title, rows in {**{title: _does(group) for title, group in GROUPS.items()}, "Options": OPTIONS}.items():
        width = max(map(len, [*COMMANDS, *OPTIONS]) if title == "Options" else map(len, COMMANDS)) + 2
        lines += ["", f"{title}:", *(f"  {name.ljust(width)}{does}" for name, does in rows.items())]
    return "\n".join([*lines, "", FOOT])


def _does(group: dict[str, Command]) -> dict[str, str]:
    return {name: command.does for name, command in group.items()}
