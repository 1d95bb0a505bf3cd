"""Data sets from where they are published: once per machine, checked, resumed, and said in one sentence when not.

`fetch` brings files as they are; `load` reads them, straight from their archives. Nothing is unpacked to the disk, so
there is no half-unpacked state to fall over.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Callable, NamedTuple, Sequence, TypeVar

from filelock import FileLock  # torch brings it along

from ddp.world import World, write

VARIABLE = "GPUOPS_DATA"  # where the data are, for all programs at once
TRIES, PAUSE_S = 4, 3.0  # of a download that breaks off; each goes on where the last one ended
SILENCE_S = 30.0  # of a server, until the connection counts as broken
TOLD_S = 5.0  # between two lines on the way
CHUNK = 1 << 20
AGENT = "Mozilla/5.0 (compatible; python-urllib)"  # some servers turn urllib's own name away

Loaded = TypeVar("Loaded")


class File(NamedTuple):
    """A file of a data set."""

    name: str
    url: str
    """Its official address."""
    size: int
    """Bytes."""
    sha256: str
    unpacked: str = ""
    """What serves as well, where somebody has unpacked it: a path beside it."""


class Unusable(Exception):
    """A file that cannot be read as what it should be; says which and why."""


def add_data_option(parser: argparse.ArgumentParser, name: str) -> None:
    """`--data WHERE`."""
    parser.add_argument(
        "--data",
        default=os.environ.get(VARIABLE) or None,
        metavar="WHERE",
        help=f"a folder, in which what is missing is downloaded, or the address of a mirror (default ${VARIABLE}, "
        f"else the official source, kept in data/{name})",
    )


def fetch(world: World, where: str | None, name: str, files: Sequence[File]) -> Path:
    """The folder in which all files lie, whole; on each machine its first rank gets what is missing.

    Leaves with a sentence (exit code 1 on all ranks) when that cannot be. All ranks call it.
    """
    mirror = where if where and "://" in where else None
    folder = Path(where) if where and not mirror else Path("data") / name
    world.check(f"{folder} is not a folder; --data names one, or the address of a mirror" if unfit(where) else None)
    job = Download(folder, files, mirror, tell=lambda line: write(line, sys.stderr))
    if world.local_rank == 0:
        job.start()
    # Nobody waits inside a collective, which would give up after half an hour: all look again, and may be stopped.
    while world.most(float(job.is_alive())):
        if world.stop.asked(world):
            world.note("stopped before the data were there; the same command goes on with the download")
            sys.exit(1)
        time.sleep(0.1)
    world.check(job.problem)
    return folder


def unfit(where: str | None) -> bool:
    """Whether `where` should be a folder and is none. A folder is not made: its name may be a slip of the pen."""
    return bool(where and "://" not in where and not Path(where).is_dir())


def load(world: World, read: Callable[[], Loaded]) -> Loaded:
    """What `read` returns, on every rank; an Unusable that any of them raises is said once, and all leave."""
    loaded: Any = None
    problem = None
    try:
        loaded = read()
    except Unusable as error:
        problem = f"{error}; remove it, and it is downloaded again"
    except OSError as error:
        problem = f"{error.filename} cannot be read: {error.strerror}"
    world.check(problem)
    return loaded


class Download(threading.Thread):
    """Brings what is missing in a folder. Beside the ranks' own doings, so that these can go on looking."""

    def __init__(self, folder: Path, files: Sequence[File], mirror: str | None, tell: Callable[[str], None]) -> None:
        super().__init__(daemon=True)  # a stop need not wait for a slow server
        self.folder, self.files, self.mirror, self.tell = folder, files, mirror, tell
        self.problem: str | None = None

    def run(self) -> None:
        try:
            if self._missing():
                self.folder.mkdir(parents=True, exist_ok=True)
                with FileLock(self.folder / ".lock"):  # another rank, run or node that has the same folder
                    for file in self._missing():  # which may have brought some meanwhile
                        self._get(file)
        except Unusable as error:
            self.problem = str(error)
        except OSError as error:
            self.problem = f"the data cannot be written to {self.folder}: {error.strerror or error}; make room there"
            self.problem += " or name another folder with --data"

    def _missing(self) -> list[File]:
        def there(file: File) -> bool:
            return (self.folder / file.name).exists() or bool(file.unpacked and (self.folder / file.unpacked).exists())

        return [file for file in self.files if not there(file)]

    def _get(self, file: File) -> None:
        """Beside its place until it is whole and checked: what has its name can be used."""
        part = self.folder / f"{file.name}.part"
        url = f"{self.mirror.rstrip('/')}/{file.name}" if self.mirror else file.url
        free = shutil.disk_usage(self.folder).free
        needed = file.size - (part.stat().st_size if part.exists() else 0)
        if free < needed:
            raise Unusable(
                f"{file.name} needs {megabytes(needed)} and {self.folder.resolve()} has {megabytes(free)} free; "
                "make room there or name another folder with --data"
            )
        for attempt in range(1, TRIES + 1):
            try:
                self._transfer(file, url, part)
                break
            except urllib.error.HTTPError as error:
                if attempt == TRIES or error.code < 500:
                    raise Unusable(self._unreachable(file, url, f"{error.code} {error.reason}")) from None
            except (urllib.error.URLError, ConnectionError, TimeoutError, EOFError) as error:
                if attempt == TRIES:
                    raise Unusable(self._unreachable(file, url, getattr(error, "reason", error))) from None
            self.tell(f"{file.name}: broken off, trying again")
            time.sleep(PAUSE_S)
        if (found := digest(part)) != file.sha256:
            part.unlink()
            raise Unusable(
                f"{url} is not the published {file.name}: its SHA-256 is {found[:12]}… and not {file.sha256[:12]}…; "
                "try another mirror with --data"
            )
        os.replace(part, self.folder / file.name)

    def _transfer(self, file: File, url: str, part: Path) -> None:
        """The rest of a file. A server that does not know parts sends it from the beginning."""
        begun = part.stat().st_size if part.exists() else 0
        if begun >= file.size:
            return
        request = urllib.request.Request(url, headers={"User-Agent": AGENT})
        if begun:
            request.add_header("Range", f"bytes={begun}-")
        with urllib.request.urlopen(request, timeout=SILENCE_S) as answer:
            goes_on = answer.status == 206
            done = begun if goes_on else 0
            self.tell(f"{file.name}: {megabytes(file.size)} from {url}" + f", {megabytes(done)} are here" * goes_on)
            began = told = time.monotonic()
            brought = 0
            with open(part, "ab" if goes_on else "wb") as stream:
                while done + brought < file.size and (chunk := answer.read(min(CHUNK, file.size - done - brought))):
                    stream.write(chunk)
                    brought += len(chunk)
                    if (now := time.monotonic()) - told > TOLD_S:
                        told, rate = now, brought / (now - began)
                        left = (file.size - done - brought) / rate
                        self.tell(f"{file.name}: {megabytes(done + brought)}, {megabytes(rate)}/s, {left:.0f} s left")
        if done + brought < file.size:
            raise EOFError("the connection ended early")

    def _unreachable(self, file: File, url: str, why: object) -> str:
        return (
            f"{file.name} could not be had from {url}: {why}; put it into {self.folder} by hand, "
            "or name a mirror with --data"
        )


def digest(path: Path) -> str:
    """SHA-256."""
    sum_ = hashlib.sha256()
    with open(path, "rb") as stream:
        while chunk := stream.read(CHUNK):
            sum_.update(chunk)
    return sum_.hexdigest()


def megabytes(count: float) -> str:
    return f"{count / 1e6:.1f} MB"
