"""Which way imports point: the rules of the layout in docs/architecture.md, kept by reading the code."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {"boto3", "botocore", "runpod", "paramiko", "torch", "numpy", "kingfisher_sdk"}
GROUND = {
    f"gpuops.core.{name}"
    for name in (
        "account_variables",
        "bucket",
        "models",
        "quota",
        "run_models",
        "sink",
        "errors",
        "files",
        "platform",
        "polling",
        "provider",
        "git",
    )
}
SSH = {"gpuops.transport.ssh", "gpuops.nodes.bootstrap", "gpuops.core.parallel", "gpuops.transport.connection"}
"""What an SDK is to other provisioners, the SSH layer is to that of plain hosts."""
HOSTS = {"provisioners.ssh.provisioner", "provisioners.ssh.hosts", "provisioners.ssh.placement"}
STORIES = {"gpuops.clusters.creation", "gpuops.runs.prepare"}
SERVICES = [
    "ledger.store", "transport.connection", "transport.rpc", "sync.upload", "sync.download", "runs.launch_spec",
    "runs.logs.lines", "runs.outcome.verdict", "offers.lease_limits", "core.settings",
]  # fmt: skip


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources(folder: str) -> dict[str, Path]:
    """Module name to file of everything under `folder`; `train/` next to a wheel's copy is not a package."""
    return {name_of(path): path for path in sorted((ROOT / folder).rglob("*.py"))}


CLIENT = {name: path for name, path in sources("gpuops").items() if not name.startswith("gpuops.agent.")}
AGENT = sources("gpuops/agent")
PROVISIONERS = sources("provisioners")
KNOWN = {*sources("gpuops"), *PROVISIONERS}


def statements(tree: ast.AST, lazily: bool) -> Iterator[ast.AST]:
    """Nodes that run when the module is imported; with `lazily` also those inside functions, but never type hints'."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and not lazily:
            continue
        yield node
        yield from statements(node, lazily)


def imports(path: Path, *, lazily: bool) -> set[str]:
    """Full names of the modules that a file imports: `from gpuops.guard import daemon` is `gpuops.guard.daemon`."""
    found = set()
    for node in statements(ast.parse(path.read_text()), lazily):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are written out in full"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in KNOWN else str(node.module) for name in names}
    return found


def top(names: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in names}


def reached(start: str) -> set[str]:
    """Everything of gpuops that importing `start` brings in."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name in CLIENT and name not in seen:
            seen.add(name)
            waiting += imports(CLIENT[name], lazily=False)
    return seen - {start}


def test_workloads_know_nothing_of_gpuops() -> None:
    allowed = sys.stdlib_module_names | {"torch", "numpy", "filelock", "ddp"}  # torch brings filelock; ddp is their own
    for name, path in sources("train").items():
        assert top(imports(path, lazily=True)) <= allowed, name


def test_the_agent_needs_the_standard_library_and_itself() -> None:
    for name, path in AGENT.items():
        for used in imports(path, lazily=True):
            assert used.startswith("gpuops.agent") or used.partition(".")[0] in sys.stdlib_module_names, (name, used)


@pytest.mark.parametrize("name", sorted(GROUND))
def test_models_and_errors_stand_on_nothing_of_ours(name: str) -> None:
    assert not {used for used in imports(CLIENT[name], lazily=True) if used in KNOWN} - GROUND


def test_the_command_line_is_imported_by_its_entrance_only() -> None:
    for name, path in CLIENT.items():
        if name != "gpuops.__main__" and not name.startswith("gpuops.cli"):
            assert not [used for used in imports(path, lazily=True) if used.startswith("gpuops.cli")], name


@pytest.mark.parametrize("name", SERVICES)
def test_what_serves_the_stories_does_not_tell_them(name: str) -> None:
    assert f"gpuops.{name}" in CLIENT
    assert not reached(f"gpuops.{name}") & STORIES


def test_imports_of_the_client_form_no_circle() -> None:
    graph = {name: (imports(path, lazily=False) & KNOWN) - {name} for name, path in CLIENT.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {' -> '.join(error.args[1])}")


def test_a_provisioner_is_reached_through_the_registry_only() -> None:
    for name, path in CLIENT.items():
        used = {used for used in imports(path, lazily=True) if used.startswith("provisioners")}
        assert used <= {"provisioners.checked_provisioner", "provisioners.registry"}, name


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    for name, path in {**CLIENT, **PROVISIONERS}.items():
        assert not top(imports(path, lazily=False)) & HEAVY, name


def test_the_command_line_touches_no_sdk_at_all() -> None:
    for name, path in sources("gpuops/cli").items():
        assert not top(imports(path, lazily=True)) & HEAVY, name
