"""Settings: who has the last word, and what a cloned project may not say."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from gpuops.core import settings
from gpuops.core.errors import UsageError
from gpuops.core.settings import load, load_leniently, read_dotenv, secret_values

TABLES = {
    "up": {"nodes": int, "gpus": int, "spot": bool, "max-price": float, "region": str, "host": list},
    "train": {"nodes": int, "out": list, "setup": str, "grace": float},
    "run": {"nodes": int},
}


def said(caught: pytest.ExceptionInfo[UsageError], folder: Path) -> tuple[str, str]:
    return caught.value.message.replace(str(folder), "DIR"), caught.value.hint.replace(str(folder), "DIR")


def test_nothing_is_set(tmp_path: Path) -> None:
    assert load(tmp_path, {}, TABLES) == settings.Settings({}, settings.Toml(tmp_path / "gpuops.toml"))


def test_the_environment_comes_before_dotenv(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("GPUOPS_TORCH_SPEC=torch==2.7\nexport GPUOPS_TORCH_INDEX=''\nHF_TOKEN=x\n")
    environ = {"GPUOPS_TORCH_SPEC": "torch==2.8", "GPUOPS_HOME": "/h", "PATH": "/bin"}
    before = dict(os.environ)
    found = load(tmp_path, environ, TABLES)
    assert found.env_values == {"GPUOPS_TORCH_SPEC": "torch==2.8", "GPUOPS_TORCH_INDEX": "", "GPUOPS_HOME": "/h"}
    assert dict(os.environ) == before


def test_tables_are_read(tmp_path: Path) -> None:
    (tmp_path / "gpuops.toml").write_text(
        '[up]\ngpus = 4\nspot = true\nmax-price = 2\nhost = ["a", "b"]\n[train]\nsetup = "pip install -e ."\n'
    )
    assert load(tmp_path, {}, TABLES).toml.tables == {
        "up": {"gpus": 4, "spot": True, "max-price": 2.0, "host": ["a", "b"]},
        "train": {"setup": "pip install -e ."},
    }


@pytest.mark.parametrize(
    ("text", "say", "hint"),
    [
        ("[up]\ngpu = 4", "DIR/gpuops.toml, [up]: there is no option gpu", "did you mean gpus?"),
        ("[up]\nmax_price = 4", "DIR/gpuops.toml, [up]: there is no option max_price", "did you mean max-price?"),
        ("[run]\nqqq = 4", "DIR/gpuops.toml, [run]: there is no option qqq", "use one of nodes"),
        ("[trian]\nnodes = 4", "DIR/gpuops.toml: there is no table [trian]", "did you mean [train]?"),
        ("nodes = 4", "DIR/gpuops.toml: nodes stands in no table", "put it under [run] or [train] or [up]"),
        ("grace = 4", "DIR/gpuops.toml: grace stands in no table", "put it under [train]"),
        ("up = 4", "DIR/gpuops.toml: up stands in no table", "write [up] on a line of its own"),
        ("[up]\ngpus = '4'", "DIR/gpuops.toml, [up]: gpus must be a whole number, not '4'", "correct the value"),
        ("[up]\ngpus = true", "DIR/gpuops.toml, [up]: gpus must be a whole number, not true", "correct the value"),
        ("[up]\nspot = 1", "DIR/gpuops.toml, [up]: spot must be true or false, not 1", "correct the value"),
        ("[up]\nhost = [1]", "DIR/gpuops.toml, [up]: host must be a list of texts, not [1]", "correct the value"),
        ("[up]\nhost = 'a'", "DIR/gpuops.toml, [up]: host must be a list of texts, not 'a'", "correct the value"),
        ("[up]\nregion = []", "DIR/gpuops.toml, [up]: region must be text, not []", "correct the value"),
        ("[up]\nidentity = 'k'", "DIR/gpuops.toml, [up]: identity may not be set in a file", "use the flag --identity"),
        ("[up]\napi_url = 'k'", "DIR/gpuops.toml, [up]: api_url may not be set in a file", "use the flag --api-url"),
        ("[up]\nproxy = 'k'", "DIR/gpuops.toml, [up]: proxy may not be set in a file", "use the flag --proxy"),
    ],
)
def test_a_wrong_toml(tmp_path: Path, text: str, say: str, hint: str) -> None:
    (tmp_path / "gpuops.toml").write_text(text + "\n")
    with pytest.raises(UsageError) as caught:
        load(tmp_path, {}, TABLES)
    assert said(caught, tmp_path) == (say, hint)


def test_an_identity_is_refused_even_where_the_flag_exists(tmp_path: Path) -> None:
    (tmp_path / "gpuops.toml").write_text("[up]\nidentity = 'k'\n")
    with pytest.raises(UsageError, match="may not be set in a file"):
        load(tmp_path, {}, {"up": {"identity": str}})


@pytest.mark.parametrize("content", [b"[up\n", b"[up]\ngpus =\n", b"\xff\xfe"])
def test_a_toml_that_cannot_be_read(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "gpuops.toml").write_bytes(content)
    with pytest.raises(UsageError, match=r"gpuops\.toml cannot be read"):
        load(tmp_path, {}, TABLES)


@pytest.mark.parametrize(
    ("text", "say", "hint"),
    [
        ("A=1\n\nnot a line\n", "DIR/.env, line 3: this is not NAME=value", "correct the line, or put a # before it"),
        ('A="open\nB=2\n', "DIR/.env, line 1: this is not NAME=value", "correct the line, or put a # before it"),
        ("GPUOPS_HOME=/tmp/x\n", "GPUOPS_HOME has no effect in .env",
         "remove it there, and export GPUOPS_HOME in your shell instead"),
        ("GPUOPS_TORCH_SPCE=x\n", ".env sets GPUOPS_TORCH_SPCE, which gpuops does not know",
         "did you mean GPUOPS_TORCH_SPEC?"),
    ],
)  # fmt: skip
def test_a_wrong_dotenv(tmp_path: Path, text: str, say: str, hint: str) -> None:
    (tmp_path / ".env").write_text(text)
    with pytest.raises(UsageError) as caught:
        load(tmp_path, {}, TABLES)
    assert said(caught, tmp_path) == (say, hint)


def test_dotenv_values_are_taken_as_written(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_bytes("\ufeffA='$HOME `id`'\nB=\"two\nlines\"\nexport C=ü # note\nD\nE=a=b\n".encode())
    assert read_dotenv(path) == {"A": "$HOME `id`", "B": "two\nlines", "C": "ü", "E": "a=b"}


def test_an_environment_folder_called_dotenv_is_no_settings(tmp_path: Path) -> None:
    (tmp_path / ".env").mkdir()
    assert load(tmp_path, {}, TABLES).env_values == {}


def test_a_dotenv_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"A=\xff\n")
    with pytest.raises(UsageError, match=r"\.env cannot be read"):
        load(tmp_path, {}, TABLES)


def test_the_example_lists_every_variable_and_may_be_copied(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / ".env.example").read_text()
    known = {*settings.FROM_DOTENV, *settings.FROM_ENVIRONMENT, *settings.KEYS}
    assert set(re.findall(r"(?m)^# ([A-Z_]+)=", text)) == known
    (tmp_path / ".env").write_text(text)
    assert load(tmp_path, {}, TABLES).env_values == {}


def test_secrets_come_from_the_environment_or_dotenv(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("HF_TOKEN=from-file\nWANDB=from-file\nEMPTY=\n")
    environ = {"WANDB": "from-env", "HF_TOKEN": "", "OTHER": "no"}
    assert secret_values(["WANDB", "HF_TOKEN"], tmp_path, environ) == {"WANDB": "from-env", "HF_TOKEN": "from-file"}
    for name in ("ABSENT", "EMPTY"):
        with pytest.raises(UsageError) as caught:
            secret_values([name], tmp_path, environ)
        assert said(caught, tmp_path) == (
            f"the secret {name} is neither in the environment nor in DIR/.env",
            f"`export {name}=…`, or add it to .env",
        )


def test_a_secret_on_the_command_line_is_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        secret_values(["TOKEN=hunter2"], tmp_path, {})
    assert "TOKEN…" in caught.value.message
    assert "hunter2" not in caught.value.message + caught.value.hint


def test_who_must_go_on_takes_what_can_be_read(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("GPUOPS_TORCH_SPEC=torch==2.11.0\n= = =\nGPUOPS_HOME=/tmp\nOTHER=1\n")
    (tmp_path / "gpuops.toml").write_text("[up]\ngpus = 'many'\n")
    settings, wrong = load_leniently(tmp_path, {}, TABLES)
    assert (settings.env_values, settings.toml.tables) == ({"GPUOPS_TORCH_SPEC": "torch==2.11.0"}, {})
    assert [sentence.partition(":")[0].rpartition("/")[2] for sentence in wrong] == [
        ".env, line 2", "gpuops.toml, [up]",
    ]  # fmt: skip
    (tmp_path / "gpuops.toml").write_text("[up]\ngpus = 4\n")
    assert load_leniently(tmp_path, {}, TABLES)[0].toml.tables == {"up": {"gpus": 4}}
    (tmp_path / ".env").write_text("")
    assert load_leniently(tmp_path, {"GPUOPS_TORCH_SPEC": "torch"}, TABLES) == (
        load(tmp_path, {"GPUOPS_TORCH_SPEC": "torch"}, TABLES), [],
    )  # fmt: skip
    (tmp_path / ".env").write_bytes(b"\xff\xfe")
    assert load_leniently(tmp_path, {}, TABLES)[0].env_values == {}
