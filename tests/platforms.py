"""Tests that need what Windows or macOS lack: by folder, file or test, and why. `conftest.py` leaves them out there.

The job in .github/workflows/tests.yml runs tests/unit, and of tests/integration what needs no node and no real sshd.
"""

from __future__ import annotations

from collections.abc import Mapping

AGENT = "needs the agent, which runs on Linux and macOS"
NODES = "starts local nodes, which need Linux or macOS"
SHELL = "starts programs of Unix"
DISK = "needs a disk of Linux: names, permissions, links"
NO_PROXY = "no proxy can be asked for a key there"
SIGNALS = "needs the signals of Unix"

LEFT_OUT: Mapping[str, Mapping[str, str]] = {
    "linux": {},
    "macos": {
        "tests/integration/sync/test_download.py::test_names_come_home_byte_for_byte": DISK,
    },
    "windows": {
        "tests/unit/agent/": AGENT,
        "tests/integration/agent/": AGENT,
        "tests/integration/sync/test_unmatched_files.py": AGENT,
        "tests/integration/sync/test_upload.py": AGENT,
        "tests/integration/sync/test_download.py": AGENT,
        "tests/integration/sync/test_log_mirror.py": AGENT,
        "tests/integration/sync/test_run_folder.py": AGENT,
        "tests/unit/security/test_any_input.py": AGENT,
        "tests/integration/transport/test_rpc.py": SHELL,
        "tests/integration/transport/test_bulk_transfer.py": SHELL,
        "tests/integration/nodes/test_bootstrap.py": SHELL,
        "tests/integration/commands/doctor/test_truth_table.py": SHELL,
        "tests/integration/commands/doctor/test_checks_computer.py": SHELL,
        "tests/integration/benchmarks/test_benchmarks.py": SHELL,
        "tests/integration/runs/test_launch_spec.py::"
        "test_two_nodes_of_two_ranks_get_every_argument_byte_for_byte": NODES,
        "tests/integration/provisioners/test_local.py": NODES,
        "tests/integration/guard/test_daemon.py": NODES,
        "tests/unit/clusters/test_creation.py": NODES,
        "tests/unit/clusters/test_repeated_launch.py": NODES,
        "tests/unit/clusters/test_available_offers.py": NODES,
        "tests/unit/clusters/test_end_while_made.py": NODES,
        "tests/integration/clusters/test_creation.py": NODES,
        "tests/unit/clusters/test_orphans.py": NODES,
        "tests/integration/clusters/test_orphans.py": NODES,
        "tests/unit/core/test_signals.py": SIGNALS,
        "tests/integration/sync/test_project_files.py": DISK,
        "tests/unit/ledger/test_store.py::test_a_home_that_may_only_be_read": DISK,
        "tests/unit/core/test_settings.py": "expects the sentences and paths of Unix",
        "tests/unit/core/test_home.py": "expects the sentences and paths of Unix",
        "tests/integration/core/test_home.py": "expects the sentences and paths of Unix",
        "tests/unit/runs/logs/test_home_tail.py::test_a_time_without_a_zone_is_the_one_here": "needs time.tzset",
        "tests/integration/core/test_platform.py::test_openssh_reads_it": "needs an OpenSSH with ControlMaster",
        "tests/unit/core/test_platform.py::test_how_a_folder_is_kept_from_others": DISK,
        "tests/unit/core/test_platform.py::test_what_is_said_of_a_file_that_goes": DISK,
        "tests/integration/core/test_platform.py::test_without_what_that_system_lacks": "plays this system on another",
        "tests/integration/transport/ssh/test_faults.py::test_looking_through_a_proxy": NO_PROXY,
        "tests/integration/transport/ssh/test_faults.py::test_a_proxy_that_fails_says_why": NO_PROXY,
        "tests/integration/transport/ssh/test_host_resolution.py": "expects the paths of Unix",
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
