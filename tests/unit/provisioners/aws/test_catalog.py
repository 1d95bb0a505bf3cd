"""Which instance types a request means, by what AWS says of them."""

from __future__ import annotations

import pytest
from moto.ec2.models.instance_types import INSTANCE_TYPES

from gpuops.core.errors import UsageError
from provisioners.aws.catalog import InstanceType, memory_gb, parse_instance_type, select_instance_types
from provisioners.aws.quotas import ON_DEMAND, SPOT
from tests.fakes.aws.known import kinds


def meant(gpus: int | None = None, kind: str | None = None, memory: int | None = None, market: str = SPOT) -> list[str]:
    found = select_instance_types(kinds(), gpus=gpus, gpu_type=kind, gpu_mem=memory, market=market)
    return [one.type for one in found]


def test_four_gpus_are_what_the_service_says_and_no_sizes_name() -> None:
    assert meant(4) == [
        "g4dn.12xlarge", "g5.12xlarge", "g5.24xlarge", "g6.12xlarge", "g6.24xlarge", "g6e.12xlarge", "g6e.24xlarge",
        "g7.24xlarge", "g7e.24xlarge",
    ]  # fmt: skip


def test_what_is_no_whole_nvidia_gpu_in_a_machine_is_left_out() -> None:
    by_name = {kind.type: kind for kind in kinds()}
    for name in ("g4dn.metal", "g5g.xlarge", "g6f.large", "gr6f.4xlarge"):
        assert by_name[name].gpus == 0, name
        assert by_name[name].vcpus > 0, f"{name} counts against the quota all the same"
    assert not {"g4dn.metal", "g5g.xlarge", "g6f.large"} & set(meant(1))
    assert "gr6.4xlarge" in meant(1)


def test_amd_and_mixtures_are_none() -> None:
    document = {
        "InstanceType": "g4ad.xlarge",
        "ProcessorInfo": {"SupportedArchitectures": ["x86_64"]},
        "GpuInfo": {"Gpus": [{"Count": 1, "Manufacturer": "AMD", "Name": "V520", "MemoryInfo": {"SizeInMiB": 8192}}]},
        "VCpuInfo": {"DefaultVCpus": 4},
        "SupportedUsageClasses": ["spot", "on-demand"],
    }
    no_gpu = "has no whole NVIDIA GPU that gpuops can train on"
    assert parse_instance_type(document) == InstanceType("g4ad.xlarge", 0, "V520", 8, 4, ("spot", "on-demand"), no_gpu)


def test_without_a_number_it_is_one() -> None:
    assert meant() == meant(1)
    assert "g4dn.16xlarge" in meant()
    assert not set(meant()) & set(meant(4))


@pytest.mark.parametrize(
    ("name", "family"),
    [("a10g", "g5."), ("A10G", "g5."), ("nvidia a10g", "g5."), ("t4", "g4dn."), ("L40S", "g6e."), ("h100", "p5.")],
)
def test_a_gpu_is_called_as_people_call_it(name: str, family: str) -> None:
    found = meant(1 if family != "p5." else 8, name)
    assert found
    assert all(one.startswith(family) for one in found)


def test_a_region_without_gpus_says_so() -> None:
    without = [kind for kind in kinds() if not kind.gpus]
    with pytest.raises(UsageError) as caught:
        select_instance_types(without, gpus=None, gpu_type=None, gpu_mem=None, market=SPOT, where="in mx-central-1")
    assert caught.value.message == "AWS has no instance type with a GPU in mx-central-1"
    assert caught.value.hint == "look in other regions: --region A,B"


def test_l4_is_not_l40s() -> None:
    assert all(one.startswith(("g6.", "gr6.")) for one in meant(1, "l4"))
    assert set(meant(8, "a100 80gb")) == {"p4de.24xlarge"}
    assert meant(4, "rtx pro server 6000") == meant(4, "rtx 6000") == ["g7e.24xlarge"]
    assert meant(8, "h100,h200") == ["p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge"]


def test_a_literal_type_brings_its_number_of_gpus() -> None:
    assert meant(None, "g5.12xlarge") == meant(4, "g5.12xlarge") == ["g5.12xlarge"]
    assert meant(None, "G5.12xlarge") == ["g5.12xlarge"]


def test_memory_is_counted_as_people_do() -> None:
    assert [memory_gb(mebibytes) for mebibytes in (16384, 22888, 45776, 40960, 81920, 144384, 183359)] == [
        16, 24, 48, 40, 80, 141, 192,
    ]  # fmt: skip
    assert meant(4, memory=24)[0] == "g5.12xlarge"
    assert "g4dn.12xlarge" not in meant(4, memory=24)
    assert {"g6e.48xlarge", "p4d.24xlarge"} <= set(meant(8)) - set(meant(8, memory=80))
    assert {"p4de.24xlarge", "p5.48xlarge"} <= set(meant(8, memory=80))


def test_v100_is_had_by_name_alone() -> None:
    assert "p3dn.24xlarge" not in meant(8)
    assert meant(8, "v100") == ["p3dn.24xlarge"]


@pytest.mark.parametrize(
    ("wish", "say", "hint"),
    [
        (
            {"gpus": 4, "kind": "a11g"},
            "AWS has no GPU called 'a11g' there",
            "did you mean A10G",
        ),
        ({"gpus": 4, "kind": "mi300"}, "AWS has no GPU called 'mi300' there", "AWS has A100, A10G, B200, B300, H100"),
        (
            {"gpus": 4, "kind": "rtx"},
            "'rtx' is more than one GPU at AWS: RTX PRO 4500, RTX PRO Server 6000",
            "name one of them exactly",
        ),
        ({"kind": "g5.13xlarge"}, "AWS has no instance type 'g5.13xlarge' with a GPU there", "did you mean g5.1"),
        ({"kind": "g6f.large"}, "g6f.large has no whole NVIDIA GPU that gpuops can train on", "slices of a GPU"),
        ({"gpus": 2, "kind": "g5.12xlarge"}, "g5.12xlarge has 4 GPUs, not 2", "ask for --gpus 4"),
        ({"gpus": 3, "kind": "a10g"}, "no instance type with a10g has 3 of them: they have 1, 4, 8", "--gpus 4,"),
        ({"gpus": 16}, "no instance type with GPUs has 16 of them: they have 1, 2, 4, 8", "--gpus 8 and more --nodes"),
        ({"gpus": 4, "memory": 128}, "no instance type with 4 x GPU has 128 GB of memory in each: the most is 96", ""),
    ],
)
def test_what_means_nothing_is_said_with_what_there_is(wish: dict, say: str, hint: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(UsageError) as told:
        meant(**wish)
    assert told.value.message.startswith(say)
    assert hint in told.value.hint


PLAIN = (
    *kinds(),
    *(
        parse_instance_type(INSTANCE_TYPES[one])
        for one in ("c7i.large", "c7g.large", "m5.large", "t3.small", "t4g.small")
    ),
)


def exactly(types: str, gpus: int | None = None) -> list[str]:
    found = select_instance_types(
        PLAIN, gpus=gpus, gpu_type=None, gpu_mem=None, market=ON_DEMAND, types=tuple(types.split(",")), where="there"
    )
    return [one.type for one in found]


def test_a_type_that_is_named_need_not_have_a_gpu() -> None:
    assert exactly("c7i.large") == ["c7i.large"]
    assert exactly("m5.large,g5.12xlarge") == ["m5.large", "g5.12xlarge"]
    assert exactly("g5.12xlarge", 4) == ["g5.12xlarge"]
    plain = next(one for one in PLAIN if one.type == "c7i.large")
    assert (plain.gpus, plain.say) == (0, "2 vCPU, no GPU")
    assert "c7i.large" not in [
        one.type for one in select_instance_types(PLAIN, gpus=None, gpu_type=None, gpu_mem=None, market=SPOT)
    ]


@pytest.mark.parametrize(
    ("types", "gpus", "say", "hint"),
    [
        ("c7i.large", 4, "c7i.large has no GPU, and --gpus asks for 4", "leave out --gpus"),
        ("g5.12xlarge", 2, "g5.12xlarge has 4 GPUs, not 2", "ask for --gpus 4"),
        ("c7i.larg", None, "AWS has no instance type 'c7i.larg' there", "did you mean c7i.large"),
        ("c7g.large", None, "c7g.large has an ARM processor, and the images that gpuops starts are for x86",
         "its sibling for x86 is c7i.large: --instance-type c7i.large"),
        ("t4g.small", None, "t4g.small has an ARM processor", "its sibling for x86 is t3.small"),
        ("g5g.xlarge", None, "g5g.xlarge has an ARM processor", "its sibling for x86 is g5.xlarge"),
        ("g4dn.metal", None, "g4dn.metal is bare metal", "name another --instance-type"),
        ("g6f.large", None, "g6f.large has no whole NVIDIA GPU", "name another --instance-type"),
    ],
)  # fmt: skip
def test_a_type_that_cannot_be_had_is_said_with_what_can(types: str, gpus: int | None, say: str, hint: str) -> None:
    with pytest.raises(UsageError) as told:
        exactly(types, gpus)
    assert told.value.message.startswith(say)
    assert hint in told.value.hint


def test_a_type_that_a_market_has_not() -> None:
    only = InstanceType("p9.48xlarge", 8, "X100", 80, 192, (ON_DEMAND,))
    with pytest.raises(UsageError, match=r"AWS has no p9\.48xlarge as spot instances") as told:
        select_instance_types([only], gpus=8, gpu_type=None, gpu_mem=None, market=SPOT)
    assert told.value.hint == "leave out --spot"
    assert select_instance_types([only], gpus=8, gpu_type=None, gpu_mem=None, market=ON_DEMAND) == [only]
