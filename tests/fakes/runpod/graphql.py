"""What is served of the older interface: who am I, its money; GPUs in clusters, and their machines; a pod's end."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from tests.fakes.runpod.catalog import GPUS, GpuType, Stock, level

Selection = dict[str, "Selection"]


LOWEST = re.compile(r"(lowestPrice)\s*\(\s*input:\s*\{([^{}]*)\}\s*\)")
INPUTS = {"gpuCount": int, "minMemoryInGb": int, "minVcpuCount": int, "secureCloud": bool, "dataCenterId": str}
"""Some of GpuLowestPriceInput's (gpuhunt, runpodctl)."""


class Malformed(Exception):
    """What a GraphQL server says about a query."""


def to_terminate(query: str) -> str:
    """The pod that a mutation ends; empty: it is another one, or a query."""
    found = re.fullmatch(r'\s*mutation\s*{\s*podTerminate\(input:\s*{\s*podId:\s*"(\w+)"\s*}\)\s*}\s*', query)
    return found[1] if found else ""


def parse(query: str) -> Selection:
    """`query { myself { id pods { id } } }` as nested dicts. Arguments, aliases and fragments are not served, but
    lowestPrice's."""
    words = iter(re.findall(r"[{}]|[A-Za-z_]\w*", LOWEST.sub(r"\1", re.sub(r"#.*", "", query))))
    first = next(words, "")
    if first == "mutation":
        raise Malformed("no such mutation is served here")
    while first not in ("{", ""):
        first = next(words, "")
    if not first:
        raise Malformed("Syntax Error: Unexpected <EOF>.")
    return _selection(words)


def _selection(words: Iterator[str]) -> Selection:
    found: Selection = {}
    last = ""
    for word in words:
        if word == "}":
            return found
        if word == "{":
            found[last] = _selection(words)
        else:
            last = word
            found[last] = {}
    raise Malformed("Syntax Error: Expected Name, found <EOF>.")


def lowest_input(query: str) -> dict[str, Any]:
    """What lowestPrice is asked with."""
    found = LOWEST.search(query)
    try:
        given = json.loads("{" + re.sub(r"(\w+)\s*:", r'"\1":', found[2] if found else "") + "}")
    except ValueError:
        raise Malformed("Syntax Error: Expected Name.") from None
    for name, value in given.items():
        if name not in INPUTS:
            raise Malformed(f'Field "{name}" is not defined by type "GpuLowestPriceInput".')
        if type(value) is not INPUTS[name]:
            raise Malformed(f"{INPUTS[name].__name__.title()} cannot represent {value!r}")
    return dict(given)


def gpu_types(stock: Stock, asked: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {
            "id": gpu.id,
            "displayName": gpu.name,
            "securePrice": gpu.secure or None,
            "clusterPrice": gpu.in_cluster,
            "lowestPrice": _lowest(gpu, stock.get(gpu.id, {}), **asked),
        }
        for gpu in GPUS
    ]


def _lowest(
    gpu: GpuType,
    free: dict[str, int],
    gpuCount: int = 1,
    minMemoryInGb: int = 0,
    minVcpuCount: int = 0,
    secureCloud: bool | None = None,
    dataCenterId: str | None = None,
) -> dict[str, Any]:
    """Of the smallest machine that does; where there is none, every field of it is null, and not the whole."""
    clouds = ["SECURE", "COMMUNITY"] if secureCloud is None else ["SECURE" if secureCloud else "COMMUNITY"]
    price = min((gpu.price(one) for one in clouds if gpu.price(one)), default=0)
    most = max([count for place, count in free.items() if dataCenterId in (None, place)], default=0)
    fitting = [
        (ram * gpuCount, vcpus * gpuCount)
        for ram, vcpus in gpu.machines
        if ram * gpuCount >= minMemoryInGb and vcpus * gpuCount >= minVcpuCount
    ]
    if not price or not fitting or most < gpuCount:
        return dict.fromkeys(("stockStatus", "uninterruptablePrice", "minVcpu", "minMemory"))
    ram, vcpus = fitting[0]
    stock = level(most, gpuCount).title()
    return {"stockStatus": stock, "uninterruptablePrice": price, "minVcpu": vcpus, "minMemory": ram}


def select(value: Any, wanted: Selection, kind: str = "Query") -> Any:
    if isinstance(value, list):
        return [select(one, wanted, kind) for one in value]
    if not isinstance(value, dict):
        return value
    for name in wanted:
        if name not in value:
            raise Malformed(f'Cannot query field "{name}" on type "{kind}".')
    return {name: select(value[name], inner, "User" if name == "myself" else name) for name, inner in wanted.items()}
