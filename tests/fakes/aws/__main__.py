"""A command with the fake for its AWS: `python -m tests.fakes.aws gpuops …`, or `bash` to look around.

With --lab, as root, instances are machines and the command is in the lab's network. What is still there at the end is
told.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fakes.aws.fake import FakeAWS


def main(argv: list[str]) -> int:
    with_lab = argv[:1] == ["--lab"]
    command = argv[1:] if with_lab else argv
    if not command:
        sys.exit(__doc__)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aws-")))
        lab = None
        if with_lab:
            from tests.lab.hosts import Lab

            lab = stack.enter_context(Lab(folder / "lab"))
        fake = stack.enter_context(FakeAWS(folder / "aws", lab=lab))
        code = subprocess.run([*(lab.enter if lab else []), *command], env={**os.environ, **fake.env}).returncode
        for line in fake.left():
            print(f"still there: {line}", file=sys.stderr)
        print(f"{len(fake.requests)} requests", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
