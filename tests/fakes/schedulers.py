"""srun, scontrol and pbsdsh for scripts that are executed on this machine, with what real ones do to a program.

Started as a program of its own, by the files that `install` writes: `schedulers.py srun ARGS…`.

- srun gives each task its numbers, no stdin, and ends all tasks where one fails (`--kill-on-bad-exit=1`).
- pbsdsh hands on neither the caller's variables nor its folder nor stdin, and answers 0 whatever its task answered.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

NODES = ("localhost", "127.0.0.1")
"""The names of the two nodes: both are this machine."""
JOB_ENVIRONMENT = "PBS_FAKE_JOB"
"""Names the file with the variables that every task of a PBS job gets."""
SRUN_OPTIONS = {
    "--nodes", "--ntasks-per-node", "--cpus-per-task", "--kill-on-bad-exit", "--wait", "--input", "--export",
}  # fmt: skip


def install(folder: Path) -> None:
    """Write `srun`, `scontrol` and `pbsdsh` into a folder for PATH."""
    folder.mkdir(exist_ok=True)
    for name in ("srun", "scontrol", "pbsdsh"):
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{__file__}" {name} "$@"\n')
        path.chmod(0o755)


def slurm_job(tools: Path, job: str, **more: str) -> dict[str, str]:
    """The environment of a batch script on the first of two nodes; what it inherits would mislead torchrun."""
    misleading = {"RANK": "7", "WORLD_SIZE": "9", "PET_NNODES": "5", "MASTER_PORT": "1", "TORCHELASTIC_RUN_ID": "x"}
    slurm = {
        "SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": "node[1-2]", "SLURM_NODEID": "0", "SLURM_PROCID": "0",
        "SLURM_NTASKS": "2", "SLURM_NNODES": "2", "SLURM_LOCALID": "0", "PMI_RANK": "0",
    }  # fmt: skip
    return {**_inherited(tools), **misleading, **slurm, **more}


def pbs_job(tools: Path, number: str, folder: Path, home: Path, **more: str) -> dict[str, str]:
    """The environment of a PBS job's script. `folder`: where qsub was called."""
    nodes = home / "nodefile"
    nodes.write_text("".join(f"{name}\n" for name in NODES))
    job = {
        **_inherited(tools),
        "HOME": str(home),
        "PBS_JOBID": number,
        "PBS_ENVIRONMENT": "PBS_BATCH",
        "PBS_O_WORKDIR": str(folder),
        **more,
    }
    record = home / "job.json"
    record.write_text(json.dumps(job))
    return {**job, "PBS_NODEFILE": str(nodes), JOB_ENVIRONMENT: str(record)}


def _inherited(tools: Path) -> dict[str, str]:
    kept = ("HOME", "LANG", "LC_ALL", "TMPDIR", "USER")
    own = {name: os.environ[name] for name in kept if name in os.environ}
    return {**own, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}


def srun(words: Sequence[str]) -> int:
    at = next(index for index, word in enumerate(words) if not word.startswith("-"))
    options = dict(word.split("=", 1) for word in words[:at])
    if unknown := options.keys() - SRUN_OPTIONS:
        print(f"srun: unrecognized option '{unknown.pop()}'", file=sys.stderr)
        return 255
    count = int(options["--nodes"]) * int(options["--ntasks-per-node"])
    tasks = [
        subprocess.Popen(words[at:], stdin=subprocess.DEVNULL, env={**os.environ, **_task(node, count)})
        for node in range(count)
    ]
    codes: Mapping[int, int | None] = {}
    while len(codes) < count:
        codes = {node: code for node, task in enumerate(tasks) if (code := task.poll()) is not None}
        if any(codes.values()) and options["--kill-on-bad-exit"] == "1":
            _end([task for task in tasks if task.poll() is None])
        time.sleep(0.02)
    return max(abs(code or 0) for code in codes.values())


def _task(node: int, count: int) -> dict[str, str]:
    numbers = {"SLURM_NODEID": node, "SLURM_PROCID": node, "SLURM_LOCALID": 0, "SLURM_STEP_NUM_NODES": count}
    return {**{name: str(number) for name, number in numbers.items()}, "PMI_RANK": str(node), "PMIX_RANK": str(node)}


def _end(tasks: Sequence[subprocess.Popen[bytes]]) -> None:
    """TERM to the direct processes of the step; the rest goes with them where they pass it on."""
    for task in tasks:
        task.terminate()
    for task in tasks:
        task.wait()


def scontrol(words: Sequence[str]) -> int:
    if list(words[:2]) != ["show", "hostnames"] or words[2:] != ["node[1-2]"]:
        print(f"scontrol: invalid entity: {words}", file=sys.stderr)
        return 1
    print("\n".join(NODES))
    return 0


def pbsdsh(words: Sequence[str]) -> int:
    if len(words) < 4 or words[0] != "-n" or words[2] != "--" or not 0 <= int(words[1]) < len(NODES):
        print(f"pbsdsh: usage: {words[:3]}", file=sys.stderr)
        return 1
    if "PBS_ENVIRONMENT" not in os.environ:
        print("pbsdsh: not executing under PBS", file=sys.stderr)
        return 1
    job = json.loads(Path(os.environ[JOB_ENVIRONMENT]).read_text())
    numbers = {"PBS_NODENUM": words[1], "PBS_VNODENUM": words[1], "PBS_TASKNUM": "1"}
    task = subprocess.run(
        words[3:],
        stdin=subprocess.DEVNULL,
        env={**job, **numbers},
        cwd=job["HOME"],
        start_new_session=True,
        check=False,
    )
    if task.returncode:
        print(f"pbsdsh: task 0x{int(words[1]):08x} exit status {task.returncode}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit({"srun": srun, "scontrol": scontrol, "pbsdsh": pbsdsh}[sys.argv[1]](sys.argv[2:]))
