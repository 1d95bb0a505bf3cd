"""Projects that ask for packages of their own, which lie beside them: nothing is fetched from an index."""

from __future__ import annotations

import zipfile

from tests.conftest import Shell

BACKEND = """
import os, zipfile

INFO = "project-1.0.dist-info"

def build_editable(folder, config_settings=None, metadata_directory=None):
    name = "project-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        wheel.writestr("project.pth", os.path.join(os.getcwd(), "src") + "\\n")
        wheel.writestr(INFO + "/METADATA", "Metadata-Version: 2.1\\nName: project\\nVersion: 1.0\\n")
        wheel.writestr(INFO + "/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(INFO + "/RECORD", "")
    return name

build_wheel = None
"""
"""A backend as setuptools is one, as far as an editable package needs it."""
PYPROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "project"
version = "1.0"
"""


def add_requirement(shell: Shell, name: str) -> None:
    """One more line in requirements.txt, and the wheel that it asks for: a module that is `name` in capitals."""
    wheel = shell.write(f"wheels/{name}-1.0-py3-none-any.whl", "")
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr(f"{name}.py", f"WORD = {name.upper()!r}\n")
        file.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        file.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{name}-1.0.dist-info/RECORD", "")
    path = shell.folder / "requirements.txt"
    before = path.read_text() if path.exists() else "--no-index\n--find-links wheels\n"
    path.write_text(f"{before}{name}\n")


def make_package(shell: Shell, word: str) -> None:
    """A package of the project's own, to be imported as `own`; its `WORD` is what was last written."""
    shell.write("pyproject.toml", PYPROJECT)
    shell.write("backend.py", BACKEND)
    shell.write("src/own.py", f"WORD = {word!r}\n")
