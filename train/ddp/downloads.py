"""Data sets from where they are published: once per machine, checked, resumed.

`fetch` downloads files as they are; `load` reads them, straight from their archives: a disk has no half-unpacked state.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import os
import socket
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

TRIES, PAUSE_S = 4, 3.0  # of a download that breaks off; each resumes where the last one ended
TIMEOUT_S = 30.0  # without a byte, until a connection counts as broken
PROGRESS_S = 5.0  # between two lines on the way
WAIT = timedelta(days=1)  # that ranks wait for others which download

Loaded = TypeVar("Loaded")


class File(NamedTuple):
    """A file of a data set."""

    name: str
    url: str  # its official address
    size: int  # bytes
    sha256: str
    unpacked: str = ""  # what serves as well, where somebody has unpacked it: a path beside it


class Unusable(Exception):
    """A file that cannot be downloaded, or not be read as what it should be; says which and why."""


def add_data_option(parser: argparse.ArgumentParser, name: str) -> None:
    """`--data WHERE`."""
    parser.add_argument(
        "--data",
        default=os.environ.get("GPUOPS_DATA") or None,
        metavar="WHERE",
        help="a folder, in which what is missing is downloaded, or the address of a mirror (default $GPUOPS_DATA, "
        f"else the official source, kept in data/{name})",
    )


def fetch(world: World, where: str | None, name: str, files: Sequence[File]) -> Path:
    """The folder in which all files lie, whole; on each machine its first rank downloads what is missing.

    Leaves with a sentence (exit code 1 on all ranks) when that fails. All ranks call it.
    """
    mirror = where if where and where.startswith(("http://", "https://")) else None
    folder = Path(where) if where and not mirror else Path("data") / name
    # A folder that was named is not made: the name may be a slip of the pen.
    lost = where and not mirror and not os.path.isdir(where)
    world.check(f"{where} is not a folder; --data names one, or the http address of a mirror" if lost else None)
    problem = None
    try:
        if world.local_rank == 0 and missing(folder, files):
            folder.mkdir(parents=True, exist_ok=True)
            with locked(folder):
                for file in missing(folder, files):  # another run or node may have downloaded some meanwhile
                    download(folder, file, f"{mirror.rstrip('/')}/{file.name}" if mirror else file.url, world.stop)
    except Unusable as error:
        problem = str(error)
    except (OSError, NotImplementedError) as error:  # the latter from a file system without locks
        problem = f"no data can be kept in {folder}: {reason(error)}; name another folder with --data"
    # In a group of its own: a slow download may take longer than a collective waits for others.
    world.check(problem, dist.new_group(timeout=WAIT, backend="gloo"))
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


def missing(folder: Path, files: Sequence[File]) -> list[File]:
    return [file for file in files if not any((folder / name).exists() for name in (file.name, file.unpacked) if name)]


def locked(folder: Path) -> Any:
    """The lock on the folder, for a `with`."""
    lock = FileLock(folder / ".lock")
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        tell(f"another process downloads to {folder}; waiting for it")
        return lock.acquire()


def download(folder: Path, file: File, url: str, stop: StopFlag) -> None:
    """To a name of its own until it is whole and checked: a file with its true name can be used. Raises Unusable."""
    part = folder / f"{file.name}.part"
    problem = ""
    for _ in range(TRIES):
        if problem:
            tell(f"{file.name}: {problem}, trying again")
            time.sleep(PAUSE_S)
        try:
            begun = transfer(file, url, part, stop)
        except (urllib.error.URLError, http.client.InvalidURL, ValueError) as error:  # no connection, or a refusal
            code = getattr(error, "code", 0)
            if code == 416:  # the server has less than lies here, which is of another file
                part.unlink()
                continue
            problem = reason(error)
            if code < 500 and code not in (408, 429):
                break  # the next try would end as this one
        except (http.client.HTTPException, ConnectionError, socket.timeout, ssl.SSLError) as error:
            problem = reason(error)  # not of every OSError: a full disk's is one, too
        else:
            found = hashlib.sha256(part.read_bytes()).hexdigest()
            if found == file.sha256:
                os.replace(part, folder / file.name)
                return
            part.unlink()
            problem = "what lay here was of another file"
            if not begun:
                raise Unusable(wrong(file, url, f"its SHA-256 is {found[:12]}… and not {file.sha256[:12]}…"))
    place = f"put it into {folder.resolve()} by hand, or name a mirror with --data"
    raise Unusable(f"{file.name} could not be downloaded from {url}: {problem}; {place}")


def transfer(file: File, url: str, part: Path, stop: StopFlag) -> int:
    """Append the bytes that are missing. Returns how many there were before.

    Raises Unusable, OSError, http.client.HTTPException.
    """
    begun = part.stat().st_size if part.exists() else 0
    if begun == file.size:  # killed before it was checked
        return begun
    headers = {"User-Agent": "Mozilla/5.0 (compatible; python-urllib)"}  # some servers refuse urllib's own name
    if begun:
        headers["Range"] = f"bytes={begun}-"
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_S) as answer:
        begun = begun if answer.status == 206 else 0  # a server that ignores `Range` sends all of it
        if answer.length is not None and begun + answer.length != file.size:
            raise Unusable(wrong(file, url, f"it has {begun + answer.length} bytes and not {file.size}"))
        tell(f"{file.name}: {file.size / 1e6:.1f} MB from {url}" + f", {begun / 1e6:.1f} MB are here" * (begun > 0))
        done, told = begun, time.monotonic()
        with open(part, "ab" if begun else "wb") as stream:
            while done < file.size and (chunk := answer.read1(min(1 << 20, file.size - done))):
                done += stream.write(chunk)
                stream.flush()  # what has come survives a kill
                if stop.signalled:
                    raise Unusable("stopped before the data were there; the same command resumes the download")
                if time.monotonic() - told > PROGRESS_S:
                    told = time.monotonic()
                    tell(f"{file.name}: {done / 1e6:.1f} MB of {file.size / 1e6:.1f} MB")
    if done < file.size:
        raise ConnectionError("the connection ended early")
    return begun


def tell(line: str) -> None:
    write(line, sys.stderr)


def reason(error: BaseException) -> str:
    """`Connection refused`, without numbers and brackets."""
    if isinstance(error, urllib.error.HTTPError):
        return f"{error.code} {error.reason}"
    if isinstance(error, http.client.IncompleteRead):
        return "the connection ended early"
    cause = getattr(error, "reason", error)  # urllib's wrap another
    return getattr(cause, "strerror", None) or str(cause)


def wrong(file: File, url: str, differs: str) -> str:
    return f"{url} is not the published {file.name}: {differs}; name another mirror with --data"
