"""When a run whose ranks do not join is remarked on, and when it is ended."""

from __future__ import annotations

import pytest

from gpuops.agent.run.join_watch import CHECK_INTERVAL_S, REMARK_AFTER_S, JoinAction, JoinWatch

LIMIT_S = 1800.0


def watch(limit_s: float | None, until_s: float, **at: object) -> list[tuple[float, JoinAction]]:
    """What is done, and when, about a run that prints at `prints`, and from start to end uses `cores` processors and
    moves `bytes` each second."""
    one, done = JoinWatch(limit_s), list[tuple[float, JoinAction]]()
    prints, cores, per_second = at.get("prints", ()), float(str(at.get("cores", 0.0))), int(str(at.get("bytes", 0)))
    now = 1000.0
    while now <= 1000.0 + until_s:
        written = sum(1000.0 + when <= now for when in prints)  # type: ignore[attr-defined]
        action = one.check(now, written, cores * now, int(per_second * now))
        if action:
            done.append((now - 1000.0, action))
        now += CHECK_INTERVAL_S
    return done


def test_idle_silence_is_remarked_on_then_ended() -> None:
    done = watch(LIMIT_S, LIMIT_S, cores=0.02, bytes=1000)
    assert done == [(REMARK_AFTER_S, JoinAction.REMARK), (LIMIT_S, JoinAction.END)]


@pytest.mark.parametrize(
    ("limit_s", "more"),
    [
        (None, {}),
        (LIMIT_S, {"cores": 0.9}),
        (LIMIT_S, {"cores": 0.05, "bytes": 2_000_000}),
        (LIMIT_S, {"prints": range(0, 2 * int(LIMIT_S), 1700)}),
    ],
    ids=["no limit", "it works", "it downloads", "it prints now and then"],
)
def test_what_prepares_is_given_its_time(limit_s: float | None, more: dict[str, object]) -> None:
    assert watch(limit_s, 2 * LIMIT_S, **more) == [(REMARK_AFTER_S, JoinAction.REMARK)]


def test_the_limit_counts_from_the_last_sign_of_work() -> None:
    assert watch(LIMIT_S, 2 * LIMIT_S, prints=[900.0])[1] == (900.0 + LIMIT_S, JoinAction.END)


def test_a_check_is_made_now_and_then() -> None:
    one = JoinWatch(None)
    assert [one.is_due(now) for now in (100.0, 100.1, 104.9, 105.0, 105.1)] == [True, False, False, True, False]
