"""Runs whose results are kept in a bucket: what is said, what is there, and how it comes home after the nodes went."""

from __future__ import annotations

import io
import json
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from gpuops.agent.client_activity import is_person_logged_in
from tests.conftest import HANG_S, Shell, until
from tests.fakes.bucket import KEY, SECRET, FakeBucket
from tests.files import below, written_in
from tests.integration.cli.heard import at_terminal
from tests.integration.cli.test_user_away import MAKES, WORLD_SEES, detach, gone, leave, nodes, runs, tents

SINK = ("--sink", "s3://results/lab")


def members(data: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        return {one.name: tar.extractfile(one).read() for one in tar}  # type: ignore[union-attr]


def holding(folder: Path, text: str) -> list[str]:
    """Files under a folder that have a text in them."""
    return [str(path.relative_to(folder)) for path, data in written_in(folder).items() if text.encode() in data]


def test_with_this_computer_on_the_bucket_is_the_second_copy(camp: Shell, store: FakeBucket) -> None:
    done = camp.run("run", "--on", "tent", "--yes", *SINK, "--", "sh", "-c", "env > env.txt; " + MAKES)
    assert done.returncode == 0, done.stderr
    assert "note: results are kept in s3://results/lab/sh-1 as well" in done.stderr
    assert "kept     safe in s3://results/lab/sh-1" in done.stderr
    assert (camp.folder / "runs/sh-1/out/made.pt").read_text() == "made\n"
    inside = members(store.content("lab/sh-1/node0.tar"))
    assert inside["out/made.pt"] == b"made\n"
    assert inside["logs/launcher.out"] == b"done\n"
    assert json.loads(inside["result.json"])["outcome"] == "done"
    assert not store.uploads()
    assert not tents(camp)
    camp.expect_clean()


def test_no_key_is_on_a_node_and_no_address_anywhere_else(camp: Shell, store: FakeBucket) -> None:
    assert camp.run("up", "tent", "--name", "lab", "--yes").returncode == 0
    away = camp.home / "away"
    script = f"env > env.txt; until [ -e '{away}' ]; do sleep 0.1; done; {MAKES}"
    process = camp.start("run", "--json", *SINK, "--", "sh", "-c", script)
    ground = camp.home / "tent" / "nodes"
    env = until(
        lambda: next((one for one in below(ground) if one.name == "env.txt" and one.stat().st_size), None), "it runs"
    )
    assert [Path(one).name for one in holding(ground, "X-Amz-Signature")] == ["urls.json"]
    kept = next(one for one in below(ground) if one.name == "urls.json")
    assert kept.stat().st_mode & 0o777 == 0o600
    assert not [line for line in camp.processes() if "X-Amz-Signature" in line]
    assert "X-Amz" not in env.read_text()
    away.touch()
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, err
    for secret in store.secrets:
        # A tent is this computer: what is exported here, a command there has as well.
        assert [path for path in holding(ground, secret) if not path.endswith("env.txt")] == []
        assert secret not in out + err
    everywhere = [*holding(camp.home, "X-Amz-Signature"), *holding(camp.folder, "X-Amz-Signature")]
    assert everywhere == [], "used up, they are gone from the node as well"
    assert "X-Amz" not in out + err
    assert "uploads" not in json.loads(out)


@pytest.mark.skipif(is_person_logged_in(), reason=WORLD_SEES)
def test_away_the_nodes_end_and_the_guard_fetches_what_they_kept(camp: Shell, store: FakeBucket) -> None:
    script = "echo $GPUOPS_NODE > made.pt; echo same > same.pt; echo done"
    detach(camp, *SINK, "--nodes", "2", "--all-nodes", script=script)
    until(lambda: not tents(camp), "both nodes have ended themselves")
    gone(camp)
    found = runs(camp)
    assert (found["outcome"], found["say"]) == ("done", "the command ended well")
    out = Path(found["home"]) / "out"
    assert (out / "made.pt").read_text() == "0\n"
    assert (out / "node1/made.pt").read_text() == "1\n"
    assert (out / "same.pt").read_text() == "same\n"
    assert not (out / "node1/same.pt").exists()
    until(lambda: not camp.cluster_states(), "the ledger to know")
    assert not store.uploads()
    camp.expect_clean()


@pytest.mark.skipif(is_person_logged_in(), reason=WORLD_SEES)
def test_what_could_not_be_fetched_then_is_fetched_by_hand(camp: Shell, store: FakeBucket) -> None:
    detach(camp, *SINK, script="echo made > made.pt; echo line; exit 3")
    until(lambda: not tents(camp), "the node has ended itself")
    gone(camp)
    store.expired = True
    found = runs(camp)
    assert found["outcome"] == "unclear"
    assert found["say"] == (
        "its nodes ended while this computer was away; what they kept is in s3://results/lab/sh-1 and is not home: "
        "the session of these AWS credentials has ended"
    )
    failed = camp.run("pull", "sh-1")
    assert (failed.returncode, failed.stderr.splitlines()[-2:]) == (
        3,
        ["error: the session of these AWS credentials has ended", "hint: sign in again (aws sso login)"],
    )
    store.expired = False
    store.play("GET", "node0.tar", "cut", skip=1)
    done = camp.run("pull", "sh-1")
    assert done.returncode == 0, done.stderr
    assert "sh-1: the command failed with exit code 3" in done.stderr
    home = Path(found["home"])
    assert (home / "out/made.pt").read_text() == "made\n"
    assert (home / "logs/node0/launcher.out").read_text() == "line\n"
    record = json.loads((home / "run.json").read_text())
    assert (record["verdict"]["outcome"], record["kept"]) == ("failed", "safe in s3://results/lab/sh-1")
    assert camp.json("runs")["runs"][0]["outcome"] == "failed"
    again = camp.run("run", "--on", "local", "--resume", "sh-1", "--", "cat", "made.pt")
    assert again.returncode == 0, again.stderr
    assert "made" in again.stdout + again.stderr


@pytest.mark.skipif(is_person_logged_in(), reason=WORLD_SEES)
def test_by_hand_with_the_profile_of_then(camp: Shell, store: FakeBucket) -> None:
    """What is exported weeks later, and the default profile, are another account's."""
    keys = f"aws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n"
    files = camp.folder.parent / ".aws"
    files.mkdir()
    (files / "credentials").write_text(f"[work]\n{keys}\n[default]\n{keys.replace(KEY, 'AKIANOBODYS')}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        del camp.env[name]
    camp.env["AWS_PROFILE"] = "work"
    detach(camp, *SINK)
    until(lambda: not tents(camp), "the node has ended itself")
    store.expired = True
    gone(camp)
    found = runs(camp)
    assert found["outcome"] == "unclear"
    leave(camp)
    store.expired = False
    camp.env["AWS_PROFILE"] = "default"
    done = camp.run("pull", "sh-1")
    assert done.returncode == 0, done.stderr
    assert (Path(found["home"]) / "out/made.pt").read_text() == "made\n"
    assert not holding(camp.home, KEY), "a name is kept, and no key"
    assert not holding(camp.folder, KEY)


def test_a_bucket_that_refuses_in_the_end_keeps_nothing_from_home(camp: Shell, store: FakeBucket) -> None:
    assert camp.run("up", "tent", "--name", "lab", "--yes").returncode == 0
    away = camp.home / "away"
    process = camp.start("run", *SINK, "--", "sh", "-c", f"until [ -e '{away}' ]; do sleep 0.1; done; {MAKES}")
    until(lambda: any(path.name == "urls.json" for path in below(camp.home / "tent")), "it runs")
    listed = {"Bucket": "results", "Prefix": "lab/sh-1/"}
    until(
        lambda: store.client().list_objects_v2(**listed).get("KeyCount"), "the bucket has taken the node's first word"
    )
    store.denied.add("s3:PutObject")
    away.touch()
    _, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, err
    assert (
        "kept     not all in s3://results/lab/sh-1 (node0: the bucket refuses it (AccessDenied: as asked for))" in err
    )
    assert (camp.folder / "runs/sh-1/out/made.pt").read_text() == "made\n"
    assert not store.uploads(), "what would bill is ended"


def test_a_node_that_does_not_reach_the_bucket_starts_nothing(camp: Shell, store: FakeBucket) -> None:
    assert camp.run("up", "tent", "--name", "lab", "--yes").returncode == 0

    def shut(method: str, address: str) -> None:
        if method == "PUT" and "node0.json" in address:
            store.denied.add("s3:PutObject")

    store.before = shut
    done = camp.run("run", *SINK, "--", "true")
    assert done.returncode == 4
    assert "error: node0: s3://results/lab/true-1 cannot keep this run's results: the bucket refuses it" in done.stderr
    assert not store.uploads()


def test_anothers_results_of_that_name_stay(camp: Shell, store: FakeBucket) -> None:
    store.client().put_object(Bucket="results", Key="lab/true-1/node0.json", Body=b"theirs")
    done = camp.run("run", "--on", "local", *SINK, "--", "true")
    assert done.returncode == 0, done.stderr
    kept = [name for name in store.names() if name.endswith("node0.tar")]
    assert len(kept) == 1
    assert kept[0].startswith("lab/true-1-")
    assert f"safe in s3://results/{kept[0].rpartition('/')[0]}" in done.stderr
    assert store.content("lab/true-1/node0.json") == b"theirs"


@pytest.mark.parametrize(
    ("what", "code", "say", "hint"),
    [
        (
            "s3:PutObject",
            3,
            "the bucket results denies s3:PutObject",
            "allow s3:PutObject, s3:GetObject, s3:AbortMultipartUpload, s3:ListMultipartUploadParts on arn:*:s3:::",
        ),
        ("s3:GetObject", 3, "the bucket results denies s3:GetObject", "allow "),
        ("s3:AbortMultipartUpload", 3, "the bucket results denies s3:AbortMultipartUpload", "allow "),
        (
            "kms:GenerateDataKey",
            3,
            "the bucket results is encrypted with a key that may not be used here (kms:GenerateDataKey)",
            "whoever administers the key allows kms:GenerateDataKey and kms:Decrypt on arn:aws:kms:us-east-1:12345678",
        ),
        ("kms:Decrypt", 3, "the bucket results is encrypted with a key that may not be used here (kms:Decrypt)", "who"),
        ("absent", 2, "there is no bucket other-bucket", "make it (aws s3 mb s3://other-bucket), or name another"),
        ("expired", 3, "the session of these AWS credentials has ended", "sign in again (aws sso login)"),
        ("wrong", 3, "AWS does not accept these credentials (InvalidAccessKeyId)", "check AWS_ACCESS_KEY_ID and its"),
        ("none", 3, "no AWS credentials are known, and --sink s3://… needs some", "export AWS_ACCESS_KEY_ID and "),
    ],
)
def test_what_cannot_be_kept_there_is_said_before_anything_is_rented(
    camp: Shell, store: FakeBucket, what: str, code: int, say: str, hint: str
) -> None:
    sink = "s3://other-bucket/lab" if what == "absent" else SINK[1]
    if what.startswith(("s3:", "kms:")):
        store.denied.add(what)
    store.expired = what == "expired"
    if what == "wrong":
        camp.env["AWS_ACCESS_KEY_ID"] = "AKIAWRONG"
    if what == "none":
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            del camp.env[name]
    done = camp.run("run", "--on", "tent", "--yes", "--sink", sink, "--", "true")
    words: Any = done.stderr.splitlines()
    assert done.returncode == code, done.stderr
    assert words[-2] == f"error: {say}"
    assert words[-1].startswith(f"hint: {hint}")
    assert not tents(camp)
    assert not nodes(camp)


@pytest.fixture
def session(camp: Shell, store: FakeBucket) -> FakeBucket:
    """Keys of a login that ends in an hour, as SSO has them."""
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
    camp.env.update(AWS_SESSION_TOKEN="t", AWS_CREDENTIAL_EXPIRATION=at)
    return store


@pytest.mark.usefixtures("session")
def test_a_login_that_ends_before_the_lease_keeps_no_results_of_who_detaches(camp: Shell) -> None:
    done = camp.run("run", "--on", "tent", "--detach", "--yes", *SINK, "--", "true")
    assert done.returncode == 2
    assert "error: the nodes can write to the bucket only until " in done.stderr
    assert "hint: use a key that lasts, or say --grace 2 (the nodes wait 2 h 00 min for it, for at most $0.72)" in (
        done.stderr
    )
    assert not tents(camp)
    code, _, shown = at_terminal(camp, "n\n", "run", "--on", "tent", "--detach", *SINK, "--", "true")
    assert code == 2
    assert "and the nodes can write to the bucket only until" in shown
    assert not tents(camp)


@pytest.mark.usefixtures("session")
@pytest.mark.parametrize("flags", [pytest.param(("--grace", "1"), marks=pytest.mark.proof), ("--max-hours", "0.5")])
def test_nor_is_it_asked_where_the_nodes_wait_or_end_before(camp: Shell, flags: tuple[str, str]) -> None:
    done = camp.run("run", "--on", "tent", "--detach", "--yes", *flags, *SINK, "--", "true")
    assert done.returncode == 0, done.stderr
