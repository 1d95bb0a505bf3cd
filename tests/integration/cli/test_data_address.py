"""`--data` with an address, as whole commands: fetched by the nodes, once, and what stays unwritten."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

import pytest

from tests.conftest import Shell
from tests.fakes.bucket import SECRET, FakeBucket
from tests.fakes.data_server import DataServer, Play
from tests.files import written_in
from tests.sshd import Sshd

SHOWS = ("sh", "-c", "cat $GPUOPS_DATA")
BIG = bytes(range(256)) * 20_000
TOKEN = "hushhushtoken"


@pytest.fixture
def server(shell: Shell) -> Iterator[DataServer]:
    shell.env["NO_PROXY"] = "127.0.0.1"
    with DataServer({"/sets/one.txt": b"one\n"}) as server:
        yield server


def test_nodes_fetch_a_file_once(shell: Shell, server: DataServer) -> None:
    address = f"{server.url}/sets/one.txt?token={TOKEN}"
    assert shell.run("up", "local", "--nodes", "2", "--name", "lab").returncode == 0
    done = shell.run("run", "--all-nodes", "--data", address, "--", *SHOWS)
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, ["[n0] one", "[n1] one"]), done.stderr
    assert "data: one.txt (1 file) is on 2 nodes, 4 B fetched" in done.stderr
    again = shell.run("run", "--data", address, "--", *SHOWS)
    assert again.stdout == "one\n", again.stderr
    assert "nothing fetched" in again.stderr
    assert [one.status for one in server.heard] == [200, 304]
    server.files["/sets/one.txt"] = b"two\n"
    assert shell.run("run", "--data", address, "--", *SHOWS).stdout == "two\n"
    assert TOKEN not in done.stderr + again.stderr
    assert not [path for folder in (shell.home, shell.folder) for path, data in written_in(folder).items()
                if TOKEN.encode() in data]  # fmt: skip
    assert shell.run("down", "lab").returncode == 0
    shell.expect_clean()


def test_a_dry_run_says_what_would_be_fetched(shell: Shell, server: DataServer) -> None:
    done = shell.run("run", "--dry-run", "--data", f"{server.url}/sets/one.txt", "--", *SHOWS)
    assert f"would fetch on the nodes: data, 1 file, 4 B, from {server.url}/sets/one.txt" in done.stdout.splitlines()
    document = json.loads(
        shell.run("run", "--dry-run", "--json", "--data", f"{server.url}/sets/one.txt", "--", *SHOWS).stdout
    )
    assert document["fetch"] == {"address": f"{server.url}/sets/one.txt", "files": 1, "bytes": None}
    assert {one.method for one in server.heard} == {"HEAD"}


def test_what_cannot_be_fetched_ends_the_run_before_it_starts(shell: Shell, server: DataServer) -> None:
    server.plays.append(Play(status=403))
    done = shell.run("run", "--data", f"{server.url}/sets/one.txt?{TOKEN}", "--", *SHOWS)
    assert done.returncode == 4
    assert done.stderr.splitlines()[-2:] == [
        "error: node0: 127.0.0.1 answers 403 for 'one.txt'",
        "hint: check that these data may be read with that address",
    ]
    shell.expect_clean()


def test_nodes_use_what_they_have(shell: Shell) -> None:
    file = shell.write("volume/x", "on a volume\n")
    done = shell.run("run", "--data", f"node:{file}", "--", *SHOWS)
    assert (done.returncode, done.stdout) == (0, "on a volume\n"), done.stderr
    done = shell.run("run", "--data", f"node:{file}.not", "--", *SHOWS)
    assert done.returncode == 2
    assert f"error: node0 has no {file}.not" in done.stderr


def test_a_host_of_ones_own_fetches_over_cuts(shell: Shell, server: DataServer, host: Sshd) -> None:
    """The conversation goes over SSH. Two nodes on the host have one copy."""
    server.files["/big.bin"] = BIG
    server.plays += [Play(cut=3_000_000), Play(cut=1_000_000)]
    where = f"{host.user}@127.0.0.1:{host.port}"
    up = shell.run("up", "ssh", "--name", "lab", "--host", where, "--identity", str(host.identity), "--accept-new")
    assert up.returncode == 0, up.stderr
    two = ("run", "--nodes", "2", "--all-nodes", "--data", f"{server.url}/big.bin", "--")
    done = shell.run(*two, "sh", "-c", "sha256sum < $GPUOPS_DATA")
    digest = hashlib.sha256(BIG).hexdigest()
    assert sorted(done.stdout.split()) == sorted([*["[n0]", "[n1]"], *[digest, "-"] * 2]), done.stderr
    assert server.ranges() == ["", "bytes=3000000-", "bytes=4000000-"]
    assert shell.run("down").returncode == 0
    assert not list(host.home.glob(".gpuops-*"))
    shell.expect_clean()


def test_a_prefix_of_a_bucket_comes_without_keys(camp: Shell, store: FakeBucket) -> None:
    for key in ("set/a", "set/deep/b"):
        store.client().put_object(Bucket=store.name, Key=key, Body=key.encode() + b"\n")
    camp.env["NO_PROXY"] = "127.0.0.1"
    assert camp.run("up", "tent", "--name", "lab", "--yes").returncode == 0
    shows = ("sh", "-c", "cat $GPUOPS_DATA/a $GPUOPS_DATA/deep/b")
    done = camp.run("run", "--data", "s3://results/set", "--", *shows)
    assert done.stdout.splitlines() == ["set/a", "set/deep/b"], done.stderr
    store.asked.clear()
    again = camp.run("run", "--data", "s3://results/set", "--", *shows)
    assert again.returncode == 0
    assert not [one for one in store.asked if one.signed], "the listing tells that nothing is new"
    for folder in (camp.home, camp.folder):
        for path, data in written_in(folder).items():
            assert b"X-Amz-Signature" not in data, path
            assert SECRET.encode() not in data, path
    assert camp.run("down", "lab").returncode == 0


@pytest.mark.usefixtures("store")
def test_an_empty_prefix_is_found_before_anything_is_rented(camp: Shell) -> None:
    done = camp.run("run", "--on", "tent", "--yes", "--data", "s3://results/none", "--", "true")
    assert done.returncode == 2
    assert "error: there is nothing at s3://results/none" in done.stderr
    assert "creating" not in done.stderr
