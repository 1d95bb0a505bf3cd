"""What a cluster's coming and going says of itself when it drags, at a provider that never finishes."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.cli.terminal.progress import PlainProgress
from gpuops.core.context import Context
from gpuops.core.errors import NodeError, StillBilling
from tests.fakes.provider import Cloud, FakeClock, Fault, surroundings
from tests.unit.clusters.test_creation import up


class Watched(FakeClock):
    """Time in which somebody looks at the progress, as its own thread would."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.moments: list[float] = []
        self.progress = PlainProgress(self.say, self.monotonic, ticking=False)

    def say(self, text: str) -> None:
        self.lines.append(text)
        self.moments.append(self.time)

    def sleep(self, seconds: float) -> None:
        for _ in range(int(seconds / 0.2) or 1):
            super().sleep(min(seconds, 0.2))
            self.progress.tick()


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Cloud, Context, Watched]:
    clock = Watched()
    cloud, world = surroundings(tmp_path, monkeypatch, clock)
    world.progress = clock.progress
    return cloud, world, clock


def test_machines_that_do_not_start(there: tuple[Cloud, Context, Watched]) -> None:
    cloud, world, clock = there
    cloud.play(describe=[Fault(state="starting")] * 6 + [Fault(state="running", address="")] * 5000)
    with pytest.raises(NodeError):
        up(world)
    waits = [line for line in clock.lines if line.startswith("waiting for lab")]
    assert waits[0] == "waiting for lab (at most 1 min): node0 is still starting"
    assert waits[1].startswith("waiting for lab: node0 has no address yet, $0.01 so far, 1")
    assert waits[1].endswith(" s of at most 1 min")
    assert all(after - before < 30 for before, after in zip(clock.moments, clock.moments[1:], strict=False))


def test_machines_that_do_not_end(there: tuple[Cloud, Context, Watched]) -> None:
    cloud, world, clock = there
    cloud.play(describe=[Fault(state="ended")], create=[Fault()], destroy_always=[Fault(lie=True)])
    with pytest.raises(StillBilling):
        up(world)
    ends = [line for line in clock.lines if line.startswith("ending lab")]
    assert ends[0].endswith("scripted still lists 2 of it")
    assert len(ends) > 2
