"""The pods that an offer stands for."""

from __future__ import annotations

import json

from provisioners.runpod.launch import PodSpec

SPEC = PodSpec(
    nodes=2,
    gpu="NVIDIA L40S",
    gpu_name="L40S",
    count=4,
    cloud="SECURE",
    centers=("EU-RO-1",),
    disk=40,
    image="pytorch:2.8",
    template="t1",
    registry="r1",
    ports=("8888/http",),
    cuda="12.8",
    volume="v1",
    volume_name="data",
)


def test_what_an_offer_keeps_of_its_pods_is_read_again() -> None:
    assert PodSpec.parse(json.loads(json.dumps({"columns": {}, **SPEC.document()}))) == SPEC


def test_what_an_offer_of_an_older_version_does_not_say_has_a_default() -> None:
    document = SPEC.document()
    for name in ("gpu_name", "image", "template", "registry", "ports", "volume_name"):
        del document[name]
    spec = PodSpec.parse(document)
    assert (spec.say, spec.image, spec.ports, spec.volume_name) == (f"4 x {SPEC.gpu}", "", (), "")
