"""What tests/unit/provisioners/test_registry.py leaves to real processes or sockets."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpuops.core.context import Context
from tests.fakes.provider import Cloud, surroundings
from tests.unit.provisioners.test_registry import bring

ROOT = Path(__file__).parents[3]


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Cloud, Context]:
    return surroundings(tmp_path, monkeypatch)


def test_to_list_names_imports_nothing(there: tuple[Cloud, Context]) -> None:
    cloud, _ = there
    bring(cloud, "mars = no_such_module:nothing")
    code = (
        f"import sys; sys.path.insert(0, {str(cloud.site)!r})\n"
        "from provisioners import registry\nprint(registry.provider_names())\n"
        "print([name for name in sys.modules if name.startswith('provisioners.') and name not in "
        "('provisioners.base', 'provisioners.checked_provisioner', 'provisioners.registry')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=600, check=True
    )
    assert done.stdout == "['aws', 'local', 'mars', 'pbs', 'runpod', 'slurm', 'ssh', 'vast']\n[]\n"
