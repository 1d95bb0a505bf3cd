"""Which command a completion is for, without a shell that asks."""

from __future__ import annotations

from gpuops.cli import completion


def test_only_the_command_that_was_typed_is_loaded() -> None:
    known = ["logs", "up"]
    assert completion.typed({"COMP_WORDS": "gpuops logs --"}, known) == "logs"
    assert completion.typed({"_TYPER_COMPLETE_ARGS": "gpuops up l"}, known) == "up"
    assert [completion.typed({"COMP_WORDS": line}, known) for line in ("gpuops", "gpuops logs", "gpuops x y")] == [
        None
    ] * 3
