"""This program's modules, compiled once for a node's Python: every later start reads one file and compiles nothing.

The archive holds sources, since nodes have different Pythons, and Python keeps no compiled code for an archive. A file
that is absent, torn or of another Python is not used: the modules then come from the archive.
"""

from __future__ import annotations

import binascii
import marshal
import os
import sys
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any, Dict
from zipimport import zipimporter

CHECKSUM_BYTES = 4
Modules = Dict[str, bytes]
"""Name of a module -> its code object, marshalled."""


class CompiledCode:
    """Finds and loads the modules of a compiled file (importlib's protocols of a meta path finder and a loader)."""

    def __init__(self, archive: str, modules: Modules) -> None:
        self.archive = archive
        self.modules = modules

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        if name not in self.modules:
            return None
        place = os.path.join(self.archive, *name.split("."))
        is_package = any(other.startswith(name + ".") for other in self.modules)
        origin = os.path.join(place, "__init__.py") if is_package else place + ".py"
        loader: Any = self  # importlib.abc, to derive from, is slow to import
        spec = ModuleSpec(name, loader, origin=origin, is_package=is_package)
        spec.has_location = True
        if is_package:
            spec.submodule_search_locations = [place]
        return spec

    def create_module(self, _spec: ModuleSpec) -> ModuleType | None:
        return None  # Python's own

    def exec_module(self, module: ModuleType) -> None:
        code: CodeType = marshal.loads(self.modules[module.__name__])
        exec(code, module.__dict__)

    def get_source(self, name: str) -> str | None:
        """For the lines of a traceback."""
        return zipimporter(os.path.join(self.archive, *name.split(".")[:-1])).get_source(name)


def use(archive: str, makes: bool) -> None:
    """Serve imports from the compiled file of an archive. `makes`: compile it first where there is none."""
    modules = _read(_path(archive))
    if modules is None and makes:
        modules = _compile(archive)
        if modules:
            _write(_path(archive), modules)
    if modules:
        sys.meta_path.insert(0, CompiledCode(archive, modules))


def _path(archive: str) -> str:
    return f"{os.path.splitext(archive)[0]}.{sys.implementation.cache_tag}.code"


def _checksum(content: bytes) -> bytes:
    """Of the content and of this very Python: builds of one version may write different code."""
    return binascii.crc32(content, binascii.crc32(sys.version.encode())).to_bytes(CHECKSUM_BYTES, "big")


def _read(path: str) -> Modules | None:
    """None where the file is absent, torn or another Python's."""
    try:
        with open(path, "rb") as file:
            content = file.read()
    except OSError:
        return None
    if content[:CHECKSUM_BYTES] != _checksum(content[CHECKSUM_BYTES:]):
        return None
    modules: Modules = marshal.loads(content[CHECKSUM_BYTES:])
    return modules


def _compile(archive: str) -> Modules:
    """Every module of the archive; none where this program runs from elsewhere."""
    from zipfile import BadZipFile, ZipFile

    modules = {}
    try:
        with ZipFile(archive) as members:
            for member in members.namelist():
                if member.startswith("gpuops/"):
                    code = compile(members.read(member), os.path.join(archive, member), "exec", dont_inherit=True)
                    name = member[: -len(".py")].replace("/", ".")
                    modules[name[: -len(".__init__")] if name.endswith(".__init__") else name] = marshal.dumps(code)
    except (OSError, BadZipFile):
        return {}
    return modules


def _write(path: str, modules: Modules) -> None:
    """Atomically; a disk that cannot take it costs time and nothing else."""
    content = marshal.dumps(modules)
    draft = f"{path}.{os.getpid()}.tmp"
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(_checksum(content) + content)
        os.replace(draft, path)
    except OSError:
        try:
            os.unlink(draft)
        except OSError:
            pass
