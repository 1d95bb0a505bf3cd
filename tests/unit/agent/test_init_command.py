"""What `init` makes of a folder in which an earlier node, or an end that has just come, left something."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuops.agent.daemon.init_command import prepare_node
from gpuops.agent.node import Node, Refusal

SETTINGS = {"owner": "0badcafe", "cluster": "lab", "index": 0, "token": "t-0"}
ENDED = '{"at": 1.0, "why": "it was ended"}'


def test_what_a_removal_that_was_cut_short_has_left_ends_no_new_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ended.json").write_text(ENDED)
    prepare_node(Node(str(tmp_path)), SETTINGS, {"boot_in": 60.0})
    assert (tmp_path / "node.json").exists()
    assert not (tmp_path / "ended.json").exists()


def test_an_end_that_comes_while_a_node_starts_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has found nothing to remove yet, and called the node gone."""
    monkeypatch.chdir(tmp_path)
    folder, chmod = tmp_path / "lab" / "n0", os.chmod

    def end_first(path: str, mode: int) -> None:
        (folder / "ended.json").write_text(ENDED)
        chmod(path, mode)

    monkeypatch.setattr(os, "chmod", end_first)
    with pytest.raises(Refusal, match="it was ended"):
        prepare_node(Node(str(folder)), SETTINGS, {"boot_in": 60.0})
    assert not (folder / "node.json").exists()
