"""What the SSH provisioner decides without a host: who is where, what is refused, what is remembered."""

from __future__ import annotations

import base64
import errno
import stat
from pathlib import Path

import pytest

from gpuops.core.errors import ConnectionLost, Rejected, Unknown, UsageError
from gpuops.core.models import Intent, Request, ResourceState
from gpuops.core.provider import Context
from gpuops.nodes import bootstrap
from gpuops.nodes.bootstrap import MachineProbe
from gpuops.transport import ssh
from gpuops.transport.ssh import Target
from provisioners.ssh.host_agent import NodeRecord
from provisioners.ssh.hosts import HostBook, KnownHost
from provisioners.ssh.placement import Host, NodePlace, place_nodes
from provisioners.ssh.provisioner import SshProvisioner
from tests.fakes import host as fake
from tests.fakes.host import FakeHost


def host(name: str, gpus: int = 0) -> Host:
    return Host(
        name,
        Target(name, user="root", host_keys=("ssh-ed25519 AAAA",)),
        MachineProbe("/root", "/usr/bin/python3", gpus),
    )


def placed(hosts: list[Host], nodes: int, gpus: int | None = None) -> list[tuple[object, ...]]:
    return [(one.host, one.gpus, one.cores_share) for one in place_nodes(hosts, nodes, gpus)[0]]


def test_a_node_for_each_host() -> None:
    assert placed([host("a", 4), host("b", 2)], 2) == [("a", None, 1.0), ("b", None, 1.0)]
    assert placed([host("a", 4), host("b", 2)], 2, 2) == [("a", ["0", "1"], 1.0), ("b", ["0", "1"], 1.0)]
    assert place_nodes([host("a")], 1, None)[1] == []


def test_virtual_nodes_are_neighbours_and_divide_their_host() -> None:
    assert placed([host("a", 4), host("b", 2)], 3) == [
        ("a", ["0", "1"], 0.5),
        ("a", ["2", "3"], 0.5),
        ("b", None, 1.0),
    ]
    notes = place_nodes([host("a", 4)], 2, None)[1]
    assert notes == ["2 nodes on 1 host: virtual nodes, which share cores, memory and disk"]
    assert placed([host("a", 1)], 2) == [("a", [], 0.5), ("a", [], 0.5)]
    assert "a has 1 GPU for 2 nodes, so the ranks run on the CPU" in place_nodes([host("a", 1)], 2, None)[1]


def test_more_gpus_than_a_host_has() -> None:
    with pytest.raises(Rejected, match="2 nodes with 4 GPUs each need 8, a has 4"):
        place_nodes([host("a", 4)], 2, 4)


def provisioner(tmp_path: Path) -> SshProvisioner:
    return SshProvisioner(Context("0badcafe", tmp_path, {}))


def test_what_makes_no_sense_for_hosts_of_ones_own(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        provisioner(tmp_path).preflight(Request("ssh", gpu_type="h100", region="moon"))
    assert (caught.value.message, caught.value.hint) == (
        "--gpu-type and --region say which machine to rent, and these hosts are yours",
        "leave out --gpu-type and --region",
    )
    with pytest.raises(UsageError, match="no host was named"):
        provisioner(tmp_path).preflight(Request("ssh"))
    assert provisioner(tmp_path).list_owned("0badcafe", []) == []
    assert provisioner(tmp_path).list_owned("0badcafe", ["root@gone"]) == []


KEYS = [
    "ssh-ed25519 " + base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + bytes([number]) * 32).decode()
    for number in range(2)
]


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Hosts that show a key each (the value) and let nobody in."""
    shown = {"10.0.0.8": KEYS[0], "10.0.0.9": KEYS[1]}

    def refuse(*_: object) -> None:
        raise ConnectionLost("it lets nobody in", "")

    monkeypatch.setattr(ssh, "resolve_target", lambda typed, **_: Target(typed.split("@")[1], user="me"))
    monkeypatch.setattr(ssh, "scan_host_key", lambda target, **_: (shown[target.host],))
    monkeypatch.setattr(ssh, "revoked_keys", lambda *_: ())
    monkeypatch.setattr(ssh, "connect", refuse)
    return shown


def test_a_key_that_was_accepted_is_kept_although_nobody_gets_in(tmp_path: Path, refusing: dict[str, str]) -> None:
    both = {"host": ["me@10.0.0.8", "me@10.0.0.9"]}

    def settles(**options: object) -> list[str]:
        return [one.settle for one in provisioner(tmp_path).preflight(Request("ssh", options={**both, **options}))]

    assert settles() == ["accept-new", "accept-new"]
    assert settles(**{"accept-new": True}) == ["", ""]
    assert settles() == ["", ""], "they are known from now on"
    kept = (tmp_path / "ssh" / "known_hosts").read_text().splitlines()
    assert sorted(kept) == sorted(f"{name} {key}" for name, key in refusing.items()), "in the order of their answers"
    refusing["10.0.0.9"] = KEYS[0]
    changed = provisioner(tmp_path).preflight(Request("ssh", options={**both, "accept-new": True}))[1]
    assert "the host key of me@10.0.0.9 is not the one that is known" in changed.say
    assert changed.hint == "if the host was set up anew: gpuops reap --forget me@10.0.0.9, then try again"
    assert provisioner(tmp_path).forget("me@10.0.0.9")
    assert not provisioner(tmp_path).forget("me@10.0.0.9")
    assert settles() == ["", "accept-new"]


def test_the_book_of_hosts_is_for_our_eyes_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "ssh" / "hosts.json"
    book, met = HostBook(path), KnownHost(host("a").target, "/root/.gpuops-0badcafe", "/usr/bin/python3")
    assert book.names() == []
    book.record("root@a", met)
    book.record("root@b", met)
    assert HostBook(path).names() == ["root@a", "root@b"]
    assert HostBook(path).get("root@a") == met
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first = book.require("root@a")
    book.record("root@a", met)
    book.remove_unchanged("root@a", first)
    assert book.get("root@a") == met, "somebody wrote it down anew"
    for _ in range(2):
        book.remove_unchanged("root@a", book.get("root@a") or first)
    assert book.get("root@a") is None
    with pytest.raises(Rejected, match="root@a was forgotten"):
        book.require("root@a")
    path.write_text("{torn")
    with pytest.raises(Rejected, match=r"hosts\.json cannot be read"):
        book.names()


FOLDER = f"{fake.ROOT}/lab/n0"
NODE = NodeRecord("gpuops-0badcafe-lab-0", FOLDER, ResourceState.RUNNING)


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[FakeHost, SshProvisioner]:
    """A host with one node of ours, in the file of hosts."""
    there = FakeHost()
    there.put_node(NODE)
    monkeypatch.setattr("gpuops.transport.ssh.connect", there.connect)
    HostBook(tmp_path / "ssh" / "hosts.json").record(fake.NAME, there.known_host)
    return there, provisioner(tmp_path)


def test_where_somebody_removed_the_agent_ours_is_brought(known: tuple[FakeHost, SshProvisioner]) -> None:
    """Processes of ours may still run there: only an agent finds and ends them."""
    there, hosts = known
    there.agents.clear()
    (found,) = hosts.list_owned("0badcafe", [])
    assert found.data["folder"] == FOLDER
    assert there.programs == ["nodes", "install", "nodes"]
    there.agents.clear()
    hosts.destroy([found])
    assert there.nodes == {}
    assert there.programs[3:6] == ["end", "install", "end"]
    assert hosts.list_owned("0badcafe", []) == []
    assert HostBook(hosts.context.home / "ssh" / "hosts.json").names() == []


def test_where_no_agent_can_be_brought_either_that_is_said(known: tuple[FakeHost, SshProvisioner]) -> None:
    there, hosts = known
    there.agents.clear()
    there.takes_agents = False
    with pytest.raises(Unknown, match=r"the agent cannot be put on root@a: .*Read-only file system"):
        hosts.list_owned("0badcafe", [])


@pytest.mark.parametrize(("broken", "said"), [
    ("build_agent", "no agent can be brought: [Errno 30] Read-only file system"),
    ("install_agent", "[Errno 30] Read-only file system"),
])  # fmt: skip
def test_an_end_that_fails_in_its_thread_is_told(
    known: tuple[FakeHost, SshProvisioner], monkeypatch: pytest.MonkeyPatch, broken: str, said: str
) -> None:
    there, hosts = known
    nodes = hosts.list_owned("0badcafe", [])
    there.agents.clear()

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(bootstrap, broken, refuse)
    with pytest.raises((Rejected, OSError)) as caught:
        hosts.destroy(nodes)
    assert str(caught.value) == said


@pytest.mark.parametrize("tells", [True, False])
def test_the_end_of_a_node_tells_what_is_left_and_an_older_agent_is_asked(
    known: tuple[FakeHost, SshProvisioner], tells: bool
) -> None:
    there, hosts = known
    there.tells_rest = tells
    (found,) = hosts.list_owned("0badcafe", [])
    hosts.destroy([found])
    assert there.programs == (["nodes", "end"] if tells else ["nodes", "end", "nodes"])
    assert HostBook(hosts.context.home / "ssh" / "hosts.json").names() == []
    there.programs.clear()
    assert (hosts.describe(found).state, there.programs) == (ResourceState.ENDED, [])


def test_a_host_on_which_another_node_is_left_is_remembered(known: tuple[FakeHost, SshProvisioner]) -> None:
    there, hosts = known
    there.put_node(NodeRecord("gpuops-0badcafe-other-0", f"{FOLDER}-other", ResourceState.RUNNING))
    first = next(one for one in hosts.list_owned("0badcafe", []) if one.name == "gpuops-0badcafe-lab-0")
    hosts.destroy([first])
    assert HostBook(hosts.context.home / "ssh" / "hosts.json").names() == [fake.NAME]
    assert [one.name for one in hosts.list_owned("0badcafe", [])] == ["gpuops-0badcafe-other-0"]


def test_a_node_made_again_in_the_place_of_one_that_was_ended_is_asked_for(
    known: tuple[FakeHost, SshProvisioner], tmp_path: Path
) -> None:
    there, hosts = known
    (found,) = hosts.list_owned("0badcafe", [])
    hosts.destroy([found])
    HostBook(hosts.context.home / "ssh" / "hosts.json").record(fake.NAME, there.known_host)
    intent = Intent("0badcafe", "lab", "token", 2e9, tmp_path / "fedcba987654.pyz")
    intent.agent.write_bytes(b"the agent")
    place = NodePlace(fake.NAME, there.known_host.target, "/root", "python3", 0, None, 1.0)
    again = hosts._create_node(0, place, intent)
    assert again.id == found.id
    assert hosts.describe(again).state == ResourceState.RUNNING


def test_a_host_that_is_away_may_be_forgotten(known: tuple[FakeHost, SshProvisioner]) -> None:
    there, hosts = known
    there.is_up = False
    with pytest.raises(Unknown) as caught:
        hosts.list_owned("0badcafe", [])
    assert caught.value.hint.endswith("listens there; gone for good? gpuops reap --forget root@a")


def test_what_cannot_be_tidied_up_fails_no_list(
    known: tuple[FakeHost, SshProvisioner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of ours is there, and the next list tidies up: an environment may take minutes to delete."""
    there, hosts = known
    there.nodes.clear()

    def fall_silent(*_: object) -> None:
        raise ConnectionLost("root@a has not moved for 0:55 min", "try again")

    monkeypatch.setattr("gpuops.nodes.bootstrap.remove_agent", fall_silent)
    monkeypatch.setattr("provisioners.ssh.provisioner.ABANDONED_S", -1.0)
    book = HostBook(hosts.context.home / "ssh" / "hosts.json")
    assert (hosts.list_owned("0badcafe", []), book.names()) == ([], [fake.NAME])
    monkeypatch.undo()
    monkeypatch.setattr("gpuops.transport.ssh.connect", there.connect)
    monkeypatch.setattr("provisioners.ssh.provisioner.ABANDONED_S", -1.0)
    assert (hosts.list_owned("0badcafe", []), book.names()) == ([], [])


@pytest.mark.parametrize("is_removed", [True, False])
def test_an_agent_that_another_commands_end_takes_away_is_brought_once_more(
    known: tuple[FakeHost, SshProvisioner], tmp_path: Path, is_removed: bool
) -> None:
    """Two loops of `up` and `down` on one host."""
    there, hosts = known
    there.nodes.clear()
    there.before_init = lambda: there.agents.clear() if is_removed and there.programs.count("init") == 1 else None
    intent = Intent("0badcafe", "lab", "token", 2e9, tmp_path / "fedcba987654.pyz")
    intent.agent.write_bytes(b"the agent")
    place = NodePlace(fake.NAME, there.known_host.target, "/root", "python3", 0, None, 1.0)
    hosts._create_node(0, place, intent)
    assert list(there.nodes) == [FOLDER]
    again = ["install", "init"] if is_removed else []
    assert there.programs == ["install", "init", *again]


def test_a_host_that_another_commands_end_forgets_while_a_node_is_made_is_remembered(
    known: tuple[FakeHost, SshProvisioner], tmp_path: Path
) -> None:
    """That command saw no node yet, and no change of the file of hosts since it had read it."""
    there, hosts = known
    book = HostBook(hosts.context.home / "ssh" / "hosts.json")
    entry = book.require(fake.NAME)
    there.nodes.clear()
    there.before_init = lambda: book.remove_unchanged(fake.NAME, entry)
    intent = Intent("0badcafe", "lab", "token", 2e9, tmp_path / "fedcba987654.pyz")
    intent.agent.write_bytes(b"the agent")
    place = NodePlace(fake.NAME, there.known_host.target, "/root", "python3", 0, None, 1.0)
    made = hosts._create_node(0, place, intent)
    assert [one.id for one in hosts.list_owned("0badcafe", [])] == [made.id]
