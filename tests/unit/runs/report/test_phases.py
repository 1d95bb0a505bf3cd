"""What a run's time and money went into."""

from __future__ import annotations

from gpuops.runs.report.phases import Moments, phases

WHOLE = Moments(
    rented=0.0, booted=120.0, prepared=125.0, launched=180.0, first_step=200.0, last_step=3800.0, ended=3805.0,
    home=3900.0, gone=3930.0,
)  # fmt: skip


def test_all_of_a_rented_run_adds_up() -> None:
    found = phases(WHOLE, per_hour=36.0)
    assert [(phase.name, phase.seconds) for phase in found] == [
        ("rent and boot", 120.0), ("prepare and push", 60.0), ("start", 20.0), ("train", 3600.0), ("end", 5.0),
        ("bring home", 95.0), ("end the machines", 30.0),
    ]  # fmt: skip
    assert sum(phase.cost for phase in found) == 39.3


def test_on_a_cluster_that_stays_it_begins_with_the_run() -> None:
    found = phases(Moments(prepared=125.0, launched=130.0, ended=140.0), 0.0)
    assert [(phase.name, phase.began, phase.seconds) for phase in found] == [
        ("prepare and push", 125.0, 5.0), ("end", 130.0, 10.0),
    ]  # fmt: skip


def test_a_wrong_clock_of_a_node_makes_no_negative_time() -> None:
    found = phases(Moments(prepared=100.0, launched=110.0, first_step=90.0, last_step=120.0, ended=119.0), 0.0)
    assert [phase.seconds for phase in found] == [10.0, 0.0, 10.0, 0.0]
    assert phases(Moments(), 1.0) == []


def test_what_comes_home_after_the_machines_have_ended_costs_nothing() -> None:
    late = Moments(prepared=0.0, launched=10.0, ended=100.0, home=90_000.0, gone=200.0, billed_until=200.0)
    assert sum(phase.cost for phase in phases(late, per_hour=36.0)) == 2.0
