"""Commands on a login node whose profile is not as it should be."""

from __future__ import annotations

from pathlib import Path

import pytest

from provisioners.base import Context
from provisioners.batch.login_node import HERE, LoginNode, LoginNodes


def test_a_profile_that_reads_its_input_takes_nothing_of_a_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for its PATH where the batch system's commands are not on that of a login that runs a command."""
    program = tmp_path / "bin/sbatch-of-a-site"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\ncat\n")
    program.chmod(0o755)
    (tmp_path / ".bash_profile").write_text(f"echo welcome; cat >/dev/null\nPATH={program.parent}:$PATH\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    logins = LoginNodes(Context("0a1b2c3d", tmp_path / "home", {}), "slurm", program.name, "")
    answer = logins.ask(LoginNode(HERE, "/root", "python3", None), [program.name], "#!/bin/sh\n")
    assert (answer.code, answer.text) == (0, "#!/bin/sh\n")
