"""Which GPU a name means, in what providers call theirs."""

from __future__ import annotations

import pytest

from gpuops.core.errors import UsageError
from provisioners.kit.gpu_names import is_only_by_name, match_gpu

KINDS = ["H100 PCIe", "H100 SXM5", "A100", "Tesla V100", "RTX A6000", "RTX 6000", "B200 SXM6"]


def meant(wish: str) -> list[str]:
    return match_gpu(KINDS, wish, "Somebody", name=str, aliases=lambda kind: ["80gb a100"] if kind == "A100" else [])


@pytest.mark.parametrize(("wish", "names"), [
    ("h100", ["H100 PCIe", "H100 SXM5"]), ("h100 sxm5", ["H100 SXM5"]), ("nvidia-h100-pcie", ["H100 PCIe"]),
    ("v100", ["Tesla V100"]), ("a6000", ["RTX A6000"]), ("6000", ["RTX 6000"]), ("a100 80gb", ["A100"]),
    ("b200", ["B200 SXM6"]),
])  # fmt: skip
def test_a_name_means_one_gpu_in_all_its_forms(wish: str, names: list[str]) -> None:
    assert meant(wish) == names


@pytest.mark.parametrize(("wish", "say", "hint"), [
    ("rtx", "'rtx' is more than one GPU at Somebody: RTX 6000, RTX A6000", "name one of them exactly"),
    ("h10", "Somebody has no GPU called 'h10'", "did you mean H100 PCIe or H100 SXM5?"),
    ("tpu", "Somebody has no GPU called 'tpu'", "Somebody has A100, B200 SXM6"),
])  # fmt: skip
def test_what_means_none_or_several_is_said(wish: str, say: str, hint: str) -> None:
    with pytest.raises(UsageError) as told:
        meant(wish)
    assert told.value.message == say
    assert told.value.hint.startswith(hint)


def test_what_is_old_or_a_slice_must_be_named() -> None:
    assert [name for name in KINDS if is_only_by_name(name)] == ["Tesla V100"]
    assert is_only_by_name("PRO 6000 MIG 24GB")
