"""What other tools call things, as gpuops' own lines: their commands, and the flags of torchrun. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

LINES: dict[str, tuple[str, ...]] = {
    "gpuops down": ("destroy", "terminate", "delete", "remove", "rm", "teardown", "shutdown", "release", "end"),
    "gpuops stop (the run alone), or gpuops down (its cluster as well)": ("kill", "cancel", "interrupt", "abort"),
    "gpuops status (what is up), or gpuops runs": ("ls", "ps", "list", "show", "queue", "jobs", "squeue", "qstat"),
    "gpuops status": ("info", "clusters", "nodes", "pods", "instances", "cost", "bill", "price", "balance"),
    "gpuops offers": ("prices", "search", "gpus", "market"),
    "gpuops up PROVIDER": ("rent", "create", "new", "launch", "start"),
    "gpuops logs -f": ("attach", "tail", "follow", "log", "output", "watch"),
    "gpuops ssh": ("shell", "connect", "login"),
    "gpuops ssh -- COMMAND": ("exec", "cmd"),
    "gpuops top": ("nvidia-smi", "smi", "gpustat", "nvtop", "htop"),
    "gpuops push (the project to the nodes), or gpuops pull (results home)": ("cp", "scp", "rsync", "sync", "transfer"),
    "gpuops pull": ("download", "fetch", "results"),
    "gpuops push": ("upload", "send"),
    "gpuops forward PORT": ("tunnel", "port-forward", "jupyter", "notebook", "port"),
    "gpuops lease NAME --extend 2h": ("extend", "renew"),
    "gpuops train multinode SCRIPT --resume RUN": ("resume", "restart", "retry", "continue"),
    "gpuops train multinode SCRIPT --detach": ("submit",),
    "gpuops export slurm": ("slurm", "sbatch", "srun", "salloc"),
    "gpuops export pbs": ("pbs", "qsub"),
    "gpuops export k8s": ("k8s", "kubectl", "kubernetes"),
    "gpuops train multinode --nodes 2 SCRIPT -- ARGS": ("torchrun", "accelerate", "deepspeed", "mpirun", "horovodrun"),
    "gpuops run -- python3 hello.py": ("python", "python3", "bash", "sh"),
    "gpuops doctor": ("check", "test", "diagnose", "setup", "configure", "config", "init"),
    "gpuops quota PROVIDER": ("limits", "quotas"),
    "gpuops reap": ("orphans", "clean", "cleanup", "prune", "gc"),
    "gpuops --version": ("version",),
    "gpuops train single, gpuops train multigpu or gpuops train multinode": ("single", "multigpu", "multinode", "ddp"),
}  # fmt: skip
"""What to type for what other tools (or a guess) call so."""
LINE_OF: Mapping[str, str] = {word: line for line, words in LINES.items() for word in words}

NODES, GPUS = "nnodes", "nproc-per-node"
RDZV = "rdzv-"
TORCHRUN_FLAGS = {
    NODES, GPUS, "node-rank", "master-addr", "master-port", "local-addr", "standalone", "max-restarts",
    "monitor-interval", "start-method", "role", "log-dir", "redirects", "tee", "local-ranks-filter", "use-env",
}  # fmt: skip
"""Of torchrun and torch.distributed.launch, dashes for underscores; also all that begin with `rdzv-`."""
TORCHRUN_SWITCHES = {"standalone", "use-env"}
"""Those that take no value."""


def torchrun_flag(option: str) -> str:
    """`--nproc_per_node` as `nproc-per-node`; empty for what is no flag of torchrun."""
    name = option.lstrip("-").replace("_", "-")
    return name if option.startswith("--") and (name in TORCHRUN_FLAGS or name.startswith(RDZV)) else ""


@dataclass
class TrainLine:
    """A line of `gpuops train`, sorted into what is gpuops' and what is the script's."""

    positional: list[str] = field(default_factory=list)
    """MODE and SCRIPT."""
    ours: list[str] = field(default_factory=list)
    theirs: list[str] = field(default_factory=list)

    def typed(self) -> str:
        """The whole line, as it should have been typed."""
        behind = ["--", *self.theirs] if self.theirs else []
        mode, *script = self.positional
        return shlex.join(["gpuops", "train", mode, *self.ours, *script, *behind])


def sort_train_line(words: Sequence[str], takes_value: Mapping[str, bool], passed: Sequence[str]) -> TrainLine:
    """Sort the words behind `gpuops train`: torchrun's flags become ours or go, unknown ones are the script's.

    `takes_value`: gpuops' options, and whether a value follows each. `passed`: what stood behind `--`.
    """
    line = TrainLine()
    names_program = any(word.partition("=")[0] in ("-m", "--workload") for word in words)
    remaining = list(words)
    theirs_began = False
    while remaining:
        word = remaining.pop(0)
        name, equals, value = word.partition("=")
        if name in takes_value:
            line.ours.append(word)
            if takes_value[name] and not equals and remaining:
                line.ours.append(remaining.pop(0))
            theirs_began = False
        elif flag := torchrun_flag(name):
            if flag not in TORCHRUN_SWITCHES and not equals and remaining:
                value = remaining.pop(0)
            line.ours += _as_ours(flag, value)
        elif word.startswith("-"):
            line.theirs.append(word)
            theirs_began = len(line.positional) + names_program > 1
            if not theirs_began and not equals and remaining and not remaining[0].startswith("-"):
                line.theirs.append(remaining.pop(0))
        elif theirs_began or len(line.positional) + names_program > 1:
            line.theirs.append(word)
        else:
            stands_as_mode = not line.positional and word.endswith(".py")
            line.positional += ["multinode", word] if stands_as_mode else [word]
    line.theirs += passed
    _spread(line)
    return line


def _as_ours(flag: str, value: str) -> list[str]:
    """A flag of torchrun as gpuops' own; nothing for one that gpuops finds out by itself."""
    most = value.rpartition(":")[2]
    if flag == NODES:
        return ["--nodes", most] if most.isdecimal() else []
    return ["--gpus", most] if flag == GPUS and most.isdecimal() else []


def _spread(line: TrainLine) -> None:
    """Name the mode that the line's size needs."""
    count = dict(re.findall(r"(--nodes|--gpus)[ =](\S+)", " ".join(line.ours)))
    if not line.positional:
        line.positional.append("multinode")
    mode = line.positional[0]
    if mode in ("single", "multigpu") and count.get("--nodes", "1") != "1":
        line.positional[0] = "multinode"
    elif mode == "single" and count.get("--gpus", "1") != "1":
        line.positional[0] = "multigpu"
