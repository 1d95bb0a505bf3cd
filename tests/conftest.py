"""What every test may use: a home of its own, the real command line, and a look for what was left."""

from __future__ import annotations

import dataclasses
import functools
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import hypothesis
import psutil
import pytest
from filelock import FileLock

from gpuops.cli.terminal import output, writer
from gpuops.cli.terminal.output import Output
from gpuops.core.context import Context
from gpuops.core.heartbeat import Heart, here
from gpuops.core.installed_code import installed_code
from gpuops.core.platform import HERE
from gpuops.core.signals import Signals
from gpuops.guard import guard_heartbeat
from gpuops.guard.services import SERVICES
from gpuops.ledger.store import Ledger
from tests.fakes import kingfisher, torchrun
from tests.platforms import LEFT_OUT, why_not
from tests.processes import command_line, has_variable

T = TypeVar("T")
HANG_S = 600.0
"""Beyond this a test is hanging; nothing is measured with it. pytest-timeout waits longer: this tells what hangs."""
TESTS = Path(__file__).parent
LONG = (
    "system/lab/test_workloads.py", "system/lab/test_deadmen.py", "system/packaging/", "system/lab/test_cut.py",
    "system/train/", "system/chaos/", "system/lab/",
)  # fmt: skip
"""What takes minutes comes first, the longest file before all, so that no worker has one left when others are done."""
TOGETHER = ("system/train/",)
"""Folders of which one worker plays all files: torch is loaded there once, and in a process that forks ranks."""

os.environ.setdefault("KF_RULE_CACHE_DIR", str(TESTS.parent / ".pytest_cache" / "rules"))
"""Where Kingfisher keeps its compiled rules: with a home of its own each test would compile them, for seconds."""
hypothesis.settings.register_profile("ours", deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile("ours")
for _name, _usual in (
    ("SIGINT", signal.default_int_handler),
    ("SIGTERM", signal.SIG_DFL),
    (HERE.hang_up, signal.SIG_DFL),
):
    if signal.getsignal(getattr(signal, _name)) is signal.SIG_IGN:  # as under nohup: tests send them to what they start
        signal.signal(getattr(signal, _name), _usual)
here()  # remembered, as is the next: not as a test sees them that pretends something
installed_code()
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # commands start by the thousand: each would compile all of gpuops anew


def pytest_report_header() -> list[str]:
    return [f"left out on {HERE.kind}: {where}: {why}" for where, why in LEFT_OUT[HERE.kind].items()]


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Whole files cannot even be imported where they do not belong."""
    if not collection_path.is_relative_to(TESTS):
        return None
    place = collection_path.relative_to(TESTS.parent).as_posix()
    return True if why_not(HERE.kind, place if collection_path.is_file() else f"{place}/") else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Files of tests side by side, as by `--dist loadfile`, but for those that share what takes long to make."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class ByFile(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next(
                (f"tests/{one}" for one in TOGETHER if nodeid.startswith(f"tests/{one}")), nodeid.split("::")[0]
            )

    return ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _how_late(item.path))
    for item in items:
        if why := why_not(HERE.kind, item.nodeid):
            item.add_marker(pytest.mark.skip(reason=f"{HERE.kind}: {why}"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """What is collected stays: no collection of garbage looks at it, neither now, which costs each test process more
    than a second, nor later, which costs a tenth."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Runs are launched by the stub of torchrun, unless the test is marked `real_torch`: said before a module's own
    fixtures, which may make hosts with either. The variable is never removed: a thread of a module's scenarios may copy
    the environment at that moment."""
    os.environ[torchrun.VARIABLE] = "real" if item.get_closest_marker("real_torch") else "stub"


def pytest_sessionfinish() -> None:
    """The process ends, and with it what pytest would collect five times over, for seconds in each worker."""
    gc.freeze()


@functools.cache
def _how_late(path: Path) -> int:
    """A file's place by LONG."""
    place = path.relative_to(TESTS).as_posix() if path.is_relative_to(TESTS) else ""
    return next((at for at, where in enumerate(LONG) if place.startswith(where)), len(LONG))


def until(condition: Callable[[], Any], what: str | Callable[[], str], hang_s: float = HANG_S) -> Any:
    """The condition's value once it is true. What takes long to look at, or to come, is looked at less often: others
    work here."""
    since = time.monotonic()
    while (began := time.monotonic()) < since + hang_s:
        if value := condition():
            return value
        time.sleep(max(0.1, min(0.3, (began - since) / 20), 2 * (time.monotonic() - began)))
    raise AssertionError(f"still not: {what() if callable(what) else what}")


NOBODY = 65534


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder like /tmp, for every user: pytest's own lie behind a door that only we can open."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o1777)
        yield Path(folder)


def give_away(folder: Path) -> None:
    """It belongs to who we are `without_root`."""
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, -1)


@contextmanager
def without_root() -> Iterator[None]:
    """As a user to whom permissions apply: root reads and writes everything."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@dataclass
class Shell:
    """A user at a keyboard: a home, a project folder, and `gpuops` typed in it."""

    home: Path
    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    started: list[subprocess.Popen[str]] = field(default_factory=list)
    prefix: Sequence[str] = ()
    """Where the command is typed: in the network of a lab."""

    def environment(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("GPUOPS_", "VIRTUAL_ENV"))}
        places = [torchrun.FOLDER] * torchrun.is_stub() + [kingfisher.FOLDER]
        path = {"PYTHONPATH": os.pathsep.join(map(str, places))}
        return {**clean, **path, "GPUOPS_HOME": str(self.home), "GPUOPS_TEST_HOME": str(self.home), **self.env}

    def start(self, *arguments: str, driver: str | None = None, **options: Any) -> subprocess.Popen[str]:
        """Type a command and go on; `driver` is a point of sabotage (tests/system/chaos/driver.py)."""
        program = [str(TESTS / "system" / "chaos" / "driver.py"), driver] if driver else ["-m", "gpuops"]
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        process = subprocess.Popen([*self.prefix, sys.executable, *program, *arguments], cwd=self.folder, text=True,
                                   env=self.environment(), **streams)  # fmt: skip
        self.started.append(process)
        return process

    def run(self, *arguments: str, driver: str | None = None) -> subprocess.CompletedProcess[str]:
        """Type a command and wait for its end."""
        process = self.start(*arguments, driver=driver)
        out, err = process.communicate(timeout=HANG_S)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def json(self, *arguments: str) -> dict[str, Any]:
        done = self.run(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def clusters(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.json("status")["clusters"]
        return found

    def processes(self) -> list[str]:
        """Command lines of every living process that belongs to this home: agents, runs, guard."""
        return [" ".join(words) for pid in psutil.pids() if (words := command_line(pid)) and self._has(pid, words)]

    def _has(self, pid: int, words: Sequence[str] = ()) -> bool:
        if pid == os.getpid():
            return False
        return any(str(self.home) in word for word in words) or has_variable(pid, "GPUOPS_TEST_HOME", str(self.home))

    def is_clean(self) -> bool:
        """Nothing is left: no process, no node folder."""
        return not self.processes() and not list((self.home / "local").glob("*/n*"))

    def expect_clean(self) -> None:
        until(
            self.is_clean,
            lambda: f"nothing left, but: {self.processes()} {list((self.home / 'local').glob('*/n*'))}",
        )

    def end(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.kill()
                process.wait()
        if self.must_end_clusters():
            self.run("down", "--all", "--force")
        self.die()

    def read_ledger(self, look: Callable[[Ledger], list[T]]) -> list[T]:
        """What the ledger says, read here: a command takes its time, tells notices and starts a guard."""
        if not (self.home / "ledger.db").exists():
            return []
        with closing(Ledger.open(self.home)) as ledger:
            return look(ledger)

    def cluster_states(self) -> list[str]:
        """Of the clusters that are live, by the ledger."""
        return self.read_ledger(lambda ledger: [row.state for row in ledger.clusters()])

    def run_states(self) -> list[str]:
        """Of all runs, by the ledger."""
        return self.read_ledger(lambda ledger: [row.state for row in ledger.runs()])

    def must_end_clusters(self) -> bool:
        """Whether more is left than processes of this home: machines, or what a run on nodes of this one started."""
        try:
            providers = {row.provider for row in self.read_ledger(lambda ledger: list(ledger.clusters()))}
            return bool(providers) and (providers != {"local"} or set(self.run_states()) - {"home"} != set())
        except Exception:  # a ledger that a test has damaged
            return True

    def die(self) -> None:
        """The computer goes off: commands and guard end in this instant, and nothing is told."""
        while sum(map(self._kill, psutil.pids())):
            continue  # what was started behind this look's back is seen by the next

    def _kill(self, pid: int) -> bool:
        """Whether it was one of this home, and lived."""
        if not self._has(pid):
            return False
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True


@contextmanager
def held_guard_locks(home: Path) -> Iterator[None]:
    """No guard of the home's first clusters starts: who holds a guard's lock is taken for the guard. A command that is
    started waits for a heartbeat in vain where it needs one. Serves threads: nothing of this process is replaced."""
    with ExitStack() as held:
        for cluster in range(1, 9):
            held.enter_context(FileLock(guard_heartbeat.lock_path(home, cluster)))
        yield


@contextmanager
def no_guards(home: Path) -> Iterator[None]:
    """`held_guard_locks`, and this process takes every guard to work. Of one thread alone: of two whose times overlap,
    the one that ends last would leave `ensure` replaced for all tests to come."""
    with held_guard_locks(home), pytest.MonkeyPatch.context() as patch:
        patch.setattr("gpuops.guard.start.ensure", lambda *_, **__: None)
        yield


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A fresh home and an empty project folder; whatever is left at the end is ended."""
    folder = tmp_path / "project"
    folder.mkdir()
    one = Shell(tmp_path / "home", folder)
    yield one
    one.end()


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Output, int]]:
    """An output whose stdout and stderr are one pipe, and the end that it is read from."""
    there, here = os.pipe()
    monkeypatch.setattr(output, "WRITER", writer.Writer())
    with os.fdopen(here, "w", encoding="utf-8", newline="") as stream:
        yield Output(out=stream, err=stream), there
        try:
            os.close(there)
        except OSError:
            pass  # a test has done it


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Context]:
    """A computer that gpuops runs on, for what needs a real ledger and no node."""
    home = tmp_path / "home"
    home.mkdir()
    services = dataclasses.replace(SERVICES, start_heart=Heart)  # one that does not beat
    one = Context(
        home=home, owner="me", folder=tmp_path, env=dict(os.environ), out=Output(), signals=Signals(), services=services
    )
    yield one
    one.ledger.close()
