"""gpuops.sync.workloads_and_data: which programs come along, and where they lie in a checkout and in a wheel."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.core.errors import UsageError
from gpuops.sync import workloads_and_data


def package_with_train(package: Path, train: Path) -> Path:
    package.mkdir(parents=True, exist_ok=True)
    train.mkdir(parents=True)
    for name in workloads_and_data.workload_names():
        (train / workloads_and_data.workload_script(name)).touch()
    return package


def test_every_workload_is_a_file_that_says_what_it_is() -> None:
    for name in workloads_and_data.workload_names():
        assert (
            (workloads_and_data.workloads_folder() / workloads_and_data.workload_script(name))
            .read_text()
            .startswith(('"""', 'r"""'))
        )
        assert workloads_and_data.WORKLOADS[name].line
    assert workloads_and_data.DEFAULT_WORKLOAD in workloads_and_data.workload_names()


def test_a_checkout_has_them_beside_the_package(tmp_path: Path) -> None:
    package = package_with_train(tmp_path / "gpuops", tmp_path / "train")
    assert workloads_and_data.workloads_folder(package) == tmp_path / "train"


def test_a_wheel_has_them_inside_the_package(tmp_path: Path) -> None:
    package = package_with_train(tmp_path / "gpuops", tmp_path / "gpuops" / "train")
    assert workloads_and_data.workloads_folder(package) == tmp_path / "gpuops" / "train"


def test_a_strangers_train_folder_is_not_taken_for_ours(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "main.py").touch()
    with pytest.raises(UsageError, match="lacks its workloads"):
        workloads_and_data.workloads_folder(tmp_path / "gpuops")


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="no workload named 'digit'") as caught:
        workloads_and_data.workload_script("digit")
    assert caught.value.hint == "choose one of: first, toy, digits, mnist, cifar10, movielens, gpt"


def test_those_that_read_data_tell_where_they_look_for_them() -> None:
    """`data/NAME` is where gpuops keeps what they download."""
    for name, known in workloads_and_data.WORKLOADS.items():
        text = (workloads_and_data.workloads_folder() / workloads_and_data.workload_script(name)).read_text()
        assert (f'add_data_option(parser, "{name}")' in text) == known.reads, name
