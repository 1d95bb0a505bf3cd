"""Kingfisher with a memory finds what Kingfisher finds, and is loaded only for what it has not seen."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import HANG_S
from tests.fakes import kingfisher

ASK = """
import sys
from gpuops.sync.secret_scan import judge_content
print([judge_content(text.encode()) for text in sys.argv[1:]], "kingfisher_sdk._native" in sys.modules)
"""
KEY = "hf_" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ2cD4fG6h"


def ask(tmp_path: Path, *texts: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(kingfisher.FOLDER), "KF_MEMORY": str(tmp_path / "memory")}
    argv = [sys.executable, "-c", ASK, *texts]
    return subprocess.run(argv, env=env, capture_output=True, text=True, timeout=HANG_S, check=True).stdout.strip()


def test_what_is_known_to_hold_nothing_is_not_searched_again(tmp_path: Path) -> None:
    assert ask(tmp_path, "print(1)") == "[None] True"
    assert ask(tmp_path, "print(1)") == "[None] False"
    assert ask(tmp_path, "print(1)", "print(2)") == "[None, None] True"


def test_a_key_is_found_each_time(tmp_path: Path) -> None:
    for _ in range(2):
        said = ask(tmp_path, "print(1)", f"token = '{KEY}'")
        assert said.startswith("[None, 'a secret of the kind huggingface"), said
        assert said.endswith(" True")
