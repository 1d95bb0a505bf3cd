"""Images of containers: what their names tell, and by which words a host says that one cannot be pulled. Pure."""

from __future__ import annotations

import re

CUDA = re.compile(r"(?<![a-z])cu(?:da)?[-_:]?(\d\d)\.?(\d)")
"""`cu1281`, `cu128`, `cuda12.8.1`, `nvidia/cuda:12.8.1-devel`."""
NEVER_PULLED = re.compile(
    r"manifest unknown|manifest for \S+ not found|no matching manifest|pull access denied|repository does not exist|"
    r"repository name not known|requested access to the resource is denied|invalid reference format|"
    r"unauthorized(?!: .*rate)|authentication required",
    re.IGNORECASE,
)


def cuda_of(image: str) -> str:
    """The CUDA in an image's name, `12.8`; empty where it has none."""
    match = CUDA.search(image.lower())
    return f"{match[1]}.{match[2]}" if match else ""
