"""What a project asks for, and which build of torch fits the GPUs of its nodes."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from gpuops.core.errors import UsageError
from gpuops.core.settings import Settings
from gpuops.nodes.cuda import INDEX
from gpuops.nodes.environment import (
    TESTED_TORCH,
    WORKLOAD_REQUIREMENTS,
    choose_torch,
    make_plan,
    read_requirements,
)
from gpuops.transport.schemas import Gpu

NONE = Settings()


def gpu(driver: str, capability: str, name: str = "GPU") -> Gpu:
    return Gpu(0, name, driver, capability)


V100 = ("7.0", "Tesla V100-SXM2-16GB")
T4 = ("7.5", "Tesla T4")
A100 = ("8.0", "NVIDIA A100-SXM4-80GB")
H100 = ("9.0", "NVIDIA H100 80GB HBM3")
B200 = ("10.0", "NVIDIA B200")
RTX5090 = ("12.0", "NVIDIA GeForce RTX 5090")
P100 = ("6.0", "Tesla P100")
K80 = ("3.7", "Tesla K80")


@pytest.mark.parametrize(
    ("driver", "card", "asked", "tag"),
    [
        ("580.105.08", H100, "", "cu130"),
        ("595.91", T4, "", "cu130"),
        ("580.105.08", B200, "", "cu130"),
        ("575.57.08", A100, "", "cu128"),
        ("570.86.10", RTX5090, "", "cu128"),
        ("560.35.03", A100, "", "cu126"),
        ("550.54.15", H100, "", "cu126"),
        ("525.60.13", A100, "", "cu126"),
        ("595.91", V100, "", "cu126"),
        ("580.105.08", P100, "", "cu126"),
        ("470.256.02", A100, "", "cu118"),
        ("470.256.02", K80, "", "cu118"),
        ("580.105.08", H100, "torch==2.9.1", "cu130"),
        ("580.105.08", H100, "torch==2.8.0", "cu128"),
        ("580.105.08", H100, "torch == 2.6.0", "cu126"),
        ("580.105.08", H100, "torch==2.5.1", "cu124"),
        ("580.105.08", H100, "torch[opt-einsum]==2.3.*", "cu121"),
        ("580.105.08", H100, "Torch==2.0.1", "cu118"),
        ("580.105.08", H100, "torch>=2.3", "cu130"),
        ("580.105.08", H100, "torch==2.4.1+cu121", "cu121"),
        ("580.105.08", H100, "torch==2.4.1+cpu", "cpu"),
    ],
)
def test_the_build_fits_driver_and_gpu(driver: str, card: tuple[str, str], asked: str, tag: str) -> None:
    assert choose_torch([gpu(driver, *card)], NONE, asked) == (asked or TESTED_TORCH, INDEX + tag)


def test_without_gpus_it_is_the_cpu_build() -> None:
    assert choose_torch([], NONE) == (TESTED_TORCH, "https://download.pytorch.org/whl/cpu")


def test_nodes_that_train_together_get_one_build() -> None:
    assert choose_torch([gpu("580.1", *H100), gpu("550.1", *H100)], NONE)[1] == INDEX + "cu126"
    assert choose_torch([gpu("580.1", *H100), gpu("580.1", *V100)], NONE)[1] == INDEX + "cu126"


@pytest.mark.parametrize(
    ("gpus", "asked", "say"),
    [
        ([gpu("550.54", *B200)], "", f"no build of {TESTED_TORCH} is known for NVIDIA B200 with driver 550"),
        ([gpu("440.33", *A100)], "", f"no build of {TESTED_TORCH} is known for NVIDIA A100-SXM4-80GB with driver 440"),
        ([gpu("580.1", *V100), gpu("580.1", *B200)], "",
         f"no build of {TESTED_TORCH} is known for NVIDIA B200 and Tesla V100-SXM2-16GB with driver 580"),
        ([gpu("580.1", *B200)], "torch==2.3.1", "no build of torch==2.3.1 is known for NVIDIA B200 with driver 580"),
        ([gpu("", *B200)], "", "the node does not say which driver its GPU has"),
        ([gpu("580.1", "[N/A]")], "", "the node does not say which generation its GPU has"),
    ],
)  # fmt: skip
def test_what_fits_nothing_is_said(gpus: list[Gpu], asked: str, say: str) -> None:
    with pytest.raises(UsageError) as caught:
        choose_torch(gpus, NONE, asked)
    assert caught.value.message == say
    assert "GPUOPS_TORCH_INDEX" in caught.value.hint


def test_settings_have_the_last_word() -> None:
    both = Settings({"GPUOPS_TORCH_SPEC": "torch==2.7.0", "GPUOPS_TORCH_INDEX": "https://mirror/simple"})
    assert choose_torch([gpu("440.33", *K80)], both, "torch==2.5.1") == ("torch==2.7.0", "https://mirror/simple")
    assert choose_torch([], Settings({"GPUOPS_TORCH_INDEX": ""})) == (TESTED_TORCH, "")
    assert choose_torch([], Settings({"GPUOPS_TORCH_SPEC": ""}), "torch<2.9")[0] == "torch<2.9"


@pytest.mark.parametrize("spec", ["--index-url=https://x", "torchvision", "torch-geometric==2", "numpy"])
def test_a_spec_that_is_not_torch(spec: str) -> None:
    with pytest.raises(UsageError, match="does not ask for torch"):
        choose_torch([], Settings({"GPUOPS_TORCH_SPEC": spec}))


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_txt", ".txt")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def test_requirements_are_read_as_pip_reads_them(tmp_path: Path) -> None:
    write(
        tmp_path,
        requirements_txt="\ufeff# what we need\nnumpy>=1.26  # arrays\n\n-r more/base.txt\n"
        "hydra-core \\\n  ==1.3.2\n-e .\n./wheels/x.whl\n-c pins.txt\n--extra-index-url https://x/simple\n"
        'tqdm; python_version < "3.9" and sys_platform == "linux"\nthing @ git+https://host/thing.git#egg=thing\n',
        more__base_txt="lightning\n--requirement=../requirements.txt\n",
    )
    assert read_requirements(tmp_path) == [
        "numpy>=1.26",
        "lightning",
        "hydra-core ==1.3.2",
        "--extra-index-url https://x/simple",
        'tqdm; python_version < "3.9" and sys_platform == "linux"',
        "thing @ git+https://host/thing.git#egg=thing",
    ]


def test_a_comment_that_ends_in_a_backslash_joins_nothing(tmp_path: Path) -> None:
    assert read_requirements(write(tmp_path, requirements_txt="numpy # or \\\npandas\n")) == ["numpy", "pandas"]


@pytest.mark.parametrize(
    ("line", "say"),
    [
        ("-r ../base.txt", "requirements.txt includes ../base.txt, which is outside the project"),
        ("-r /etc/passwd", "requirements.txt includes /etc/passwd, which is outside the project"),
        ("-r link.txt", "requirements.txt includes link.txt, which is outside the project"),
        ("-r absent.txt", "requirements.txt includes absent.txt, which does not exist"),
    ],
)
def test_an_include_stays_in_the_project(tmp_path: Path, line: str, say: str) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "base.txt").write_text("numpy\n")
    (project / "link.txt").symlink_to(tmp_path / "base.txt")
    (project / "requirements.txt").write_text(line + "\n")
    with pytest.raises(UsageError) as caught:
        read_requirements(project)
    assert caught.value.message == say


def test_pyproject_when_there_are_no_requirements(tmp_path: Path) -> None:
    assert read_requirements(tmp_path) == []
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["torch==2.5.1", "pandas"]\n')
    assert read_requirements(tmp_path) == ["torch==2.5.1", "pandas"]
    (tmp_path / "pyproject.toml").write_text("[tool.poetry]\nname = 'x'\n")
    assert read_requirements(tmp_path) == []
    write(tmp_path, requirements_txt="numpy\n")
    assert read_requirements(tmp_path) == ["numpy"]


@pytest.mark.parametrize("text", ["[project\n", "project = 3\n", "[project]\ndependencies = 3\n"])
def test_a_broken_pyproject(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(UsageError, match=r"pyproject\.toml cannot be read"):
        read_requirements(tmp_path)


def test_a_plan_for_a_project(tmp_path: Path) -> None:
    write(tmp_path, requirements_txt="torch==2.5.1 ; sys_platform == 'linux'\ntorchvision\ntorch-geometric\nnumpy\n")
    plan = make_plan(tmp_path, [gpu("580.1", *H100)], NONE, workload=False)
    assert plan == {
        "requirements": ["torchvision", "torch-geometric", "numpy"],
        "torch": "torch==2.5.1 ; sys_platform == 'linux'",
        "index": INDEX + "cu124",
        "name": plan["name"],
    }
    assert len(plan["name"]) == 12
    assert set(plan["name"]) <= set("0123456789abcdef")


def test_the_name_follows_the_content(tmp_path: Path) -> None:
    def name(gpus: list[Gpu] | None = None) -> str:
        return str(make_plan(tmp_path, gpus or [], NONE, workload=False)["name"])

    empty = name()
    assert name() == empty
    assert name([gpu("580.1", *H100)]) != empty
    write(tmp_path, requirements_txt="scipy\n")
    scipy = name()
    assert scipy != empty
    write(tmp_path, requirements_txt="# the same\nscipy\n")
    assert name() == scipy


@pytest.mark.parametrize(
    ("text", "settings", "rest"),
    [
        ("", {}, ["numpy"]),
        ("torch>=2.4\n", {}, ["numpy"]),
        ("tqdm\n", {}, ["tqdm"]),
        ("", {"GPUOPS_TORCH_INDEX": "https://mirror/simple"}, []),
        ("", {"GPUOPS_TORCH_INDEX": ""}, ["numpy"]),  # pip's own
    ],
)
def test_torch_comes_with_numpy_where_a_project_names_nothing(
    tmp_path: Path, text: str, settings: dict[str, str], rest: list[str]
) -> None:
    write(tmp_path, requirements_txt=text)
    assert make_plan(tmp_path, [], Settings(settings), workload=False)["requirements"] == rest


def test_a_workload_does_not_read_the_project(tmp_path: Path) -> None:
    write(tmp_path, requirements_txt="-r absent.txt\n")
    plan = make_plan(tmp_path, [], NONE, workload=True)
    assert (plan["requirements"], plan["torch"]) == (list(WORKLOAD_REQUIREMENTS), TESTED_TORCH)


def test_workloads_get_what_the_package_says() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert project["optional-dependencies"]["train"] == [TESTED_TORCH, *WORKLOAD_REQUIREMENTS]
