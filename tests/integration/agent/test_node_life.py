"""A node's life: start, answer, run, stop, lose parts of itself, end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuops.agent.process_table import PROC
from gpuops.agent.wire_format import PROTOCOL
from gpuops.core.errors import NodeRefused
from gpuops.transport.rpc import AgentClient
from gpuops.transport.schema_types import Address
from gpuops.transport.schemas import Route
from tests.integration.agent.conftest import RealNode, alive, carrying, until

NOTE = "import os; open(f'pid.{os.getpid()}', 'w').close();"
"""Every process of a test's run leaves its number in the tree."""

STUBBORN = (
    "import ctypes, os, signal, sys, time\n"
    "for sign in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(sign, signal.SIG_IGN)\n"
    "ctypes.CDLL(None).prctl(15, b'kworker/0:1', 0, 0, 0)\n"
    "os.setsid() if os.getpid() != os.getsid(0) else None\n"
    "open('pid.%d' % os.getpid(), 'w').close()\n"
    "time.sleep(600)\n"
)
"""Ignores signals, has another name and session; started with an empty environment by `FAMILY`."""

FAMILY = (
    "import os, subprocess, sys, time\n"
    f"{NOTE}\n"
    f"stubborn = {STUBBORN!r}\n"
    "subprocess.Popen([sys.executable, '-c', stubborn])\n"
    "subprocess.Popen([sys.executable, '-c', stubborn], env={})\n"
    "if os.fork() == 0:\n"
    "    if os.fork() == 0: os.execve(sys.executable, [sys.executable, '-c', stubborn], {})\n"
    "    os._exit(0)\n"
    "os.wait()\n"
    "while len([name for name in os.listdir('.') if name.startswith('pid.')]) < 4: time.sleep(0.02)\n"
    "print('ready', flush=True)\n"
)


def family_pids(node: RealNode) -> list[int]:
    """The four processes of a FAMILY, once they are all there."""
    folder = node.folder / "project"
    until(lambda: len(list(folder.glob("pid.*"))) == 4, "all four processes have begun")
    return [int(path.name[4:]) for path in folder.glob("pid.*")]


def rank_argv(*command: str) -> list[str]:
    """A launcher with two ranks, in the manner of torchrun."""
    script = 'for r in 0 1; do RANK=$r LOCAL_RANK=$r "$@" & done; wait'
    wrapper = ["{python}", "-I", "{agent}", "rank", "--node-run", "{run}"]
    return ["sh", "-c", script, "sh", *wrapper, "--", *command]


def follow(client: AgentClient, run: str, offsets: dict[str, int] | None = None) -> dict[str, bytes]:
    """Every stream's bytes to the end of the run; offsets must be gapless."""
    got: dict[str, bytes] = {}
    for item in client.stream("tail", timeout=60, run=run, offsets=offsets or {}, follow=True):
        begin = (offsets or {}).get(item.stream, 0)
        assert item.offset == begin + len(got.get(item.stream, b""))
        got[item.stream] = got.get(item.stream, b"") + item.data
    return got


def below(folder: Path) -> list[tuple[Path, os.stat_result]]:
    """All that lies in a node's folder. What an agent at work has just removed is passed over."""
    found = []
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            found.append((path, path.stat()))
    return found


def test_a_node_says_what_it_is(node: RealNode) -> None:
    hello = node.says("hello")["ok"]
    assert hello["protocol"] == PROTOCOL
    assert hello["artefact"] == node.artefact.stem
    assert hello["folder"] == str(node.folder)
    assert hello["busy"] is None
    assert hello["cores"] >= 1
    assert hello["memory"] > 0


def test_init_again_starts_nothing_twice(node: RealNode) -> None:
    first = node.init()
    assert first == node.init() == {"watchdog": node.process("watchdog"), "agent": node.process("agent")}


@pytest.mark.skipif(not PROC, reason="needs /proc, without which nothing is forked")
def test_watchdog_and_agent_have_nothing_of_who_forked_them(node: RealNode) -> None:
    """With the watchdog's lock open in the agent no other watchdog could begin, and with our pipes no client's `init`
    would end."""
    for name in ("watchdog", "agent"):
        pid = node.process(name)
        place = Path(f"/proc/{pid}")
        open_files = {int(fd.name): os.readlink(fd) for fd in (place / "fd").iterdir()}
        log = str(node.folder / f"{name}.log")
        assert [open_files[stream] for stream in range(3)] == ["/dev/null", log, log]
        assert (str(node.folder / "watchdog.lock") in open_files.values()) == (name == "watchdog")
        assert (os.getsid(pid), (place / "comm").read_text()) == (pid, f"gpuops-{name}\n")
        words = (place / "cmdline").read_text().rstrip("\0").split("\0")
        assert words[2:5] == [name, "--node", str(node.folder)], "`ps` tells which it is"


@pytest.mark.parametrize(
    ("other", "say"),
    [
        ({"owner": "ffffffff"}, "this folder belongs to another gpuops (owner 0a1b2c3d, cluster lab)"),
        ({"cluster": "other"}, "this folder belongs to another gpuops (owner 0a1b2c3d, cluster lab)"),
        ({"token": "later"}, "this folder belongs to a node of lab that was made before"),
    ],
)
def test_init_takes_over_nobody_elses_node(make_node: Callable[..., RealNode], other: dict[str, str], say: str) -> None:
    node = make_node(init=False)
    ours = {"cluster": "lab", "index": 0, "end": None, "owner": "0a1b2c3d", "token": "first"}

    def init(settings: dict[str, Any]) -> tuple[int, str, str]:
        return node.mode("init", stdin=json.dumps({"node": settings, "lease": {}}))

    code, out, errors = init(ours)
    assert code == 0, errors
    code, _, errors = init({**ours, **other})
    assert code == 1
    error = json.loads(errors.splitlines()[-1])["error"]
    assert (error["kind"], error["say"]) == ("foreign", say)
    assert json.loads((node.folder / "node.json").read_text()) == ours
    assert init(ours)[:2] == (0, out)


def test_only_its_user_can_look_into_a_node(node: RealNode) -> None:
    node.start("r-1", ["echo", "hello"])
    node.result("r-1")
    ours = [(path, found) for path, found in below(node.folder) if "project" not in path.parts]
    assert any(path.name == "agent.sock" for path, _ in ours)
    everything = [(node.folder, node.folder.stat()), *ours]
    assert [path for path, found in everything if stat.S_IMODE(found.st_mode) & 0o077] == []


def test_a_node_lives_at_any_depth(make_node: Callable[..., RealNode]) -> None:
    deep = make_node(under="d" * 120)
    assert deep.client().call("hello").folder == str(deep.folder)
    assert deep.end("--remove") == {"ended": 2, "left": 0}
    assert not deep.folder.parent.exists()


def test_routes_and_ports_are_the_kernels(node: RealNode) -> None:
    client = node.client()
    assert client.call("route", to="127.0.0.1") == Route("lo", Address("127.0.0.1"))
    port = client.call("port", address="127.0.0.1").port
    assert 20000 <= port < int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    with pytest.raises(NodeRefused) as refused:
        client.call("port", address="192.0.2.1")
    assert refused.value.kind == "no-port"


def test_a_command_gets_its_words_and_nothing_else_byte_for_byte(node: RealNode) -> None:
    words = ["a b", "'", '"', "$(touch owned)", "`id`", "new\nline", "ü✓", "--", "--help", "{run}", "*", ""]
    source = f"{NOTE} import json, sys; print(json.dumps([sys.argv[1:], os.environ['VALUE'], os.getcwd()]))"
    node.start("r-1", [sys.executable, "-c", source, *words], env={"VALUE": "$(id) \n'\"ü"})
    assert node.result("r-1")["outcome"] == "done"
    argv, value, folder = json.loads(node.file("r-1", "launcher.out"))
    assert argv == words
    assert value == "$(id) \n'\"ü"
    assert folder == str(node.folder / "project")
    assert not (node.folder / "project" / "owned").exists()


def test_a_prelude_runs_in_the_commands_own_shell(node: RealNode) -> None:
    prelude = ["export GREETING='hello there'", "echo loaded"]
    node.start("r-1", ["sh", "-c", 'echo "$GREETING" "$1"', "sh", "$HOME"], prelude=prelude)
    node.result("r-1")
    assert node.file("r-1", "launcher.out") == b"loaded\nhello there $HOME\n"


def test_secrets_reach_the_run_and_no_file(node: RealNode) -> None:
    source = f"{NOTE} import os, time; print(len(os.environ['TOKEN']), flush=True); time.sleep(600)"
    node.python("r-1", source, secrets={"TOKEN": "canary-4711"})
    until(lambda: node.file("r-1", "launcher.out") == b"11\n", "the run has it")
    assert carrying("canary-4711") == set()
    texts = {}
    for path, found in below(node.folder):
        if stat.S_ISREG(found.st_mode):
            with contextlib.suppress(FileNotFoundError):
                texts[path] = path.read_bytes()
    assert len(texts) > 5
    assert [path for path, text in texts.items() if b"canary-4711" in text] == []


def test_scrubbed_names_are_gone_from_the_environment(node: RealNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.end("--remove")
    for name in ("PET_X", "WORLD_SIZE", "WORLD_SIZES"):
        monkeypatch.setenv(name, "1")
    node.init()
    node.start("r-1", ["env"], scrub=["PET_", "WORLD_SIZE"])
    node.result("r-1")
    names = {line.partition("=")[0] for line in node.file("r-1", "launcher.out").decode().splitlines()}
    assert "WORLD_SIZES" in names
    assert not names & {"PET_X", "WORLD_SIZE"}


def test_a_failing_command_has_its_code_and_its_last_words(node: RealNode) -> None:
    node.start("r-1", ["sh", "-c", "echo to out; echo the end >&2; exit 7"])
    result = node.result("r-1")
    assert result["outcome"] == "failed"
    assert result["reason"] == {"kind": "command", "say": "the command failed with exit code 7"}
    assert result["launcher"] == {"code": 7, "signal": None}
    assert result["tail"] == "the end\n"


def test_a_program_that_is_not_there_is_refused_and_frees_the_node(node: RealNode) -> None:
    with pytest.raises(NodeRefused) as refused:
        node.start("r-1", ["/no/such/program"])
    assert refused.value.kind == "cannot-start"
    assert node.result("r-1")["reason"]["kind"] == "start"
    node.start("r-2", ["true"])
    assert node.result("r-2")["outcome"] == "done"


def test_no_run_without_a_tree_and_none_twice(node: RealNode) -> None:
    with pytest.raises(NodeRefused) as refused:
        node.start("r-1", ["true"], tree="train")
    assert refused.value.kind == "no-tree"
    node.start("r-1", ["true"])
    node.result("r-1")
    with pytest.raises(NodeRefused) as refused:
        node.start("r-1", ["true"])
    assert refused.value.kind == "run-exists"


def test_a_further_attempt_of_a_run_that_ended(node: RealNode) -> None:
    """Its logs are appended to; how the first attempt ended is forgotten."""
    program = "import os, sys; print(sys.argv[1]); open('made.pt', 'a').close(); sys.exit(int(sys.argv[2]))"
    node.python("r-1", program, "one", "7", attempt=1)
    assert node.result("r-1")["outcome"] == "failed"
    folder = node.folder / "runs/r-1"
    (folder / "stop").touch()
    (folder / "ranks/0.json").write_text('{"rank": 0, "code": 7, "ended": 1.0, "wrapper": 1}')
    with pytest.raises(NodeRefused) as refused:
        node.python("r-1", program, "again", "0", attempt=1)
    assert refused.value.kind == "run-exists"
    node.python("r-1", program, "two", "0", attempt=2)
    result = until(lambda: node.result("r-1") if (folder / "result.json").exists() else None, "the second result")
    assert (result["outcome"], result["ranks"]) == ("done", [])
    assert node.file("r-1", "launcher.out") == b"one\ntwo\n"
    assert not (folder / "stop").exists()
    client = node.client()
    made = client.call("outs", run="r-1", patterns=["*.pt"]).files
    client.close()
    assert [path for path, *_ in made] == ["made.pt"], "what the first attempt made is the run's as well"


def test_what_a_run_downloads_is_kept_for_the_nodes_of_a_root_and_is_no_result(
    make_node: Callable[..., RealNode],
) -> None:
    fetch = "import os, sys; path = 'data/mnist/x.gz'; print(os.path.exists(path)); open(path, 'a').close()"
    one, other = make_node(0), make_node(1)
    for node, run, known in ((one, "r-1", b"False\n"), (one, "r-2", b"True\n"), (other, "r-3", b"True\n")):
        node.python(run, fetch, data="mnist")
        assert node.result(run)["outcome"] == "done"
        assert node.file(run, "launcher.out") == known
        client = node.client()
        assert client.call("outs", run=run, patterns=["*.gz"]).files == []
        assert client.call("left", run=run, patterns=[]).files == []
        client.close()
        code, left, errors = node.mode("left", stdin=json.dumps({"run": run, "patterns": []}))
        assert (code, left) == (0, '{"files": []}\n'), errors
    with pytest.raises(NodeRefused) as refused:
        one.start("r-4", ["true"], data="../../elsewhere")
    assert refused.value.kind == "bad-data"

    kept = one.folder.parents[1] / "data" / "mnist" / "x.gz"
    one.end("--remove")
    assert kept.exists(), "another node is left"
    assert [entry["folder"] for entry in one.end("--remove", "--root")["nodes"]] == [str(other.folder)]
    assert kept.exists()
    assert other.end("--remove", "--root")["nodes"] == []
    assert not kept.parents[2].exists()


def test_a_cluster_called_like_a_shared_folder_is_not_removed_with_it(make_node: Callable[..., RealNode]) -> None:
    node = make_node()
    beside = node.folder.parents[1] / "data" / "n0"
    beside.mkdir(parents=True)
    (beside / "node.json").write_text("{}")
    node.mode("end", "--remove", "--root")
    assert not node.folder.exists()
    assert (beside / "node.json").exists()


def test_one_run_at_a_time(node: RealNode) -> None:
    node.start("r-1", ["sleep", "600"])
    with pytest.raises(NodeRefused, match="busy with the run 'r-1'") as refused:
        node.start("r-2", ["true"])
    assert refused.value.kind == "busy"
    assert refused.value.data == {"run": "r-1"}
    client = node.client()
    assert client.call("hello").busy == "r-1"
    assert node.says("run", run="r-1")["ok"] == {"state": "running", "result": None, "sink": None, "handed": {}}
    client.call("stop", run="r-1", how="now", why="enough")
    follow(client, "r-1")
    node.start("r-2", ["true"])  # at once: who knows the result may start the next
    assert node.client().call("run", run="r-1").result["reason"] == {"kind": "stop", "say": "enough"}


def test_tail_loses_and_doubles_no_byte_over_cuts(node: RealNode) -> None:
    source = "import sys, time\nfor i in range(400): print(i, 'x' * (i * 7 % 900), flush=True); time.sleep(0.002)"
    node.python("r-1", source)
    got = b""
    while True:
        client = node.client()
        stream = client.stream("tail", run="r-1", offsets={"launcher.out": len(got)}, follow=True, timeout=60)
        for item in stream:
            if item.stream == "launcher.out":
                assert item.offset == len(got)
                got += item.data
                break  # the cut
        else:
            break
        client.close()
    assert stream.answer.result["outcome"] == "done"
    assert got == node.file("r-1", "launcher.out")
    assert got.count(b"\n") == 400


def test_a_tail_can_be_cancelled(node: RealNode) -> None:
    node.start("r-1", ["sh", "-c", "while :; do echo more; sleep 0.1; done"])
    channel = node.connection.open(node.paths.argv("connect"))
    ask = {"id": 1, "verb": "tail", "args": {"run": "r-1", "offsets": {}, "follow": True}}
    channel.stdin.write(json.dumps(ask).encode() + b"\n" + b'{"id": 1, "verb": "cancel"}\n')
    lines = iter(channel.stdout.readline, b"")
    assert next(lines) == b"gpuops-agent 1\n"
    last = next(message for message in map(json.loads, lines) if "item" not in message)
    assert last["error"]["kind"] == "cancelled"
    channel.close()


def test_the_agent_outlives_clients_that_die_at_any_byte(node: RealNode) -> None:
    agent = node.process("agent")
    ask = json.dumps({"id": 1, "verb": "hello", "args": {}}).encode() + b"\n"
    for cut in range(0, len(ask) + 1, 5):
        channel = node.connection.open(node.paths.argv("connect"))
        channel.stdin.write(ask[:cut])
        channel.close()
    for nonsense in (b"\xff\xfe\n", b"[]\n", b'{"id": {}, "verb": 3}\n', b'{"id": 1, "verb": "hello", "args": 3}\n'):
        channel = node.connection.open(node.paths.argv("connect"))
        channel.stdin.write(nonsense)
        channel.close()
    assert node.says("ping")["ok"].items() >= {"agent": agent, "watchdog": node.process("watchdog")}.items()


def test_an_unknown_verb_and_a_bug_are_answers(node: RealNode) -> None:
    assert node.says("juggle")["error"]["kind"] == "unknown-verb"
    with pytest.raises(NodeRefused) as refused:
        node.client().call("run")
    assert refused.value.kind == "bug"
    assert "KeyError" in (node.folder / "agent.log").read_text()


def test_a_graceful_stop_asks_first(node: RealNode) -> None:
    source = (
        "import os, signal, sys, time\n"
        "def save(*_):\n"
        "    print('saved', os.path.exists(os.environ['GPUOPS_STOP_FILE']), flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGUSR1, save)\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    node.python("r-1", source, grace_s=60.0)
    until(lambda: node.file("r-1", "launcher.out"), "it is ready")
    node.client().call("stop", run="r-1", how="graceful", why="dinner")
    result = node.result("r-1")
    assert node.file("r-1", "launcher.out") == b"ready\nsaved True\n"
    assert result["outcome"] == "stopped"
    assert result["launcher"] == {"code": 0, "signal": None}


def test_a_graceful_stop_does_not_kill_who_has_no_handler(node: RealNode) -> None:
    source = (
        "import os, time\n"
        "print('ready', flush=True)\n"
        "while not os.path.exists(os.environ['GPUOPS_STOP_FILE']): time.sleep(0.05)\n"
        "time.sleep(1)  # a signal would come right after the file\n"
        "print('by myself')\n"
    )
    node.python("r-1", source, grace_s=60.0)
    until(lambda: node.file("r-1", "launcher.out"), "it is ready")
    node.client().call("stop", run="r-1", how="graceful", why="dinner")
    assert node.result("r-1")["outcome"] == "stopped"
    assert node.file("r-1", "launcher.out") == b"ready\nby myself\n"


def test_a_second_stop_hurries(node: RealNode) -> None:
    node.python("r-1", FAMILY + "time.sleep(600)", grace_s=600.0)
    pids = family_pids(node)
    client = node.client()
    client.call("stop", run="r-1", how="graceful", why="first")
    client.call("stop", run="r-1", how="now", why="second")
    assert node.result("r-1")["reason"] == {"kind": "stop", "say": "first"}
    assert not [pid for pid in pids if alive(pid)]


@pytest.mark.parametrize("ending", ["stop", "exit", "agent", "watchdog", "launcher", "end"])
def test_nothing_of_a_run_outlives_it(node: RealNode, ending: str) -> None:
    node.start("r-0", ["true"])
    node.result("r-0")
    node.python("r-1", FAMILY + ("" if ending == "exit" else "time.sleep(600)"), grace_s=0.5)
    pids = family_pids(node)
    launcher = json.loads(node.file("r-1", "events.jsonl").splitlines()[0])["pid"]
    watchdog, agent = node.process("watchdog"), node.process("agent")
    if ending == "stop":
        node.client().call("stop", run="r-1", how="graceful", why="enough")
    elif ending == "end":
        assert node.end()["left"] == 0
    elif ending != "exit":
        os.kill({"agent": agent, "watchdog": watchdog, "launcher": launcher}[ending], signal.SIGKILL)
    result = node.result("r-1")
    assert not [pid for pid in pids if alive(pid)]
    outcome, kind = {
        "stop": ("stopped", "stop"),
        "exit": ("done", "command"),
        "agent": ("lost", "agent"),
        "watchdog": ("lost", "watchdog"),
        "launcher": ("failed", "command"),
        "end": ("stopped", "end"),
    }[ending]
    assert (result["outcome"], result["reason"]["kind"], result["left"]) == (outcome, kind, 0)
    assert node.result("r-0")["outcome"] == "done"
    if ending == "end":
        assert not alive(watchdog)
        assert not alive(agent)
    else:
        if ending == "watchdog":
            until(lambda: not alive(agent), "the agent leaves to another watchdog's")
        until(lambda: node.process("watchdog") and node.process("agent"), "the node is whole again")
        node.start("r-2", ["true"])
        assert node.result("r-2")["outcome"] == "done"
    if ending == "watchdog":
        assert node.process("watchdog") != watchdog


def test_ranks_are_recorded_and_the_first_failure_is_the_reason(node: RealNode) -> None:
    command = (
        'echo "out $RANK"; echo "err $RANK" >&2; test $RANK = 1 && exit 3; '
        "until grep -qs '\"code\": 3' ../runs/r-1/ranks/1.json; do sleep 0.1; done; kill -SEGV $$"
    )
    node.start("r-1", rank_argv("sh", "-c", command), kind="torchrun", ranks=2)
    result = node.result("r-1")
    assert result["reason"] == {"kind": "rank", "rank": 1, "say": "rank 1 failed with exit code 3"}
    first, second = result["ranks"]
    assert (first["rank"], first["code"], first["signal"]) == (0, None, signal.SIGSEGV)
    assert (second["rank"], second["code"], second["signal"], second["tail"]) == (1, 3, None, "err 1\n")
    assert second["started"] <= second["ended"]
    assert node.file("r-1", "ranks/1.out") == b"out 1\n"


def test_a_killed_launcher_takes_its_ranks_along(node: RealNode) -> None:
    node.start("r-1", rank_argv(sys.executable, "-c", f"{NOTE} import time; time.sleep(600)"), kind="torchrun", ranks=2)
    until(lambda: len(list((node.folder / "project").glob("pid.*"))) == 2, "both ranks run")
    os.kill(json.loads(node.file("r-1", "events.jsonl").splitlines()[0])["pid"], signal.SIGKILL)
    result = node.result("r-1")
    assert (result["outcome"], result["reason"]["kind"]) == ("failed", "launcher")
    assert [(rank["signal"], rank["after_stop"]) for rank in result["ranks"]] == [(signal.SIGTERM, True)] * 2


def test_a_failed_rank_ends_the_run_though_its_launcher_waits(node: RealNode) -> None:
    command = "test $RANK = 0 && exec sleep 600; until test -e ../runs/r-1/ranks/0.json; do sleep 0.1; done; exit 3"
    node.start("r-1", rank_argv("sh", "-c", command), kind="torchrun", ranks=2)
    result = node.result("r-1")
    assert result["reason"] == {"kind": "rank", "rank": 1, "say": "rank 1 failed with exit code 3"}
    assert result["ranks"][0]["after_stop"] is True


@pytest.mark.skipif(not PROC, reason="needs /proc")
def test_ranks_that_never_join_do_not_bill_for_ever(node: RealNode) -> None:
    """As those of a script that starts its own processes: they wait for each other elsewhere."""
    more = {"kind": "torchrun", "ranks": 2, "world": 2, "master": {"address": "127.0.0.1", "port": 1}}
    node.start("r-1", rank_argv("sleep", "600"), join_timeout_s=1.0, **more)
    result = node.result("r-1")
    assert result["outcome"] == "stopped"
    assert result["reason"]["kind"] == "unjoined"
    assert [rank["after_stop"] for rank in result["ranks"]] == [True, True]


def test_a_lease_ends_a_node_with_its_run(node: RealNode) -> None:
    node.python("r-1", FAMILY + "time.sleep(600)", grace_s=0.5)
    pids = family_pids(node)
    watchdog = node.process("watchdog")
    node.client().call("lease", ends_in=0.5, idle_s=None)
    assert node.result("r-1")["reason"] == {"kind": "lease", "say": "its lease ended"}
    assert alive(watchdog)  # we are connected: there may be results that we want
    node.connection.close()
    until(lambda: not alive(watchdog), "the watchdog has left")
    assert not [pid for pid in pids if alive(pid)]
    assert json.loads((node.folder / "ended.json").read_text())["why"] == "its lease ended"
    code, _, errors = node.mode("connect")
    assert (code, json.loads(errors)["error"]["kind"]) == (1, "ended")
    code, _, errors = node.mode("init", stdin='{"node": {}, "lease": {}}')
    assert (code, json.loads(errors)["error"]["kind"]) == (1, "ended")


def test_an_idle_node_ends_and_one_with_a_run_does_not(make_node: Callable[..., RealNode]) -> None:
    node = make_node()
    node.start("r-1", ["sleep", "5"])
    node.client().call("lease", ends_in=None, idle_s=1.0)
    assert node.result("r-1")["outcome"] == "done"
    until(lambda: (node.folder / "ended.json").exists(), "the idle node has ended")


def test_a_boot_lease_holds_until_a_client_takes_over(make_node: Callable[..., RealNode]) -> None:
    taken = make_node(0, boot_in=600.0)
    client = taken.client()
    assert client.call("hello").lease.boot_wall > time.time()
    client.call("lease", ends_in=3600, idle_s=None)
    assert client.call("hello").lease.boot_wall is None
    left = make_node(1, init=False)
    document = {"node": {"cluster": "lab", "index": 1, "end": None}, "lease": {"boot_in": 0.5}}
    left.mode("init", stdin=json.dumps(document))  # it may be over before anybody answers
    until(lambda: (left.folder / "ended.json").exists(), "nobody took it over")
    why = json.loads((left.folder / "ended.json").read_text())["why"]
    assert why == "no client took it over in time after it started"
    assert not (taken.folder / "ended.json").exists()


def test_what_ends_the_machine_is_run_at_the_end(make_node: Callable[..., RealNode], tmp_path: Path) -> None:
    node = make_node(init=False)
    document = {"node": {"end": ["touch", str(tmp_path / "off")]}, "lease": {"ends_in": 0.0}}
    node.mode("init", stdin=json.dumps(document))
    until(lambda: (tmp_path / "off").exists(), "the end command ran")


def test_end_is_idempotent_and_removes_only_when_asked(node: RealNode) -> None:
    assert node.end() == {"ended": 2, "left": 0}
    assert node.end() == {"ended": 0, "left": 0}
    assert (node.folder / "node.json").exists()
    node.end("--remove")
    assert not node.folder.parent.exists()
    assert node.end("--remove") == {"ended": 0, "left": 0}
    with pytest.raises(NodeRefused) as refused:
        node.client()
    assert refused.value.kind == "no-node"


def test_end_finds_what_only_the_marker_tells(node: RealNode) -> None:
    node.python("r-1", f"{NOTE} import time; time.sleep(600)")
    pid = until(lambda: [int(path.name[4:]) for path in (node.folder / "project").glob("pid.*")], "it runs")[0]
    watchdog, agent = node.process("watchdog"), node.process("agent")
    os.kill(watchdog, signal.SIGSTOP)  # so that it cannot do anything about the agent
    os.kill(agent, signal.SIGKILL)
    os.kill(watchdog, signal.SIGKILL)
    until(lambda: not alive(agent) and not alive(watchdog), "both are gone")
    assert alive(pid)
    assert node.end() == {"ended": 1, "left": 0}
    assert not alive(pid)
