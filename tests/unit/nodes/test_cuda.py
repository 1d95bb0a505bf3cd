"""The tables of torch, CUDA, driver and GPU: what is known to fit, what is known not to, and what nobody knows."""

from __future__ import annotations

import pytest

from gpuops.nodes.cuda import CHOICE, DRIVERS, WHEELS, capability, choose, find_misfit, has_kernels, numbers, wheel_of
from gpuops.transport.schemas import Gpu


def gpu(capability: str, driver: str = "595.10") -> Gpu:
    return Gpu(0, "GPU", driver, capability)


@pytest.mark.parametrize(
    ("tag", "version", "runs", "not_on", "unknown"),
    [
        ("cu132", (2, 13), "7.5 8.9 9.0 10.3 12.0 12.1", "6.1 7.0", "13.0 11.0"),
        ("cu130", (2, 9), "7.5 8.9 9.0 10.0 12.1", "5.0 7.0", "13.0 11.0"),
        ("cu129", (2, 8), "7.0 12.0", "6.0", "13.0"),
        ("cu128", (2, 7), "7.5 10.0 12.0", "7.0 6.1", "13.0"),
        ("cu128", (2, 8), "7.0 7.5 12.0", "6.1", ""),
        ("cu128", (2, 10), "7.0 12.0", "5.2", ""),
        ("cu128", (2, 11), "7.5 12.1", "7.0 13.0", "7.2"),
        ("cu126", (2, 6), "5.2 6.1 7.0 8.9 9.0", "3.7 10.0 12.0", ""),
        ("cu126", (2, 14), "5.0 7.0 9.0", "12.0", ""),
        ("cu124", (2, 5), "5.0 9.0", "10.0 12.0", ""),
        ("cu121", (2, 1), "5.0 8.9 9.0", "12.0", ""),
        ("cu118", (2, 4), "3.7 7.0 9.0", "3.5 12.0", ""),
        ("cu117", (2, 0), "3.7 8.6 8.9", "9.0", ""),
    ],
)
def test_what_each_wheel_runs_on(tag: str, version: tuple[int, int], runs: str, not_on: str, unknown: str) -> None:
    wheel = wheel_of(tag, version)
    assert wheel is not None
    for words, answer in ((runs, True), (not_on, False), (unknown, None)):
        for word in words.split():
            found = capability(word)
            assert found is not None
            assert has_kernels(wheel, found) is answer, word


@pytest.mark.parametrize(
    ("torch", "cuda", "on", "kind"),
    [
        ("2.11.0+cu128", "12.8", gpu("7.0"), "kernels"),
        ("2.11.0.post1+cu128", "12.8", gpu("7.0"), "kernels"),
        ("2.10.0+cu128", "12.8", gpu("7.0"), None),
        ("2.12.0+cu128", "12.8", gpu("7.0"), None),
        ("2.12.0.dev20260101+cu126", "12.6", gpu("12.0"), None),
        ("2.9.0a0+gitabc", "13.0", gpu("7.0"), None),
        ("2.5.1", "12.4", gpu("12.0"), None),
        ("2.11.0+cu128", "12.8", gpu("[N/A]"), None),
        ("2.11.0+cu128", "12.8", gpu("", ""), None),
        ("2.9.1+cu130", "13.0", gpu("9.0", "579.99"), "driver"),
        ("2.9.1+cu130", "13.0", gpu("9.0", "580"), None),
        ("2.8.0+cu128", "12.8", gpu("8.0", "525.60.12"), "driver"),
        ("2.8.0+cu128", "12.8", gpu("8.0", "525.60.13"), None),
        ("2.7.0+cu118", "11.8", gpu("8.0", "450.80.01"), "driver"),
        ("1.12.1+cu102", "10.2", gpu("7.0", "300"), None),
        ("2.8.0+cpu", None, gpu("8.0"), "cpu"),
    ],
)
def test_only_what_is_known_to_fail_is_told(torch: str, cuda: str | None, on: Gpu, kind: str | None) -> None:
    against = find_misfit(torch, cuda, [on])
    assert (against and against.kind) == kind


def test_without_gpus_everything_fits() -> None:
    assert find_misfit("2.8.0+cpu", None, []) is None
    assert find_misfit("2.11.0+cu128", "12.8", []) is None


def test_the_hint_names_a_build_that_fits() -> None:
    against = find_misfit("2.11.0+cu128", "12.8", [gpu("7.0")], "/env/bin/python")
    assert against is not None
    assert against.hint.endswith(
        "/env/bin/python -m pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/cu126"
    )
    nothing = find_misfit("2.11.0+cu128", "12.8", [gpu("7.0"), gpu("12.0")])
    assert nothing is not None
    assert "built for these GPUs" in nothing.hint


def test_all_gpus_of_a_node_count() -> None:
    assert find_misfit("2.11.0+cu128", "12.8", [gpu("8.0"), gpu("7.0")]) is not None
    assert choose(595, [(8, 0), (7, 0)]) == "cu126"
    assert choose(595, [(7, 0)], (2, 9)) == "cu128"
    assert choose(595, [(7, 0), (12, 0)]) is None


def test_the_tables_agree_with_each_other() -> None:
    """A tag that may be chosen has wheels, and a driver under which its CUDA is known to run."""
    for tag, driver in CHOICE:
        assert wheel_of(tag, None)
        assert (driver,) >= DRIVERS[int(tag[2:4])][:1]
    for wheel in WHEELS:
        assert wheel.first <= wheel.last
        others = [one for one in WHEELS if one.tag == wheel.tag and one is not wheel]
        assert all(one.last < wheel.first or wheel.last < one.first for one in others), wheel


@pytest.mark.parametrize(
    ("text", "found"), [("550.54.15", (550, 54, 15)), ("12.8", (12, 8)), ("[N/A]", ()), (None, ())]
)
def test_numbers_of_a_version(text: str | None, found: tuple[int, ...]) -> None:
    assert numbers(text) == found
