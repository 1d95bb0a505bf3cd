"""What tests/unit/sync/test_secret_scan.py leaves to real processes or sockets."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gpuops.cli.request import find_key_like_values
from gpuops.core.errors import UsageError
from gpuops.sync import secret_scan
from gpuops.sync.scan import scan
from tests.unit.sync.test_secret_scan import TOKEN


def test_a_computer_without_the_search_sends_nothing_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An Intel Mac, for which the library has no build. What only its name betrays is found all the same."""
    monkeypatch.setitem(sys.modules, "kingfisher_sdk", None)
    secret_scan._scanner.cache_clear()
    (tmp_path / "train.py").write_text("print()\n")
    with pytest.raises(UsageError, match="cannot be searched for keys on this computer") as refused:
        scan(tmp_path, tmp_path / "home" / "cache")
    assert "--send-anyway '*'" in refused.value.hint
    assert [file.path for file in scan(tmp_path, tmp_path / "home" / "cache", ["*"]).files] == ["train.py"]
    assert find_key_like_values({"TOKEN": TOKEN}) == {}
