"""Who counts as being at work on a machine, told from process titles and tables of connections."""

from __future__ import annotations

import pytest

from gpuops.agent.client_activity import WorkSchedule, has_connection, is_editor, login_terminals
from gpuops.agent.sockets import parse_connections

SERVER = b"/root/.vscode-server/cli/servers/Stable-e3/server/node\0/root/.vscode-server/out/server-main.js\0--port=0\0"


@pytest.mark.parametrize(
    ("title", "terminal"),
    [
        (b"sshd: root@pts/0", True),
        (b"sshd: root@pts/0\0\0\0", True),
        (b"sshd-session: alice@pts/12", True),
        (b"sshd: alice@example.org@pts/3", True),
        (b"sshd: root@pts/0,pts/1", True),
        (b"sshd: alice@ttys004", True),
        (b"sshd: root@notty", False),
        (b"sshd-session: root@notty", False),
        (b"sshd: root [priv]", None),
        (b"sshd: /usr/sbin/sshd -D [listener] 0 of 10-100 startups", None),
        (b"/usr/sbin/sshd\0-D\0", None),
        (b"vi\0sshd: root@pts/0", None),
        (b"grep\0sshd: root@pts/0", None),
        (b"", None),
    ],
)
def test_a_login_and_its_terminal_are_in_a_title(title: bytes, terminal: bool | None) -> None:
    assert dict(login_terminals({7: title})) == ({} if terminal is None else {7: terminal})


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        (SERVER, True),
        (b"/home/a/.cursor-server/bin/1/node\0server.js\0", True),
        (b"/root/.vscode-server/code-e3a5acfb\0command-shell\0", True),
        (b"/root/.cache/JetBrains/RemoteDev/dist/1/jbr/bin/java\0", True),
        (b"python3\0train.py\0", False),
        (b"/root/vscode-server-notes\0", False),
    ],
)
def test_an_editors_program_is_told_by_its_folder(title: bytes, expected: bool) -> None:
    assert is_editor(title) is expected


HEADING = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def row(local: int, remote: int, state: str, inode: int) -> str:
    return (
        f"   0: 0100007F:{local:04X} 0100007F:{remote:04X} {state} 00000000:00000000 00:00000000 00000000 "
        f"    0        0 {inode} 1 0 0 10 0\n"
    )


LISTENS = row(40000, 0, "0A", 11)


@pytest.mark.parametrize(
    ("rows", "used"),
    [
        ([LISTENS, row(40000, 50000, "01", 12), row(50000, 40000, "01", 13)], True),
        ([LISTENS], False),
        ([LISTENS, row(40000, 50000, "06", 0)], False),
        ([LISTENS, row(50000, 443, "01", 14)], False),
        ([row(40000, 0, "0A", 99), row(40000, 50000, "01", 12)], False),
        ([], False),
    ],
    ids=["connected", "nobody", "left", "it phones home", "another's server", "nothing"],
)
def test_a_server_is_used_while_somebody_is_connected_to_it(rows: list[str], used: bool) -> None:
    assert has_connection({"11", "14"}, parse_connections([HEADING, *rows])) is used


def test_it_is_looked_seldom_and_never_too_late() -> None:
    look = WorkSchedule()
    seen = [second for second in range(100) if look.is_due(float(second), 1800.0)]
    assert seen == [0, 30, 60, 90]
    quick = WorkSchedule()
    assert [second for second in range(10) if quick.is_due(float(second), 12.0)] == [0, 3, 6, 9]
