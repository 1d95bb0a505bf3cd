"""Data sets from where they are published: once per machine, checked, resumed, and said in one sentence when not.

`fetch` brings files as they are; `load` reads them, straight from their archives. Nothing is unpacked to the disk, so
there is no half-unpacked state to fall over.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from datetime import timedelta
from pathlib import Path
from typing import Any, Callable, NamedTuple, Sequence, TypeVar

import torch.distributed as dist
from filelock import FileLock, Timeout  # torch brings it along

from ddp.world import StopFlag, World, write

VARIABLE = "GPUOPS_DATA"  # where the data are, for all programs at once
TRIES, PAUSE_S = 4, 3.0  # of a download that breaks off; each goes on where the last one ended
SILENCE_S = 30.0  # of a server, until the connection counts as broken
TOLD_S = 5.0  # between two lines on the way
LONGEST = timedelta(days=1)  # that ranks wait for others which download
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
    problem = None
    try:
        if world.local_rank == 0:
            bring(folder, files, mirror, world.stop)
    except Unusable as error:
        problem = str(error)
    except (OSError, NotImplementedError) as error:  # the latter from a file system without locks
        problem = f"no data can be kept in {folder}: {reason(error)}; name another folder with --data"
    # A group for this alone: a slow download may take longer than a collective waits for others.
    world.check(problem, dist.new_group(timeout=LONGEST, backend="gloo"))
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


def bring(folder: Path, files: Sequence[File], mirror: str | None, stop: StopFlag) -> None:
    """Get what is missing in a folder. Raises Unusable, OSError, NotImplementedError."""
    if not missing(folder, files):
        return
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, stop):
        for file in missing(folder, files):  # another run or node may have brought some meanwhile
            download(folder, file, f"{mirror.rstrip('/')}/{file.name}" if mirror else file.url, stop)


def missing(folder: Path, files: Sequence[File]) -> list[File]:
    return [file for file in files if not any((folder / name).exists() for name in (file.name, file.unpacked) if name)]


def locked(folder: Path, stop: StopFlag) -> Any:
    """The lock on the folder, for a `with`; whoever has it may need a while."""
    lock, told = FileLock(folder / ".lock"), False
    while True:
        try:
            return lock.acquire(timeout=TOLD_S)
        except Timeout:
            check_stop(stop)
            if not told:
                tell(f"another process brings data to {folder}; waiting for it")
            told = True


def download(folder: Path, file: File, url: str, stop: StopFlag) -> None:
    """Beside its place until it is whole and checked: what has its name can be used."""
    part = folder / f"{file.name}.part"
    for tries_left in reversed(range(TRIES)):
        try:
            begun = size(part)
            if begun != file.size:  # else it was killed before it could look at it
                begun = transfer(file, url, part, stop)
            if (found := digest(part)) == file.sha256:
                os.replace(part, folder / file.name)
                return
            part.unlink()
            if not begun:
                raise Unusable(wrong(file, url, f"its SHA-256 is {found[:12]}… and not {file.sha256[:12]}…"))
            raise Broken("what was here was of another file")
        except Broken as error:
            if not (tries_left and error.again):
                raise Unusable(
                    f"{file.name} could not be had from {url}: {error}; "
                    f"put it into {folder.resolve()} by hand, or name a mirror with --data"
                ) from None
            tell(f"{file.name}: {error}, trying again")
        time.sleep(PAUSE_S)


def transfer(file: File, url: str, part: Path, stop: StopFlag) -> int:
    """Append what is missing of a file; how much of it was there already."""
    begun = size(part)
    with connect(url, begun) as answer:
        begun = begun if answer.status == 206 else 0  # a server that knows no `Range` sends all of it
        if answer.length is not None and begun + answer.length != file.size:
            raise Unusable(wrong(file, url, f"it has {begun + answer.length} bytes and not {file.size}"))
        tell(f"{file.name}: {megabytes(file.size)} from {url}" + f", {megabytes(begun)} are here" * (begun > 0))
        done, told = begun, time.monotonic()
        with open(part, "ab" if begun else "wb") as stream:
            while done < file.size and (chunk := receive(answer, file.size - done)):
                check_stop(stop)
                stream.write(chunk)
                stream.flush()  # what has come survives a kill
                done += len(chunk)
                if time.monotonic() - told > TOLD_S:
                    told = time.monotonic()
                    tell(f"{file.name}: {megabytes(done)} of {megabytes(file.size)}")
            os.fsync(stream.fileno())  # a name that outlives a power cut must not stand for less
    if done < file.size:
        raise Broken("the connection ended early")
    return begun


def check_stop(stop: StopFlag) -> None:
    if stop.signalled:
        raise Unusable("stopped before the data were there; the same command goes on with the download")


def tell(line: str) -> None:
    write(line, sys.stderr)


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
