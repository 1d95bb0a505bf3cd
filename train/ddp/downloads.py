"""Data sets from where they are published: once per machine, checked, resumed, and said in one sentence when not.

`fetch` brings files as they are; `load` reads them, straight from their archives. Nothing is unpacked to the disk, so
there is no half-unpacked state to fall over.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import os
import shutil
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Callable, NamedTuple, Sequence, TypeVar

from filelock import FileLock, Timeout  # torch brings it along

from ddp.world import World, write

VARIABLE = "GPUOPS_DATA"  # where the data are, for all programs at once
TRIES, PAUSE_S = 4, 3.0  # of a download that breaks off; each goes on where the last one ended
SILENCE_S = 30.0  # of a server, until the connection counts as broken
TOLD_S = 5.0  # between two lines on the way
CHUNK = 1 << 20
AGENT = "Mozilla/5.0 (compatible; python-urllib)"  # some servers turn urllib's own name away
BUSY = (408, 429)  # answers that mean "later", as all from 500 on do

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
    """A file that cannot be had, or not be read as what it should be; says which and why."""


class Broken(Exception):
    """A transfer without an end. `again`: whether another try may have one."""

    def __init__(self, why: str, again: bool = True) -> None:
        super().__init__(why)
        self.again = again


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
    mirror = where if where and where.startswith(("http://", "https://")) else None
    folder = Path(where) if where and not mirror else Path("data") / name
    # A folder that was named is not made: the name may be a slip of the pen.
    lost = where and not mirror and not os.path.isdir(where)
    world.check(f"{where} is not a folder; --data names one, or the http address of a mirror" if lost else None)
    job = Download(folder, files, mirror, tell=lambda line: write(line, sys.stderr))
    if world.local_rank == 0:
        job.start()
    # Nobody waits inside a collective, which would give up after half an hour: all look again, and may be stopped.
    while world.max(float(job.is_alive())):
        if world.stop.asked(world) == "stop":
            world.note("stopped before the data were there; the same command goes on with the download")
            sys.exit(1)
        time.sleep(0.1)
    world.check(job.problem)
    return folder


def load(world: World, read: Callable[[], Loaded]) -> Loaded:
    """What `read` returns, on every rank; an Unusable that any of them raises is said once, and all leave."""
    loaded: Any = None
    problem = None
    try:
        loaded = read()
    except Unusable as error:
        problem = f"{error}; remove it, and it is downloaded again"
    except OSError as error:
        problem = f"{error.filename or 'the data'} cannot be read: {reason(error)}"
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
                with self._turn():
                    for file in self._missing():  # another rank, run or node may have brought some meanwhile
                        self._get(file)
        except Unusable as error:
            self.problem = str(error)
        except (OSError, NotImplementedError) as error:  # the latter from a file system without locks
            self.problem = f"no data can be kept in {self.folder}: {reason(error)}; name another folder with --data"

    def _missing(self) -> list[File]:
        def there(file: File) -> bool:
            names = [file.name, file.unpacked] if file.unpacked else [file.name]
            return any(os.path.exists(self.folder / name) for name in names)

        return [file for file in self.files if not there(file)]

    def _turn(self) -> Any:
        """The lock on the folder, for a `with`; whoever has it may need a while."""
        lock = FileLock(self.folder / ".lock")
        try:
            return lock.acquire(timeout=TOLD_S)
        except Timeout:
            self.tell(f"another process brings data to {self.folder}; waiting for it")
            return lock.acquire()

    def _get(self, file: File) -> None:
        """Beside its place until it is whole and checked: what has its name can be used."""
        part = self.folder / f"{file.name}.part"
        url = f"{self.mirror.rstrip('/')}/{file.name}" if self.mirror else file.url
        self._check_room(file, part)
        for tries_left in reversed(range(TRIES)):
            try:
                begun = self._transfer(file, url, part)
                if (found := digest(part)) == file.sha256:
                    os.replace(part, self.folder / file.name)
                    return
                part.unlink()
                if not begun:
                    differs = f"its SHA-256 is {found[:12]}… and not {file.sha256[:12]}…"
                    raise Unusable(wrong(file, url, differs))
                raise Broken("what was here was of another file")
            except Broken as error:
                if not (tries_left and error.again):
                    raise Unusable(
                        f"{file.name} could not be had from {url}: {error}; "
                        f"put it into {self.folder.resolve()} by hand, or name a mirror with --data"
                    ) from None
                self.tell(f"{file.name}: {error}, trying again")
            time.sleep(PAUSE_S)

    def _check_room(self, file: File, part: Path) -> None:
        needed, free = file.size - size(part), shutil.disk_usage(self.folder).free
        if free < needed:
            raise Unusable(
                f"{file.name} needs {megabytes(needed)} and {self.folder.resolve()} has {megabytes(free)} free; "
                "make room there or name another folder with --data"
            )

    def _transfer(self, file: File, url: str, part: Path) -> int:
        """Bring the rest of a file; how much of it was there already."""
        begun = size(part)
        if begun == file.size:  # it was ended before it could look at it
            return begun
        with connect(url, begun) as answer:
            begun = begun if answer.status == 206 else 0  # a server that knows no parts begins anew
            if answer.length is not None and begun + answer.length != file.size:
                raise Unusable(wrong(file, url, f"it has {begun + answer.length} bytes and not {file.size}"))
            here = f", {megabytes(begun)} are here" if begun else ""
            self.tell(f"{file.name}: {megabytes(file.size)} from {url}{here}")
            done, progress = begun, Progress(file, begun)
            with open(part, "ab" if begun else "wb") as stream:
                while done < file.size and (chunk := receive(answer, file.size - done)):
                    stream.write(chunk)
                    stream.flush()  # what has come survives a kill
                    done += len(chunk)
                    if line := progress.line(done):
                        self.tell(line)
                os.fsync(stream.fileno())  # a name that outlives a power cut must not stand for less
        if done < file.size:
            raise Broken("the connection ended early")
        return begun


class Progress:
    """What to tell on the way, from time to time."""

    def __init__(self, file: File, begun: int) -> None:
        self.file, self.begun = file, begun
        self.began = self.told = time.monotonic()

    def line(self, done: int) -> str | None:
        now = time.monotonic()
        if now - self.told < TOLD_S:
            return None
        self.told, rate = now, (done - self.begun) / (now - self.began)
        left = (self.file.size - done) / rate
        return f"{self.file.name}: {megabytes(done)}, {megabytes(rate)}/s, {left:.0f} s left"


# In these two an OSError is the network's. What a full disk raises is one, too, and no reason to try again.


def connect(url: str, begun: int) -> Any:
    """The answer to a request for what follows the first `begun` bytes: 206 and these, or 200 and all."""
    try:
        request = urllib.request.Request(url, headers={"User-Agent": AGENT})
        if begun:
            request.add_header("Range", f"bytes={begun}-")
        return urllib.request.urlopen(request, timeout=SILENCE_S)
    except urllib.error.HTTPError as error:
        error.close()
        if begun and error.code == 416:  # there is not even that much
            return connect(url, 0)
        raise Broken(f"{error.code} {error.reason}", again=error.code >= 500 or error.code in BUSY) from None
    except (urllib.error.URLError, http.client.InvalidURL, ValueError) as error:  # nobody there, or no address
        raise Broken(reason(error), again=False) from None
    except (OSError, http.client.HTTPException) as error:
        raise Broken(reason(error)) from None


def receive(answer: Any, most: int) -> bytes:
    """What has come meanwhile; nothing at the end."""
    try:
        return answer.read1(min(CHUNK, most))
    except http.client.IncompleteRead:
        return b""
    except (OSError, http.client.HTTPException) as error:
        raise Broken(reason(error)) from None


def reason(error: BaseException) -> str:
    """`Connection refused`, without numbers and brackets."""
    cause = getattr(error, "reason", error)  # urllib's wrap another
    if isinstance(cause, ssl.SSLCertVerificationError):
        hint = "behind a firewall that looks into connections let SSL_CERT_FILE name its certificate"
        return f"{cause.verify_message} ({hint})"
    return getattr(cause, "strerror", None) or str(cause)


def wrong(file: File, url: str, differs: str) -> str:
    return f"{url} is not the published {file.name}: {differs}; name another mirror with --data"


def digest(path: Path) -> str:
    """SHA-256."""
    sum_ = hashlib.sha256()
    with open(path, "rb") as stream:
        while chunk := stream.read(CHUNK):
            sum_.update(chunk)
    return sum_.hexdigest()


def size(path: Path) -> int:
    """Bytes; none where there is no file."""
    return path.stat().st_size if path.exists() else 0


def megabytes(count: float) -> str:
    return f"{count / 1e6:.1f} MB"
