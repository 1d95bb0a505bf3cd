"""What a script's text says before anything is rented: that it is not sent, does not parse or starts its own ranks.

Only the text is read, nothing is run. What is refused here would fail, or hang and bill, on every node.
`--send-anyway SCRIPT` overrides: a node's Python may be newer than ours, and no reading of a program is complete.
"""

from __future__ import annotations

import ast
import shlex
import warnings
from collections.abc import Iterator, Sequence

from gpuops.core.errors import UsageError
from gpuops.core.files import read_small
from gpuops.core.run_models import RunRequest
from gpuops.runs.launch_spec import line_to_start_once
from gpuops.sync import scan
from gpuops.sync.project_files import RESULTS_FOLDER

MAX_SCRIPT_BYTES = 1_000_000
"""A longer script is sent unread."""
TORCHRUN_VARIABLES = frozenset(
    ("RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")
)
"""Who reads one of these can be started by torchrun, whatever else it may do."""
WORLD_FORMERS = frozenset(("init_process_group", "init_rpc"))
SPAWNERS = frozenset(
    f"{package}.{name}"
    for package in ("torch.multiprocessing", "torch.multiprocessing.spawn")
    for name in ("spawn", "start_processes")
)


def check_script(
    request: RunRequest, tree: scan.Tree, allow: Sequence[str] = (), run_flags: Sequence[str] = ()
) -> None:
    """Refuse a script that cannot train through torchrun on any node. `allow`: what `--send-anyway` names.

    `run_flags`: what was typed for `train` and belongs into the line of `run` to type instead.
    Raises UsageError.
    """
    if request.kind != "torchrun" or request.workload:
        return
    sent = {entry.path for entry in tree.files}
    if request.script is not None and _follow_links(tree, request.script) not in sent:
        _refuse_unsent(request.script, tree)
    path = next((path for path in _find_paths(request) if _follow_links(tree, path) in sent), "")
    if not path or scan.is_allowed(path, allow):
        return
    try:
        source = read_small(tree.folder / path, MAX_SCRIPT_BYTES)
    except OSError:
        return  # too long, or gone: the push says so
    if b"\0" in source:
        return  # compiled, or an archive: Python runs these, too
    module = _parse(path, source)
    if module is not None and not _runs_alone(request) and starts_its_ranks(module):
        raise UsageError(
            f"{path} starts its own processes, and torchrun would start it once for each rank: they would never meet",
            f"start it once: {line_to_start_once(request, run_flags)}"
            f" (if it can be a rank of torchrun's after all: --send-anyway {shlex.quote(path)})",
        )


def _follow_links(tree: scan.Tree, path: str) -> str:
    """The project's path of the file that a path leads to; empty where that lies outside."""
    try:
        return (tree.folder / path).resolve().relative_to(tree.folder.resolve()).as_posix()
    except (ValueError, OSError, RuntimeError):  # elsewhere, or links in a circle
        return ""


def _refuse_unsent(script: str, tree: scan.Tree) -> None:
    """Raises UsageError with the reason why the script will not be on the nodes."""
    real = _follow_links(tree, script)
    if not real:
        raise UsageError(f"{script} is a link that leads out of the project", "put the script itself into the project")
    held = [held for held in tree.held if held.path == real]
    if held:
        raise UsageError(f"{script} is not sent: {held[0].why}", f"send it: --send-anyway {shlex.quote(real)}")
    if real.startswith(f"{RESULTS_FOLDER}/"):
        raise UsageError(f"{script} is not sent: results lie in {RESULTS_FOLDER}/", "move it to another folder")
    raise UsageError(f"{script} is not sent, since git or .gpuopsignore ignores it", "take it out of the ignore file")


def _find_paths(request: RunRequest) -> Iterator[str]:
    """Where the project may have what is trained."""
    if request.script is not None:
        yield request.script
    elif request.module is not None:
        stem = request.module.replace(".", "/")
        yield from (f"{stem}.py", f"{stem}/__main__.py")


def _runs_alone(request: RunRequest) -> bool:
    """Whether torchrun starts one rank only: what that starts itself can be the whole world."""
    return request.mode == "single" or (request.nodes == 1 and request.gpus == 1)


def _parse(path: str, source: bytes) -> ast.Module | None:
    """The script's syntax tree; None where it is too deep to be read. Raises UsageError for a syntax error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what its author may meet when it runs
            compile(source, path, "exec", dont_inherit=True)
            return ast.parse(source)
    except SyntaxError as error:
        at = f" line {error.lineno}" if error.lineno else ""
        raise UsageError(
            f"{path}{at}: syntax error: {error.msg}",
            f"correct it (or send it as it is, for a newer Python on the nodes: --send-anyway {shlex.quote(path)})",
        ) from None
    except (RecursionError, MemoryError, ValueError):
        return None


def starts_its_ranks(module: ast.Module) -> bool:
    """Whether a program forms its world out of processes that it starts, and cannot be a rank that torchrun started.

    It must start a function of its own that leads to one of `WORLD_FORMERS`, tell that the rank, and read nothing that
    torchrun sets: data loaders, and processes that log or serve, are no ranks.
    """
    nodes = list(ast.walk(module))
    if _reads_torchrun(nodes) or not _tells_rank(nodes):
        return False
    names = _imported_names(nodes)
    called = {
        node.name: {name for call in ast.walk(node) if isinstance(call, ast.Call) and (name := _last_name(call.func))}
        for node in nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    started = {_started_function(node, names) for node in nodes if isinstance(node, ast.Call)}
    return any(
        WORLD_FORMERS & _reached_from(function, called) for function in started | _passed_functions(nodes, names)
    )


def _passed_functions(nodes: Sequence[ast.AST], names: dict[str, str]) -> set[str]:
    """The names of what is passed to functions that start a parameter of theirs: `run(demo)` with `mp.spawn(fn)` in it.

    So PyTorch's own tutorial starts its demos.
    """
    starters = {
        node.name
        for node in nodes
        if isinstance(node, ast.FunctionDef)
        and {argument.arg for argument in node.args.args}
        & {_started_function(call, names) for call in ast.walk(node) if isinstance(call, ast.Call)}
    }
    return {
        _function_name(argument)
        for call in nodes
        if isinstance(call, ast.Call) and _last_name(call.func) in starters
        for argument in (*call.args, *(keyword.value for keyword in call.keywords))
    }


def _reads_torchrun(nodes: Sequence[ast.AST]) -> bool:
    """Whether a variable of torchrun's is named anywhere but in `os.environ[NAME] = …`, or torch is asked for it."""
    written = {
        id(node.slice) for node in nodes if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)
    }
    return any(
        _last_name(node) == "is_torchelastic_launched"
        or (isinstance(node, ast.Constant) and node.value in TORCHRUN_VARIABLES and id(node) not in written)
        for node in nodes
    )


def _tells_rank(nodes: Sequence[ast.AST]) -> bool:
    """Whether every call that forms a world gets a rank from the program, or the program sets the variable RANK.

    Without either, the rank comes from the environment, where torchrun puts it.
    """
    calls = [node for node in nodes if isinstance(node, ast.Call) and _last_name(node.func) in WORLD_FORMERS]
    sets_rank = any(
        isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.slice, ast.Constant)
        and node.slice.value == "RANK"
        for node in nodes
    )
    return bool(calls) and (
        sets_rank
        or all(
            any(keyword.arg == "rank" for keyword in call.keywords)
            or len(call.args) > (2 if _last_name(call.func) == "init_rpc" else 4)
            for call in calls
        )
    )


def _imported_names(nodes: Sequence[ast.AST]) -> dict[str, str]:
    """What each imported name stands for, with its packages: `mp` -> `torch.multiprocessing`."""
    names: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.split(".")[0]] = (
                    alias.name if alias.asname else alias.name.split(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    return names


def _started_function(call: ast.Call, names: dict[str, str]) -> str:
    """The name of the function that this call starts in processes of its own; empty for any other call."""
    if _dotted_name(call.func, names) in SPAWNERS:
        given = next((keyword.value for keyword in call.keywords if keyword.arg == "fn"), None)
        return _function_name(given or (call.args[0] if call.args else None))
    if _last_name(call.func) == "Process":
        given = next((keyword.value for keyword in call.keywords if keyword.arg == "target"), None)
        return _function_name(given or (call.args[1] if len(call.args) > 1 else None))
    return ""


def _function_name(node: ast.expr | None) -> str:
    """`train` for `train`, `self.train` and `partial(train, …)`."""
    if isinstance(node, ast.Call) and node.args:
        node = node.args[0]
    return _last_name(node)


def _last_name(node: ast.AST | None) -> str:
    """`spawn` for `mp.spawn`."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _dotted_name(node: ast.expr, names: dict[str, str]) -> str:
    """`torch.multiprocessing.spawn` for `mp.spawn`, by what the file imports."""
    if isinstance(node, ast.Attribute):
        before = _dotted_name(node.value, names)
        return f"{before}.{node.attr}" if before else ""
    return names.get(node.id, "") if isinstance(node, ast.Name) else ""


def _reached_from(function: str, called: dict[str, set[str]]) -> set[str]:
    """The names of all functions that this one calls, directly or by others of the file."""
    reached: set[str] = set()
    waiting = [function]
    while waiting:
        new = called.get(waiting.pop(), set()) - reached
        reached |= new
        waiting += new
    return reached
