"""A command with the fake for its AWS: `python -m tests.fakes.aws gpuops …`, or `bash` to look around.

With --lab, as root, instances are machines and the command is in the lab's network. What is still there at the end is
told.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from tests.fakes.aws.fake import FakeAWS
from tests.fakes.typed import typed


def told(fake: FakeAWS) -> Iterator[str]:
    yield from (f"still there: {line}" for line in fake.left())
    yield f"{len(fake.requests)} requests"


if __name__ == "__main__":
    sys.exit(typed(sys.argv[1:], __doc__, FakeAWS, told))
