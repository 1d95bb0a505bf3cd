"""The rank wrapper as a process: what the script gets, what is noted, how the wrapper ends."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gpuops.agent.process_table import find_process
from gpuops.agent.run import rank
from gpuops.agent.run.command_and_environment import PRELUDE_FAILED_CODE, find_prelude_failure
from gpuops.nodes import bootstrap

HANG_S = 600.0


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "ranks").mkdir()
    return tmp_path


def start(run: Path, *command: str, **env: str) -> subprocess.Popen[bytes]:
    agent, _ = bootstrap.build_agent(run / "agent")
    wrapper = [sys.executable, "-I", str(agent), "rank", "--node-run", str(run), "--", *command]
    return subprocess.Popen(wrapper, env={**os.environ, "RANK": "5", "LOCAL_RANK": "1", **env})


def record(run: Path) -> dict[str, Any]:
    return dict(json.loads((run / "ranks/5.json").read_text()))


def wait_for(run: Path, text: bytes) -> None:
    """Until the script has said that, and the wrapper has written down that it started it: either may be first."""
    deadline = time.monotonic() + HANG_S
    out = run / "ranks/5.out"
    while not out.exists() or text not in out.read_bytes() or not (run / "ranks/5.json").exists():
        assert time.monotonic() < deadline, "the script did not speak"
        time.sleep(0.02)


@pytest.mark.parametrize("code", [0, 1, 3, 255])
def test_it_ends_with_the_scripts_code(run: Path, code: int) -> None:
    assert start(run, "sh", "-c", f"exit {code}").wait(HANG_S) == code
    noted = record(run)
    assert (noted["rank"], noted["local"], noted["code"], noted["signal"]) == (5, 1, code, None)
    assert noted["started"] <= noted["ended"]
    assert noted["oom"] is False


@pytest.mark.parametrize("code", [0, 3])
def test_on_a_full_disk_it_ends_with_the_scripts_code(run: Path, code: int) -> None:
    agent, _ = bootstrap.build_agent(run / "agent")
    argv = [sys.executable, "-I", str(agent), "rank", "--node-run", str(run), "--", "sh", "-c", f"exit {code}"]
    full = ["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *argv]
    assert subprocess.run(full, env={**os.environ, "RANK": "5"}, check=False, timeout=HANG_S).returncode == code


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGUSR1])
def test_it_ends_by_the_scripts_signal(run: Path, sign: int) -> None:
    assert start(run, "sh", "-c", f"kill -{int(sign)} $$").wait(HANG_S) == -sign
    noted = record(run)
    assert (noted["code"], noted["signal"]) == (None, sign)


def test_bytes_arrive_as_written_and_are_appended(run: Path) -> None:
    (run / "ranks/5.out").write_bytes(b"before\n")
    source = "import os; os.write(1, bytes(range(256)) + b'\\rno end'); os.write(2, b'\\xff')"
    start(run, sys.executable, "-c", source).wait(HANG_S)
    assert (run / "ranks/5.out").read_bytes() == b"before\n" + bytes(range(256)) + b"\rno end"
    assert (run / "ranks/5.err").read_bytes() == b"\xff"


def test_arguments_arrive_byte_for_byte_behind_a_prelude(run: Path) -> None:
    (run / "spec.json").write_text(json.dumps({"prelude": ["export WORD='from the prelude'"]}))
    words = ["--", "--help", "$HOME", "a b", "'", '"', "\n", "`id`", "{run}", ""]
    source = "import json, os, sys; print(json.dumps([os.environ['WORD'], *sys.argv[1:]]))"
    start(run, sys.executable, "-c", source, *words).wait(HANG_S)
    assert json.loads((run / "ranks/5.out").read_bytes()) == ["from the prelude", *words]


def test_a_prelude_line_that_fails_ends_it_with_its_own_words(run: Path) -> None:
    (run / "profile").write_text("[ -e none ] && . none\nfalse\ntrue\n")
    passes = ["if true\nthen echo 'one line'; fi", "[ -e none ] && . none", f". {shlex.quote(str(run / 'profile'))}"]
    prelude = [*passes, "modules load 'cuda 12'", "echo never"]
    (run / "spec.json").write_text(json.dumps({"prelude": prelude}))
    assert start(run, "echo", "never").wait(HANG_S) == PRELUDE_FAILED_CODE
    assert (run / "ranks/5.out").read_text() == "one line\n"
    said = (run / "ranks/5.err").read_text()
    assert "modules: " in said  # in the shell's own words
    assert find_prelude_failure(said) == "the prelude line `modules load 'cuda 12'` failed with exit code 127"


@pytest.mark.parametrize("line", ["cd none; true", "true && false", "echo 'no end"])
def test_a_prelude_line_fails_with_any_of_its_commands(run: Path, line: str) -> None:
    (run / "spec.json").write_text(json.dumps({"prelude": [line]}))
    assert start(run, "echo", "never").wait(HANG_S) == PRELUDE_FAILED_CODE
    assert f"the prelude line `{line}` failed" in find_prelude_failure((run / "ranks/5.err").read_text())


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_it_survives_torchruns_signals_and_passes_them_on(run: Path, sign: int) -> None:
    process = start(run, "bash", "-c", "trap 'exit 6' TERM INT; echo up; while :; do sleep 0.05; done")
    wait_for(run, b"up")
    process.send_signal(sign)
    assert process.wait(HANG_S) == 6


def test_a_signal_to_its_group_is_not_one_to_the_script(run: Path) -> None:
    gate = run / "gate"
    os.mkfifo(gate)
    process = start(run, "sh", "-c", 'echo up; read line < "$0"; exit 4', str(gate))
    wait_for(run, b"up")
    process.send_signal(signal.SIGUSR1)
    gate.write_text("go\n")
    assert process.wait(HANG_S) == 4


def test_the_script_has_the_usual_handlers(run: Path) -> None:
    source = "import signal; print([signal.getsignal(n) == signal.SIG_DFL for n in (10, 15)], flush=True)"
    start(run, sys.executable, "-c", source).wait(HANG_S)
    assert (run / "ranks/5.out").read_bytes() == b"[True, True]\n"


def test_the_script_dies_with_its_wrapper(run: Path) -> None:
    process = start(run, sys.executable, "-c", "import os, time; print(os.getpid(), flush=True); time.sleep(600)")
    wait_for(run, b"\n")
    pid = int((run / "ranks/5.out").read_bytes())
    assert record(run)["pid"] == pid
    process.kill()
    process.wait(HANG_S)
    deadline = time.monotonic() + HANG_S
    while rank_lives(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def rank_lives(pid: int) -> bool:
    return find_process(pid) is not None


def test_a_script_that_cannot_be_started_says_so(run: Path) -> None:
    assert start(run, "/no/such/python").wait(HANG_S) == 127
    assert b"cannot start /no/such/python" in (run / "ranks/5.err").read_bytes()
    assert record(run)["code"] == 127


def test_torchs_error_file_is_kept(run: Path) -> None:
    error = {"message": {"message": "boom"}}
    (run / "error.json").write_text(json.dumps(error))
    start(run, "false", TORCHELASTIC_ERROR_FILE=str(run / "error.json")).wait(HANG_S)
    assert record(run)["error"] == error


def test_a_risen_counter_and_sigkill_mean_out_of_memory(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([4, 5])
    monkeypatch.setattr(rank, "oom_kills", lambda: next(counts))
    noted = rank.run_script(str(run), ["sh", "-c", "kill -9 $$"], {"RANK": "0"})
    assert noted.oom is True


def test_the_counter_is_read_from_the_kernel() -> None:
    assert rank.oom_kills() >= 0
    assert rank._counter("/proc/self/status", "Pid:") == os.getpid()
    assert rank._counter("/proc/vmstat", "no_such_counter") is None
