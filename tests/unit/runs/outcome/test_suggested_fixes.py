"""Given a program's last words, then this is the one thing to do.

The words are those of programs from public repositories (docs/scripts.md) under torch 2.13 without CUDA; what only
a machine with GPUs can say is marked as such, and is what torch's source says.
"""

from __future__ import annotations

import pytest

from gpuops.runs.outcome.failure_cause import extract_exception
from gpuops.runs.outcome.suggested_fixes import advice, last_line, wants_gpus, was_joining

GPUS = "it wants GPUs: run it on a machine that has them, with a torch built for them (`--on ssh --host USER@HOST`)"
GETPASS = (
    "termios.error: (25, 'Inappropriate ioctl for device')\n\nDuring handling of the above exception, another "
    "exception occurred:\n\nTraceback (most recent call last):\n    raise EOFError\nEOFError"
)
NPROC_GPU = """\
Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/torch/distributed/run.py", line 748, in determine_local_world_size
    return int(nproc_per_node)
           ^^^^^^^^^^^^^^^^^^^
ValueError: invalid literal for int() with base 10: 'gpu'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/torch/distributed/run.py", line 755, in determine_local_world_size
    raise ValueError("Cuda is not available.") from e
ValueError: Cuda is not available.
"""
WORDS = [
    # GPUs
    ("AttributeError: module 'torch._C' has no attribute '_cuda_setDevice'", GPUS),
    ("RuntimeError: Cannot access accelerator device when none is available.", GPUS),
    ("AssertionError: Torch not compiled with CUDA enabled", GPUS),
    ("AssertionError: Requires at least 2 GPUs to run, but got 0", GPUS),
    ("AssertionError: for now i think we need CUDA for DDP", GPUS),
    ("ValueError: GPU is required", GPUS),
    ("RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU", GPUS),  # CUDA
    ("RuntimeError: No CUDA GPUs are available", GPUS),  # CUDA
    (
        "RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False. If",
        GPUS,
    ),
    ("RuntimeError: Distributed package doesn't have NCCL built in", "nccl needs GPUs: let the script choose gloo"),
    ("ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!", "nccl needs GPUs"),  # CUDA
    ("torch.AcceleratorError: CUDA error: invalid device ordinal", "it asks for a GPU that its node does not have"),
    ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "`gpuops doctor` says"),
    (
        NPROC_GPU,
        "`--nproc_per_node=gpu` counts the GPUs of its machine, and it has none: name a number",
    ),
    # questions
    (
        "EOFError: EOF when reading a line",
        "it asked for input, and nobody can answer there: give it behind `--`, with --env or with --secret",
    ),
    (
        "wandb: Enter your choice: Traceback (most recent call last):\nEOFError: EOF when reading a line",
        "it asked for input, and nobody can answer there: --secret WANDB_API_KEY, or --env WANDB_MODE=offline",
    ),
    (
        GETPASS,
        "it asked for input, and nobody can answer there: give it behind `--`, with --env or with --secret",
    ),
    ("bdb.BdbQuit", "take it out, or --env PYTHONBREAKPOINT=0"),
    (
        "wandb.errors.errors.UsageError: api_key not configured (no-tty). call wandb.login(key=[your_api_key])",
        "nobody can log in there: --secret WANDB_API_KEY, or --env WANDB_MODE=offline",
    ),
    (
        "wandb.errors.errors.UsageError: No API key configured. Use `wandb login` to log in.",
        "nobody can log in there: --secret WANDB_API_KEY, or --env WANDB_MODE=offline",
    ),
    # modules
    ("ModuleNotFoundError: No module named 'boto3'", "`--setup 'pip install boto3'` installs it on every node"),
    ("ModuleNotFoundError: No module named 'hydra.core'", "`--setup 'pip install hydra-core'`"),
    ("ModuleNotFoundError: No module named 'sklearn'", "`--setup 'pip install scikit-learn'`"),
    ("ModuleNotFoundError: No module named 'torchvision'", "--index-url https://download.pytorch.org/whl/cpu"),
    ("ModuleNotFoundError: No module named 'apex'", "NVIDIA's apex is built from its source"),
    ("ModuleNotFoundError: No module named 'utils'", "utils is probably a file of your own"),
    # arguments and variables
    (
        "usage: ddp.py [-h]\nddp.py: error: the following arguments are required: total_epochs, save_every",
        "a script's arguments stand behind `--`: … -- total_epochs save_every",
    ),
    ("usage: lr.py [-h]\nlr.py: error: unrecognized arguments: --local-rank=0", "by the variable LOCAL_RANK"),
    ("usage: a.py [-h]\na.py: error: unrecognized arguments: --epoch 5", "behind `--`, `--help` shows the arguments"),
    (
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment variable RANK expected",
        "as `gpuops train multigpu SCRIPT` starts it",
    ),
    ("KeyError: 'LOCAL_RANK'", "as `gpuops train multigpu SCRIPT` starts it"),
    ("KeyError: 'SLURM_PROCID'", "it expects a batch system's variables"),
    # files
    (
        "FileNotFoundError: [Errno 2] No such file or directory: 'data/shakespeare_char/train.bin'",
        "is not sent, `--data data/shakespeare_char` brings it, once it is here",
    ),
    ("FileNotFoundError: [Errno 2] No such file or directory: './train.bin'", "`--data train.bin` brings it"),
    ("FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'", "`--data PATH` brings it"),
    (
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='x'): Max retries exceeded with url: /y",
        "have it here, and send it with `--data PATH`",
    ),
    (
        "error: a.gz could not be downloaded from https://x/a.gz: Name or service not known; put it into data by hand",
        "name its folder: `--data PATH`",
    ),
    (
        "_pickle.UnpicklingError: Weights only load failed. This file can still be loaded, to do so you have",
        "if you trust it, `--env TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1`",
    ),
    (
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory.",
        "a snapshot it reads is not whole",
    ),
    ("OSError: [Errno 122] Disk quota exceeded", "make room on that disk"),
    (
        "RuntimeError: unable to write to file </torch_77_12>: No space left on device (28)",
        "shared memory (/dev/shm) is probably too small",
    ),
]


def remedy(text: str) -> str:
    return next(advice(extract_exception(text), text), "")


def raised(words: str) -> str:
    return (
        f'Traceback (most recent call last):\n  File "/n0/project/train.py", line 9, in <module>\n    main()\n{words}\n'
    )


@pytest.mark.parametrize(("words", "then"), WORDS, ids=[words[:40] for words, _ in WORDS])
def test_remedy(words: str, then: str) -> None:
    assert then in remedy(words if words.startswith("usage") else raised(words))


def test_a_bare_assertion_is_read_from_its_line() -> None:
    trace = '  File "train.py", line 3, in <module>\n    assert torch.cuda.is_available()\n           ^^^^^^^^^\n'
    assert remedy(f"Traceback (most recent call last):\n{trace}AssertionError\n").startswith(GPUS)


def test_the_projects_own_package_is_not_to_be_installed() -> None:
    trace = (
        'Traceback (most recent call last):\n  File "/w/n0/project/src/jobs/train_ddp.py", line 21, in <module>\n'
        "    from src.checkpoint import save\nModuleNotFoundError: No module named 'src'\n"
    )
    assert remedy(trace) == (
        "src is the project's own package: run the script as a module of it, `-m src.jobs.train_ddp`"
    )


@pytest.mark.parametrize(
    "words",
    [
        "ValueError: loss is nan",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "AssertionError",
        "RuntimeError: shape mismatch on cuda:0",
        "UserWarning: CUDA is not available, using the CPU\nValueError: loss is nan",
    ],
)
def test_nothing_is_known_of_other_words(words: str) -> None:
    assert remedy(raised(words)) == ""


@pytest.mark.parametrize(
    ("line", "wants"),
    [
        ("Unable to locate sufficient 2 gpus to run this example. Exiting.", True),
        ("Need at least two GPUs", True),
        ("No GPU found, exiting", True),
        ("CUDA not available, exiting", True),
        ("this needs GPUs", True),
        ("[GPU0] Epoch 4 | Batchsize: 32 | Steps: 32", False),
        ("training completed in rank 1!", False),
        ("no such file: /data/cuda/x", False),
        ("", False),
    ],
)
def test_wanting_gpus(line: str, wants: bool) -> None:
    assert wants_gpus(line) is wants


@pytest.mark.parametrize(("text", "line"), [("a\nb\n \n", "b"), ("a", "a"), ("\n", ""), ("", "")])
def test_last_line(text: str, line: str) -> None:
    assert last_line(text) == line


@pytest.mark.parametrize(
    ("words", "joining"),
    [
        ("RuntimeError: Gloo connectFullMesh failed with [.../tcp/pair.cc:553] Connection closed by peer", True),
        ("RuntimeError: [.../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:44717", False),
    ],
)
def test_who_had_not_met_the_others_yet(words: str, joining: bool) -> None:
    assert was_joining(words) is joining


HIDDEN = """\
Traceback (most recent call last):
  File "/root/.gpuops/lab/n0/project/src/train.py", line 1, in <module>
    import torch
  File "/venv/lib/python3.11/site-packages/torch/cuda/_utils.py", line 9, in <module>
    from cuda.bindings import (  # pyrefly: ignore[missing-import]
  File "/root/.gpuops/lab/n0/project/cuda.py", line 2, in <module>
    torch.zeros(1).cuda()
    ^^^^^^^^^^^
AttributeError: partially initialized module 'torch' has no attribute 'zeros' (most likely due to a circular import)
"""
QUEUE = """\
Traceback (most recent call last):
  File "/usr/lib/python3.11/logging/handlers.py", line 27, in <module>
    from queue import Queue
ImportError: cannot import name 'Queue' from 'queue' (/root/.gpuops/lab/n0/project/queue.py)
"""
ITSELF = """\
Traceback (most recent call last):
  File "/root/.gpuops/lab/n0/project/torch.py", line 1, in <module>
    import torch; torch.nn
                  ^^^^^^^^
AttributeError: partially initialized module 'torch' has no attribute 'nn' (most likely due to a circular import)
"""
OWN_CIRCLE = """\
Traceback (most recent call last):
  File "/root/.gpuops/lab/n0/project/model.py", line 1, in <module>
    import layers
  File "/root/.gpuops/lab/n0/project/layers.py", line 1, in <module>
    from model import Net
ImportError: cannot import name 'Net' from partially initialized module 'model' (most likely due to a circular import) \
(/root/.gpuops/lab/n0/project/model.py)
"""
OWN_IMPORTS = """\
Traceback (most recent call last):
  File "/root/.gpuops/lab/n0/project/train.py", line 1, in <module>
    import model
  File "/root/.gpuops/lab/n0/project/model.py", line 2, in <module>
    import nosuch
ModuleNotFoundError: No module named 'nosuch'
"""


@pytest.mark.parametrize(
    ("words", "then"),
    [
        (HIDDEN, "cuda.py is imported in place of an installed module of that name: rename it"),
        (HIDDEN.replace("/cuda.py", "/src/cuda/__init__.py"), "src/cuda/__init__.py is imported in place of"),
        (HIDDEN.replace("site-packages/torch/cuda/_utils.py", "random.py"), "cuda.py is imported in place of"),
        (HIDDEN.replace("    ^^^^^^^^^^^\n", ""), "cuda.py is imported in place of"),
        ("ModuleNotFoundError: No module named 'q.x'; 'q' is not a package", "q.py is imported in place of"),
        (QUEUE, "queue.py is imported in place of"),
        (
            QUEUE.replace(
                "from 'queue' (", "from partially initialized module 'queue' (most likely due to a circular import) ("
            ),
            "queue.py is imported in place of",
        ),
        (ITSELF, "torch.py is imported in place of"),
        (OWN_IMPORTS, "`--setup 'pip install nosuch'`"),
    ],
    ids=[
        "a file",
        "a package",
        "in a standard module",
        "before 3.11",
        "as no package",
        "without the name",
        "in a circle",
        "by itself",
        "its own",
    ],
)
def test_a_file_of_the_project_that_hides_an_installed_module(words: str, then: str) -> None:
    assert remedy(words).startswith(then)


def test_a_circle_of_the_projects_own_modules_hides_nothing() -> None:
    assert remedy(OWN_CIRCLE) == ""
