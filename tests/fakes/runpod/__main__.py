"""A command with the fake for its RunPod: `python -m tests.fakes.runpod gpuops …`, or `bash` to look around.

With --lab, as root, pods are machines and the command is in the lab's network. What is still rented at the end is told.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from tests.fakes.runpod.fake import FakeRunPod
from tests.fakes.typed import typed


def told(fake: FakeRunPod) -> Iterator[str]:
    for pod in fake.running():
        yield f"still rented: {pod.name} ({pod.id}), {pod.status}, ${pod.per_hour:.2f}/h"
    yield f"{len(fake.requests)} requests, ${fake.billed():.4f}"


if __name__ == "__main__":
    sys.exit(typed(sys.argv[1:], __doc__, FakeRunPod, told))
