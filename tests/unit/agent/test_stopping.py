"""How a run is stopped, step by step."""

from __future__ import annotations

from gpuops.agent.run.stopping import Step, StopAction, stop_steps
from gpuops.agent.run_documents import StopMode


def test_the_ladder() -> None:
    ask, term, kill = Step(0.0, StopAction.ASK), Step(10.0, StopAction.TERM), Step(20.0, StopAction.KILL)
    assert stop_steps(StopMode.GRACEFUL, 10.0) == [ask, term, kill]
    assert stop_steps(StopMode.NOW, 10.0) == [Step(0.0, StopAction.TERM), Step(2.0, StopAction.KILL)]
