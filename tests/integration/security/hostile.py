"""Nodes that lie: a real cluster on this machine whose agent says, here and there, what a test wants it to say.

The artefact that lies on the nodes is ours with another `__main__` (`hostile_main.py`). Everything is passed on to the
real agent: watchdog, runs, files. Only what goes back to the client first passes through two functions that a test
writes, in a file beside the artefact:

    def answer(node, verb, args, message):       # a line of the conversation, on its way to the client
        return message                           # a dict; a list of dicts or bytes go out as they are; None: nothing

    def bulk(node, mode, arguments, stdin):      # a program of its own: send, left, receive, restore
        return None                              # bytes: its whole output; None: the real one runs
"""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from tests.conftest import Shell

MAIN = Path(__file__).with_name("hostile_main.py")
SITE = Path(__file__).with_name("site")
REAL = "real_main.py"
LIES = "lies.py"


def make_hostile(shell: Shell) -> Path:
    """From now on every cluster that `shell` brings up has the lying agent; returns the local nodes' folder for
    `tell_lies`."""
    path = [str(SITE), *filter(None, [shell.env.get("PYTHONPATH") or os.environ.get("PYTHONPATH")])]
    shell.env["PYTHONPATH"] = os.pathsep.join(path)
    folder = shell.home / "local" / "agent"
    for made in (shell.home, shell.home / "local", folder):
        made.mkdir(mode=0o700, exist_ok=True)
    return folder


def spoil(place: Path) -> None:
    """The agent that lies there already begins to lie: it gets the other `__main__`. A program that runs from it goes
    on: what it has not imported yet stays where it was in the file."""
    draft = place.with_suffix(".draft")
    draft.write_bytes(place.read_bytes())
    with zipfile.ZipFile(draft, "a") as archive:
        real = archive.read("__main__.py")
        archive.writestr(REAL, real)
        archive.NameToInfo.pop("__main__.py")
        archive.filelist[:] = [member for member in archive.filelist if member.filename != "__main__.py"]
        archive.writestr("__main__.py", MAIN.read_bytes())
    os.replace(draft, place)


def tell_lies(folder: Path, source: str) -> None:
    """What the nodes do from their next line on: the source of `answer`, `bulk`, or both."""
    draft = folder / f".{LIES}"
    draft.write_text(source, encoding="utf-8")
    os.replace(draft, folder / LIES)


def tar_of(members: Iterable[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    """A tar stream as the agent's `send` writes it, of whatever members."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for member, content in members:
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def a_file(name: str, content: bytes, mode: int = 0o644, mtime: int = 1_700_000_000) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(content), mode, mtime
    return member, content


def a_link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member, b""
