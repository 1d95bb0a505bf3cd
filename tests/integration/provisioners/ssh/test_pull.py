"""An image is pulled before its container starts, by a script on the host that goes on without us. `docker` is a script
here, since no registry can be reached: it pulls as slowly as a test wants, and starts nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuops.core.errors import NodeError
from gpuops.core.models import ResourceState
from gpuops.nodes import bootstrap
from gpuops.transport.connection import ProcessConnection
from provisioners.ssh.container_host import ContainerHost, FoundNode
from provisioners.ssh.container_spec import ContainerSpec, HostLimits
from tests.conftest import until

DOCKER = """#!/bin/sh
here={here}
case $1 in
    image) [ -f "$here/pulled" ] ;;
    pull)
        echo "3f4ca61aafcd: Pulling fs layer"
        while [ ! -f "$here/answer" ]; do sleep 0.02; done
        cat "$here/answer"
        grep -q Downloaded "$here/answer" && : >"$here/pulled" ;;
    run) printf '%s\\n' "$@" >"$here/ran" ;;
    ps) : ;;
    *) exit 1 ;;
esac
"""


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ContainerSpec:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "docker").write_text(DOCKER.format(here=tmp_path))
    (programs / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    root = tmp_path / "root"
    return ContainerSpec(
        engine="docker", image="x/y:1", owner="0badcafe", mark="gpuops-0badcafe-lab-0", token="t-0", root=str(root),
        cluster="lab", index=0, host="a+docker", agent="a.pyz", limits=HostLimits("ann", 1000, 1000),
    )  # fmt: skip


@pytest.fixture
def host(spec: ContainerSpec) -> Iterator[ContainerHost]:
    connection = ProcessConnection("a")
    host = ContainerHost(connection, "docker", spec.root)
    yield host
    host.end(spec)
    connection.close()


def only(host: ContainerHost) -> FoundNode:
    (found,) = host.found("0badcafe")
    return found


def test_a_pull_is_seen_and_then_the_container_starts(host: ContainerHost, spec: ContainerSpec, tmp_path: Path) -> None:
    host.start(spec)
    until(lambda: only(host).phase == "pulling x/y:1: 3f4ca61aafcd: Pulling fs layer", "its progress")
    assert only(host).state is ResourceState.STARTING
    assert only(host).spec == spec
    with pytest.raises(NodeError, match="c0 is there already"):
        host.start(dataclasses.replace(spec, token="other"))
    assert not (tmp_path / "ran").exists()
    (tmp_path / "answer").write_text("Status: Downloaded newer image for x/y:1\n")
    until((tmp_path / "ran").exists, "the start")
    ran = (tmp_path / "ran").read_text().splitlines()
    assert ran[ran.index("--pull") + 1] == "never"
    assert "x/y:1" in ran
    host.end(spec)
    host.end(spec)
    assert host.found("0badcafe") == []
    assert not Path(spec.root, "lab").exists()


def test_a_pull_that_fails_says_why(host: ContainerHost, spec: ContainerSpec, tmp_path: Path) -> None:
    (tmp_path / "answer").write_text("Error response from daemon: pull access denied for x/y\n")
    host.start(spec)
    until(lambda: only(host).hopeless, "its end")
    assert only(host).hopeless == (
        "x/y:1 does not exist, or a has no access to it: Error response from daemon: pull access denied for x/y; "
        "check the name; if it is right, log in there: docker login"
    )
    assert not (tmp_path / "ran").exists()


def test_the_end_of_a_node_whose_image_is_being_pulled(
    host: ContainerHost, spec: ContainerSpec, tmp_path: Path
) -> None:
    host.start(spec)
    until(lambda: "3f4ca61aafcd" in only(host).phase, "it pulls")
    host.end(spec)
    assert host.found("0badcafe") == []
    (tmp_path / "answer").write_text("Status: Downloaded newer image for x/y:1\n")
    assert not (tmp_path / "ran").exists(), "nothing was left behind that would start it"
    assert not Path(spec.root, "lab").exists()


def test_a_spec_that_came_in_half_starts_nothing_and_leaves_nothing(
    host: ContainerHost, spec: ContainerSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its folder no list would tell, and its container would start once the image is there."""
    real = bootstrap.run_step
    with monkeypatch.context() as cut:
        cut.setattr(bootstrap, "run_step", lambda connection, argv, question=b"": real(connection, argv, question[:-1]))
        with pytest.raises(NodeError, match="gpuops-0badcafe-lab-0 cannot be started on a"):
            host.start(spec)
    assert not Path(spec.root, "lab").exists()


def test_a_node_whose_folder_cannot_be_made_leaves_nothing(host: ContainerHost, spec: ContainerSpec) -> None:
    Path(spec.root, "lab").mkdir(parents=True)
    Path(spec.node).write_text("somebody's")
    with pytest.raises(NodeError, match=r"File exists|Not a directory"):
        host.start(spec)
    assert [one.name for one in Path(spec.root, "lab").iterdir()] == ["n0"]
