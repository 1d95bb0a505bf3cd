"""Numbers in what a batch system prints: whatever it prints, there is a number or an error of ours."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuops.core.errors import Unknown
from provisioners.batch.numbers import parse_count
from provisioners.pbs import commands as pbs
from provisioners.slurm import commands as slurm

PARSERS: dict[str, Callable[[str], object]] = {
    "gpu:{}": slurm.parse_gpus,
    "gpu:h100:{}(S:0-1)": slurm.parse_gpus,
    "1-{}:00:00": slurm.parse_span,
    "{}-01:00:00": slurm.parse_span,
    "node|c1|gpu*|gpu:4|idle|{}|1000|ib": slurm.parse_node,
    "node|c1|gpu*|gpu:4|idle|64|{}|ib": slurm.parse_node,
    "{}:00:00": pbs.parse_span,
    "{}kb": pbs.parse_size,
}


@pytest.mark.parametrize("form", PARSERS)
def test_a_number_that_cannot_be_is_an_error_of_ours(form: str) -> None:
    with pytest.raises(Unknown, match="the batch system tells a number of 4300 digits: 999999999999999999…"):
        PARSERS[form](form.format("9" * 4300))


@settings(max_examples=50, deadline=None)
@given(
    st.sampled_from(sorted(PARSERS)),
    st.text("0123456789:-,()|gpu²٣ ", max_size=30) | st.integers(0, 10**400).map(str) | st.just("(" * 50_000),
)
def test_whatever_is_printed_there_is_an_answer(form: str, text: str) -> None:
    for printed in (form.format(text), text):
        with suppress(Unknown):
            PARSERS[form](printed)


def test_what_is_no_number() -> None:
    assert [parse_count(text, 7) for text in ("", "-1", "1.5", "N/A", "³", "12 ")] == [7, 7, 7, 7, 7, 12]
