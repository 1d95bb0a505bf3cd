"""A node that answers nonsense: one sentence, soon, nothing held for it, and all that can be had comes home."""

from __future__ import annotations

import ast
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuops.core.errors import MalformedAnswer
from gpuops.transport import schemas, validation
from gpuops.transport.program_schemas import JournalEvent
from tests.conftest import Shell, until
from tests.fakes.tent import pitch
from tests.integration.cli.test_user_away import detach, tents
from tests.integration.security.hostile import spoil, tell_lies

ROOT = Path(__file__).parents[3]
Lie = Callable[[str], None]
NEST = "b'{\"id\": %d, \"ok\": {\"x\": ' % message['id'] + b'[' * 10000 + b']' * 10000 + b'}}\\n'"
SAYS = "node0 answers nonsense ("


def changed(verb: str, what: str, node: str = "True") -> str:
    """The source of a lie: what is done to the answers of one verb. `what`: statements about `said`, the message, or
    `ok`, its last word; they may return something else."""
    body = "\n".join(f"        {line}" for line in what.splitlines())
    return (
        "def answer(node, verb, args, message):\n"
        f"    if verb == {verb!r} and {node}:\n"
        "        said, ok, item = message, message.get('ok'), message.get('item')\n"
        f"{body}\n"
        "    return message\n"
    )


OF_A_RUN = {
    "ping-text": ("ping", "ok['time'] = 'now'"),
    "ping-never": ("ping", "ok['time'] = 1e308"),
    "hello-cores": ("hello", "ok['cores'] = 1e308"),
    "hello-nothing": ("hello", "said['ok'] = {}"),
    "hello-deep": ("hello", f"return {NEST}"),
    "route-nowhere": ("route", "ok['address'] = '; rm -rf /'"),
    "plan-nothing": ("plan", "said['ok'] = {}"),
    "plan-beyond": ("plan", "ok['need'] = [10 ** 9]"),
    "plan-negative": ("plan", "ok['push'], ok['need'] = 'abc', [-1]"),
    "commit-text": ("commit", "ok['removed'] = 'all'"),
    "python-nothing": ("python", "said['ok'] = {}"),
    "python-number": ("python", "if ok: ok['version'] = 3.11"),
    "port-huge": ("port", "ok['port'] = 10 ** 30"),
    "start-number": ("start", "said['ok'] = 5"),
    "tail-offset": ("tail", "if item: item['o'] = 'x'"),
    "tail-beyond": ("tail", "if item and 'o' in item: item['o'] = 10 ** 12"),
    "tail-base64": ("tail", "if item: item['b64'] = '###'"),
    "tail-reason": ("tail", "if ok and ok['result']: ok['result']['reason'] = 5"),
    "tail-ranks": ("tail", "if ok and ok['result']: ok['result']['ranks'] = [5]"),
    "tail-never": ("tail", "if ok and ok['result']: ok['result'].update(ended=float('nan'), started=1e300)"),
    "tail-deep": ("tail", f"if ok: return {NEST}"),
    "outs-negative": ("outs", "ok['files'] = [['a.pt', -5, 5]]"),
    "sums-number": ("sums", "if item: item['sha256'] = 5"),
}  # fmt: skip


FIRST = ("hello-cores", "plan-nothing", "start-number", "tail-offset", "outs-negative", "sums-number")
"""A run for each stage of one; the rest is proof: one place reads every answer, and what it refuses of each verb is in
test_what_is_nearly_true_is_sound_or_nonsense."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.proof] * (name not in FIRST)) for name in OF_A_RUN]
)
def test_a_run_on_a_node_that_answers_nonsense(shell: Shell, lie: Lie, name: str) -> None:
    verb, what = OF_A_RUN[name]
    lie(changed(verb, what))
    shell.write("job.py", "open('result.pt', 'w').write('made'); print('done')\n")
    done = shell.run("run", "--on", "local", "--nodes", "1", "--", "python3", "job.py")
    assert done.returncode == 4, done.stderr
    assert SAYS in done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    shell.expect_clean()
    made = [path.read_text() for path in shell.folder.glob("runs/*/out/result.pt")]
    assert made == (["made"] if verb in ("tail", "sums") else [])
    if verb in ("outs", "sums"):
        assert [path.read_text() for path in shell.folder.glob("runs/*/logs/node0/launcher.out")] == ["done\n"]


@pytest.mark.parametrize("name", ["tail-reason", "outs-negative"])
def test_the_other_nodes_results_come_home(shell: Shell, lie: Lie, name: str) -> None:
    verb, what = OF_A_RUN[name]
    lie(changed(verb, what, "node == 0"))
    shell.write("job.py", "import os\nnode = os.environ['GPUOPS_NODE']\nopen(f'made{node}.pt', 'w').write(node)\n"
                          "open(f'other{node}.bin', 'w').write(node)\n")  # fmt: skip
    done = shell.run("run", "--on", "local", "--nodes", "2", "--all-nodes", "--", "python3", "job.py")
    assert done.returncode == 4, done.stderr
    assert SAYS in done.stderr + done.stdout
    assert {path.name for path in shell.folder.glob("runs/*/out/*1.*")} == {"made1.pt", "other1.bin"}
    shell.expect_clean()


@pytest.mark.parametrize(
    "what",
    [
        "said['ok'] = {}",
        pytest.param("said['ok'] = 5", marks=pytest.mark.proof),
        pytest.param(f"return {NEST}", marks=pytest.mark.proof),
        pytest.param("return {'id': said['id']}", marks=pytest.mark.proof),
    ],
)
def test_every_command_on_a_cluster_that_answers_nonsense(shell: Shell, lie: Lie, what: str) -> None:
    lie("")
    shell.write("job.py", "import time\nprint('on', flush=True)\ntime.sleep(600)\n")
    assert shell.run("up", "local", "--nodes", "1", "--name", "lab").returncode == 0
    assert shell.run("run", "--detach", "--nodes", "1", "--", "python3", "job.py").returncode == 0
    until(lambda: "on" in shell.run("logs").stdout, "the run on")
    lie("def answer(node, verb, args, message):\n    said = message\n"
        f"    if 'ok' in message:\n        {what}\n    return message\n")  # fmt: skip
    commands = (["status"], ["logs"], ["pull"], ["pull", "--edits"], ["push"], ["stop"], ["doctor", "lab"],
                ["lease", "lab", "--extend", "1h"], ["run", "--", "true"])  # fmt: skip
    for command in commands:
        done = shell.run(*command)
        assert done.returncode in (0, 1, 2, 4), (command, done.stderr)
        assert "Traceback" not in done.stderr
    done = shell.run("down", "lab")
    assert "lab is gone" in done.stderr or "python3-1 is not all home: node0 answers nonsense (" in done.stderr
    shell.expect_clean()
    (run,) = (run for run in shell.json("runs")["runs"] if run["run"] == "python3-1")
    assert (run["state"], run["outcome"]) == ("home", "lost")
    assert "answers nonsense" in run["say"]


@pytest.fixture
def camp(shell: Shell, tmp_path: Path) -> Shell:
    """A shell in which tents can be rented: they cost, and go by nobody's wish but ours."""
    shell.env["PYTHONPATH"] = os.pathsep.join([*pitch(tmp_path / "site"), str(ROOT)])
    return shell


UNASKED = """
import io, tarfile
def bulk(node, mode, arguments, stdin):
    if mode == "send":
        made = io.BytesIO()
        tarfile.open(fileobj=made, mode="w").addfile(tarfile.TarInfo("run.sh"))
        return made.getvalue() + bytes(1024)
"""


@pytest.mark.parametrize(
    "name",
    [
        "hello-nothing",
        pytest.param("tail-reason", marks=pytest.mark.proof),
        pytest.param("tail-offset", marks=pytest.mark.proof),
        pytest.param("tail-deep", marks=pytest.mark.proof),
        "outs-negative",
        pytest.param("sums-number", marks=pytest.mark.proof),
        "files-unasked",
    ],
)
def test_the_guard_holds_no_rented_machine_for_nonsense(camp: Shell, name: str) -> None:
    """The command is gone, and the lease would last for a day."""
    detach(camp, "--grace", "12")
    assert len(tents(camp)) == 1
    (agent,) = (camp.home / "tent" / "nodes" / "agent").glob("*.pyz")
    spoil(agent)
    tell_lies(agent.parent, UNASKED if name == "files-unasked" else changed(*OF_A_RUN[name]))
    camp.run("status")  # any command starts the guard
    until(lambda: not tents(camp), "the tent is struck")
    camp.expect_clean()
    assert SAYS in camp.run("status").stderr
    assert "Traceback" not in (camp.home / "guard.log").read_text()
    made = list(camp.folder.glob("runs/*/out/made.pt"))
    assert len(made) == (name.startswith(("tail", "sums")))


# -- every verb ---------------------------------------------------------------------------------------


RANK: dict[str, Any] = {
    "rank": 0, "local": 0, "code": 1, "signal": None, "started": 1.5e9, "ended": 1.6e9, "joined": True, "oom": False,
    "after_stop": False, "error": {"message": "x"}, "tail": "t", "out": "o",
}  # fmt: skip
RESULT: dict[str, Any] = {
    "run": "a-1", "node": 0, "outcome": "failed", "reason": {"kind": "rank", "rank": 0, "say": "rank 0 failed"},
    "started": 1.5e9, "ended": 1.6e9, "launcher": {"code": 1, "signal": None}, "ranks": [RANK], "tail": "", "out": "",
    "progress": {"step": 120, "loss": 0.5}, "disk_free": 10**12, "left": 0,
}  # fmt: skip
TRUE: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "hello": ({"protocol": 2, "time": 1.7e9, "cores": 8, "folder": "/n/lab/n0", "busy": None, "runs": ["a-1"],
               "gpus": [{"index": 0, "name": "H100", "memory_mb": 81559, "driver": "550.54.15", "compute_cap": "9.0"}],
               "lease": {"hard_wall": 1.8e9, "idle_s": 1800.0, "boot_wall": None}}, None),
    "ping": ({"agent": 5, "watchdog": 4, "time": 1.7e9}, None),
    "route": ({"interface": "eth0", "address": "10.0.0.5"}, None),
    "port": ({"port": 23456}, None),
    "addresses": ({"machine": "m", "addresses": [{"interface": "eth0", "address": "10.0.0.5", "prefix_len": 24,
                                                  "family": "ipv4", "kind": "direct", "speed": 1000}]}, None),
    "listen": ({"fresh": [20001, 20002], "ephemeral": [40000]}, None),
    "release": ({}, None),
    "reach": ({"tried": [{"node": 1, "address": "10.0.0.6", "port": 20001, "state": "ok", "why": "",
                          "source": "10.0.0.5", "ms": 0.2, "mb_s": None}]}, None),
    "python": ({"python": "/usr/bin/python3", "version": "3.11.2", "torch": "2.6.0+cu124", "cuda": "12.4", "why": "w",
                "made": False}, {"say": "making"}),
    "setup": ({"code": 0, "skipped": False}, {"b64": "aGVsbG8="}),
    "plan": ({"push": "0a1b", "need": [0, 2], "ask": [1], "stale": [], "kept": ["a.py"], "conflicts": ["b/c"]}, None),
    "receive": ({}, None),
    "commit": ({"written": 2, "removed": 0}, None),
    "edits": ({"files": [{"path": "a.py", "state": "changed", "size": 5, "pushed": [4, 5, 33188, None]}]}, None),
    "copies": ({"files": [["data/a", 5, 1_700_000_000_000_000_000, 0o644]], "edited": ["a.py"]}, None),
    "start": ({}, None),
    "run": ({"state": "ended", "result": RESULT, "handed": {"a.pt": 1},
             "sink": {"state": "copying", "folder": "/v/a-1", "done": 5, "total": 9}}, None),
    "stop": ({}, None),
    "sample": ({}, {
        "at": 1.7e9, "cores": 8, "cpu": 1.5, "memory": [1, 2], "net": [0.5, 3.0], "disk": [0.0, None],
        "gpus": [{"index": 0, "use": 97.0, "memory_mb": 5.0, "memory_total_mb": 9.0, "temperature": 61.0,
                  "power_w": 412.3}],
        "run": {"name": "a-1", "ranks": [{"rank": 0, "pid": 7, "cpu": 1.0, "memory": 5, "step": 3.0, "rate": 2.5,
                                          "data_wait": 0.1}]},
    }),
    "urls": ({}, None),
    "home": ({}, None),
    "tail": ({"result": RESULT}, {"s": "rank0.out", "o": 0, "b64": "aGVsbG8="}),
    "outs": ({"files": [["a/b.pt", 5, 1_700_000_000_000_000_000]]}, None),
    "sums": ({}, {"path": "a/b.pt", "sha256": "0" * 64, "size": 5}),
    "left": ({"files": [["a/b.pt", 5, 1_700_000_000_000_000_000, True]]}, None),
    "made": ({"files": [["a/b.pt", 5, 1_700_000_000_000_000_000, "toy-1", False]]}, None),
    "discard": ({"removed": 1}, None),
    "lease": ({"lease": {"hard_wall": 1.8e9}}, None),
}  # fmt: skip
WORSE = (
    None,
    True,
    -1,
    5,
    10**30,
    10**400,
    1e308,
    "",
    "x",
    "\ud800",
    "../a",
    "\x1b[2J",
    [],
    [[]],
    {},
    {"": 0},
    "NAN",
    "INF",
)


def spots(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document."""
    yield path
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        yield from spots(one, (*path, key))


def altered(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy with something else at a place; `...`: nothing."""
    if not path:
        return new
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    if len(path) == 1 and new is ...:
        del copy[path[0]]
    else:
        copy[path[0]] = altered(value[path[0]], path[1:], new)
    return copy


def heard(verb: str, kind: str, said: Any) -> Any:
    """What a client makes of it. NaN and Infinity are written as Python writes them."""
    text = json.dumps({"id": 1, kind: said}).replace('"NAN"', "NaN").replace('"INF"', "1e999")
    said = validation.parse_message("node0", verb, text.encode())[1]
    return msgspec.to_builtins(said, builtin_types=(bytes,), enc_hook=str)


def test_what_is_true_is_taken_as_it_is() -> None:
    assert set(TRUE) == set(schemas.VERB_SHAPES)
    for verb, (last, item) in TRUE.items():
        heard(verb, "ok", {**last, "newer": [1]})
        if item:
            heard(verb, "item", {**item, "newer": [1]})
    assert heard("tail", "item", TRUE["tail"][1]) == {"s": "rank0.out", "o": 0, "b64": b"hello"}
    assert heard("run", "ok", TRUE["run"][0])["result"]["reason"]["say"] == "rank 0 failed"


def test_nodes_that_answer_for_the_first_time_at_once() -> None:
    """In a process of its own, since a library that learns a shape while another thread uses it ends its process."""
    documents = {verb: last for verb, (last, _) in TRUE.items()}
    done = subprocess.run(
        [sys.executable, "-c", AT_ONCE], input=json.dumps(documents), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


AT_ONCE = """
import json, sys, threading
from gpuops.transport import validation
documents = json.load(sys.stdin)
sys.setswitchinterval(1e-6)
for _ in range(3):
    for verb, last in documents.items():
        line = json.dumps({"id": 1, "ok": last}).encode()
        together = threading.Barrier(8)
        def hear():
            together.wait()
            validation.parse_message("node0", verb, line)
        threads = [threading.Thread(target=hear) for _ in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
"""


@pytest.mark.parametrize("verb", TRUE)
def test_what_is_nearly_true_is_sound_or_nonsense(verb: str) -> None:
    """Nothing else is ever raised; and what passes is as sound as the truth, since it passes again unchanged."""
    documents = [(kind, said) for kind, said in zip(("ok", "item"), TRUE[verb], strict=True) if said is not None]
    places = st.sampled_from([(kind, said, path) for kind, said in documents for path in spots(said)])
    json_ = st.recursive(
        st.sampled_from(WORSE) | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=5,
    )

    @settings(max_examples=100, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(places, json_ | st.just(...))
    def check(place: tuple[str, Any, tuple[Any, ...]], new: Any) -> None:
        kind, said, path = place
        wrong, found = "", None
        try:
            found = heard(verb, kind, {} if not path and new is ... else altered(said, path, new))
        except MalformedAnswer as error:
            wrong = error.message
        assert not wrong or (wrong.startswith(SAYS) and wrong.isprintable() and len(wrong) < 300)
        assert all(math.isfinite(one) for one in leaves(found) if isinstance(one, float))

    check()


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from leaves(one)
    else:
        yield value


@pytest.mark.parametrize("verb", TRUE)
def test_a_document_without_a_bottom_is_nonsense(verb: str) -> None:
    for depth in (10_000, 1_000_000):
        with pytest.raises(MalformedAnswer):
            validation.parse_message("node0", verb, b'{"id": 1, "ok": {"x": ' + b"[" * depth + b"]" * depth + b"}}")


def test_files_of_a_node_are_sound_or_nothing() -> None:
    assert validation.parse_result(json.dumps(RESULT).encode())
    for path in spots(RESULT):
        for new in WORSE:
            validation.parse_result(json.dumps(altered(RESULT, path, new)).encode())
    for text in (b"", b"[" * 100_000, b"5", b"\xff", b'{"outcome": "done"}'):
        assert validation.parse_result(text) is None
        assert validation.parse_event(text) is None
    assert validation.parse_event(b'{"at": 5.0, "event": "stepped", "more": 1}') == JournalEvent("stepped", 5.0)


def test_no_verb_is_called_whose_answer_has_no_shape() -> None:
    """All call sites, by reading the code: `client.call("verb")`, `client.stream("verb")`."""
    called = set()
    for path in ROOT.glob("gpuops/**/*.py"):
        if "agent" in path.relative_to(ROOT).parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("call", "stream")
            ):
                first = node.args[0] if node.args else None
                if path.name == "rpc.py":
                    continue
                assert isinstance(first, ast.Constant), f"{path}:{node.lineno} does not name its verb"
                called.add(first.value)
    assert called == set(schemas.VERB_SHAPES)
