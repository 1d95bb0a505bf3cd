"""Tests that need what Windows or macOS lack: by folder, file or test, and why. `conftest.py` leaves them out there.

The job in .github/workflows/tests.yml runs tests/unit and the part of tests/ssh that needs no real sshd.
"""

from __future__ import annotations

from collections.abc import Mapping

AGENT = "needs the agent, which runs on Linux and macOS"
NODES = "starts local nodes, which need Linux or macOS"
SHELL = "starts programs of Unix"
DISK = "needs a disk of Linux: names, permissions, links"
SIGNALS = "needs the signals of Unix"

LEFT_OUT: Mapping[str, Mapping[str, str]] = {
    "linux": {},
    "macos": {
        "tests/unit/test_results.py::test_names_come_home_byte_for_byte": DISK,
    },
    "windows": {
        "tests/unit/agent/": AGENT,
        "tests/unit/test_leftover.py": AGENT,
        "tests/unit/test_push.py": AGENT,
        "tests/unit/test_results.py": AGENT,
        "tests/unit/test_anything.py": AGENT,
        "tests/unit/test_agentclient.py": SHELL,
        "tests/unit/test_bulk.py": SHELL,
        "tests/unit/test_install.py": SHELL,
        "tests/unit/test_doctor_table.py": SHELL,
        "tests/unit/test_doctor_computer.py": SHELL,
        "tests/unit/test_benchmarks.py": SHELL,
        "tests/unit/test_launch.py::test_two_nodes_of_two_ranks_get_every_argument_byte_for_byte": NODES,
        "tests/unit/test_local.py": NODES,
        "tests/unit/test_guard.py": NODES,
        "tests/unit/test_cluster.py": NODES,
        "tests/unit/test_reap.py": NODES,
        "tests/unit/test_signals_unit.py": SIGNALS,
        "tests/unit/test_files.py": DISK,
        "tests/unit/test_ledger.py::test_a_home_that_may_only_be_read": DISK,
        "tests/unit/test_settings.py": "expects the sentences and paths of Unix",
        "tests/unit/test_show.py::test_a_time_without_a_zone_is_the_one_here": "needs time.tzset",
        "tests/unit/test_system.py::test_openssh_reads_it": "needs an OpenSSH with ControlMaster",
        "tests/unit/test_system.py::test_how_a_folder_is_kept_from_others": DISK,
        "tests/unit/test_system.py::test_what_is_said_of_a_file_that_goes": DISK,
        "tests/unit/test_system.py::test_without_what_that_system_lacks": "plays this system on another",
        "tests/ssh/test_faults.py::test_looking_through_a_proxy": "no proxy can be asked for a key there",
        "tests/ssh/test_faults.py::test_a_proxy_that_fails_says_why": "no proxy can be asked for a key there",
        "tests/ssh/test_resolving.py": "expects the paths of Unix",
    },
}


def why_not(kind: str, test: str) -> str | None:
    """Why a test (`tests/unit/test_x.py::test_y[z]`), or all of a file or folder, is left out on a system."""
    return next((why for where, why in LEFT_OUT[kind].items() if _is_part(test, where)), None)


def _is_part(test: str, where: str) -> bool:
    return (
        test == where
        or test.startswith((f"{where}::", f"{where}["))
        or (where.endswith("/") and test.startswith(where))
    )
