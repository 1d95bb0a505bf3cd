"""Which GPU, which data center, which image: names as people type them. Pure."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gpuops.core.errors import NoCapacity, UsageError
from gpuops.core.models import Request
from provisioners.kit.container_images import cuda_of
from provisioners.runpod import catalog, offers, options, regions
from provisioners.runpod.catalog import CenterStock, Gpu
from provisioners.runpod.options import wishes
from tests.fakes.runpod.catalog import DATA_CENTERS, GPUS, data_center_view, gpu_view

SECURE = [catalog.parse_gpu(gpu_view(gpu), "SECURE") for gpu in GPUS]
COMMUNITY = [catalog.parse_gpu(gpu_view(gpu), "COMMUNITY") for gpu in GPUS]
CENTERS = regions.parse_data_centers([data_center_view(one) for one in DATA_CENTERS])


@pytest.mark.parametrize(("typed", "name"), [
    ("RTX 4090", "RTX 4090"), ("rtx4090", "RTX 4090"), ("4090", "RTX 4090"), ("NVIDIA GeForce RTX 4090", "RTX 4090"),
    ("geforce-rtx-4090", "RTX 4090"), ("h100 sxm", "H100 SXM"), ("H100-SXM", "H100 SXM"), ("sxm h100", "H100 SXM"),
    ("NVIDIA H100 80GB HBM3", "H100 SXM"), ("h100 pcie", "H100 PCIe"), ("h100nvl", "H100 NVL"),
    ("a100 sxm4", "A100 SXM"), ("A100-PCIe", "A100 PCIe"), ("l4", "L4"), ("l40 s", "L40S"), ("L40", "L40"),
    ("a6000", "RTX A6000"), ("rtx a4000", "RTX A4000"), ("rtx 6000 ada", "RTX 6000 Ada"), ("6000 ada", "RTX 6000 Ada"),
    ("h200", "H200 SXM"), ("h200 nvl", "NVIDIA H200 NVL"), ("mi300x", "MI300X"), ("b200", "B200"), ("b300", "B300"),
    ("rtx pro 6000", "RTX PRO 6000"), ("a40", "A40"), ("2000 ada", "RTX 2000 Ada"), ("3090", "RTX 3090"),
    ("5090", "RTX 5090"), ("mig 1g", "PRO 6000 MIG 24GB"), (" l4 ", "L4"),
])  # fmt: skip
def test_a_name_means_one_gpu(typed: str, name: str) -> None:
    assert [gpu.name for gpu in catalog.select_gpus(SECURE, typed, None)] == [name]


@pytest.mark.parametrize(("typed", "named"), [
    ("ada", "RTX 2000 Ada, RTX 4000 Ada, RTX 6000 Ada"), ("mig", "PRO 6000 MIG 24GB, PRO 6000 MIG 48GB"),
])  # fmt: skip
def test_a_name_that_means_several_names_them(typed: str, named: str) -> None:
    with pytest.raises(UsageError) as caught:
        catalog.select_gpus(SECURE, typed, None)
    assert caught.value.message == f"'{typed}' is more than one GPU at RunPod: {named}"


@pytest.mark.parametrize(("typed", "names"), [
    ("h100", {"H100 NVL", "H100 PCIe", "H100 SXM"}), ("a100", {"A100 PCIe", "A100 SXM"}),
    ("a100-80gb", {"A100 PCIe", "A100 SXM"}), ("l4,h100", {"L4", "H100 NVL", "H100 PCIe", "H100 SXM"}),
])  # fmt: skip
def test_a_name_means_every_form_of_its_gpu(typed: str, names: set[str]) -> None:
    assert {gpu.name for gpu in catalog.select_gpus(SECURE, typed, None)} == names


@pytest.mark.parametrize(("typed", "near"), [
    ("h10", "did you mean H100 NVL or H100 PCIe or H100 SXM?"), ("rtx 4098", "did you mean RTX 4090"),
    ("l40x", "did you mean L40"), ("no-such-gpu", "RunPod has A100 PCIe"), ("", "RunPod has A100 PCIe"),
])  # fmt: skip
def test_a_name_that_means_none_gets_near_ones(typed: str, near: str) -> None:
    with pytest.raises(UsageError) as caught:
        catalog._match(SECURE, typed)
    assert near in caught.value.hint


def test_several_names_and_a_name_that_only_the_other_cloud_has() -> None:
    assert [gpu.name for gpu in catalog.select_gpus(SECURE, "l4,h100 nvl, l4", None)] == ["L4", "H100 NVL"]
    assert [gpu.name for gpu in catalog.select_gpus(COMMUNITY, "a100", None)] == ["A100 PCIe"], "the other is not there"
    with pytest.raises(UsageError, match=r"RTX 4080 is not in that cloud"):
        catalog.select_gpus(SECURE, "rtx 4080", None)


def test_without_a_name_what_makes_sense() -> None:
    names = {gpu.name for gpu in catalog.select_gpus(COMMUNITY, None, None)}
    assert "RTX 4090" in names
    assert not names & {"MI300X", "RTX 3070", "Tesla V100", "V100 SXM2 32GB", "RTX A2000"}
    assert not {gpu.name for gpu in catalog.select_gpus(SECURE, None, None)} & {"PRO 6000 MIG 24GB", "RTX 4080"}


def test_by_memory() -> None:
    found = catalog.select_gpus(SECURE, None, 80)
    assert min(gpu.memory for gpu in found) == 80
    assert min(gpu.memory for gpu in catalog.select_gpus(COMMUNITY, None, 8)) == 8, "as small as was asked for"
    with pytest.raises(UsageError, match="the most is 288 GB"):
        catalog.select_gpus(SECURE, None, 99999)
    with pytest.raises(UsageError, match="l4 has not 40 GB of memory: the most is 24 GB"):
        catalog.select_gpus(SECURE, "l4", 40)


@pytest.mark.parametrize("document", [
    {"id": "x"}, {"id": "x", "price": None}, {"id": "x", "price": {"secure": "much"}},
    {"id": "x", "price": {"secure": 0}}, {"id": "x", "secure": False, "price": {"secure": 1.0}},
    {"id": "x", "price": {"secure": float("nan")}}, {"id": "x", "price": {"secure": -1}},
    {"id": "x", "price": {"secure": 1e999}},
])  # fmt: skip
def test_a_price_that_is_none_is_no_price(document: dict[str, Any]) -> None:
    assert catalog.parse_gpu(document, "SECURE").price == 0
    assert catalog.parse_gpu({"id": "x", "price": {"secure": "0.74"}, "dataCenters": "?"}, "SECURE").price == 0.74


@pytest.mark.parametrize(("typed", "ids"), [
    ("US-KS-2", ["US-KS-2"]), ("us-ks-2", ["US-KS-2"]), ("US-KS-2,EU-RO-1", ["US-KS-2", "EU-RO-1"]),
    ("us-ks", ["US-KS-2", "US-KS-3"]), ("kansas", ["US-KS-2", "US-KS-3"]), ("asia", ["AP-JP-1"]), ("jp", ["AP-JP-1"]),
    ("Oceania", ["OC-AU-1"]), ("north carolina", ["US-NC-1"]), ("iceland", ["EUR-IS-1", "EUR-IS-2", "EUR-IS-3"]),
    ("eu-ro", ["EU-RO-1"]), ("ro", ["EU-RO-1"]), ("australia, japan", ["OC-AU-1", "AP-JP-1"]),
])  # fmt: skip
def test_regions(typed: str, ids: list[str]) -> None:
    assert regions.select_data_centers(typed, CENTERS) == ids


@pytest.mark.parametrize(
    ("typed", "start"), [("us", "US-"), ("USA", "US-"), ("europe", "EU"), ("eu", "EU"), ("ca", "CA-")]
)
def test_countries_and_continents(typed: str, start: str) -> None:
    found = regions.select_data_centers(typed, CENTERS)
    assert found == [one.id for one in CENTERS if one.id.startswith(start)]
    assert len(found) > 1


@pytest.mark.parametrize("typed", ["no-such-region", "US-KS-9", "", "US-KS-2,,", "us-"])
def test_what_is_no_region(typed: str) -> None:
    if typed == "us-":
        assert regions.select_data_centers(typed, CENTERS), "as good as us"
        return
    with pytest.raises(UsageError) as caught:
        regions.select_data_centers(typed, CENTERS)
    assert "US-KS-2" in caught.value.hint


@pytest.mark.parametrize(("image", "cuda"), [
    (options.IMAGE, "12.8"), ("runpod/pytorch:2.4.0-py3.11-cuda12.4.1-devel-ubuntu22.04", "12.4"),
    ("pytorch/pytorch:2.8.0-cuda12.8-cudnn9-runtime", "12.8"), ("nvidia/cuda:12.6.3-base-ubuntu24.04", "12.6"),
    ("x/y:cu118", "11.8"), ("x/y:torch2.9-cu130", "13.0"), ("ubuntu:24.04", ""), ("x/occult:1204", ""),
    ("focus12/x:1", ""),
])  # fmt: skip
def test_an_images_name_tells_its_cuda(image: str, cuda: str) -> None:
    assert cuda_of(image) == cuda


def wished(**given: Any) -> options.Wishes:
    plain = {name: given.pop(name) for name in ("gpus", "image") if name in given}
    told = {name.replace("_", "-"): value for name, value in given.items()}
    return wishes(Request("runpod", options=told, **plain))


def test_what_is_asked_for_without_a_word() -> None:
    one = wished()
    assert (one.nodes, one.gpus, one.cloud, one.disk, one.volume) == (1, 1, "SECURE", 100, "")
    assert (one.image, one.min_cuda, one.template, one.registry, one.ports) == (options.IMAGE, "12.8", "", "", "")
    assert (one.min_ram, one.min_vcpu, one.least) == (0, 0, "")
    assert wished(cloud="Community", disk=20, min_cuda="12.4", gpus=4).min_cuda == "12.4"
    assert wished(min_cuda="none").min_cuda == ""


@pytest.mark.parametrize(("given", "say"), [
    ({"cloud": "own"}, "no cloud 'own'"), ({"gpus": 0}, "at least one GPU"),
    ({"disk": -1}, "--disk -1 is out of range"),
    ({"cloud": "community", "volume": "v"}, "no network volumes"), ({"image": "a b"}, "not the name of an image"),
    ({"min_cuda": "12"}, "no version of CUDA"), ({"min_ram": 0}, "--min-ram 0 is out of range"),
    ({"min_vcpu": -4}, "--min-vcpu -4 is out of range"),
])  # fmt: skip
def test_what_makes_no_sense(given: dict[str, Any], say: str) -> None:
    with pytest.raises(UsageError, match=say):
        wished(**given)


def gpu(name: str, price: float, level: str = "HIGH", most: int = 8, maker: str = "NVIDIA") -> Gpu:
    return Gpu(
        f"NVIDIA {name}",
        name,
        maker,
        24,
        price,
        most,
        level,
        (CenterStock("US-KS-2", level), CenterStock("EU-RO-1", level)),
    )


def test_offers_are_the_cheapest_first_and_itemised() -> None:
    found = offers.offers([gpu("B", 0.5), gpu("A", 0.25, "LOW"), gpu("C", 0.5, "LOW")], wished(gpus=4), [], None)
    assert [one.id for one in found] == ["NVIDIA A/secure", "NVIDIA B/secure", "NVIDIA C/secure"]
    first = found[0]
    assert first.say == "1 pod, 4 x A (24 GB each), secure cloud, stock low"
    assert not first.data["columns"]["DATA CENTER"], "RunPod puts it where it likes"
    assert [price.what for price in first.prices] == ["4 x A", "100 GB disk"]
    assert first.per_hour == pytest.approx(1.0 + 100 * 0.10 / 720)
    assert (first.nodes, first.gpus, first.region) == (1, 4, "runpod")


@pytest.mark.parametrize(
    ("centers", "where"),
    [(["EU-RO-1"], ", EU-RO-1, "), (["EU-RO-1", "US-KS-2", "EU-SE-1"], ", EU-RO-1 or 2 more, ")],
)
def test_other_places_are_counted_in_words(centers: list[str], where: str) -> None:
    stocks = tuple(CenterStock(center, "HIGH") for center in centers)
    (found,) = offers.offers([dataclasses.replace(gpu("A", 0.25), places=stocks)], wished(), centers, None)
    assert where in found.say


def test_what_is_taken_is_not_tried_and_is_said() -> None:
    found = offers.offers([gpu("A", 0.25, "NONE"), gpu("B", 0.5)], wished(), [], None)
    assert [one.data["gpu_name"] for one in found] == ["B"]
    assert found[0].notes == ("none free now, and not tried: A",)
    with pytest.raises(NoCapacity, match=r"no 1 x A free now in its secure cloud in US-KS-2"):
        offers.offers([gpu("A", 0.25, "NONE")], wished(), ["US-KS-2"], None)


def test_no_machine_is_that_large() -> None:
    with pytest.raises(UsageError, match="the most is 4") as caught:
        offers.offers([gpu("A", 0.25, most=4)], wished(gpus=8), [], None)
    assert "--gpus 4" in caught.value.hint


def test_at_most_a_dozen() -> None:
    found = offers.offers([gpu(f"G{at}", 0.1 + at) for at in range(30)], wished(), [], None)
    assert len(found) == offers.MAX_OFFERS


def test_an_amd_needs_an_image_of_its_own() -> None:
    amd = dataclasses.replace(gpu("MI300X", 2.0), maker="AMD")
    with pytest.raises(UsageError, match="MI300X is AMD's"):
        offers.offers([amd], wished(), [], None)
    assert offers.offers([amd], wished(image="rocm/pytorch:cu128"), [], None)[0].data["cuda"] == ""


@pytest.mark.parametrize(("told", "level"), [
    ({"uninterruptablePrice": 0.5, "minMemory": 64, "minVcpu": 8}, "HIGH"),
    ({"uninterruptablePrice": "0.5", "minMemory": "64", "minVcpu": 9}, "HIGH"),
    ({"uninterruptablePrice": 0.5, "minMemory": 63, "minVcpu": 8}, "NONE"),
    ({"uninterruptablePrice": 0.5, "minMemory": 64, "minVcpu": 7}, "NONE"),
    ({"uninterruptablePrice": 0.5, "minMemory": 1e999, "minVcpu": float("nan")}, "NONE"),
    ({"uninterruptablePrice": None, "minMemory": None, "minVcpu": None}, "NONE"), (None, "NONE"), ("?", "NONE"),
])  # fmt: skip
def test_machines_with_too_little_beside_their_gpus(told: Any, level: str) -> None:
    one = gpu("A", 0.25)
    machines = catalog.parse_cheapest_machines({"gpuTypes": [7, {"id": one.id, "lowestPrice": told}]})
    (found,) = catalog.with_at_least([one], machines, 64, 8)
    assert found.level == level
    others = catalog.parse_cheapest_machines({"gpuTypes": [{"id": "another"}]})
    assert catalog.with_at_least([one], others, 64, 8) == [one], "of which nothing is told"


def test_a_place_that_has_none() -> None:
    assert catalog.restrict_to_centers(gpu("A", 1.0), ["US-KS-2"]).places == (CenterStock("US-KS-2", "HIGH"),)
    assert catalog.restrict_to_centers(gpu("A", 1.0), ["US-TX-1"]).level == "NONE"
