"""The estimate of an upload: from earlier ones, said before anything is rented."""

from __future__ import annotations

from pathlib import Path

from gpuops.sync.uplink import (
    DEFAULT_RATE_BYTES_PER_S,
    Uplink,
    describe_estimate,
    read_upload_rate,
    record_upload_rate,
)


def test_a_small_upload_is_not_worth_a_line() -> None:
    assert describe_estimate(400_000, 2, 3.0, None) == ""


def test_time_and_price() -> None:
    assert describe_estimate(1_200_000_000, 2, 2.0, 10e6) == (
        "upload: about 2 min, $0.07 (4 min, $0.13 where the 2 nodes do not reach each other): "
        "1.2 GB at 10.0 MB/s (as before)"
    )
    assert (
        describe_estimate(int(DEFAULT_RATE_BYTES_PER_S * 60), 1, 0.0, None)
        == "upload: about 1 min: 150.0 MB at 2.5 MB/s (a guess)"
    )


def test_a_limit_makes_a_line_slower_and_never_faster() -> None:
    assert Uplink().expected_bytes_per_s == DEFAULT_RATE_BYTES_PER_S
    assert Uplink(10e6, 2_000_000).expected_bytes_per_s == 2e6
    assert Uplink(1e6, 2_000_000).expected_bytes_per_s == 1e6


def test_the_latest_uploads_count(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    assert read_upload_rate(cache) is None
    record_upload_rate(cache, 1000, 1.0)
    assert read_upload_rate(cache) is None, "too little to tell"
    record_upload_rate(cache, 10_000_000, 1.0)
    assert read_upload_rate(cache) == 10e6
    record_upload_rate(cache, 20_000_000, 1.0)
    assert read_upload_rate(cache) == 15e6
    (cache / "uplink.json").write_text("{torn")
    assert read_upload_rate(cache) is None
