"""A login node that is asked about its cluster: a person who is not at one is told to name it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuops.core.errors import GpuopsError, NotSetUp, Unknown
from provisioners.base import Context
from provisioners.batch.login_node import HERE, Answer, LoginNode, LoginNodes

NAME_ONE = "name the cluster's login node: --host user@address"


@pytest.mark.parametrize(
    ("answer", "kind", "hint"),
    [
        (Answer(0, "absent\n"), NotSetUp, NAME_ONE),
        (
            Answer(1, "sinfo: fatal: no configuration\n"),
            Unknown,
            f"try again; is this machine no login node? {NAME_ONE}",
        ),
    ],
)
def test_this_machine_may_be_no_login_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Answer, kind: type[GpuopsError], hint: str
) -> None:
    logins = LoginNodes(Context("0badcafe", tmp_path, {}), "slurm", "squeue", "")
    monkeypatch.setattr(logins, "ask", lambda *_: answer)
    with pytest.raises(kind) as refused:
        logins.ask_site(LoginNode(HERE, "/root", "python3", None), "sinfo", "Slurm")
    assert refused.value.hint == hint
