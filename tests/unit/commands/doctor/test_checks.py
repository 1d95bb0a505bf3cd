"""What is unlike between places, what a place may answer, and the words at the end; facts in, findings out."""

from __future__ import annotations

from typing import Any

import pytest

from gpuops.commands.doctor.checks_differences import differences
from gpuops.commands.doctor.checks_gpu import gpu_findings
from gpuops.commands.doctor.checks_host import host_findings
from gpuops.commands.doctor.examine import judge_place, judge_safely
from gpuops.commands.doctor.facts import Checkup, parse_facts
from gpuops.commands.doctor.report import SETUP, Finding, Report, summarize

A100 = {"name": "NVIDIA A100-SXM4-80GB", "driver_version": "580.1", "compute_cap": "8.0", "memory.total": "81920"}


def place(where: str = "node0", **parts: Any) -> Checkup:
    """A place that is well, but for what is said otherwise."""
    torch, version = parts.pop("torch", "2.8.0+cu128"), parts.pop("version", [3, 11, 7])
    cuda = parts.pop("cuda", "12.8")
    clock, artefact = parts.pop("clock", None), parts.pop("artefact", "")
    facts = {
        "machine": {"hostname": where, "cores": 16, "memory": 2**36, **parts.pop("machine", {})},
        "pythons": {"asked": "", "found": [{"path": "/p", "torch": torch, "cuda": cuda, "version": version}]},
        "nvidia": {"smi": {"code": 0}, "gpus": [A100, A100], "files": ["nvidia0", "nvidia1"]},
        "disks": [{"of": "home", "path": "/home/a", "kind": "ext4", "source": "/dev/a", "there": False}],
        **parts,
    }
    return Checkup(where, parse_facts(facts), True, clock, artefact)


def nvidia(*gpus: dict[str, str]) -> dict[str, Any]:
    return {"smi": {"code": 0}, "gpus": list(gpus), "files": [f"nvidia{index}" for index in range(len(gpus))]}


@pytest.mark.parametrize(
    ("other", "level", "what", "words"),
    [
        ({"torch": "2.7.1+cu128"}, "error", "torch-differs",
         "torch differs: node0 has torch 2.8.0+cu128, node1 has torch 2.7.1+cu128"),
        ({"torch": None}, "error", "torch-differs", "node1 has no torch"),
        ({"cuda": "12.6"}, "error", "torch-differs", "node1 has CUDA 12.6"),
        ({"version": [3, 12, 1]}, "warning", "python-differs", "node1 has Python 3.12"),
        ({"nvidia": nvidia({**A100, "driver_version": "570.2"}, A100)}, "note", "driver-differs", "driver 570.2"),
        ({"nvidia": nvidia({**A100, "name": "Tesla T4"}, {**A100, "name": "Tesla T4"})}, "warning", "gpu-kind-differs",
         "Tesla T4"),
        ({"nvidia": nvidia(A100)}, "warning", "gpu-count-differs", "node0 has 2 GPUs, node1 has 1 GPU"),
        ({"machine": {"cores": 8}}, "note", "cores-differ", "8 cores"),
        ({"machine": {"memory": 2**35}}, "note", "memory-differs", "32 GB"),
        ({"artefact": "b"}, "note", "agent-differs", "node1 has b"),
        ({"clock": (3.0, 3.5)}, "warning", "clock-differs", "the clock of node1 is 2.5 s behind that of node0"),
    ],
)  # fmt: skip
def test_a_difference_between_nodes_is_told(other: dict[str, Any], level: str, what: str, words: str) -> None:
    found = list(differences([place(clock=(0.1, 0.5), artefact="a"), place("node1", **{"artefact": "a", **other})]))
    assert [(finding.level, finding.what) for finding in found] == [(level, what)]
    assert words in found[0].say


@pytest.mark.parametrize(
    "other",
    [
        {"version": [3, 11, 1]},
        {"machine": {"memory": 2**36 - 2**32}},
        {"machine": {"memory": 0}},
        {"clock": (1.2, 9.0)},
    ],
)
def test_what_is_alike_enough_is_not(other: dict[str, Any]) -> None:
    assert not list(differences([place(clock=(0.1, 0.5)), place("node1", **other)]))


def test_one_place_differs_from_none() -> None:
    assert not list(differences([place()]))


def test_many_nodes_are_named_by_the_first_of_them() -> None:
    places = [place(f"node{index}", torch="2.7.0" if index == 6 else "2.8") for index in range(8)]
    said = next(differences(places)).say
    assert said.startswith("torch differs: node0, node1, node2 and 4 more have torch 2.8, node6 has torch 2.7.0; ")


def test_a_shared_home_is_known_by_its_server() -> None:
    home = {"of": "home", "path": "/home/a", "kind": "nfs4", "source": "nas:/home", "there": False}
    places = [place("node0", disks=[home]), place("node1", disks=[home]), place("node2")]
    found = [(one.what, one.say) for one in differences(places)]
    assert found == [("home-shared", "node0 and node1 share their home folder (nas:/home)")]


def test_no_torch_anywhere_is_no_error_where_one_can_be_made() -> None:
    for able, what in ((True, "torch-none"), (False, "torch-unmakeable")):
        found = [{"path": "/p", "torch": None, "cuda": None, "version": [3, 11, 7], "ensurepip": able, "uv": False}]
        one = place(pythons={"asked": "", "found": found})
        assert what in [finding.what for finding in gpu_findings(one)]


@pytest.mark.parametrize(
    ("system", "cards", "command"),
    [
        ("Linux", 0, "/p -m pip install torch --index-url https://download.pytorch.org/whl/cpu"),
        ("Linux", 1, "/p -m pip install torch"),
        ("Darwin", 0, "/p -m pip install torch"),
    ],
)
def test_without_a_gpu_no_torch_for_gpus_is_advised(system: str, cards: int, command: str) -> None:
    asked = {"asked": "/p", "found": [{"path": "/p", "torch": None, "cuda": None, "version": [3, 11, 7]}]}
    one = place(pythons=asked, nvidia={"gpus": [], "cards": cards}, machine={"system": system})
    assert f"install it there: {command}" in [finding.hint for finding in gpu_findings(one)]


@pytest.mark.parametrize(
    ("addresses", "words"), [([], "does not know its own name"), (["127.0.1.1"], "means 127.0.1.1"), (["10.0.0.5"], "")]
)
def test_a_hosts_own_name(addresses: list[str], words: str) -> None:
    found = list(host_findings(place(name={"name": "gpu-a", "addresses": addresses}, disks=[])))
    assert [(finding.level, finding.what) for finding in found] == [("note", "host-name")] * bool(words)
    assert not words or words in found[0].say


def test_little_disk_matters_more_where_an_environment_must_be_made() -> None:
    room = {"total": 2**40, "free": 5 * 2**30, "inodes": 0, "inodes_free": 0}
    disk = {"of": "home", "path": "/h", "there": True, "writable": True, "mount": "/", **room}
    assert not list(host_findings(place(disks=[disk])))
    assert [one.what for one in host_findings(place(disks=[disk], torch=None))] == ["disk-little"]


@pytest.mark.parametrize(
    "facts",
    [
        {"machine": []},
        {"machine": {"cores": "many"}},
        {"disks": [7]},
        {"disks": [{"of": "home", "path": "/", "there": True, "mount": "/"}]},
        {"pythons": {"found": [None]}},
        {"nvidia": {"gpus": "x"}},
        {"nvidia": {"gpus": [{"driver_version": {}}]}},
        {"limits": {"files": "x"}},
        {"infiniband": 7, "limits": {"locked": 0}},
        {"failed": 7},
        {"misspelt": 7},
        {"scheduler": {"programs": 7}},
    ],
)
def test_whatever_a_place_answers_is_no_traceback(facts: dict[str, Any]) -> None:
    found = judge_safely("node0", lambda: judge_place(Checkup("node0", parse_facts(facts))))
    assert {finding.what for finding in found} & {"nonsense", "place"}


def test_a_hosts_words_are_one_line() -> None:
    found = judge_safely("node0", lambda: judge_place(place(misspelt=["a\n  error: reboot", "b"], disks=[])))
    assert len([one for one in found if one.what == "misspelt"]) == 2
    assert not [one for one in found if "\n" in one.say + one.hint]


def test_a_probe_that_failed_is_told() -> None:
    found = list(host_findings(place(disks=[], failed={"nvidia": "no answer within 25 s"})))
    assert [(one.level, one.what) for one in found] == [("note", "probe")]
    assert "nvidia could not be looked at: no answer within 25 s" in found[0].say


def test_what_is_well_is_one_line() -> None:
    assert (
        summarize(place()).say
        == "node0: torch 2.8.0+cu128 (/p), 2 x NVIDIA A100-SXM4-80GB, driver 580.1, 16 cores, 64 GB of memory"
    )
    assert summarize(Checkup("this computer", parse_facts({}))).say == "no GPU"


@pytest.mark.parametrize(
    ("findings", "code", "say"),
    [
        ([], 0, "nothing is wrong"),
        ([("ok", "place")], 0, "nothing is wrong"),
        ([("note", "rsync"), ("warning", "ssh")], 0, "1 warning and 1 note: nothing that keeps a run from starting"),
        ([("error", "shm"), ("note", "a"), ("note", "b")], 4, "1 error and 2 notes: see what is marked error first"),
        ([("error", SETUP)], 3, "1 error: see what is marked error first"),
        ([("warning", SETUP)], 0, "1 warning: nothing that keeps a run from starting"),
        ([("error", SETUP), ("error", "shm")], 4, "2 errors: see what is marked error first"),
    ],
)
def test_the_last_sentence_and_the_exit_code(findings: list[tuple[Any, str]], code: int, say: str) -> None:
    report = Report([Finding(level, what, "x", "y", "node0") for level, what in findings])
    assert (report.exit_code, report.say) == (code, say)


def test_a_listing_goes_place_by_place_the_worst_first() -> None:
    report = Report([
        Finding("ok", "place", "torch, 8 cores", where="node0"),
        Finding("note", "a", "a note", "leave it", "node0"),
        Finding("error", "b", "an error", "mend it", "node1"),
        Finding("error", "c", "another", "mend that", "node0"),
    ])  # fmt: skip
    assert report.lines() == [
        "node0",
        "  error: another",
        "    hint: mend that",
        "  note: a note",
        "    hint: leave it",
        "  ok: torch, 8 cores",
        "",
        "node1",
        "  error: an error",
        "    hint: mend it",
        "",
        "2 errors and 1 note: see what is marked error first",
    ]
