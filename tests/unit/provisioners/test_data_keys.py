"""docs/providers.md names every key that our provisioners put into `Offer.data` and `Resource.data`."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from provisioners.aws import launch as aws_launch
from provisioners.aws import machines as aws_machines
from provisioners.aws import offers as aws_offers
from provisioners.kit import instance_types
from provisioners.lambdacloud import machines as lambda_machines
from provisioners.local import LocalProvisioner
from provisioners.runpod import launch as runpod_launch
from provisioners.runpod import machines as runpod_machines
from provisioners.runpod import offers as runpod_offers
from provisioners.ssh import SshProvisioner
from provisioners.ssh import machines as ssh_machines
from provisioners.vast import machines as vast_machines
from provisioners.vast import offers as vast_offers

PAGE = (Path(__file__).parents[3] / "docs" / "providers.md").read_text(encoding="utf-8")
WRITERS: dict[str, list[Callable[..., Any]]] = {
    "aws": [aws_offers._build_offer, aws_launch.LaunchSpec.document, aws_machines.machine_resource],
    "runpod": [
        *(runpod_offers._offer, runpod_launch.PodSpec),
        *(runpod_machines.parse_pod, runpod_machines.cluster_resource),
    ],
    "lambda": [instance_types._offer, lambda_machines.parse_machine],
    "vast": [vast_offers._offer, vast_machines.parse_machine],
    "ssh": [SshProvisioner.offers, ssh_machines.node_resource, ssh_machines.contained_resource],
    "local": [LocalProvisioner.offers, LocalProvisioner._resource],
}


def written_keys(function: Callable[..., Any]) -> Iterator[str]:
    """The keys of dictionaries that a function calls `data`, or returns, or that it gives to `MachineOffer.build`; the
    names of a dataclass's fields."""
    if dataclasses.is_dataclass(function):
        yield from (field.name for field in dataclasses.fields(function))
        return
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "build":
            yield from (keyword.arg for keyword in node.keywords if keyword.arg)
        is_data = isinstance(node, ast.keyword) and node.arg == "data"
        is_assigned = isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "data"
        value = node.value if is_data or is_assigned or isinstance(node, ast.Return) else None  # type: ignore[attr-defined]
        for key in value.keys if isinstance(value, ast.Dict) else ():
            if isinstance(key, ast.Constant):
                yield str(key.value)


@pytest.mark.parametrize("provider", WRITERS)
def test_the_page_names_what_a_provisioner_keeps(provider: str) -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("|")]
    shared = [row for row in rows if row.startswith(("| `", "| any "))]
    own = [row for row in rows if row.startswith(f"| {provider} |")]
    named = set(re.findall(r"`([a-z_]+)`", "\n".join([*shared, *own])))
    written = {key for function in WRITERS[provider] for key in written_keys(function)}
    assert written, "the functions are elsewhere by now"
    assert written <= named
