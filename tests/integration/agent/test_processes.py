"""Whose a process is, and how a set of them is ended: with real processes, in a process of its own.

Each scenario runs in a fresh Python that makes itself a subreaper, as the agent is one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuops.agent import process_table, processes
from gpuops.agent.daemon import main
from gpuops.agent.process_table import Marker, Process, descendants, has_marker, parse_stat
from gpuops.agent.run import run_verbs

LINUX = pytest.mark.skipif(not process_table.PROC, reason="needs /proc")


def scenario(source: str, folder: Path) -> dict[str, object]:
    """Run it in a process of its own; the JSON that it prints last."""
    head = (
        "import json, os, signal, subprocess, sys, time\n"
        "from gpuops.agent import processes as procs\n"
        "from gpuops.agent.process_table import Marker, find_process, handles_signal\n"
        "procs.become_subreaper()\n"
        "def until(test):\n"
        "    while not test(): time.sleep(0.01)\n"
        "py = sys.executable\n"
    )
    program = [sys.executable, "-c", head + source]
    env = {**os.environ, "PYTHONPATH": str(Path(process_table.__file__).parents[2])}
    done = subprocess.run(program, capture_output=True, text=True, timeout=600, cwd=folder, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout.splitlines()[-1]))


def test_descendants_are_all_below_the_roots() -> None:
    seen = {pid: Process(pid, parent, pid, "1") for pid, parent in [(1, 0), (2, 1), (3, 2), (4, 3), (5, 1)]}
    assert descendants(seen, [2]) == {3, 4}
    assert descendants(seen, [1]) == {2, 3, 4, 5}
    assert descendants(seen, [9]) == set()


@pytest.mark.parametrize("name", ["sh", "a) Z 1 (b", "new\nline", ")", ""])
def test_a_stat_line_is_read_whatever_the_name(name: str) -> None:
    fields = ["S", "7", "7", "9", *["0"] * 13, "1", "0", "4711", "0"]
    assert parse_stat(42, f"42 ({name}) " + " ".join(fields)) == Process(42, 7, 9, "4711")


def test_a_zombie_is_not_a_process_unless_threads_go_on() -> None:
    fields = ["Z", "7", "7", "9", *["0"] * 13, "1", "0", "4711", "0"]
    assert parse_stat(42, "42 (sh) " + " ".join(fields)) is None
    fields[17] = "3"
    assert parse_stat(42, "42 (sh) " + " ".join(fields)) is not None


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        (["A=1", "GPUOPS_RUN=c-r-0"], True),
        (["GPUOPS_RUN=c-r-0", "GPUOPS_STOP_FILE=/here/stop"], True),
        (["GPUOPS_RUN=c-r-0", "GPUOPS_STOP_FILE=/elsewhere/stop"], False),
        (["GPUOPS_RUN=c-r-01"], False),
        (["XGPUOPS_RUN=c-r-0", "A=GPUOPS_RUN=c-r-0"], False),
        ([], False),
    ],
)
def test_a_marker_is_the_whole_entry(entries: list[str], expected: bool) -> None:
    environment = b"".join(entry.encode() + b"\0" for entry in entries)
    assert has_marker(environment, Marker("c-r-0", "/here/stop")) is expected


@LINUX
def test_helpers_and_what_they_start_are_not_a_runs(tmp_path: Path) -> None:
    told = scenario(
        "launcher = procs.start_child([py, '-c', 'import time; time.sleep(60)'])\n"
        "helper = procs.start_helper(['sh', '-c', '(sleep 60 & echo $!) ; sleep 60'], stdout=subprocess.PIPE)\n"
        "orphan = int(helper.stdout.readline())\n"
        "before = procs.run_processes([])\n"
        "helper.kill(); helper.wait()\n"
        "until(lambda: find_process(orphan).parent == os.getpid())\n"
        "after = procs.run_processes([]); left = procs.end_all(lambda: procs.run_processes([]))\n"
        "helpers = procs.helper_processes()\n"
        "print(json.dumps({'before': before == {launcher.pid}, 'after': after == {launcher.pid}, 'left': left,\n"
        "                  'helpers': orphan in helpers}))\n"
        "procs.end_all(procs.helper_processes, 0.0)\n",
        tmp_path,
    )
    assert told == {"before": True, "after": True, "left": 0, "helpers": True}


@LINUX
def test_orphans_without_an_environment_come_back_and_are_ended(tmp_path: Path) -> None:
    told = scenario(
        "child = 'import os, signal, subprocess, sys, time; signal.signal(15, signal.SIG_IGN);'\n"
        'child += \'os.setsid(); open("pid", "w").write(str(os.getpid())); os.rename("pid", "note"); time.sleep(60)\'\n'
        "parent = 'import os, subprocess, sys; subprocess.Popen([sys.executable, \"-c\", sys.argv[1]], env={})'\n"
        "launcher = procs.start_child([py, '-c', parent, child]); launcher.wait()\n"
        "until(lambda: os.path.exists('note')); pid = int(open('note').read())\n"
        "found = procs.run_processes([]); left = procs.end_all(lambda: procs.run_processes([]), 0.2)\n"
        "procs.reap_orphans()\n"
        "print(json.dumps({'found': found == {pid}, 'left': left, 'gone': not os.path.exists('/proc/%d' % pid)}))\n",
        tmp_path,
    )
    assert told == {"found": True, "left": 0, "gone": True}


@LINUX
def test_sigterm_comes_first_and_some_are_ended_last(tmp_path: Path) -> None:
    told = scenario(
        "polite = \"trap 'echo term; exit 5' TERM; echo up; while :; do sleep 0.02; done\"\n"
        "deaf = \"trap '' TERM; echo up; while :; do sleep 0.02; done\"\n"
        "recorder = \"trap '' TERM; echo up; read line; echo recorded\"\n"
        "pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)\n"
        "scripts = (polite, deaf, recorder)\n"
        "one, two, three = (procs.start_child(['bash', '-c', script], **pipes) for script in scripts)\n"
        "[process.stdout.readline() for process in (one, two, three)]\n"
        "class Clock:\n"  # however slow they are: the polite time is over when the first has followed
        "    sleep = staticmethod(time.sleep)\n"
        "    monotonic = staticmethod(lambda: 0.0 if one.poll() is None else 1.0)\n"
        "procs.time = Clock\n"
        "def last():\n"
        "    if two.poll() is not None and not three.stdin.closed: three.stdin.close()\n"
        "    return {three.pid}\n"
        "left = procs.end_all(lambda: procs.run_processes([]), 0.5, recorders=last)\n"
        "print(json.dumps({'left': left, 'one': one.wait(), 'two': two.wait(), 'three': three.wait(),\n"
        "                  'said': three.stdout.read()}))\n",
        tmp_path,
    )
    assert told == {"left": 0, "one": 5, "two": -signal.SIGKILL, "three": 0, "said": "recorded\n"}


@LINUX
def test_the_reaper_leaves_exit_codes_to_those_who_wait(tmp_path: Path) -> None:
    told = scenario(
        "children = [procs.start_helper(['sh', '-c', 'exit %d' % code]) for code in range(8)]\n"
        "for _ in range(50): procs.reap_orphans(); time.sleep(0.005)\n"
        "print(json.dumps({'codes': [child.wait() for child in children]}))\n",
        tmp_path,
    )
    assert told == {"codes": list(range(8))}


@LINUX
def test_a_marker_finds_a_process_outside_the_tree(tmp_path: Path) -> None:
    env = {"GPUOPS_RUN": f"c-{os.getpid()}-0", "GPUOPS_STOP_FILE": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=env)
    try:
        mine = Marker(env["GPUOPS_RUN"], str(tmp_path))
        deadline = time.monotonic() + 600
        while process_table.find_marked(process_table.list_processes(), [mine]) != {process.pid}:
            assert time.monotonic() < deadline
            time.sleep(0.01)  # between fork and exec it still has our environment
        assert (
            process_table.find_marked(process_table.list_processes(), [mine._replace(stop_file="/elsewhere")]) == set()
        )
    finally:
        process.kill()
        process.wait()


@LINUX
def test_who_catches_a_signal_is_known(tmp_path: Path) -> None:
    told = scenario(
        "before = handles_signal(os.getpid(), signal.SIGUSR1)\n"
        "signal.signal(signal.SIGUSR1, lambda *_: None)\n"
        "during = handles_signal(os.getpid(), signal.SIGUSR1)\n"
        "signal.signal(signal.SIGUSR1, signal.SIG_IGN)\n"
        "print(json.dumps({'states': [before, during, handles_signal(os.getpid(), signal.SIGUSR1)]}))\n",
        tmp_path,
    )
    assert told == {"states": [False, True, False]}


def test_a_process_is_told_from_a_later_one_with_its_number() -> None:
    me = process_table.find_process(os.getpid())
    assert me is not None
    assert process_table.is_living(me.pid, me.start)
    assert not process_table.is_living(me.pid, me.start + "0")


@pytest.mark.skipif(not Path("/bin/ps").exists(), reason="needs ps (package procps)")
def test_ps_tells_the_same_as_proc() -> None:
    mine = process_table._from_ps()[os.getpid()]
    assert (mine.parent, mine.session) == (os.getppid(), os.getsid(0))
    assert mine == process_table._from_ps()[os.getpid()]


@pytest.mark.skipif(not Path("/bin/ps").exists(), reason="needs ps (package procps)")
def test_ps_tells_the_same_after_a_journey_and_nothing_of_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A `ps` among our descendants would be one that no wait for the end of all of them outlives."""
    before = process_table._from_ps()
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    after = process_table._from_ps()
    assert before[os.getpid()] == after[os.getpid()]
    below = {pid for pid in process_table.descendants(after, [os.getpid()]) if pid not in before}
    assert not below


def test_a_run_is_known_by_its_environment_where_ps_tells_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As macOS shows it: behind the command, and a path may hold spaces."""
    ps = tmp_path / "ps"
    shown = "/bin/sh train.sh GPUOPS_RUN=lab-1-0 GPUOPS_STOP_FILE=/Users/Jane Doe/stop HOME=/Users/Jane Doe"
    ps.write_text(f"#!/bin/sh\necho ' 4711 {shown}'\necho '4712 {shown.replace('stop', 'other')}'\necho '4713'\n")
    ps.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(process_table, "PROC", False)
    assert process_table.find_marked([], [process_table.Marker("lab-1-0", "/Users/Jane Doe/stop")]) == {4711}
    assert process_table.find_marked([], [process_table.Marker("lab-1", "/Users/Jane Doe/stop")]) == set()


def test_reaping_beside_those_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child's own waiter may collect it between our two looks: that ends nothing (it once ended the agent)."""
    child = processes.start_child([sys.executable, "-c", ""])
    real = os.waitid

    def slow(*args: int) -> object:
        found = real(*args)
        if found is not None:
            child.wait()
        return found

    monkeypatch.setattr(os, "waitid", slow)
    until_zombie = real(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert until_zombie is not None
    processes.reap_orphans()
    assert child.returncode == 0


@pytest.mark.skipif(not hasattr(os, "waitid"), reason="needs waitid")
def test_a_launcher_that_has_ended_is_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[bool] = []
    run = SimpleNamespace(done=threading.Event(), look=lambda: looks.append(True))
    monkeypatch.setattr(run_verbs, "_latest", run)
    main.collect_children()
    assert not looks, "nothing has ended"
    launcher = processes.start_child([sys.executable, "-ISc", ""])
    os.waitid(os.P_PID, launcher.pid, os.WEXITED | os.WNOWAIT)
    main.collect_children()
    assert (looks, launcher.wait()) == ([True], 0)
    run.done.set()
    orphan = os.fork()
    if not orphan:
        os._exit(0)
    os.waitid(os.P_PID, orphan, os.WEXITED | os.WNOWAIT)
    main.collect_children()
    with pytest.raises(ChildProcessError):
        os.waitpid(orphan, os.WNOHANG)
    assert looks == [True], "it was only collected"
