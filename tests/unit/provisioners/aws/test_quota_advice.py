"""What somebody is told who has too little quota: each account state, with the words and the commands."""

from __future__ import annotations

import dataclasses

import pytest

from gpuops.core.quota import QuotaIncrease
from provisioners.aws.instance_alternatives import Demand, RegionSurvey
from provisioners.aws.quota_advice import advise_for_one_gpu, advise_on_request, build_command, build_quota_error
from provisioners.aws.quotas import ON_DEMAND, SPOT, AccountQuotas
from tests.fakes.aws.known import G_SPOT, P4_SPOT, P5_SPOT, G, P, asked, place

NOW = 1_800_000_000.0
TWO = asked(nodes=2)


def said(wish: Demand, *places: RegionSurvey) -> list[str]:
    return [str(one) for one in advise_on_request(wish, places, NOW)]


def test_a_fresh_account() -> None:
    assert said(TWO, place(TWO, {})) == [
        "nothing with such GPUs runs as spot today in us-east-1: the vCPU that are free are too few for one machine",
        (
            "quotas are counted by region, and another may have room: "
            "gpuops quota aws --gpus 4 --nodes 2 --spot --region all"
        ),
        (
            "from 0 a small step is granted sooner: first 8 vCPU on demand, then more, then spot: gpuops quota aws "
            "--gpus 1 --nodes 2 --gpu-type g4dn.xlarge --on-demand --region us-east-1 --request 8"
        ),
        (
            "the smallest increase that would do is to 96 vCPU in us-east-1 (2 x 48 vCPU): "
            "gpuops quota aws --gpus 4 --nodes 2 --spot --region us-east-1 --request 96"
        ),
        (
            "a smaller one would do for as many GPUs in smaller machines: 8 x g4dn.xlarge is 32 vCPU, 8 nodes of 1 GPU "
            "each (so are g5.xlarge, g6.xlarge, g6e.xlarge): "
            "gpuops quota aws --gpus 1 --nodes 8 --gpu-type g4dn.xlarge --spot --region us-east-1 --request 32"
        ),
    ]


ONE = asked(gpus=1, market=ON_DEMAND)
OF_ONE = "that is for one GPU, with --gpus N for more, and --nodes N for several machines"


def of_one(wish: Demand, *places: RegionSurvey) -> list[str]:
    return [str(one) for one in advise_for_one_gpu(wish, places, NOW)]


def test_a_fresh_account_and_nothing_asked_for() -> None:
    assert of_one(ONE, place(ONE, {})) == [
        (
            "no GPU runs on demand today in us-east-1; the smallest increase that would do is to 4 vCPU in us-east-1 "
            f"(1 x 4 vCPU): gpuops quota aws --gpus 1 --on-demand --region us-east-1 --code {G} --request 4"
        ),
        (
            "no GPU runs as spot today in us-east-1; the smallest increase that would do is to 4 vCPU in us-east-1 "
            f"(1 x 4 vCPU): gpuops quota aws --gpus 1 --spot --region us-east-1 --code {G_SPOT} --request 4"
        ),
        "quotas are counted by region, and another may have room: gpuops quota aws --gpus 1 --on-demand --region all",
        OF_ONE,
    ]


def test_nothing_asked_for_and_one_gpu_fits_in_one_market() -> None:
    spot = asked(gpus=1)
    assert of_one(spot, place(spot, {G_SPOT: 4, G: 4}, {G: 4})) == [
        (
            "as spot one GPU fits in us-east-1: 1 x 4 vCPU is 4, and 4 are free of All G and VT Spot Instance "
            "Requests: gpuops up aws --gpus 1 --spot --region us-east-1"
        ),
        (
            "no GPU runs on demand today in us-east-1; the smallest increase that would do is to 8 vCPU in us-east-1 "
            f"(1 x 4 vCPU + 4 in use): gpuops quota aws --gpus 1 --on-demand --region us-east-1 --code {G} --request 8"
        ),
        (
            "the quota itself is large enough in us-east-1: 4 vCPU, of which 4 are in use; end what you no longer "
            "need (what has just ended counts for some minutes more): gpuops status"
        ),
        OF_ONE,
    ]


def test_nothing_asked_for_and_more_is_asked_for_already() -> None:
    waiting = QuotaIncrease("abc", "CASE_OPENED", 96, NOW - 3 * 86400 - 60)
    spot = of_one(ONE, place(ONE, {}, increases={G_SPOT: [waiting]}))[1]
    assert spot.startswith("no GPU runs as spot today in us-east-1; AWS has yet to decide on 96 vCPU of All G and VT")
    assert spot.endswith("which would do: gpuops quota aws --gpus 1 --spot --region us-east-1 --watch")


def test_nothing_asked_for_and_nothing_known() -> None:
    bare = place(ONE, {})
    first, *_, last = of_one(ONE, dataclasses.replace(bare, standing=AccountQuotas()))
    assert first.startswith("whether g4dn.xlarge fits in us-east-1 is not known (Running On-Demand G and VT instances")
    assert last == OF_ONE
    assert of_one(ONE, dataclasses.replace(bare, kinds=(), chosen={})) == [], "nothing to say where no type is known"


def test_it_fits() -> None:
    assert said(TWO, place(TWO, {G_SPOT: 96})) == [
        (
            "it fits in us-east-1: 2 x 48 vCPU is 96, and 96 are free of All G and VT Spot Instance Requests: "
            "gpuops up aws --gpus 4 --nodes 2 --spot --region us-east-1"
        )
    ]


def test_one_vcpu_too_few_does_not_fit() -> None:
    assert "the smallest increase that would do is to 96 vCPU" in " ".join(said(TWO, place(TWO, {G_SPOT: 95})))


def test_what_runs_today_in_smaller_machines() -> None:
    first, *_, last = said(TWO, place(TWO, {G_SPOT: 40}))
    assert first == (
        "as many GPUs run today in smaller machines in us-east-1, where 40 vCPU are free: 8 x g4dn.xlarge is 32 vCPU, "
        "8 nodes of 1 GPU each (so are g5.xlarge, g6.xlarge, g6e.xlarge): "
        "gpuops up aws --gpus 1 --nodes 8 --gpu-type g4dn.xlarge --spot --region us-east-1"
    )
    assert last.endswith("--gpus 4 --nodes 2 --spot --region us-east-1 --request 96")


def test_smaller_machines_have_the_gpu_that_was_named() -> None:
    wish = asked(nodes=2, gpu_type="l40s")
    assert "8 x g6e.xlarge is 32 vCPU, 8 nodes of 1 GPU each:" in said(wish, place(wish, {G_SPOT: 40}))[0]
    large = asked(nodes=2, gpu_mem=40)
    assert "8 x g6e.xlarge is 32 vCPU" in said(large, place(large, {G_SPOT: 40}))[0]


def test_fewer_gpus_run_today() -> None:
    assert said(TWO, place(TWO, {G_SPOT: 16}))[0] == (
        "with fewer GPUs something runs today in us-east-1, where 16 vCPU are free: 4 x g4dn.xlarge is 16 vCPU, 4 "
        "nodes of 1 GPU each: gpuops up aws --gpus 1 --nodes 4 --gpu-type g4dn.xlarge --spot --region us-east-1"
    )


def test_enough_on_demand_and_no_spot() -> None:
    assert said(TWO, place(TWO, {G: 128}))[0] == (
        "on demand it fits today in us-east-1: 96 vCPU are needed, and 128 are free of Running On-Demand G and VT "
        "instances: gpuops up aws --gpus 4 --nodes 2 --region us-east-1"
    )


def test_enough_spot_and_no_on_demand() -> None:
    wish = asked(nodes=2, market=ON_DEMAND)
    lines = said(wish, place(wish, {G_SPOT: 96}))
    assert lines[0].startswith("as spot it fits today in us-east-1: 96 vCPU are needed, and 96 are free of All G")
    assert lines[0].endswith("gpuops up aws --gpus 4 --nodes 2 --spot --region us-east-1")
    assert "gpuops quota aws --gpus 4 --nodes 2 --on-demand --region us-east-1 --request 96" in " ".join(lines)


def test_headroom_eaten_by_what_runs() -> None:
    lines = said(TWO, place(TWO, {G_SPOT: 96}, {G_SPOT: 80}))
    assert (
        "the quota itself is large enough in us-east-1: 96 vCPU, of which 80 are in use; end what you no longer need "
        "(what has just ended counts for some minutes more): gpuops status"
    ) in lines
    assert "is to 176 vCPU in us-east-1 (2 x 48 vCPU + 80 in use): " in " ".join(lines)
    assert "--request 176" in " ".join(lines)


def test_an_open_request() -> None:
    waiting = QuotaIncrease("abc", "CASE_OPENED", 96, NOW - 3 * 86400 - 60)
    lines = said(TWO, place(TWO, {}, increases={G_SPOT: [waiting]}))
    assert lines[-1] == (
        "AWS has yet to decide on 96 vCPU of All G and VT Spot Instance Requests in us-east-1 (CASE_OPENED, for 3 "
        "days), which would do: gpuops quota aws --gpus 4 --nodes 2 --spot --region us-east-1 --watch"
    )
    assert not any("--request" in line for line in lines)


def test_an_open_request_for_less() -> None:
    lines = said(TWO, place(TWO, {}, increases={G_SPOT: [QuotaIncrease("abc", "PENDING", 32, NOW - 60)]}))
    assert "which is less than the 96 that would do, and one is open at a time" in lines[-1]


def test_another_region_has_room() -> None:
    there = place(TWO, {G_SPOT: 96}, region="eu-west-1")
    further = place(TWO, {G_SPOT: 192}, region="eu-north-1")
    assert said(TWO, place(TWO, {}), there, further) == [
        (
            "it fits in eu-west-1, and in eu-north-1: 2 x 48 vCPU is 96, and 96 are free of All G and VT Spot Instance "
            "Requests: gpuops up aws --gpus 4 --nodes 2 --spot --region eu-west-1"
        )
    ]


def test_eight_gpus_may_be_counted_against_several_quotas() -> None:
    wish = asked(gpus=8)
    assert "1 x 96 vCPU is 96" in said(wish, place(wish, {P4_SPOT: 96}))[0]
    lines = said(wish, place(wish, {}))
    assert any(line.endswith(f"--region us-east-1 --code {P4_SPOT} --request 96") for line in lines)
    assert lines[-1].startswith("whether p6-b200.48xlarge fits in us-east-1 is not known")
    assert lines[-1].endswith("gpuops up aws --gpus 8 --gpu-type p6-b200.48xlarge --spot --region us-east-1")
    near = said(wish, place(wish, {P5_SPOT: 150}))
    assert "1 x p5.48xlarge" not in near[0]
    assert any(line.endswith(f"--code {P5_SPOT} --request 192") for line in near), "42 more are fewer than 96 more"


def test_p6_on_spot_has_no_documented_quota() -> None:
    wish = asked(gpus=8, gpu_type="b200")
    assert said(wish, place(wish, {})) == [
        (
            "whether p6-b200.48xlarge fits in us-east-1 is not known (newer P Spot Instance Requests: AWS documents no "
            "quota for it), and that is no reason not to try: "
            "gpuops up aws --gpus 8 --gpu-type b200 --spot --region us-east-1"
        )
    ]
    assert said(wish, place(wish, {P: 192}))[1].startswith("on demand it fits today")


def test_what_is_in_use_is_not_known() -> None:
    lines = said(TWO, place(TWO, {G_SPOT: 96}, {G_SPOT: None}))
    assert lines[0].startswith("whether g4dn.12xlarge fits in us-east-1 is not known (All G and VT")
    assert not any("--request" in line for line in lines)


def test_one_gpu_is_one_machine() -> None:
    wish = asked(gpus=1)
    assert said(wish, place(wish, {}))[2].endswith(
        "(1 x 4 vCPU): gpuops quota aws --gpus 1 --spot --region us-east-1 --code L-3819A6DF --request 4"
    )


@pytest.mark.parametrize(
    ("wish", "line"),
    [
        (Demand(1, None, None, None, SPOT), "gpuops quota aws --spot --region us-east-1"),
        (Demand(1, None, "g5.12xlarge", None, ON_DEMAND), "gpuops quota aws --gpu-type g5.12xlarge --on-demand"),
        (
            Demand(2, 4, "rtx 6000", 80, SPOT),
            "gpuops quota aws --gpus 4 --nodes 2 --gpu-type 'rtx 6000' --gpu-mem 80 --spot",
        ),
        (
            Demand(2, None, None, None, ON_DEMAND, types=("c7i.large",)),
            "gpuops quota aws --nodes 2 --instance-type c7i.large",
        ),
        (Demand(1, 4, None, None, SPOT, "work"), "gpuops quota aws --gpus 4 --spot --region us-east-1 --profile work"),
    ],
)
def test_a_command_says_all_that_was_asked_for(wish: Demand, line: str) -> None:
    assert build_command(wish, "quota", "us-east-1").startswith(line)
    assert build_command(wish, "quota", "us-east-1@other").endswith("--region us-east-1 --profile other")


def test_why_nothing_is_launched() -> None:
    error = build_quota_error(TWO, [place(TWO, {G_SPOT: 48}, {G_SPOT: 16})], NOW)
    assert error.message == (
        "AWS lets this account use 48 vCPU of All G and VT Spot Instance Requests (L-3819A6DF) in us-east-1, 16 are in "
        "use, and 2 x 48 vCPU is 96"
    )
    assert error.hint.startswith(
        "the smallest increase that would do is to 112 vCPU in us-east-1 (2 x 48 vCPU + 16 in use): "
        "gpuops quota aws --gpus 4 --nodes 2 --spot --region us-east-1 --request 112; or as many GPUs run today"
    )


def test_who_has_the_quota_and_uses_it_up_need_not_ask_for_more() -> None:
    error = build_quota_error(TWO, [place(TWO, {G_SPOT: 96}, {G_SPOT: 48})], NOW)
    assert error.hint.startswith(
        "the quota itself is large enough in us-east-1: 96 vCPU, of which 48 are in use; end what you no longer need "
        "(what has just ended counts for some minutes more): gpuops status; or "
        "the smallest increase that would do is to 144 vCPU in us-east-1"
    )


def test_a_request_that_was_closed_is_not_filed_anew() -> None:
    """Its case is replied to, be it said so before a launch or by `quota`."""
    closed = QuotaIncrease("abc", "CASE_CLOSED", 96, NOW - 3 * 86400, open=False, case="1700000001")
    there = place(TWO, {})
    there = dataclasses.replace(there, standing=dataclasses.replace(there.standing, closed={G_SPOT: closed}))
    lines = said(TWO, there)
    assert lines[-1].startswith("AWS was asked for 96 vCPU of All G and VT Spot Instance Requests in us-east-1 (CASE_")
    assert "(CASE_CLOSED, 3 days ago), and they are not there: reply in its case rather than ask anew" in lines[-1]
    assert lines[-1].endswith("case/?displayId=1700000001)")
    assert not any("--request" in line for line in lines)
    assert "displayId=1700000001" in build_quota_error(TWO, [there], NOW).hint
    granted = dataclasses.replace(there.standing, limits={**there.standing.limits, G_SPOT: 96.0}, used={G_SPOT: 48.0})
    assert "displayId" not in " ".join(said(TWO, dataclasses.replace(there, standing=granted))), "it came, in the end"


def test_from_nothing_the_first_step_is_small_and_on_demand() -> None:
    step = "from 0 a small step is granted sooner: first 8 vCPU on demand"
    assert step in " ".join(said(TWO, place(TWO, {})))
    assert step not in " ".join(said(TWO, place(TWO, {G: 8}))), "it was made already"
    one = asked(nodes=1, gpu_type="t4", gpus=1)
    assert step not in " ".join(said(one, place(one, {}))), "that is as small"
