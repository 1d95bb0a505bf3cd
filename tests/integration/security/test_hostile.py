"""The lying agent itself: it says the truth until it is told otherwise, and then what it is told."""

from __future__ import annotations

from collections.abc import Callable

from tests.conftest import Shell


def test_a_run_on_lying_nodes_ends_well_as_long_as_they_do_not_lie(shell: Shell, lie: Callable[[str], None]) -> None:
    lie("")
    shell.write("job.py", "open('result.pt', 'w').write('made')\n")
    done = shell.run("run", "--nodes", "1", "--", "python3", "job.py")
    assert done.returncode == 0, done.stderr
    assert [path.read_text() for path in shell.folder.glob("runs/*/out/result.pt")] == ["made"]
    shell.expect_clean()


def test_what_they_say_is_what_the_test_wrote(shell: Shell, lie: Callable[[str], None]) -> None:
    lie(
        "def answer(node, verb, args, message):\n"
        "    if verb == 'start':\n"
        "        return {'id': message['id'], 'error': {'kind': 'busy', 'say': 'a lie', 'hint': '', 'data': {}}}\n"
        "    return message\n"
    )
    done = shell.run("run", "--nodes", "1", "--", "true")
    assert "a lie" in done.stderr
    assert done.returncode == 4
    shell.expect_clean()
