"""Keys of every issuer that people of this trade use are found in whatever file; honest files are sent.

All keys are made up, and put together when a test runs: this repository holds none.
"""

from __future__ import annotations

import base64
import json
import os
import random
import re
import string
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuops.sync.project_files import read_entry
from gpuops.sync.secret_scan import OVERLAP_BYTES, PIECE_BYTES, RULES, _scanner, find_keys, judge_content
from tests.system.packaging.conftest import ROOT

HANG_S = 60.0
"""What must take milliseconds is stuck by then, on a busy machine, too."""
LETTERS = string.ascii_letters + string.digits
UPPER = string.ascii_uppercase + string.digits
URL = LETTERS + "_-"
HEX = "0123456789abcdef"
DASHES = "-" * 5


def made_up(length: int, alphabet: str = LETTERS, seed: int = 7) -> str:
    return "".join(random.Random(f"{seed}/{length}").choices(alphabet, k=length))


def base64_of(length: int, seed: int = 1) -> str:
    return base64.b64encode(random.Random(seed).randbytes(length)).decode()


BODY = "\n".join(base64_of(48, seed) for seed in range(24))


def private_key(kind: str = "") -> str:
    return f"{DASHES}BEGIN {kind}PRIVATE KEY{DASHES}\n{BODY}\n{DASHES}END {kind}PRIVATE KEY{DASHES}\n"


def uuid() -> str:
    return "-".join(made_up(count, HEX) for count in (8, 4, 4, 4, 12))


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


GITHUB = f"ghp_{made_up(36)}"
HUGGING = f"hf_{made_up(34, string.ascii_letters)}"
RUNPOD = f"rpa_{made_up(46, UPPER)}"
AWS_ID = f"AKIA{made_up(16, string.ascii_uppercase + '234567')}"
SERVICE_ACCOUNT = {"type": "service_account", "private_key_id": made_up(40, HEX), "private_key": private_key()}
NEPTUNE = {"api_address": "https://app.neptune.ai", "api_url": "https://app.neptune.ai", "api_key": uuid()}
LOGIN = {"auths": {"https://index.docker.io/v1/": {"auth": encoded(f"me:{made_up(20)}")}}}
DEFAULT_LOGIN = {
    "client_id": f"764086051850-{made_up(32, string.ascii_lowercase + string.digits)}.apps.googleusercontent.com",
    "client_secret": f"d-FL95Q19q7MQ{made_up(11)}",
    "refresh_token": f"1//0{made_up(90, URL)}",
    "type": "authorized_user",
}

BY_NAME: dict[str, str] = {
    ".env": "A=b\n",
    ".envrc": f"export DB_PASSWORD={made_up(16)}\n",
    "prod.env": f"DB_PASSWORD={made_up(16)}\n",
    ".git-credentials": f"https://me:{made_up(14)}@git.example.org\n",
    ".npmrc": f"//registry.npmjs.org/:_authToken={uuid()}\n",
    ".pgpass": f"db.lab.org:5432:train:me:{made_up(12)}\n",
    ".docker/config.json": json.dumps(LOGIN),
    ".kube/config": f"apiVersion: v1\nusers:\n- name: me\n  user:\n    token: {made_up(200)}\n",
    "kaggle.json": json.dumps({"username": "me", "key": made_up(32, HEX)}),
    ".netrc": f"machine api.wandb.ai\n  login user\n  password {made_up(40, HEX)}\n",
    ".aws/credentials": "[default]\n",
    ".ssh/id_ed25519": private_key("OPENSSH "),
}
"""Path to text, of which the name or a setting says what it is. The first eight: missed before, but for `.env`."""

BY_CONTENT: dict[str, str | bytes] = {
    "github-pat": f"T = '{GITHUB}'",
    "gitlab-pat": f"curl -H 'PRIVATE-TOKEN: glpat-{made_up(20)}' x",
    "stripe-access-token": f"stripe.api_key = 'sk_live_{made_up(24)}'",
    "pypi-upload-token": f"TWINE_PASSWORD=pypi-AgEIcHlwaS5vcmc{made_up(160, URL)}",
    "groq-api-key": f"client = Groq(api_key='gsk_{made_up(52)}')",
    "replicate-api-token": f"os.environ['REPLICATE_API_TOKEN'] = 'r8_{made_up(37)}'",
    "huggingface-access-token behind a megabyte": "a line of a log\n" * 70_000 + f"HF_TOKEN={HUGGING}\n",
    "github-pat behind a NUL": b"\x7fELF\0\0\1\0key=" + GITHUB.encode() + b"\0",
    "wandb-api-key in a pickle": b"PK\3\4\0\0\0\0 config \0\0 WANDB_API_KEY=" + made_up(40, HEX).encode() + b"\0",
    "wandb-api-key": f"export WANDB_API_KEY={made_up(40, HEX)}",
    "wandb-api-key of a call": f"wandb.login(key='{made_up(40, HEX)}')",
    "wandb-api-key of a netrc": f"machine api.wandb.ai\n  login user\n  password {made_up(40, HEX)}\n",
    "wandb-api-key-v1": f"wandb_v1_{made_up(77, URL)}",
    "huggingface-access-token": f"login(token='{HUGGING}')",
    "openai-api-key of a project": f"OPENAI_API_KEY=sk-proj-{made_up(74, URL)}T3BlbkFJ{made_up(74, URL)}",
    "openai-api-key": f"openai.api_key = 'sk-{made_up(20)}T3BlbkFJ{made_up(20)}'",
    "anthropic-api-key": f"ANTHROPIC_API_KEY=sk-ant-api03-{made_up(93, URL)}AA",
    "kaggle-api-key of a file": json.dumps({"username": "me", "key": made_up(32, HEX)}),
    "kaggle-api-key": f"export KAGGLE_KEY={made_up(32, HEX)}",
    "kaggle-api-key, new": f"export KAGGLE_API_TOKEN=KGAT_{made_up(32, HEX)}",
    "comet-api-key": f"COMET_API_KEY={made_up(25)}",
    "comet-api-key of a call": f"experiment = Experiment(api_key='{made_up(25)}', project_name='x')",
    "neptune-api-token": f"NEPTUNE_API_TOKEN={encoded(json.dumps(NEPTUNE))}",
    "clearml-secret-key": f"CLEARML_API_SECRET_KEY={made_up(50)}",
    "slack-bot-token": f"{'xoxb'}-729406518342-729406518342-{made_up(24)}",
    "slack-webhook-url": f"https://hooks.slack.com/services/T{made_up(8, UPPER)}/B{made_up(8, UPPER)}/{made_up(24)}",
    "discord-webhook": f"https://discord.com/api/webhooks/1234567890123456789/{made_up(68, URL)}",
    "telegram-bot-token": f"bot = Bot('1234567890:AA{made_up(33, URL)}')",
    "azure-storage-account-key": f"AccountName=lab;AccountKey={base64_of(64)};EndpointSuffix=core.windows.net",
    "azure-client-secret": f"AZURE_CLIENT_SECRET={made_up(3)}8Q~{made_up(34)}",
    "azure-openai-api-key": f"AZURE_OPENAI_API_KEY={made_up(32, HEX)}",
    "private-key of a service account": json.dumps(SERVICE_ACCOUNT, indent=1),
    "gcp-api-key": f"AIza{made_up(35)}",
    "gcp-application-default-credentials": json.dumps(DEFAULT_LOGIN),
    "aws-secret-access-key": f"aws_access_key_id = {AWS_ID}\naws_secret_access_key = {base64_of(30)}\n",
    "aws-secret-access-key alone": f"export AWS_SECRET_ACCESS_KEY='{base64_of(30)}'",
    "aws-secret-access-key as downloaded": f"Access key ID,Secret access key\r\n{AWS_ID},{base64_of(30)}\r\n",
    "private-key of OpenSSH": private_key("OPENSSH "),
    "private-key, RSA": private_key("RSA "),
    "private-key, EC": private_key("EC "),
    "private-key, PKCS 8": private_key(),
    "private-key with a password": private_key("ENCRYPTED "),
    "private-key with line ends of Windows": private_key().replace("\n", "\r\n"),
    "putty-private-key": f"PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\nPublic-Lines: 2\n{base64_of(48)}\n",
    "runpod-api-key": f"key = '{RUNPOD}'",
    "openai-api-key without a mark": f"sk-proj-{made_up(120)}",
    "anthropic-api-key of a login": f"sk-ant-oat01-{made_up(95)}",
    "runpod-api-key in small letters": f"rpa_{made_up(46)}",
    "huggingface-access-token with digits": f"hf_{made_up(34)}",
    "lambda-api-key": f"secret_laptop_{made_up(32, HEX)}.{made_up(32)}",
    "vast-api-key": f"export VAST_API_KEY={made_up(64, HEX)}",
    "modal-token-secret": f'[me]\ntoken_id = "ak-{made_up(22)}"\ntoken_secret = "as-{made_up(22)}"\n',
    "together-api-key": f'os.environ["TOGETHER_API_KEY"] = "{made_up(64, HEX)}"',
    "fireworks-api-key": f"FIREWORKS_API_KEY=fw_{made_up(24)}",
    "paperspace-api-key": f"PAPERSPACE_API_KEY={made_up(32, HEX)}",
    "pinecone-api-key": f"PINECONE_API_KEY=pcsk_{made_up(6)}_{made_up(62)}",
    "nvidia-api-key": f"NGC_API_KEY=nvapi-{made_up(64, URL)}",
    "langchain-langsmith-personal-access-token": f"lsv2_pt_{made_up(32, HEX)}_{made_up(10, HEX)}",
    "databricks-api-token": f"DATABRICKS_TOKEN=dapi{made_up(32, HEX)}",
    "generic-credential-uri": f"create_engine('postgresql://me:{made_up(16)}@db.lab.org/train')",
    "runpod-api-key by PowerShell": f"RUNPOD_API_KEY={RUNPOD}".encode("utf-16"),
    "github-pat in base64": encoded(f"key={GITHUB}"),
}
"""The rule that names it, and what else is to be said, to what a file holds."""

HONEST = {
    "a placeholder": f"RUNPOD_API_KEY=rpa_{'X' * 46}",
    "a hint": "RUNPOD_API_KEY=your-key-here",
    "a token of one letter": f"hf_{'x' * 34}",
    "your key": f"sk-{'your-key-' * 8}",
    "AWS's own example": "AWS: AKIAIOSFODNN7" + "EXAMPLE wJalrXUtnFEMI/K7MDENG/bPxRfiCY" + "EXAMPLEKEY",
    "an identifier without its secret": f"{AWS_ID} alone",
    "a commit": f"commit {made_up(40, HEX)}",
    "a checksum": f"sha256 {made_up(64, HEX)}",
    "a line that looks for keys": f'if "{DASHES}BEGIN RSA PRIVATE KEY{DASHES}" in text: raise ValueError',
    "a certificate": f"{DASHES}BEGIN CERTIFICATE{DASHES}\n{BODY}\n{DASHES}END CERTIFICATE{DASHES}\n",
    "a public key": f"{DASHES}BEGIN PUBLIC KEY{DASHES}\n{BODY}\n{DASHES}END PUBLIC KEY{DASHES}\n",
    "a known host": f"github.com ssh-rsa {base64_of(270)}",
    "a word with sk-": f"task-{made_up(60)}",
    "a call": "hf_hub_download(repo_id='a/b')",
    "another variable": "wandb.login(key=os.environ['WANDB_API_KEY'])",
    "a variable": "aws_secret_access_key = os.environ['AWS_SECRET_ACCESS_KEY']",
    "a picture in a notebook": json.dumps({"image/png": base64_of(20_000)}),
    "an address without a password": "postgresql://me@db.lab.org/train https://user:password@example.com",
    "a git tree": "\n".join(f"100644 blob {made_up(40, HEX, seed)}\tf{seed}.py" for seed in range(50)),
}


def write(folder: Path, path: str, data: str | bytes) -> None:
    place = folder / path
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data if isinstance(data, bytes) else data.encode())


def why_held(folder: Path, path: str, data: str | bytes) -> str | None:
    write(folder / "project", path, data)
    file = read_entry(folder / "project", path)
    assert file
    return find_keys(folder / "project", [file], folder / "cache").get(path)


@pytest.mark.parametrize("path", BY_NAME)
def test_a_file_of_credentials_stays(tmp_path: Path, path: str) -> None:
    assert why_held(tmp_path, path, BY_NAME[path])


@pytest.mark.parametrize("what", BY_CONTENT)
def test_a_key_is_found_in_any_file(tmp_path: Path, what: str) -> None:
    kind = re.split(r"[ ,]", what)[0]
    assert why_held(tmp_path, "notes.txt", BY_CONTENT[what]) == f"a secret of the kind {kind}"


@pytest.mark.parametrize("what", HONEST)
def test_an_honest_file_is_sent(tmp_path: Path, what: str) -> None:
    assert why_held(tmp_path, "notes.txt", HONEST[what]) is None


@pytest.mark.parametrize("shift", [-1500, -300, -36, -20, -1, 0, 1])
@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("key", [GITHUB, private_key("OPENSSH ")], ids=["token", "private key"])
def test_a_key_is_found_where_two_pieces_meet(tmp_path: Path, key: str, pieces: int, shift: int) -> None:
    assert len(key) < OVERLAP_BYTES / 2
    before = f"{'x' * 70}\n" * (pieces * PIECE_BYTES // 71 + 1)
    assert why_held(tmp_path, "a.log", f"{before[: pieces * PIECE_BYTES + shift - 1]}\n{key}\n{before[:PIECE_BYTES]}")


def test_a_long_file_of_powershell_is_read_to_its_end(tmp_path: Path) -> None:
    text = "a line\r\n" * (PIECE_BYTES // 8)
    assert why_held(tmp_path, "a.log", f"{text}{RUNPOD}\r\n".encode("utf-16"))
    assert why_held(tmp_path, "b.log", text.encode("utf-16")) is None


def test_what_is_said_and_kept_holds_no_key(tmp_path: Path) -> None:
    said = why_held(tmp_path, "a.py", GITHUB) or ""
    os.utime(tmp_path / "project/a.py", (time.time() - 3600,) * 2)
    why_held_again = find_keys(
        tmp_path / "project", [file for file in [read_entry(tmp_path / "project", "a.py")] if file], tmp_path / "cache"
    )
    kept = "".join(path.read_text() for path in (tmp_path / "cache").iterdir())
    assert "github-pat" in kept
    assert GITHUB[8:20] not in said + str(why_held_again) + kept


def test_this_project_is_sent_whole(tmp_path: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this is no git checkout")
    files = [file for path in listed.stdout.split("\0") if path and (file := read_entry(ROOT, path))]
    assert len(files) > 500
    assert find_keys(ROOT, files, tmp_path) == {}


# Time: no bytes may hold a launch.


def test_173_bytes_hang_nothing() -> None:
    evil = f"{DASHES}BEGIN PRIVATE KEY{DASHES}\n{'a: ' * 48}!".encode()
    assert len(evil) == 173
    started = time.monotonic()
    for times in (1, 1000):
        judge_content(evil * times)
    judge_content(evil.replace(b"a: ", b"a: " * 10_000))
    assert time.monotonic() - started < HANG_S


@pytest.mark.parametrize("pattern", [r"(?=a)b", r"(?<!a)b", r"(a)\1"])
def test_no_rule_can_have_what_takes_more_than_linear_time(tmp_path: Path, pattern: str) -> None:
    """All others have been loaded by the same door."""
    from kingfisher_sdk import Rules

    rules = tmp_path / "rules.yml"
    rules.write_text(f"rules:\n  - name: x\n    id: x.y\n    confidence: high\n    pattern: {pattern}\n")
    with pytest.raises(RuntimeError, match="regex"):
        Rules([rules], builtins=False, cache=False)


def words_of_rules() -> dict[str, list[str]]:
    """Each rule's own words, such as `AKIA`: what brings the engine to look closer."""
    rules = _scanner().rules
    found = {rule["id"]: rules.detail(rule["id"])["pattern"] or "" for rule in rules.metadata()}
    return {name: re.findall(r"[A-Za-z0-9_-]{3,}", re.sub(r"\\.|\[[^]]*\]|\{[^}]*\}", " ", pattern)) or ["key"]
            for name, pattern in found.items()}  # fmt: skip


def test_every_rule_is_there_and_ours_name_their_sources() -> None:
    rules = words_of_rules()
    ours = [name for name in rules if name.startswith("gpuops.")]
    assert len(rules) - len(ours) > 400
    assert len(ours) == RULES.read_text().count("- name:")
    assert all(_scanner().rules.detail(name)["references"] for name in ours)


@pytest.mark.parametrize("between", ["", "=", "\n", "a: ", "'0Aa"])
def test_no_rule_is_slow_on_its_own_words_again_and_again(between: str) -> None:
    for name, words in words_of_rules().items():
        evil = between.join(words).encode() + between.encode() or b"key"
        started = time.monotonic()
        judge_content(evil * (32_768 // len(evil) + 1))
        assert time.monotonic() - started < HANG_S, name


@settings(max_examples=30)
@given(data=st.data())
def test_no_bytes_hang_the_search(data: st.DataObject) -> None:
    words = sorted({word for found in words_of_rules().values() for word in found})
    parts = st.one_of(
        st.sampled_from(words), st.text(string.printable, max_size=6), st.sampled_from(list(HONEST.values()))
    )
    unit = "".join(data.draw(st.lists(parts, min_size=1, max_size=6))).encode() or b"a"
    started = time.monotonic()
    judge_content((unit * (PIECE_BYTES // len(unit) + 1))[: PIECE_BYTES // 2])
    assert time.monotonic() - started < HANG_S
