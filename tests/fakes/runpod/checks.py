"""Which keys and values a request may have, and the sentences about one that does not fit (422)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.fakes.runpod.problems import NOT_VALID, Refusal

Check = Callable[[str, Any], Iterator[str]]


def text(least: int = 0, pattern: str = "") -> Check:
    def check(where: str, value: Any) -> Iterator[str]:
        if not isinstance(value, str):
            yield f"{where}: got {kind(value)}, want string"
        elif len(value) < least:
            yield f"{where}: minLength: got {len(value)}, want {least}"
        elif pattern and not re.fullmatch(pattern, value):
            yield f"{where}: {value!r} does not match pattern {pattern!r}"

    return check


def number(least: int, most: int | None = None) -> Check:
    def check(where: str, value: Any) -> Iterator[str]:
        if isinstance(value, bool) or not isinstance(value, int):
            yield f"{where}: got {kind(value)}, want integer"
        elif value < least:
            yield f"{where}: minimum: got {value}, want {least}"
        elif most is not None and value > most:
            yield f"{where}: maximum: got {value}, want {most}"

    return check


def truth(where: str, value: Any) -> Iterator[str]:
    if not isinstance(value, bool):
        yield f"{where}: got {kind(value)}, want boolean"


def one_of(*values: str) -> Check:
    def check(where: str, value: Any) -> Iterator[str]:
        if value not in values:
            yield f"{where}: value must be one of {', '.join(repr(one) for one in values)}"

    return check


def maybe(inner: Check) -> Check:
    def check(where: str, value: Any) -> Iterator[str]:
        if value is not None:
            yield from inner(where, value)

    return check


def each(inner: Check, most: int | None = None) -> Check:
    def check(where: str, value: Any) -> Iterator[str]:
        if not isinstance(value, list):
            yield f"{where}: got {kind(value)}, want array"
            return
        if most is not None and len(value) > most:
            yield f"{where}: maxItems: got {len(value)}, want {most}"
        for at, one in enumerate(value):
            yield from inner(f"{where}[{at}]", one)

    return check


def texts_by_name(where: str, value: Any) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where}: got {kind(value)}, want object"
        return
    for name, one in value.items():
        yield from text()(f"{where}.{name}", one)


@dataclass(frozen=True)
class Shape:
    """An object; other keys than these are refused."""

    keys: Mapping[str, Check]
    required: tuple[str, ...] = ()
    least: int = 0
    also: Callable[[Mapping[str, Any]], list[str]] = field(default=lambda _: [])
    """More that is required, by what is there."""

    def __call__(self, where: str, value: Any) -> Iterator[str]:
        if not isinstance(value, dict):
            yield f"{where}: got {kind(value)}, want object"
            return
        missing = [name for name in (*self.required, *self.also(value)) if name not in value]
        for name in missing:
            yield f"{where}: missing property '{name}'"
        # Once something is missing, the service calls every key that is there a stranger.
        strangers = [name for name in value if missing or name not in self.keys]
        if strangers:
            yield f"{where}: additional properties {', '.join(repr(one) for one in strangers)} not allowed"
        if len(value) < self.least:
            yield f"{where}: minProperties: got {len(value)}, want {self.least}"
        for name, check in self.keys.items():
            if name in value:
                yield from check(f"{where}.{name}", value[name])


def kind(value: Any) -> str:
    names = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
    return names.get(type(value), "null")


_CUDA = text(pattern=r"\d+\.\d+")
_GPU = Shape(
    {"id": text(), "count": number(1), "allowedCudaVersions": each(_CUDA), "minCudaVersion": _CUDA}, required=("id",)
)
_CPU = Shape({"id": text(), "vcpuCount": number(1)}, required=("id",))
_MOUNTS = Shape(
    {
        "persistent": Shape({"size": number(10), "path": text()}, required=("size", "path")),
        "network": each(Shape({"volumeId": text(), "path": text()}, required=("volumeId", "path")), most=1),
    }
)
_BASE: dict[str, Check] = {
    "args": text(),
    "disk": number(1),
    "env": texts_by_name,
    "image": text(),
    "ports": each(text()),
    "mounts": _MOUNTS,
}
_CREATE: dict[str, Check] = {
    **_BASE,
    "name": text(1),
    "dataCenterIds": each(text()),
    "startJupyter": truth,
    "startSsh": truth,
}

CREATE_POD = Shape(
    {
        **_CREATE,
        "registry": maybe(text()),
        "cloud": one_of("SECURE", "COMMUNITY"),
        "cpu": _CPU,
        "globalNetworking": truth,
        "gpu": _GPU,
        "templateId": text(1),
    },
    required=("name",),
    also=lambda body: [] if "templateId" in body else ["image"],
)
UPDATE_POD = Shape(
    {
        **_BASE,
        "registry": maybe(text()),
        "globalNetworking": truth,
        "locked": truth,
        "name": text(1),
        "templateId": text(),
    }
)
POD_ACTION = Shape({"action": one_of("start", "stop", "restart", "terminate")}, required=("action",))
_COMPUTE = Shape(
    {"gpuTypeId": text(1), "gpuCountPerPod": number(1), "podCount": number(2, 250)},
    required=("gpuTypeId", "gpuCountPerPod", "podCount"),
)
CREATE_CLUSTER = Shape(
    {**_CREATE, "compute": _COMPUTE, "type": one_of("APPLICATION", "TRAINING", "SLURM", "RAY")},
    required=("name", "type", "compute"),
)
UPDATE_CLUSTER = Shape({"name": text(1)}, least=1)
_SIZE = number(10, 4096)
CREATE_VOLUME = Shape(
    {"dataCenter": text(1), "name": text(1), "size": _SIZE, "type": one_of("STANDARD", "HIGH_PERFORMANCE")},
    required=("name", "size", "dataCenter"),
)
UPDATE_VOLUME = Shape({"name": text(1), "size": _SIZE}, least=1)
SSH_KEYS = Shape(
    {"keys": each(text(pattern=r"(ssh|ecdsa|sk)-[^\s]+ [^\s]+([ \t][^\n\r]*)?"))},
    required=("keys",),
)


def expect(shape: Shape, body: Any) -> dict[str, Any]:
    """The body, if it is as it should be."""
    errors = list(shape("$", body))
    if errors:
        raise Refusal(422, NOT_VALID, errors)
    assert isinstance(body, dict)
    return body
