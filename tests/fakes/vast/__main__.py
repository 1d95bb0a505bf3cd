"""A command with the fake for its Vast.ai: `python -m tests.fakes.vast gpuops …`, or `bash` to look around.

With --lab, as root, instances are machines and the command is in the lab's network. What is still rented is told.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from tests.fakes.typed import typed
from tests.fakes.vast.fake import FakeVast


def told(fake: FakeVast) -> Iterator[str]:
    for one in fake.running():
        yield f"still rented: {one.name} ({one.id}), {one.status(fake.clock.now())}, ${one.per_hour:.2f}/h"
    yield f"{len(fake.requests)} requests, ${sum(one.billed for one in fake.pods.values()):.4f}"


if __name__ == "__main__":
    sys.exit(typed(sys.argv[1:], __doc__, FakeVast, told))
