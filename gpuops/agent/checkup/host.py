"""The machine, its Pythons, disks and limits, and what its administrators have set up: schedulers, logind, logins."""

from __future__ import annotations

import difflib
import os
import platform
import pwd
import re
import resource
import socket
import sys
import threading
from typing import Any, Mapping, Sequence

from gpuops.agent.checkup.site import Site
from gpuops.agent.machine_resources import count_cores, memory_bytes
from gpuops.agent.node import Node, read_json
from gpuops.agent.python import environments
from gpuops.agent.python.interpreters import (
    Candidate,
    Interpreter,
    distinct_candidates,
    probe_interpreter,
    usual_candidates,
)

DF_LIMIT_S = 10.0
SHELL_LIMIT_S = 10.0
"""Time that a login shell may take to start and end."""
MAX_GREETING_CHARACTERS = 200
"""How much of what the start-up files print is kept."""
SCHEDULER_PROGRAMS = ("sinfo", "squeue", "qstat", "bsub")
JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")
"""Variables that a scheduler sets inside a job."""
TORCHRUN_VARIABLES = re.compile(
    r"PET_\w+|MASTER_(ADDR|PORT)|TORCHELASTIC_\w+|((LOCAL|NODE|GROUP|ROLE)_)?(RANK|WORLD_SIZE)"
)
LOGIND_FOLDERS = ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib")
"""Where systemd looks for logind's configuration, in order of precedence (logind.conf(5))."""


def describe_machine(site: Site) -> dict[str, Any]:
    return {
        "system": platform.system(),
        "machine": platform.machine(),
        "hostname": socket.gethostname(),
        "user": user_name(),
        "root": os.getuid() == 0,
        "home": site.home,
        "container": any(os.path.exists(site.path(path)) for path in ("/.dockerenv", "/run/.containerenv")),
        "cores": count_cores(),
        "memory": memory_bytes(),
    }


def user_name() -> str:
    """The user's name, or their number in a container that has no name for it."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def find_pythons(site: Site, asked: str, first: Sequence[str], node: Node | None) -> dict[str, Any]:
    """The Pythons that a run would choose from, best first, or the one in `asked`.

    An environment made here belongs to a project: the newest is most probably the one to be used.
    """
    agents = {"version": list(sys.version_info[:3]), "path": sys.executable}
    if asked and os.path.isdir(os.path.expanduser(asked)):
        inner = os.path.join(asked, "bin", "python")
        is_program = os.access(os.path.expanduser(inner), os.X_OK)
        return {"agent": agents, "asked": asked, "found": [], "inner": inner if is_program else ""}
    if asked:
        path = os.path.expanduser(asked) if os.sep in asked else site.which(asked)
        interpreter = probe_interpreter(path) if path else None
        described = [_describe_interpreter(interpreter, "asked for")] if interpreter else []
        return {"agent": agents, "asked": asked, "found": described}
    newest = environments.list_environments(node)[:1] if node else []
    made = [environments.environment_python(environments.environment_folder(node, name)) for name in newest if node]
    candidates = distinct_candidates(
        [
            *(Candidate(path, "made for a project") for path in made),
            *(Candidate(path, "the active environment") for path in first),
            *usual_candidates(site.environ),
        ]
    )
    pairs = [(probe_interpreter(candidate.path), candidate.why) for candidate in candidates]
    described = [_describe_interpreter(interpreter, why) for interpreter, why in pairs if interpreter]
    return {"agent": agents, "asked": "", "found": described}


def _describe_interpreter(interpreter: Interpreter, why: str) -> dict[str, Any]:
    return {**interpreter._asdict(), "version": list(interpreter.version), "why": why}


def describe_disks(site: Site, node: Node | None) -> list[dict[str, Any]]:
    """Space and inodes of the file systems that a run uses.

    `df` is a program, so that a dead file system hangs it and not us. Each has a thread, so that several dead ones
    cost one time limit together.
    """
    places = {"home": site.home, "root": "/", "tmp": site.environ.get("TMPDIR") or "/tmp", "shm": "/dev/shm"}
    if node is not None:
        places["node"] = node.dir
    mounts = _read_mounts(site)
    rows: dict[str, dict[str, Any]] = {}

    def describe(use: str, path: str) -> None:
        rows[use] = _describe_disk(site, path, mounts)

    threads = [threading.Thread(target=describe, args=place, daemon=True) for place in places.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [{"of": use, "path": path, **rows[use]} for use, path in places.items()]


def _describe_disk(site: Site, path: str, mounts: Mapping[str, str]) -> dict[str, Any]:
    space = site.run(["df", "-Pk", path], DF_LIMIT_S)
    size = _last_row(space.out)
    if size is None:
        return {"slow": space.slow, "there": False}
    files = _last_row(site.run(["df", "-Pi", path], DF_LIMIT_S).out)
    return {
        "slow": False,
        "there": True,
        "source": size[0],
        "total": int(size[1]) * 1024,
        "free": int(size[3]) * 1024,
        "mount": size[5],
        "kind": mounts.get(size[5], ""),
        "writable": os.access(path, os.W_OK),
        "inodes": int(files[1]) if files and files[1].isdigit() else 0,
        "inodes_free": int(files[3]) if files and files[3].isdigit() else 0,
    }


def _last_row(printed: str) -> list[str] | None:
    """The fields of df's last line: source, size, used, free, share, mount; None where df printed no row."""
    fields = printed.splitlines()[-1].split(None, 5) if printed else []
    return fields if len(fields) == 6 and fields[1].isdigit() and fields[3].lstrip("-").isdigit() else None


def _read_mounts(site: Site) -> dict[str, str]:
    """File system types by mount point."""
    lines = (line.split() for line in site.read("/proc/mounts").splitlines())
    return {fields[1].replace("\\040", " "): fields[2] for fields in lines if len(fields) > 2}


def read_limits() -> dict[str, Any]:
    """Soft limits of open files and of locked memory (bytes); None: no limit."""

    def soft(what: int) -> int | None:
        value = resource.getrlimit(what)[0]
        return None if value == resource.RLIM_INFINITY else value

    return {"files": soft(resource.RLIMIT_NOFILE), "locked": soft(resource.RLIMIT_MEMLOCK)}


def resolve_own_name() -> dict[str, Any]:
    """The machine's name, and the addresses that it resolves to; none where it does not."""
    own = socket.gethostname()
    try:
        return {"name": own, "addresses": sorted({str(info[4][0]) for info in socket.getaddrinfo(own, None)})}
    except OSError:
        return {"name": own, "addresses": []}


def find_scheduler(site: Site) -> dict[str, Any]:
    return {
        "programs": [program for program in SCHEDULER_PROGRAMS if site.which(program)],
        "job": next((variable for variable in JOB_VARIABLES if site.environ.get(variable)), None),
    }


def describe_logind(site: Site) -> dict[str, Any]:
    """Whether a user's processes are killed at the end of their last login, and whether this user is exempt."""
    settings = _read_logind_settings(site)
    only = settings.get("KillOnlyUsers", "").split()
    return {
        "runs": os.path.isdir(site.path("/run/systemd/system")),
        "kills": settings.get("KillUserProcesses", "no").lower() in ("yes", "true", "1", "on"),
        "spared": user_name() in settings.get("KillExcludeUsers", "root").split()
        or bool(only and user_name() not in only),
        "lingers": os.path.exists(site.path(f"/var/lib/systemd/linger/{user_name()}")),
    }


def _read_logind_settings(site: Site) -> dict[str, str]:
    """The settings in force: of the first main file, then of the drop-ins by name, where the first of a name counts."""
    texts = [text for folder in LOGIND_FOLDERS if (text := site.read(f"{folder}/systemd/logind.conf"))][:1]
    drop_ins: dict[str, str] = {}
    for folder in reversed(LOGIND_FOLDERS):
        path = f"{folder}/systemd/logind.conf.d"
        drop_ins.update({file: site.read(f"{path}/{file}") for file in site.names(path) if file.endswith(".conf")})
    texts += [drop_ins[file] for file in sorted(drop_ins)]
    lines = re.findall(r"(?m)^[ \t]*(Kill\w+)[ \t]*=[ \t]*(.*?)[ \t]*$", "\n".join(texts))
    return {key: value.strip("\"'") for key, value in lines}


def probe_login_shell(site: Site) -> dict[str, Any]:
    """The login shell, and what its start-up files print before a program's own output.

    Bash reads `.bashrc` if its input is a socket, as sshd's programs have it.
    """
    shell = site.environ.get("SHELL") or "/bin/sh"
    ours, its = socket.socketpair()
    environ = {name: value for name, value in site.environ.items() if name != "SHLVL"}
    with ours, its:
        ran = site.run([shell, "-c", "exit 0"], SHELL_LIMIT_S, stdin=its, env={**environ, "SSH_CLIENT": "::1 1 22"})
    return {"shell": shell, "said": (ran.out + ran.err)[:MAX_GREETING_CHARACTERS], "slow": ran.slow}


def describe_variables(environ: Mapping[str, str]) -> dict[str, Any]:
    """Variables that torchrun and CUDA obey, and that an image may have set."""
    return {
        "torchrun": sorted(variable for variable in environ if TORCHRUN_VARIABLES.fullmatch(variable)),
        "visible": environ.get("CUDA_VISIBLE_DEVICES"),
    }


def find_misspelt_key_files(home: str) -> list[str]:
    """Files in ~/.ssh whose names are probably misspellings of authorized_keys."""
    try:
        files = os.listdir(os.path.join(home, ".ssh"))
    except OSError:
        return []
    near = difflib.get_close_matches("authorized_keys", files, 5, 0.85)
    return sorted(file for file in near if file not in ("authorized_keys", "authorized_keys2"))


def find_live_run(node: Node | None) -> str | None:
    """The name of the run that is on; None without one."""
    document = read_json(node.path("live.json")) if node else None
    return str(document["run"]) if isinstance(document, dict) and document.get("run") else None
