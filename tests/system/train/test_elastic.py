"""TorchElastic by torchrun itself: a node dies, the other one goes on in a world of its own, from the snapshot."""

from __future__ import annotations

import re
import time

import pytest

LINE = re.compile(r"\[GPU0\] Epoch (\d+) \| Batchsize: (\d+) \| Steps: 24")


@pytest.mark.proof  # torch is loaded three times, and gives the dead some seconds
def test_a_node_dies_and_no_epoch_is_lost(start, free_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    nodes = [
        start(
            *("first.py", "40", "1"),
            ranks=1,
            options=[
                *("--nnodes=1:2", "--max-restarts=3", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port}"),
                *("--rdzv-id=a", "--local-addr=127.0.0.1", f"--rdzv-conf=is_host={int(node == 0)},last_call_timeout=2"),
            ],
        )
        for node in range(2)
    ]
    guard = time.monotonic() + 300
    while "Epoch 5 |" not in nodes[0].out.read_text() and time.monotonic() < guard:
        time.sleep(0.05)
    nodes[1].end()
    code, out, err = nodes[0].finish()
    assert code == 0, err
    epochs = [(int(found[1]), int(found[2])) for found in map(LINE.fullmatch, out) if found]
    numbers = [epoch for epoch, _ in epochs]
    assert sorted(set(numbers)) == list(range(40))
    assert len(numbers) <= 41, "at most the epoch in which it died, told and not yet saved, is done again"
    assert {batch for _, batch in epochs} == {32, 64}, "two ranks share a batch, and one has all of it"
