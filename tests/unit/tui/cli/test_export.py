"""The command line of `export`: an option that would have no effect is refused."""

from __future__ import annotations

import pytest

from fttui.tui.cli.main import main


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--merged", "--calibration", "8"], "--calibration goes with --gptq and --awq only"),
        (["--metrics", "csv", "--device", "cpu"], "--device goes with --gptq and --awq only"),
        (["--metrics", "csv", "--llama-cpp", "x"], "--llama-cpp goes with --gguf only"),
        (["--metrics", "csv", "--ema"], "--ema goes with a checkpoint, not with --metrics"),
        (["--metrics", "csv", "--average", "2"], "--average goes with a checkpoint"),
        (["--metrics", "csv", "--push", "me/x"], "--push goes with a checkpoint"),
        (["--merged", "--public"], "--public goes with --push only"),
    ],
)
def test_options_without_effect_are_refused(
    capsys: pytest.CaptureFixture[str], words: list[str], expected: str
) -> None:
    assert main(["export", *words]) == 2
    assert expected in capsys.readouterr().err
