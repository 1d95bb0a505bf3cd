"""Each of several calls is made, whatever becomes of the others."""

from __future__ import annotations

import pytest

from gpuops.core.errors import Rejected, Unknown
from provisioners.kit.calls import each


def test_all_are_made_and_the_first_error_is_raised() -> None:
    made: list[str] = []

    def fails(error: Exception) -> None:
        made.append(str(error))
        raise error

    with pytest.raises(Unknown, match="first"):
        each([lambda: fails(Unknown("first")), lambda: fails(Rejected("second")), lambda: made.append("last")])
    assert made == ["first", "second", "last"]
