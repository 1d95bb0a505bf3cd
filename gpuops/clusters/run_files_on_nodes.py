"""The files that a node keeps of its runs (spec, result, events): enough to rebuild a run that the ledger has lost."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gpuops.core.models import NAME
from gpuops.core.run_models import RunRequest
from gpuops.core.safe_folder import SafeFolder
from gpuops.sync.run_folder import MAX_DOCUMENT_BYTES, RunHome, read_json
from gpuops.sync.unmatched_files import list_unmatched_files, save_unmatched_files
from gpuops.sync.workloads_and_data import WORKLOADS
from gpuops.transport.rpc import Programs

TREE = "runs"
"""The folder of a node in which all its runs are."""
MTIME_MAX_NS = 1 << 62
"""A file's time may be any number where a node lies; this one is in the year 2116."""
DURATION_MAX_S = 366 * 86400.0
KEPT_FILES = re.compile(rf"{NAME.pattern}/(spec\.json|result\.json|events\.jsonl)")


@dataclass(frozen=True)
class LaunchSpec:
    """A node's spec of a run (docs/protocol.md), as far as a lost run is rebuilt from it."""

    kind: Literal["torchrun", "command"]
    tree: Literal["project", "train"]
    nodes: int
    world: int
    """Ranks on all nodes."""
    ranks: int
    """Ranks on this node."""
    argv: Sequence[str]
    prelude: Sequence[str]
    outs: Sequence[str]
    env: Mapping[str, str]
    """The user's variables."""
    grace_s: float
    hold_s: float | None


@dataclass(frozen=True)
class Traces:
    """What one node keeps of one run."""

    spec: LaunchSpec
    began: float
    """When it was started (UTC seconds, the node's clock)."""
    result: Mapping[str, Any] | None
    events: bytes


def read_traces(programs: Programs, index: int) -> dict[str, Traces]:
    """By the name of the run. Raises NodeRefused, ConnectionLost, LocalDisk."""
    from gpuops.transport import validation

    found = [one for one in list_unmatched_files({index: programs}, [], tree=TREE) if KEPT_FILES.fullmatch(one.path)]
    began = {one.path: min(one.mtime_ns, MTIME_MAX_NS) / 1e9 for one in found}
    with tempfile.TemporaryDirectory() as folder:
        if found:
            save_unmatched_files(programs, TREE, found, SafeFolder(Path(folder)))
        names = sorted({one.path.partition("/")[0] for one in found})
        runs = {}
        for name in names:
            spec = parse_spec(read_json(Path(folder, name, "spec.json")), name, index)
            if spec is not None:
                result = validation.parse_result(read_json(Path(folder, name, "result.json")))
                events = Path(folder, name, "events.jsonl")
                log = events.read_bytes() if events.is_file() and events.stat().st_size <= MAX_DOCUMENT_BYTES else b""
                runs[name] = Traces(spec, began[f"{name}/spec.json"], result, log)
    return runs


def parse_spec(document: Mapping[str, Any], name: str, index: int) -> LaunchSpec | None:
    """The spec of run `name` on node `index`; None for a document that gpuops did not write."""
    if not _is_valid(document, name, index):
        return None
    return LaunchSpec(
        kind=document["kind"],
        tree=document["tree"],
        nodes=document["nodes"],
        world=document["world"],
        ranks=document["ranks"],
        argv=document["argv"],
        prelude=document.get("prelude", []),
        outs=document.get("outs", []),
        env={str(name): str(value) for name, value in document.get("user_env", {}).items()},
        grace_s=float(document.get("grace_s", RunRequest.grace_s)),
        hold_s=document.get("hold_s"),
    )


def _is_valid(spec: Mapping[str, Any], name: str, index: int) -> bool:
    texts = [spec.get("argv"), spec.get("prelude", []), spec.get("outs", [])]
    numbers = [spec.get(key) for key in ("node", "nodes", "world", "ranks")]
    return (
        (spec.get("run"), spec.get("node")) == (name, index)
        and spec.get("kind") in ("torchrun", "command")
        and spec.get("tree") in ("project", "train")
        and all(type(number) is int and 0 <= number < 100_000 for number in numbers)
        and all(isinstance(text, list) and all(isinstance(one, str) for one in text) for text in texts)
        and isinstance(spec.get("user_env", {}), dict)
        and _is_duration(spec.get("grace_s", RunRequest.grace_s))
        and (spec.get("hold_s") is None or _is_duration(spec["hold_s"]))
    )


def _is_duration(seconds: Any) -> bool:
    """Whether it is a plausible duration in seconds."""
    return type(seconds) in (int, float) and 0 <= seconds <= DURATION_MAX_S


def find_run_home(folder: Path, run: str, cluster: str, events: Mapping[int, bytes]) -> Path:
    """Where a run's results are, or are to come: `runs/<run>`, unless another run of that name has been there.

    `events`: each node's journal of the run, which a copy at home is the beginning of.
    """
    names = [run, f"{run}-of-{cluster}", *(f"{run}-of-{cluster}-{number}" for number in range(2, 1000))]
    return next(path for name in names if _holds_run(path := folder / "runs" / name, cluster, events))


def _holds_run(path: Path, cluster: str, events: Mapping[int, bytes]) -> bool:
    home = RunHome(path)
    here = {index: log for index in events if (log := home.log(index, "events.jsonl")).is_file()}
    if here:
        return all(_starts_with_file(events[index], log) for index, log in here.items())
    record = home.read_record()
    return (record is None or record.cluster in ("", cluster)) and not (path / "logs").exists()


def _starts_with_file(text: bytes, log: Path) -> bool:
    with log.open("rb") as file:
        return text.startswith(file.read(MAX_DOCUMENT_BYTES + 1))


def rebuild_request(spec: LaunchSpec) -> RunRequest:
    """The request that a launch spec was written from, as far as it tells."""
    is_torchrun = spec.kind == "torchrun"
    script, module, arguments = _parse_program(spec.argv) if is_torchrun else (None, None, spec.argv)
    workload = Path(script or "").stem if spec.tree == "train" else ""
    return RunRequest(
        kind=spec.kind,
        mode=_rebuild_mode(spec),
        nodes=spec.nodes,
        gpus=spec.ranks if is_torchrun else None,
        script=script,
        module=module,
        workload=workload if workload in WORKLOADS else None,
        argv=arguments,
        all_nodes=not is_torchrun and spec.nodes > 1,
        outs=spec.outs,
        env=spec.env,
        prelude=spec.prelude,
        grace_s=spec.grace_s,
        hold_s=spec.hold_s,
    )


def _rebuild_mode(spec: LaunchSpec) -> Literal["single", "multigpu", "multinode", "run"]:
    if spec.kind == "command":
        return "run"
    if spec.nodes > 1:
        return "multinode"
    return "multigpu" if spec.world > 1 else "single"


def _parse_program(argv: Sequence[str]) -> tuple[str | None, str | None, Sequence[str]]:
    """Script, module and arguments behind torchrun's own words (`launch_spec.torchrun_command`)."""
    command = list(argv[list(argv).index("--") + 1 :]) if "--" in argv else []
    if command[1:2] == ["-m"]:
        return None, command[2] if len(command) > 2 else None, command[3:]
    return command[1].removeprefix("./") if len(command) > 1 else None, None, command[2:]
