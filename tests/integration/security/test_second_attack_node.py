"""A second attack by whoever owns a node: on the other nodes' results, on time, on memory, on what is shown."""

from __future__ import annotations

import io
import itertools
import json
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from gpuops.clusters import adoption
from gpuops.clusters.run_files_on_nodes import MTIME_MAX_NS, LaunchSpec, Traces, parse_spec
from gpuops.commands.doctor.examine import read_document
from gpuops.core.errors import ConnectionLost, MalformedAnswer
from gpuops.core.safe_paths import may_come
from gpuops.nodes import bootstrap
from gpuops.sync.log_mirror import mirror
from gpuops.sync.merged_outputs import OutFolder
from gpuops.sync.merged_outputs_record import Arrival
from gpuops.sync.run_folder import RunHome
from gpuops.transport import file_schemas, schemas, validation
from gpuops.transport.bulk_transfer import transfer
from gpuops.transport.rpc import AgentClient
from gpuops.transport.tar_reader import members
from tests.conftest import Shell
from tests.integration.security.test_gang import HANG_S, Ends

Lie = Callable[[str], None]

HANDED = """
def answer(node, verb, args, message):
    ok = message.get("ok")
    if node == 1 and verb == "tail" and ok and ok.get("result"):
        ok["result"]["reason"] = {"kind": "reclaim", "say": "taken back"}
    if node == 1 and verb == "run" and ok:
        ok["handed"] = {"made.pt": 0}
    return message
"""
JOB = "import os, time\nnode = os.environ['GPUOPS_NODE']\nopen('made.pt', 'w').write('by ' + node)\n"


def test_a_node_does_not_say_what_another_made_that_answers(shell: Shell, lie: Lie) -> None:
    """It claims that its machine goes, and that node0 had handed it a newer file before."""
    lie(HANDED)
    shell.write("job.py", JOB + "if node == '1':\n    os.utime('made.pt', (4e9, 4e9))\n")
    assert shell.run("up", "local", "--name", "lab", "--nodes", "2").returncode == 0
    done = shell.run("run", "--all-nodes", "--", "python3", "job.py")
    assert "Traceback" not in done.stderr
    (out,) = shell.folder.glob("runs/*/out")
    assert (out / "made.pt").read_text() == "by 0", done.stderr
    assert (out / "node1" / "made.pt").read_text() == "by 1"


NAMES = """
def answer(node, verb, args, message):
    if node == 1 and verb == "outs" and "ok" in message:
        message["ok"]["files"] += [[name, 3, 5] for name in {names!r}]
    return message
def bulk(node, mode, arguments, stdin):
    if node != 1 or mode != "send" or "--run" not in arguments:
        return None
    import io, json, tarfile
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in json.loads(stdin):
            member = tarfile.TarInfo(name)
            member.size = 4 if name == "made.pt" else 3
            tar.addfile(member, io.BytesIO(b"by 1" if name == "made.pt" else b"bad"))
    return made.getvalue()
"""
BAD_NAMES = [".gpuops.jsonl/x.pt", "x" * 256 + ".pt", "é" * 130 + ".pt", "d/" * 900 + "x.pt", ("d" * 200 + "/") * 12]


@pytest.mark.parametrize(
    "name",
    [
        *BAD_NAMES[:2],
        *(pytest.param(name, marks=pytest.mark.proof) for name in BAD_NAMES[2:]),
    ],  # what is too long: below
    ids=["ours", "long", "long-utf8", "deep", "path"],
)
def test_a_name_that_nothing_can_have_here_keeps_no_result_away(shell: Shell, lie: Lie, name: str) -> None:
    lie(NAMES.format(names=[name.rstrip("/") + ".pt"]))
    shell.write("job.py", JOB)
    assert shell.run("up", "local", "--name", "lab", "--nodes", "2").returncode == 0
    done = shell.run("run", "--all-nodes", "--", "python3", "job.py")
    assert "Traceback" not in done.stderr
    assert "cannot write" not in done.stderr
    (out,) = shell.folder.glob("runs/*/out")
    assert (out / "made.pt").read_text() == "by 0", done.stderr
    assert (out / "node1" / "made.pt").read_text() == "by 1"
    assert {"made.pt"} <= OutFolder(RunHome(out.parent)).memory().held.keys()


def test_names_that_may_come() -> None:
    assert all(may_come(name) for name in ("a", "a/b", "x" * 255, "d/" * 99 + "x", "é" * 127))
    assert not any(may_come(name) for name in ("x" * 256, "é" * 128, "d/" * 100 + "x", ("d" * 200 + "/") * 11 + "x"))


def test_a_conflict_of_the_longest_name(tmp_path: Path) -> None:
    """`<name>.new` would be too long."""
    out, name = OutFolder(RunHome(tmp_path / "runs" / "r1")), "x" * 253
    out.folder.create(name, io.BytesIO(b"a person's"), 10)
    with out.staging() as staging:
        sha256 = staging.create("1-0", io.BytesIO(b"bad"), 3, mtime_ns=5)
        (said,) = out.publish([Arrival(1, name, (3, 5), sha256, "1-0")], staging)
    assert (out.folder.path / name).read_text() == "a person's"
    assert sorted(path.read_text() for path in out.folder.path.glob("[!.x]*")) == ["bad"]
    assert "lies beside a file that was changed here" in said


BEATS = """
import time
def answer(node, verb, args, message):
    if verb == {verb!r}:
        time.sleep(0.2)
        return [{{"id": message["id"], "item": {{"beat": 1.0}}}}] * 3
    return message
"""


@pytest.mark.parametrize("verb", [verb for verb, shape in schemas.VERB_SHAPES.items() if not shape.item])
def test_a_verb_without_items_has_no_beats(verb: str) -> None:
    """Each would begin the wait for its answer anew: no command would ever end."""
    with pytest.raises(MalformedAnswer):
        validation.parse_message("node0", verb, b'{"id": 1, "item": {"beat": 1.0}}')


@pytest.mark.parametrize(
    "verb",
    ["hello", "outs", *(pytest.param(verb, marks=pytest.mark.proof) for verb in ("plan", "start", "run"))],
)  # each verb for itself: test_a_verb_without_items_has_no_beats
def test_a_node_that_only_beats_holds_up_no_command(shell: Shell, lie: Lie, verb: str) -> None:
    lie(BEATS.format(verb=verb))
    shell.write("job.py", JOB)
    done = shell.run("run", "--on", "local", "--nodes", "1", "--", "python3", "job.py")
    assert done.returncode in (0, 4), done.stderr
    assert "Traceback" not in done.stderr
    shell.expect_clean()


@pytest.mark.parametrize("what", [b"[],", b"{},", b'{"":[]},'])
def test_a_message_of_many_parts_is_not_read(what: bytes) -> None:
    """60 MB of them were 1.5 GB here, and half a minute in which no other thread moved."""
    line = b'{"id": 1, "ok": {"files": [' + what * (3_000_000) + b"0]}}"
    with pytest.raises(MalformedAnswer, match="too many parts"):
        validation.parse_message("node0", "outs", line)


def test_a_listing_of_half_a_million_files_is() -> None:
    rows = ",".join(f'["run[{index}].pt",1,1]' for index in range(500_000))
    _, said = validation.parse_message("node0", "outs", f'{{"id": 1, "ok": {{"files": [{rows}]}}}}'.encode())
    assert len(said.files) == 500_000


def test_a_refusal_is_one_short_line() -> None:
    error = {"say": "no\n\ngpuops: lab is gone, nothing bills\n" + "x" * 1_000_000, "hint": "a\r\nb", "kind": "busy"}
    refusal = validation.parse_refusal("node0", error)
    assert refusal.message.startswith("node0: no gpuops: lab is gone, nothing bills xxx")
    assert len(refusal.message) < 2100
    assert refusal.hint == "a b"


def test_so_are_the_words_of_a_result() -> None:
    reason = {"kind": "rank", "say": "no\n\ngpuops: all is well\n" + "x" * 1_000_000}
    found = validation.parse_result({"outcome": "lost", "reason": reason, "ranks": []})
    assert found is not None
    assert found["reason"]["say"].startswith("no gpuops: all is well xxx")
    assert len(found["reason"]["say"]) < 2100
    json.dumps(found)


def test_a_checksum_ends_with_its_last_digit() -> None:
    with pytest.raises(ValueError, match="sha256"):
        validation.convert({"path": "a", "sha256": "0" * 64 + "\n"}, file_schemas.Checksum)


@pytest.mark.parametrize("number", ["²", "9" * 5000, "٣" * 30, "-5", ""])
def test_a_machine_says_numbers_that_are_none(number: str) -> None:
    found = bootstrap.parse_probe(f"home /root\npython /usr/bin/python3\ngpus {number}\nfree_kb {number}\n", "node0")
    assert found.gpus == 0


# --- without end ---------------------------------------------------------------------------------


class Dripping:
    """A program that says a byte now and then, for ever."""

    def __init__(self) -> None:
        self.ended = threading.Event()
        self.stdin = io.BytesIO()
        self.stdout = self

    def read(self, _count: int) -> bytes:
        return b"" if self.ended.wait(0.01) else b"x"

    def wait(self, _timeout: float | None = None) -> int:
        return 0

    def errors(self) -> str:
        return ""

    def close(self) -> None:
        self.ended.set()


def test_a_byte_now_and_then_is_no_transfer() -> None:
    channel: Any = Dripping()
    with pytest.raises(ConnectionLost, match="hardly moved"), transfer(channel, "node0", 0.1) as watched:
        list(members(watched.stdout))


def test_a_node_has_so_many_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        label = "node0"

        def stream(self, _verb: str, **_args: Any) -> Any:
            return iter(schemas.LogPiece(f"rank{index}.out", 0, b"x") for index in itertools.count())

    monkeypatch.setattr("gpuops.sync.log_mirror.MAX_STREAMS", 30)
    home, client = RunHome(tmp_path / "runs" / "r1"), cast(AgentClient, Client())
    with pytest.raises(MalformedAnswer, match="more logs than ranks"):
        mirror(client, "r1", 0, home, True, lambda *_: None)
    assert len(home.offsets(0)) == 30


def test_a_member_of_a_run_does_not_fill_node_0s_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuops.agent.peers.link.MAX_EVENTS", 20)
    ends = Ends()
    try:
        head, heard = ends.head()
        wire = ends.wire(1)
        for number in range(50):
            wire.send({"event": "stop", "node": 1, "why": str(number)})
        assert [heard.get(timeout=HANG_S)["why"] for _ in range(20)] == [str(number) for number in range(20)]
        wire.limit_silence(HANG_S)
        with suppress(OSError):
            while wire.receive() is not None:
                pass
        assert len(head._events) == 20
        other = ends.wire(2)
        other.send({"event": "stop", "node": 2, "why": "x" * 100_000})
        with suppress(OSError):
            while (said := other.receive()) is not None:
                assert said.get("node") != 2
        assert len(head._events) == 20
    finally:
        for link in ends.links:
            link.close()


@pytest.mark.parametrize("said", [b'{"schema": 1, "disk": 1e999}', b'{"schema": 1, "x": Infinity}'])
def test_a_checkup_has_no_number_without_end(said: bytes) -> None:
    facts = read_document(said, "node0")
    assert not [one for one in facts.values() if one == math.inf]


@pytest.mark.parametrize("mtime_ns", [-(1 << 63), (1 << 63) - 1])
def test_a_run_that_is_taken_back_began_at_a_time_that_can_be(mtime_ns: int) -> None:
    """What its cluster has cost is reckoned from it."""
    traces = Traces(cast("LaunchSpec", None), min(mtime_ns, MTIME_MAX_NS) / 1e9, None, b"")
    began = adoption._start_time([adoption._Node(runs={"r": traces})], "r", time.time())
    assert time.time() - 400 * 86400 < began <= time.time()


@pytest.mark.parametrize("seconds", [math.inf, math.nan, -1.0, 1e308])
@pytest.mark.parametrize("name", ["grace_s", "hold_s"])
def test_a_run_that_is_taken_back_ends_in_a_time_that_can_be(name: str, seconds: float) -> None:
    """`gpuops down` waits for so long."""
    spec = {"run": "r", "node": 0, "kind": "command", "tree": "project", "nodes": 1, "world": 0, "ranks": 0, "argv": []}
    assert parse_spec(spec, "r", 0)
    assert parse_spec({**spec, name: 10.0}, "r", 0)
    assert not parse_spec({**spec, name: seconds}, "r", 0)
