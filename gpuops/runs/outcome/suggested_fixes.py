"""What to do about a program's last words. Pure: words in, one thing to do out.

The words are those of torch 2.13, Python and argparse as programs from public repositories said them
(docs/scripts.md), and of CUDA and older releases of torch as their sources have them.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Iterator, Sequence

from gpuops.nodes.cuda import CPU_INDEX

_PORT_TAKEN = re.compile(r"EADDRINUSE|[Aa]ddress already in use")
_GPU_MEMORY = re.compile(r"\btorch\.(?:cuda\.)?OutOfMemoryError|CUDA out of memory")
_SHARED_MEMORY = re.compile(
    r"Bus error|out of shared memory|/dev/shm|unable to (?:write to|resize|open|mmap)[^\n]*</?torch_"
)
_DISK_FULL = re.compile(
    r"\[Errno (?:28|122)\]|No space left on device|[Qq]uota exceeded|ENOSPC|"
    r"basic_ios::clear: iostream error|inline_container\.cc[^\n]*unexpected pos|PytorchStreamWriter failed writing"
)
"""The last three are what `torch.save` says instead."""
_NO_GPU = re.compile(
    r"_cuda_setDevice|not compiled with CUDA|no NVIDIA driver|No CUDA GPUs are available|"
    r"access accelerator device when none|torch\.cuda\.is_available\(\) is False"
)
_WANTS_GPU = re.compile(
    r"\b(?:requires?|needs?|at least|sufficient|no|without|only)\s(?:[\w-]+\s){0,3}(?:gpus?|cuda)\b|"
    r"\b(?:gpus?|cuda)\b[\w\s-]{0,20}\b(?:not (?:available|found|detected)|unavailable|required|needed)\b",
    re.IGNORECASE,
)
"""How scripts say it in their own words. Only a last line is searched: a script that goes on without GPUs says more."""
_ASSERTED_GPU = re.compile(r"^\s+assert [^\n]*\b(?:cuda|accelerator)\b[^\n]*\n(?:[\s^]*\n)*AssertionError\s*\Z", re.M)

SHARED_MEMORY = "shared memory (/dev/shm) is probably too small: use `num_workers=0`, or an image with more of it"
_JOINING = re.compile(r"connectFullMesh failed")
BARRIER = "let the script call `dist.barrier()` before `dist.destroy_process_group()` at its end"
DISK = "make room on that disk, or write fewer and smaller files"
GPUS = (
    "it wants GPUs: run it on a machine that has them, with a torch built for them (`--on ssh --host USER@HOST`), "
    "or let the script use the CPU, with gloo"
)
NCCL = (
    "nccl needs GPUs: let the script choose gloo where there are none, or run it on a machine that has them "
    "(`--on ssh --host USER@HOST`)"
)
ORDINAL = (
    "it asks for a GPU that its node does not have: LOCAL_RANK counts the GPUs of a node, RANK those of all; "
    "`--gpus N` starts fewer ranks"
)
_NAMES = {
    "PIL": "pillow", "cv2": "opencv-python", "dotenv": "python-dotenv", "hydra": "hydra-core",
    "skimage": "scikit-image", "sklearn": "scikit-learn", "yaml": "pyyaml",
}  # fmt: skip
"""Modules whose package has another name: a package of the module's name is another project's, or does not exist."""
_OWN = ("config", "data", "dataset", "datautils", "model", "models", "src", "train", "trainer", "util", "utils")
"""Modules that are nearly always a project's own; a package of that name on PyPI is something else."""
_MARKS = r"(?:[ ~^]+\n)?"
_HIDES = tuple(
    re.compile(pattern)
    for pattern in (
        # A line of an installed package imports a module, and what is run for it is a file of the project.
        r'File "[^"\n]*/(?:site-packages|dist-packages|lib/python3[\d.]*)/[^"\n]*", line \d+, in [^\n]*\n'
        r"\s+(?:from|import) (?P<module>\w+)\b[^\n]*\n" + _MARKS +
        r'\s*File "[^"\n]*/project/(?P<path>(?:[^"\n]*/)?(?P=module)(?:/__init__)?\.py)"',
        # The same, where that file has run, and lacks what was to be imported from the module.
        r'File "(?![^"\n]*/project/)[^"\n]*", line \d+, in [^\n]*\n[^\n]*\n' + _MARKS +
        r"ImportError: cannot import name [^\n]* from (?:partially initialized module )?'(?P<module>\w+)' "
        r"[^\n]*\([^\n]*/project/(?P<path>(?:[^\n]*/)?(?P=module)(?:/__init__)?\.py)\)",
        # A script that has the name of a module it imports imports itself.
        r'File "[^"\n]*/project/(?P<path>(?:[^"\n]*/)?(?P<module>\w+)\.py)", line \d+, in [^\n]*\n[^\n]*\n' + _MARKS +
        r"\w+: (?:partially initialized module '(?P=module)'|cannot import name [^\n]* '(?P=module)') ",
    )
)  # fmt: skip
"""In a traceback: a file of the project is imported in place of an installed module."""
_OWN_PACKAGE = r'File "[^"\n]*/project/({0}/[^"\n]*)\.py"'


def advice(final: str, everything: str) -> Iterator[str]:
    """What helps, the best first. `final`: the exception that ended the program; `everything`: all its last lines."""
    if hiding := _hidden_module(everything):
        yield _rename(hiding)
    for pattern, remedy in _REMEDIES:
        match = pattern.search(final)
        if match and (say := remedy(match, everything) if callable(remedy) else remedy):
            yield say
    if wants_gpus(last_line(final)) or _ASSERTED_GPU.search(everything):
        yield GPUS


def _rename(path: str) -> str:
    return f"{path} is imported in place of an installed module of that name: rename it"


def wants_gpus(line: str) -> bool:
    """Whether a program's last line says that it needs GPUs."""
    return bool(_NO_GPU.search(line) or _WANTS_GPU.search(line))


def last_line(text: str) -> str:
    """The last line that is not blank; empty where there is none."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def is_port_taken(text: str) -> bool:
    """Whether these words say that a port was in use."""
    return _PORT_TAKEN.search(text) is not None


def was_joining(text: str) -> bool:
    """Whether these words say that a rank had not met all the others yet, as gloo says it."""
    return _JOINING.search(text) is not None


def is_gpu_memory(text: str) -> bool:
    return _GPU_MEMORY.search(text) is not None


def is_disk_full(text: str) -> bool:
    return _DISK_FULL.search(text) is not None and not _SHARED_MEMORY.search(text)


def held_back(text: str, held: Sequence[str]) -> str | None:
    """The remedy for a module that is missing because its file was not sent; None for any other reason. To install a
    stranger's package of that name would be the worst advice."""
    module = _NO_MODULE.search(text)
    stem = module[1].replace(".", "/") if module else ""
    for path in held:
        if stem and path in (f"{stem}.py", f"{stem}/__init__.py"):
            return f"{path} was held back: move the key to .env and use --secret, or send it: --send-anyway {path}"
    return None


def _hidden_module(everything: str) -> str:
    """The project's file that was imported in place of an installed module; empty for none."""
    return next((match["path"] for pattern in _HIDES if (match := pattern.search(everything))), "")


def _module(match: re.Match[str], everything: str) -> str:
    name = match[1].split(".")[0]
    if f"; '{name}' is not a package" in everything:
        return _rename(f"{name}.py")
    if own := re.search(_OWN_PACKAGE.format(re.escape(name)), everything):
        return f"{name} is the project's own package: run the script as a module of it, `-m {own[1].replace('/', '.')}`"
    if name in _OWN:
        return (
            f"{name} is probably a file of your own: check from which folder you run the script, "
            "and that no ignore rule keeps it from being pushed"
        )
    if name in ("torchvision", "torchaudio"):
        return (
            f"install the {name} that was made for this torch, from the same place: for one without CUDA "
            f"`--setup 'pip install {name} --index-url {CPU_INDEX}'`"
        )
    if name == "apex":
        return "NVIDIA's apex is built from its source: the apex that pip finds is something else"
    package = _NAMES.get(name, name)
    return f"`--setup 'pip install {package}'` installs it on every node (or all: `-r requirements.txt`)"


def _missing_file(match: re.Match[str], _everything: str) -> str:
    path = match[1]
    inside = posixpath.normpath(path)
    data = "PATH" if inside.startswith(("/", "..")) else shlex.quote(posixpath.dirname(inside) or inside)
    return f"there is no {path} on the node: what git ignores is not sent, `--data {data}` brings it, once it is here"


_NO_MODULE = re.compile(r"No module named '?([\w.]+)")
WANDB = "--secret WANDB_API_KEY, or --env WANDB_MODE=offline"
_ASKED = "it asked for input, and nobody can answer there: "


def _asked(_match: re.Match[str], everything: str) -> str:
    if "wandb" in everything:
        return _ASKED + WANDB
    return f"{_ASKED}give it behind `--`, with --env or with --secret (for a login of wandb: {WANDB})"


_REMEDIES: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str], str], str]], ...] = (
    (_GPU_MEMORY, "use a smaller batch, or GPUs with more memory (`--gpu-mem`)"),
    (_SHARED_MEMORY, SHARED_MEMORY),
    (_DISK_FULL, DISK),
    (
        re.compile(r"can't open file '([^']*)'"),
        lambda match, _: f"check the path, and that no ignore rule keeps it from being pushed: there is no {match[1]}",
    ),
    (_NO_MODULE, _module),
    (
        re.compile(r"NameResolutionError|Failed to resolve '|urlopen error|Max retries exceeded with url"),
        "the node could not download it: have it here, and send it with `--data PATH`",
    ),
    (
        re.compile(r"could not be downloaded from \w+://"),  # one of our workloads
        "have it here, and name its folder: `--data PATH` (a mirror stands behind `--`: `-- --data URL`)",
    ),
    (
        re.compile(r"FileNotFoundError: \[Errno 2\] No such file or directory: '([^']+)'"),
        _missing_file,
    ),
    (_PORT_TAKEN, "run it again: gpuops takes a fresh port each time; one that the script opens itself must be free"),
    (re.compile(r"EOFError: EOF when reading a line|termios\.error: \(25, "), _asked),  # input(), getpass()
    (
        re.compile(r"\bbdb\.BdbQuit\b"),
        "a breakpoint waits for somebody at a terminal, and nobody is there: take it out, or --env PYTHONBREAKPOINT=0",
    ),
    (
        re.compile(r"wandb[^\n]*(?:[Aa][Pp][Ii][ _]key (?:not )?configured|no-tty|not logged in|wandb login)"),
        "nobody can log in there: " + WANDB,
    ),
    (
        re.compile(r"invalid literal for int\(\) with base 10: '(gpu|xpu)'"),
        lambda match, everything: (
            f"`--nproc_per_node={match[1]}` counts the GPUs of its machine, and it has none: name a number of ranks "
            "(`--nproc_per_node=2`), or run it where there are GPUs"
            if "nproc_per_node" in everything
            else ""
        ),
    ),
    (re.compile(r"NCCL built in|NCCL is only supported with GPUs"), NCCL),
    (re.compile(r"invalid device ordinal"), ORDINAL),
    (
        re.compile(r"no kernel image is available|driver on your system is too old|driver version is insufficient"),
        "this torch does not fit the node's GPUs or their driver: `gpuops doctor` says which does",
    ),
    (_NO_GPU, GPUS),
    (
        re.compile(r"unrecognized arguments:[^\n]*--local[-_]rank|arguments are required:[^\n]*--local[-_]rank"),
        "torchrun tells a rank's place by the variable LOCAL_RANK: let the script read it there",
    ),
    (
        re.compile(r"error: the following arguments are required: ([^\n]+)"),
        lambda match, _: "a script's arguments stand behind `--`: … -- " + match[1].replace(",", ""),
    ),
    (re.compile(r"error: unrecognized arguments:"), "behind `--`, `--help` shows the arguments that the script takes"),
    (
        re.compile(r"environment variable (?:RANK|WORLD_SIZE|MASTER_\w+) expected|"
                   r"KeyError: '(?:RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE|MASTER_ADDR|MASTER_PORT)'"),
        "torchrun tells a script who it is, as `gpuops train multigpu SCRIPT` starts it",
    ),
    (
        re.compile(r"KeyError: '(?:SLURM|PBS|OMPI|PMI)_\w+'"),
        "it expects a batch system's variables: let it read RANK, LOCAL_RANK and WORLD_SIZE, which torchrun sets",
    ),
    (
        re.compile(r"Weights only load failed"),
        "that file holds more than tensors: if you trust it, `--env TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1`",
    ),
    (
        re.compile(r"failed finding central directory|PytorchStreamReader failed|EOFError: Ran out of input"),
        "a snapshot it reads is not whole: go on from an earlier run's (`--resume RUN`), or take it away",
    ),
)  # fmt: skip
