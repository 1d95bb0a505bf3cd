"""Wrong commands: each has its exact sentence, one thing to do and its exit code, and leaves nothing behind."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gpuops.cli.launch import resolve_script
from gpuops.cli.request import check_data
from gpuops.core.errors import UsageError
from gpuops.ledger.store import Ledger
from tests.conftest import open_folder, without_root
from tests.desk import Desk, Said

LABEL = "OPENSSH PRIVATE KEY-----"
KEY = f"-----BEGIN {LABEL}\nb3BlbnNzaC1rZXktdjEAAAAABG5vbmUAAAAEbm9uZQAAAAAAAAABAAAAMwAAAAtzc2gtZW\n-----END {LABEL}\n"
SCRIPT_HINT = "what belongs to your script stands behind `--`: gpuops train multinode train.py -- 50 10"
TRAIN = ("train", "multinode")
MODES_HINT = (
    "say how far to spread: gpuops train single (one rank), gpuops train multigpu (a rank per GPU of one node) "
    "or gpuops train multinode (several nodes)"
)
FOR_SCRIPT = "what belongs to your script stands behind `--`"


@dataclass(frozen=True)
class Row:
    """`{folder}` and `{home}` stand for those of the test."""

    what: str
    words: tuple[str, ...]
    say: str
    hint: str
    code: int = 2
    files: dict[str, str] = field(default_factory=dict)


ROWS = [
    # The words themselves.
    Row("unknown command", ("nope",), "there is no command 'nope'", "see: gpuops --help"),
    Row("help of nothing", ("help", "nope"), "there is no command 'nope'", "see: gpuops --help"),
    *(Row(f"another tool's: {word}", (word, *more), f"there is no command '{word}'", f"type: {line}")
      for word, line, *more in (
          ("htop", "gpuops top"),
          ("nvidia-smi", "gpuops top"),
          ("attach", "gpuops logs -f", "digits-1"),
          ("prices", "gpuops offers"),
          ("ps", "gpuops status (what is up), or gpuops runs"),
          ("ls", "gpuops status (what is up), or gpuops runs"),
          ("kill", "gpuops stop (the run alone), or gpuops down (its cluster as well)", "digits-1"),
          ("destroy", "gpuops down", "lab"),
          ("Terminate", "gpuops down", "lab"),
          ("torchrun", "gpuops train multinode --nodes 2 SCRIPT -- ARGS", "--nnodes=2", "a.py"),
          ("multigpu", "gpuops train single, gpuops train multigpu or gpuops train multinode", "a.py"),
          ("a.py", "gpuops train multinode a.py"),
      )),
    Row("nowhere to push", ("push",), "there is no live cluster", "bring one up: gpuops up local"),
    Row("nearly a command", ("stats",), "there is no command 'stats'; did you mean status?", "see: gpuops --help"),
    Row("unknown flag of gpuops", ("--bogus",), "there is no option --bogus", "see: gpuops --help"),
    Row("unknown flag", ("status", "--clod"), "there is no option --clod; did you mean --cloud?",
        "see: gpuops status --help"),
    Row("flag of the script", (*TRAIN, "a.py", "--epochs", "5"), "there is no option --epochs",
        f"{FOR_SCRIPT}: gpuops train multinode a.py -- --epochs 5"),
    Row("flags of the script among ours",
        (*TRAIN, "--nodes", "2", "a.py", "50", "--total_epochs", "5", "--save_every=2", "--gpus=2", "--", "x y"),
        "there is no option --total_epochs",
        f"{FOR_SCRIPT}: gpuops train multinode --nodes 2 --gpus=2 a.py -- 50 --total_epochs 5 --save_every=2 'x y'"),
    Row("a flag of the script before it", (*TRAIN, "--total_epochs", "5", "a.py"), "there is no option --total_epochs",
        f"{FOR_SCRIPT}: gpuops train multinode a.py -- --total_epochs 5"),
    *(Row(f"torchrun's: {' '.join(words)}", ("train", *words),
          f"{flag} is a flag of torchrun, which gpuops train starts by itself", f"type: gpuops train {line}")
      for flag, words, line in (
          ("--nnodes", ("multinode", "--nnodes=2", "a.py", "50", "10"), "multinode --nodes 2 a.py -- 50 10"),
          ("--nproc_per_node", ("multigpu", "--nproc_per_node", "4", "a.py"), "multigpu --gpus 4 a.py"),
          ("--nproc-per-node", ("multigpu", "--nproc-per-node=gpu", "a.py", "-v"), "multigpu a.py -- -v"),
          ("--standalone", ("single", "--standalone", "--nproc_per_node=4", "a.py"), "multigpu --gpus 4 a.py"),
          ("--nnodes", ("single", "--nnodes", "1:4", "-m", "my.train"), "multinode --nodes 4 -m my.train"),
          ("--rdzv_id", ("multinode", "--rdzv_id", "7", "--rdzv_endpoint=a:1", "--rdzv-backend", "c10d", "a.py"),
           "multinode a.py"),
          ("--node_rank", ("multinode", "--on", "ssh", "--host", "me@a", "--node_rank=0", "--master_addr", "a", "b.py"),
           "multinode --on ssh --host me@a b.py"),
          ("--nproc_per_node", ("--nproc_per_node=2", "a.py", "50"), "multinode --gpus 2 a.py -- 50"),
      )),
    Row("argument of the script", (*TRAIN, "a.py", "50", "10"), "'50 10' is more than gpuops train takes",
        "what belongs to your script stands behind `--`: gpuops train multinode a.py -- 50 10"),
    Row("arguments with a flag between", (*TRAIN, "a.py", "50", "--yes", "10"),
        "'50 10' is more than gpuops train takes", SCRIPT_HINT),
    Row("flag of the command", ("run", "ls", "-la"), "there is no option -l",
        "your command stands behind `--`: gpuops run -- ls -la"),
    Row("command without dashes", ("run", "hello.py"), "'hello.py' is more than gpuops run takes",
        "your command stands behind `--`: gpuops run -- hello.py"),
    Row("flag without value", (*TRAIN, "--nodes"), "--nodes needs a value", "see: gpuops train --help"),
    Row("value without use", (*TRAIN, "--queue=3"), "--queue takes no value", "see: gpuops train --help"),
    Row("no provider", ("up",), "PROVIDER is missing",
        "name who has the machines: gpuops up local, gpuops up ssh --host USER@HOST, …; all of them: gpuops up --help"),
    Row("no mode", ("train",), "MODE is missing", MODES_HINT),
    Row("no name", ("lease",), "NAME is missing", "see: gpuops lease --help"),
    Row("a mode that is none", ("train", "twice"), "'twice' is neither single, multigpu nor multinode",
        MODES_HINT),
    Row("script in place of the mode", ("train", "a.py"), "'a.py' is neither single, multigpu nor multinode",
        "say single, multigpu or multinode first: gpuops train multinode a.py"),
    *(Row(f"and its arguments: {' '.join(words)}", ("train", "multinode.py", *words),
          "'multinode.py' is neither single, multigpu nor multinode",
          "say single, multigpu or multinode first: gpuops train multinode multinode.py -- 50 10")
      for words in (("50", "10"), ("--", "50", "10"), ("50", "--", "10"))),
    Row("and a flag between", ("train", "multinode.py", "50", "--nodes", "2", "10"),
        "'multinode.py' is neither single, multigpu nor multinode",
        "say single, multigpu or multinode first: gpuops train multinode --nodes 2 multinode.py -- 50 10"),
    *(Row(f"and flags: {' '.join(words)}", ("train", *words), "'a.py' is neither single, multigpu nor multinode",
          f"say single, multigpu or multinode first: gpuops train multinode {line}")
      for words, line in ((("a.py", "--on", "runpod", "--gpus", "8"), "--on runpod --gpus 8 a.py"),
                          (("--nodes", "2", "a.py", "50", "10"), "--nodes 2 a.py -- 50 10"))),
    # What tells the processes of a run apart.
    *(Row(f"env: {word}", (*TRAIN, "--env", word),
          f"--env {word.partition('=')[0]} cannot be set: it tells each process of the run which one it is",
          "leave it out; --nodes and --gpus say how many there are")
      for word in ("WORLD_SIZE=7", "RANK", "MASTER_ADDR=10.0.0.1", "PET_NNODES=3", "GPUOPS_NODE=1")),
    # Numbers.
    Row("nodes: two", (*TRAIN, "--nodes", "two"), "--nodes takes a whole number, not 'two'",
        "see: gpuops train --help"),
    Row("nodes: =two", (*TRAIN, "--nodes=two"), "--nodes takes a whole number, not 'two'", "see: gpuops train --help"),
    Row("nodes: 0", (*TRAIN, "--nodes", "0"), "--nodes 0 is too few", "--nodes takes a number from 1"),
    Row("nodes of up: 0", ("up", "local", "--nodes", "0"), "--nodes 0 is too few", "--nodes takes a number from 1"),
    Row("gpus: -1", (*TRAIN, "--gpus", "-1"), "--gpus -1 is too few", "--gpus takes a number from 1"),
    Row("join timeout: -1", (*TRAIN, "--join-timeout", "-1"), "--join-timeout -1 is no time to wait",
        "--join-timeout takes minutes, a number from 0 (for ever)"),
    Row("hours: -1", ("up", "local", "--max-hours", "-1"), "--max-hours -1 is no limit that can be kept",
        "--max-hours takes a number above 0"),
    Row("hours: many", ("up", "local", "--max-hours", "many"), "--max-hours takes a number, not 'many'",
        "see: gpuops up --help"),
    Row("cost: infinite", ("up", "local", "--max-cost", "inf"), "--max-cost inf is no limit that can be kept",
        "--max-cost takes a number above 0"),
    Row("single on two nodes", ("train", "single", "--nodes", "2"), "train single is for one node, 2 were asked for",
        "gpuops train multinode --nodes 2"),
    Row("single on four GPUs", ("train", "single", "--gpus", "4"),
        "train single is one rank on one GPU, 4 were asked for", "gpuops train multigpu --gpus 4"),
    Row("one node of a module's", ("train", "multigpu", "--nodes=2", "-m", "pkg", "--", "5"),
        "train multigpu is for one node, 2 were asked for", "gpuops train multinode --nodes=2 -m pkg -- 5"),
    Row("a lease of words", ("lease", "lab", "--extend", "soon"), "'soon' is not a length of time",
        "write it like 90s, 30min, 2h or 1h30m"),
    # Names.
    Row("provider", ("up", "loca"),
        "there is no provider named 'loca'; did you mean local?",
        "choose one of: aws, lambda, local, pbs, runpod, slurm, ssh, vast"),
    Row("provider of a run", ("run", "--on", "locale", "--", "true"),
        "there is no provider named 'locale'; did you mean local?",
        "choose one of: aws, lambda, local, pbs, runpod, slurm, ssh, vast"),
    Row("workload", (*TRAIN, "--workload", "digit"), "there is no workload named 'digit'; did you mean digits?",
        "choose one of: first, toy, digits, mnist, cifar10, movielens, gpt"),
    Row("data of a workload without", (*TRAIN, "--workload", "toy", "--data", "x"),
        "the workload toy reads no --data, since it brings what it needs",
        "leave out --data; these read some: mnist, cifar10, movielens", files={"x": ""}),
    Row("a mirror as data", (*TRAIN, "--workload", "mnist", "--data", "http://10.0.0.1/mnist"),
        "--data http://10.0.0.1/mnist: over http:// anybody on the way can change the data",
        "write https://, or add the file's checksum: http://…#sha256=HEX"),
    Row("one file as a workload's data", (*TRAIN, "--workload", "mnist", "--data", "https://10.0.0.1/mnist?k=v"),
        "--data https://10.0.0.1/mnist is one file, and the workload mnist reads a folder",
        "from a mirror it downloads by itself: -- --data https://10.0.0.1/mnist"),
    Row("a login in an address", ("run", "--data", "https://me" + ":secret@host/x", "--", "true"),
        "--data https://host/x has a login in it, which would reach the nodes",
        "put the data into a bucket (s3://…), or use an address that needs no login"),
    Row("cluster's name", ("up", "local", "--name", "My Lab"), "'My Lab' cannot be a cluster's name",
        "use a small letter, then at most 23 small letters, digits and dashes"),
    Row("option of other providers", ("up", "local", "--host", "me@there"), "there is no option --host",
        "--host is an option of pbs, slurm and ssh"),
    Row("option before its provider", ("up", "--host=me@there"), "there is no option --host=me@there",
        "the provider comes first, such as: gpuops up ssh"),
    Row("option of a provider that is not named", (*TRAIN, "--host", "me@there", "a.py"), "there is no option --host",
        f"--host goes with --on pbs or slurm or ssh; {FOR_SCRIPT}: gpuops train multinode a.py -- --host me@there"),
    Row("a file as a module", ("train", "single", "-m", "src/train.py"),
        "-m takes the name of a module, not the file src/train.py", "write -m src.train, or src/train.py alone"),
    Row("a file as a module to export", ("export", "slurm", "-m", "train.py", "--gpus", "2"),
        "-m takes the name of a module, not the file train.py", "write -m train, or train.py alone"),
    Row("command on a node without dashes", ("ssh", "lab", "ls"), "'ls' is more than gpuops ssh takes",
        "the command stands behind `--`: gpuops ssh lab -- ls"),
    Row("nearly an option", ("up", "local", "--node", "2"), "there is no option --node; did you mean --nodes?",
        "see: gpuops up local --help"),
    Row("nearly an option of another command", ("quota", "aws", "--gpuss", "4"),
        "there is no option --gpuss; did you mean --gpus?", "see: gpuops quota aws --help"),
    Row("how many as which", ("quota", "aws", "--gpu", "4"), "--gpu-type 4 names no GPU",
        "for how many it is --gpus 4"),
    Row("an option of up alone", ("prove", "local", "--dry-run"), "there is no option --dry-run",
        "see: gpuops prove --help"),
    Row("a value for a switch of the provider", ("up", "ssh", "--accept-new=yes"), "--accept-new takes no value",
        "see: gpuops up ssh --help"),
    Row("too much for up", ("up", "local", "two"), "'two' is more than gpuops up takes", "see: gpuops up local --help"),
    Row("cluster to end", ("down", "lab"), "there is no live cluster named lab", "live clusters: there is none"),
    *(Row(f"a cluster that a shell's variable does not name: {words[0]}", words, "there is no live cluster named ''",
          "live clusters: there is none") for words in (("push", "--cluster", ""), ("ssh", ""), ("down", ""))),
    Row("cluster to use", ("run", "--cluster", "lab", "--", "true"), "there is no live cluster named lab",
        "live clusters: there is none"),
    Row("cluster to extend", ("lease", "lab"), "there is no live cluster named lab", "live clusters: there is none"),
    Row("run to show", ("logs", "digits-9"), "there is no run named digits-9", "`gpuops runs` lists them"),
    Row("run to stop", ("stop", "digits-9"), "there is no run named digits-9", "`gpuops runs` lists them"),
    Row("run to resume", (*TRAIN, "--resume", "digits-9"), "there is no run named digits-9",
        "`gpuops runs` lists them"),
    # Nothing there.
    Row("no run to show", ("logs",), "this folder has had no run yet", "start one: gpuops train multinode --nodes 2"),
    Row("no run to stop", ("stop",), "no run of this folder is going on", "`gpuops runs` lists all runs"),
    Row("all nodes without a command", ("ssh", "--all-nodes"), "there is no command for all nodes",
        "write it behind `--`: gpuops ssh --all-nodes -- nvidia-smi"),
    Row("all nodes and one", ("ssh", "--all-nodes", "--node", "0", "--", "true"),
        "--all-nodes and --node exclude each other", "leave out one of them"),
    Row("no command", ("run",), "there is no command to run", "write it behind `--`: gpuops run -- python3 hello.py"),
    # What excludes each other, or is not for this provider.
    Row("cluster and provider", ("run", "--cluster", "a", "--on", "local", "--", "true"),
        "--cluster and --on exclude each other", "--cluster names a live one, --on a provider for a fresh one"),
    Row("detach and array", ("run", "--detach", "--array", "0-3", "--", "true"),
        "--array and --detach exclude each other: this command starts each next run, and the guard starts none",
        "leave out --detach, and keep this computer on"),
    Row("all nodes and array", ("run", "--all-nodes", "--array", "0-3", "--", "true"),
        "--array and --all-nodes exclude each other: each run of an array has one node", "leave out one of them"),
    Row("no array", ("train", "single", "--array", "9-0"), "--array 9-0: 9-0 is empty",
        "write --array 0-9, --array 1,3,7, --array 0-15:4, or --array 0-9%4 for at most 4 at once"),
    Row("array and a rank's own variable", ("run", "--array", "0-3", "--env", "GPUOPS_ARRAY_INDEX=3", "--", "true"),
        "--env GPUOPS_ARRAY_INDEX cannot be set: it tells each process of the run which one it is",
        "leave it out; --nodes and --gpus say how many there are"),
    Row("detach and queue", ("run", "--detach", "--queue", "--", "true"), "--detach and --queue exclude each other",
        "leave out one of them"),
    Row("all and one", ("down", "lab", "--all"), "--all and a name exclude each other",
        "to end these alone: gpuops down lab"),
    Row("edits of a run", ("pull", "a-1", "--edits"), "--edits is of a cluster, not of a run",
        "leave out a-1; or name one: --cluster NAME"),
    Row("results of a cluster", ("pull", "--cluster", "lab"), "--cluster goes with --edits",
        "name the run: gpuops pull RUN; `gpuops runs` lists them"),
    Row("script and workload", (*TRAIN, "a.py", "--workload", "toy"), "SCRIPT and --workload exclude each other",
        "name one thing to train"),
    Row("a module, and its arguments", ("train", "multinode", "--nodes", "2", "-m", "pkg", "50"),
        "SCRIPT and -m exclude each other",
        "name one thing to train; what belongs to it stands behind `--`: "
        "gpuops train multinode --nodes 2 -m pkg -- 50"),
    Row("a GPU to rent here", ("up", "local", "--gpu-type", "h100"),
        "--gpu-type says which machine to rent, and local nodes are this machine",
        "leave out --gpu-type, or name another provider"),
    Row("spot here", ("up", "local", "--spot"),
        "local cannot do spot: this machine is not rented, so there is no spot price",
        "leave that out, or name another provider"),
    # Files.
    Row("no such script", (*TRAIN, "gone.py"), "there is no script gone.py",
        "check the path; it is looked for under the current folder"),
    Row("a folder as script", (*TRAIN, "src"), "src is a folder", "name the script in it", files={"src/a.py": ""}),
    Row("a script elsewhere", (*TRAIN, "../a.py"), "../a.py lies outside the project {folder}",
        "start gpuops in the folder that holds it: cd {parent}", files={"../a.py": ""}),
    Row("no such data", ("run", "--data", "corpus", "--", "true"), "--data corpus: there is no such file or folder",
        "check the path"),
    Row("data of nobody", ("run", "--data", "~nosuchuser/x", "--", "true"),
        "--data ~nosuchuser/x: no home folder is known for ~nosuchuser", "write the whole path"),
    Row("script of nobody", (*TRAIN, "~nosuchuser/a.py"),
        "the script ~nosuchuser/a.py: no home folder is known for ~nosuchuser", "write the whole path"),
    Row("key of nobody", ("up", "ssh", "--host", "a@b", "--identity", "~nosuchuser/k"),
        "--identity ~nosuchuser/k: no home folder is known for ~nosuchuser", "write the whole path"),
    Row("hosts of nobody", ("up", "ssh", "--hosts", "~nosuchuser/h"),
        "--hosts ~nosuchuser/h: no home folder is known for ~nosuchuser", "write the whole path"),
    Row("record of nobody", ("prove", "local", "--record", "~nosuchuser/r"),
        "--record ~nosuchuser/r: no home folder is known for ~nosuchuser", "write the whole path"),
    Row("trust of nobody", ("trust", "~nosuchuser"), "~nosuchuser: no home folder is known for ~nosuchuser",
        "write the whole path"),
    *(Row(f"a long name: {words[0]} {words[-1][:8]}", words,
          f"{flag} {'x' * 60}… cannot be looked up: File name too long", "check the path")
      for flag, words in (
          ("--data", ("run", "--data", "x" * 256, "--", "true")),
          ("the script", (*TRAIN, "x" * 256)),
          ("--identity", ("up", "ssh", "--host", "a@b", "--identity", "x" * 256)),
          ("--hosts", ("up", "ssh", "--hosts", "x" * 256)),
          ("--record", ("prove", "local", "--record", "x" * 256)),
      )),
    Row("a long path", ("run", "--data", "x/" * 2100, "--", "true"),
        f"--data {'x/' * 30}… cannot be looked up: File name too long", "check the path"),
    Row("everything as data", ("run", "--data", ".", "--", "true"),
        "--data . is the project itself, which is sent anyway",
        "leave out --data"),
    # Variables and secrets.
    Row("a variable that is none", ("run", "--env", "2=3", "--", "true"), "--env 2=3 names no variable",
        "write --env NAME=VALUE, or --env NAME for your own value"),
    Row("a variable that is not set", ("run", "--env", "NOT_SET_HERE", "--", "true"),
        "--env NOT_SET_HERE: NOT_SET_HERE is not set here", "set it, or write --env NOT_SET_HERE=VALUE"),
    Row("a secret that is nowhere", ("run", "--secret", "NO_TOKEN", "--", "true"),
        "the secret NO_TOKEN is neither in the environment nor in {folder}/.env",
        "`export NO_TOKEN=…`, or add it to .env"),
    Row("a secret with its value", ("run", "--secret", "TOKEN=hunter2", "--", "true"),
        "--secret takes a variable's name, not 'TOKEN…'",
        "give the name alone: its value is read from the environment or .env"),
    # Settings.
    Row("a line of .env", ("run", "--", "true"), "{folder}/.env, line 2: this is not NAME=value",
        "correct the line, or put a # before it", files={".env": "A=1\n= = =\n"}),
    Row("our folder in .env", ("run", "--", "true"), "GPUOPS_HOME has no effect in .env",
        "remove it there, and export GPUOPS_HOME in your shell instead", files={".env": "GPUOPS_HOME=/tmp\n"}),
    Row("unknown variable", ("run", "--", "true"), ".env sets GPUOPS_TORCH_SPECS, which gpuops does not know",
        "did you mean GPUOPS_TORCH_SPEC?", files={".env": "GPUOPS_TORCH_SPECS=torch\n"}),
    Row("toml that is none", ("run", "--", "true"),
        "{folder}/gpuops.toml cannot be read: Expected '=' after a key in a key/value pair (at line 1, column 7)",
        "correct the file, or remove it", files={"gpuops.toml": "nodes 2\n"}),
    Row("toml: table", ("run", "--", "true"), "{folder}/gpuops.toml: there is no table [trian]",
        "did you mean [train]?",
        files={"gpuops.toml": "[trian]\nnodes = 2\n"}),
    Row("toml: key", ("run", "--", "true"), "{folder}/gpuops.toml, [train]: there is no option node",
        "did you mean nodes?",
        files={"gpuops.toml": "[train]\nnode = 2\n"}),
    Row("toml: type", ("run", "--", "true"), "{folder}/gpuops.toml, [train]: nodes must be a whole number, not 'two'",
        "correct the value", files={"gpuops.toml": "[train]\nnodes = 'two'\n"}),
    Row("toml: endpoint", ("run", "--", "true"), "{folder}/gpuops.toml, [up]: endpoint-url may not be set in a file",
        "use the flag --endpoint-url", files={"gpuops.toml": "[up]\nendpoint-url = 'https://evil.example'\n"}),
]  # fmt: skip


def expect(said: Said, say: str, hint: str, code: int) -> None:
    assert said.err == f"error: {say}\nhint: {hint}\n"
    assert (said.code, said.out) == (code, "")


def nothing_left(home: Path) -> bool:
    """No cluster was ever asked for, nothing of a node lies about, no bug was written down."""
    if (home / "ledger.db").exists():
        ledger = Ledger.open(home)
        clusters, runs = ledger.clusters(live=False), ledger.runs()
        ledger.close()
        if clusters or runs:
            return False
    return not (home / "local").exists() and not list(home.glob("bug-*"))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.what)
def test_a_sentence_a_hint_a_code_and_nothing_left(desk: Desk, row: Row) -> None:
    expect_row(desk, row)


def expect_row(desk: Desk, row: Row) -> None:
    """The row's sentence, hint and exit code, and nothing left behind."""
    for name, text in row.files.items():
        desk.write(name, text)
    filled = [
        text.replace("{folder}", str(desk.folder)).replace("{parent}", str(desk.folder / ".."))
        for text in (row.say, row.hint)
    ]
    expect(desk.type(*row.words), filled[0], filled[1], row.code)
    assert nothing_left(desk.home)
    assert not (desk.folder / "runs").exists()


@pytest.mark.parametrize("row", [row for row in ROWS if row.words not in (("--bogus",),)], ids=lambda row: row.what)
def test_with_json_it_is_an_object_as_well(desk: Desk, row: Row) -> None:
    expect_document(desk, row)


def expect_document(desk: Desk, row: Row) -> None:
    """The same as one JSON document on stdout, and as sentences on stderr."""
    for name, text in row.files.items():
        desk.write(name, text)
    said = desk.type(row.words[0], "--json", *row.words[1:])
    document = json.loads(said.out)
    assert said.err == f"error: {document['say']}\nhint: {document['hint']}\n"
    assert document.keys() == {"schema", "kind", "say", "hint", "exit_code"}
    assert (document["schema"], document["kind"], document["exit_code"]) == (1, "error", row.code)


def test_the_secret_itself_is_not_repeated(desk: Desk) -> None:
    assert "hunter2" not in desk.type("run", "--secret", "TOKEN=hunter2", "--", "true").err


def test_a_path_through_a_link_to_the_project_lies_in_it(desk: Desk) -> None:
    """A shell that went there through a link keeps it in $PWD, and completes paths with it."""
    for name in ("a.py", "data/x"):
        desk.write(name, "")
    here = desk.folder.with_name("link")
    here.symlink_to(desk.folder)
    for folder in (desk.folder, here, f"{here}/../{desk.folder.name}"):
        assert resolve_script(desk.folder, f"{folder}/a.py") == "a.py"
        assert check_data(f"{folder}/data", desk.folder) == "data"
        with pytest.raises(UsageError, match="is the project itself"):
            check_data(str(folder), desk.folder)


def test_a_link_in_the_project_lies_in_it_wherever_it_leads(desk: Desk) -> None:
    data = desk.folder.with_name("data")
    data.mkdir()
    (desk.folder / "data").symlink_to(data)
    assert check_data(f"../{desk.folder.name}/data", desk.folder) == "data"
    assert check_data("../data", desk.folder) == str(data)


@pytest.mark.parametrize("words", [("down",), ("down", "--all")])
def test_to_end_what_is_not_there_is_no_error(desk: Desk, words: tuple[str, ...]) -> None:
    new = f"note: {desk.home} is a new home, and knows of nothing that another one brought up: gpuops status --cloud\n"
    assert desk.type(*words) == Said(0, "nothing is up\n", new)
    assert json.loads(desk.type(*words, "--json").out) == {"schema": 1, "kind": "down", "gone": []}


@pytest.mark.parametrize("words", [("down",), ("reap",), ("status",), ("status", "--cloud"), ("runs",)])
@pytest.mark.parametrize(
    ("name", "text", "say"),
    [
        (".env", "A=1\n= = =\n", "{folder}/.env, line 2: this is not NAME=value"),
        (".env", "GPUOPS_HOME=/tmp\n", "GPUOPS_HOME has no effect in .env"),
        ("gpuops.toml", "[train]\nnode = 2\n", "{folder}/gpuops.toml, [train]: there is no option node"),
    ],
)
def test_a_wrong_file_keeps_nobody_from_looking_and_ending(
    desk: Desk, words: tuple[str, ...], name: str, text: str, say: str
) -> None:
    desk.write(name, text)
    said = desk.type(*words)
    assert said.code == 0
    assert said.err.splitlines()[0] == "note: " + say.replace("{folder}", str(desk.folder))


# gpuops' own folder.


def test_a_home_that_is_relative(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUOPS_HOME", "here")
    expect(desk.type("status"), "GPUOPS_HOME is 'here', which is not an absolute path",
           "give the whole path, from / on", 2)  # fmt: skip
    assert not (desk.folder / "here").exists()


def test_a_home_that_is_a_file(desk: Desk) -> None:
    desk.home.write_text("")
    expect(desk.type("status"), f"gpuops cannot make its folder {desk.home}: File exists",
           "set GPUOPS_HOME to a folder that you may write to", 2)  # fmt: skip


def test_a_home_that_may_not_be_written_to(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.type("stop")  # what it imports may lie where only root can read
    with open_folder() as folder:
        home = folder / "home"
        home.mkdir(mode=0o555)
        monkeypatch.setenv("GPUOPS_HOME", str(home))
        monkeypatch.chdir(folder)
        with without_root():
            said = desk.type("stop")
            looked = desk.type("runs")
        monkeypatch.chdir("/")
    expect(said, f"gpuops may not write to its folder {home}",
           "make it yours (chown, chmod 700); what is up is noted there, and in no other folder; "
           "gpuops status, logs, down and reap need not write to it", 2)  # fmt: skip
    assert (looked.code, looked.out) == (0, "no run yet\n")


def test_an_owner_file_that_is_damaged(desk: Desk) -> None:
    desk.home.mkdir()
    (desk.home / "owner").write_text("me\n")
    expect(desk.type("status"), f"{desk.home / 'owner'} is damaged: it should hold 8 hex digits",
           "restore it: what you rent carries these digits in its name, gpuops-<digits>-…", 2)  # fmt: skip


# The ledger.


def test_a_damaged_ledger_is_kept_aside_and_said(desk: Desk) -> None:
    desk.home.mkdir()
    (desk.home / "ledger.db").write_bytes(b"not a database " * 100)
    said = desk.type("runs")
    (aside,) = desk.home.glob("ledger.db.damaged-*")
    assert f"the ledger was damaged and is kept as {aside}; `gpuops reap --adopt` takes back" in said.err
    assert (said.code, said.out) == (0, "no run yet\n")
