"""The command line of `export`: an option that would have no effect is refused."""

from __future__ import annotations

import pytest

from fttui.tui.cli.main import main


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--merged", "--calibration", "8"], "--calibration applies only to --gptq and --awq"),
        (["--metrics", "csv", "--device", "cpu"], "--device applies only to --gptq and --awq"),
        (["--metrics", "csv", "--llama-cpp", "x"], "--llama-cpp applies only to --gguf"),
        (["--metrics", "csv", "--ema"], "--ema applies to checkpoints, not to --metrics"),
        (["--metrics", "csv", "--average", "2"], "--average applies to checkpoints"),
        (["--metrics", "csv", "--push", "me/x"], "--push applies to checkpoints"),
        (["--merged", "--public"], "--public applies only to --push"),
    ],
)
def test_options_without_effect_are_refused(
    capsys: pytest.CaptureFixture[str], words: list[str], expected: str
) -> None:
    assert main(["export", *words]) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("run", ["gpu-box:my", "ann@gpu-box:my"])
def test_a_run_on_a_host_is_exported_there(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", run, "--merged"]) == 3
    assert f"run the command there, through: ssh {run[:-3]}" in capsys.readouterr().err
