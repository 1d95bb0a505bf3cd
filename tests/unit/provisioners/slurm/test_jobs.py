"""A job and its nodes as resources: by what the queue says and what lies in the home."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpuops.core.models import Resource, ResourceState
from provisioners.batch.jobs import END_MARGIN_S, Job, JobState, explain_output, job_of, job_resource, node_resource
from provisioners.batch.login_node import LoginNode
from provisioners.ssh.host_agent import NodeRecord

LOGIN = LoginNode("al@hpc", "/home/al/.gpuops-0a1b2c3d", "/usr/bin/python3", None)
MARK = "gpuops-0a1b2c3d-lab-job"
NODE = {"mark": "gpuops-0a1b2c3d-lab-1", "folder": f"{LOGIN.root}/lab/n1", "token": "t-1-1", "held": "c2"}


def node(state: ResourceState = ResourceState.RUNNING, **more: Any) -> NodeRecord:
    return NodeRecord(state=state, **{**NODE, **more})


def job(state: JobState = JobState.RUNNING, **more: Any) -> Job:
    return Job("7", MARK, "t-1", state, 2, **more)


def described(record: NodeRecord, its: Job | None) -> Resource:
    return node_resource(record, its, LOGIN, Path("ssh"), lambda job, node: {"inside": [job.id, node.held]}, 1000.0)


def test_a_node_that_is_held_is_reached_in_its_job() -> None:
    found = described(node(), job(left_s=600.0))
    assert (found.state, found.address, found.parent) == (ResourceState.RUNNING, "c2", "al@hpc/7")
    assert (found.data["inside"], found.data["inside_modes"]) == (["7", "c2"], ["connect"])
    assert found.data["ends"] == 1000.0 + 600.0 - END_MARGIN_S


def test_an_image_file_is_told_with_the_node() -> None:
    words = ["apptainer", "exec", "/srv/a.sif"]
    assert described(node(within=words), job()).data["within"] == words
    assert "within" not in described(node(), job()).data


def test_a_node_waits_with_its_job_and_for_what_holds_it() -> None:
    queued = described(node(held=None), job(JobState.QUEUED, phase="queued: Priority", hopeless="never"))
    assert (queued.state, queued.address) == (ResourceState.STARTING, "")
    assert (queued.data["queued"], queued.data["phase"], queued.data["hopeless"]) == (True, "queued: Priority", "never")
    waiting, running = (job_resource(job(state), LOGIN, Path("ssh")) for state in (JobState.QUEUED, JobState.RUNNING))
    assert (waiting.state, waiting.data["queued"]) == (ResourceState.STARTING, True)
    assert (running.state, "queued" in running.data) == (ResourceState.RUNNING, False)
    begun = described(node(held=None), job())
    assert (begun.state, begun.data["phase"]) == (ResourceState.STARTING, "its job has begun")
    assert "queued" not in begun.data


@pytest.mark.parametrize("its", [None, job(JobState.OVER, why_over="its job's time was over")])
def test_what_a_job_has_left_is_still_there(its: Job | None) -> None:
    found = described(node(), its)
    assert (found.state, found.data["left"]) == (ResourceState.ENDED, True)
    assert found.why_ended == (its.why_over if its else "")
    assert described(node(held=None), its).data["left"] is False
    assert described(node(ResourceState.ENDED), job()).data["left"] is True


def test_a_preempted_job_was_taken_back() -> None:
    found = described(node(), job(JobState.OVER, preempted=True))
    assert found.end is not None
    assert found.end.preempted


def test_a_job_whose_machine_failed_may_do_on_others() -> None:
    assert described(node(), job(JobState.OVER, failed=True, why_over="a node of its job failed")).status.is_replaceable
    assert not described(node(), job(JobState.OVER, why_over="its job was cancelled")).status.is_replaceable


def test_a_node_knows_its_job_by_the_token() -> None:
    other = Job("8", MARK, "t-2", JobState.RUNNING, 2)
    doubled = [job(JobState.OVER), other, job()]
    assert job_of(node(), doubled) is doubled[2], "the one that still holds machines"
    assert job_of(node(), [other]) is None
    assert job_of(node(token=None), [other]) is None


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (
            "/usr/bin/python3: can't open file '/home/al/.gpuops-0a1b2c3d/agent/a.pyz': [Errno 2] No such file\n",
            "its machines do not see the home folder of al@hpc, which gpuops needs them to share",
        ),
        ('{"error": {"kind": "ended", "say": "this node has ended: x", "hint": ""}}\n', "this node has ended: x"),
        ("srun: error: a\nslurmstepd: error: execve(): No such file\n\n", "slurmstepd: error: execve(): No such file"),
        ("", ""),
    ],
)
def test_why_a_job_ended_before_its_nodes_were_there(said: str, why: str) -> None:
    assert explain_output(said, LOGIN.name) == why
