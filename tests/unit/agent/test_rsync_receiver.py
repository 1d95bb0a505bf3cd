"""What the agent lets a client's rsync ask of the node's."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.agent.files.rsync_receiver import _command
from gpuops.agent.node import Refusal

FLAGS = "-tIRe.LsfxCIvu"
ASKED = ["--server", FLAGS, "--timeout=60", "--partial-dir", ".gpuops-partial", "--no-implied-dirs", ".", "files"]


def test_the_folders_are_the_nodes(tmp_path: Path) -> None:
    assert _command(ASKED, f"{tmp_path}/none") == ["rsync", *ASKED[:-2], ".", "."]
    assert _command(ASKED, str(tmp_path)) == ["rsync", *ASKED[:-2], f"--copy-dest={tmp_path}", ".", "."]


@pytest.mark.parametrize("flags", ["-tIRe.LsfxC", "-tIRe31.14LsfxCIvu", FLAGS])
def test_what_every_version_composes_is_taken(flags: str) -> None:
    more = ["--compress-level=1", "--compress-choice=zstd", "--inplace"]
    assert _command(["--server", flags, *more, *ASKED[2:]], "")[:2] == ["rsync", "--server"]


@pytest.mark.parametrize(
    "word",
    ["--sender", "--delete", "--daemon", "--log-file=/etc/x", "--partial-dir=/etc", "--temp-dir=/", "-e", "-tIRpe.Ls",
     "-s", "--remove-source-files", "/etc", "../x", "", "--timeout=60\n", "--copy-dest=/root", "host::module", "-M--x"],
)  # fmt: skip
def test_anything_else_is_refused(word: str) -> None:
    with pytest.raises(Refusal, match="something unknown"):
        _command([*ASKED[:2], word, *ASKED[2:]], "")


@pytest.mark.parametrize(
    "asked", [[], ["--server"], ["--server", "."], ASKED[1:], ["rsync", *ASKED], [*ASKED[:-1], "/etc"],
              [*ASKED[:-2], "files"], [*ASKED, "more"]],
)  # fmt: skip
def test_it_is_the_server_for_that_folder_only(asked: list[str]) -> None:
    with pytest.raises(Refusal, match="something unknown"):
        _command(asked, "")
