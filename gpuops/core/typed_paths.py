"""Paths that a user typed, in a flag or in `gpuops.toml`."""

from __future__ import annotations

import os
from pathlib import Path

from gpuops.core.errors import UsageError

MAX_SHOWN_CHARS = 60


def typed_path(flag: str, text: str, folder: Path) -> Path:
    """The absolute path, from `folder` on, with `~` and `~NAME` replaced. Whether something is there is not judged.

    `flag`: as messages call it, such as `--data`; empty for an argument. Raises UsageError for an unknown user, and for
    a path that the system refuses to look up: too long, in a closed folder, links in a circle.
    """
    shown = text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"
    named = f"{flag} {shown}" if flag else shown
    try:
        path = (folder / Path(text).expanduser()).absolute()
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:  # the latter: a NUL byte
        why = error.strerror if isinstance(error, OSError) else "it is no path"
        raise UsageError(f"{named} cannot be looked up: {why}", "check the path") from error
    except RuntimeError as error:
        raise UsageError(
            f"{named}: no home folder is known for {Path(text).parts[0]}", "write the whole path"
        ) from error
    return path


def path_inside(path: Path, folder: Path) -> str | None:
    """An absolute path from `folder` on, with slashes; `.` for the folder itself, None outside of it.

    A path through a link to the folder is inside as well: a shell's $PWD keeps the link by which one went there. A link
    in the folder is inside, wherever it leads.
    """
    real = folder.resolve()
    for full, base in ((path, folder), (path.parent.resolve() / path.name, real), (path.resolve(), real)):
        if full.is_relative_to(base) and ".." not in full.parts:
            return full.relative_to(base).as_posix()
    return None
