"""A command with the fake for its RunPod: `python -m tests.fakes.runpod gpuops …`, or `bash` to look around.

With --lab, as root, pods are machines and the command is in the lab's network. What is still rented at the end is told.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fakes.runpod.fake import FakeRunPod


def main(argv: list[str]) -> int:
    with_lab = argv[:1] == ["--lab"]
    command = argv[1:] if with_lab else argv
    if not command:
        sys.exit(__doc__)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="runpod-")))
        lab = None
        if with_lab:
            from tests.lab.hosts import Lab

            lab = stack.enter_context(Lab(folder / "lab"))
        fake = stack.enter_context(FakeRunPod(folder / "runpod", lab=lab))
        code = subprocess.run([*(lab.enter if lab else []), *command], env={**os.environ, **fake.env}).returncode
        for pod in fake.running():
            print(f"still rented: {pod.name} ({pod.id}), {pod.status}, ${pod.per_hour:.2f}/h", file=sys.stderr)
        print(f"{len(fake.requests)} requests, ${fake.billed():.4f}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
