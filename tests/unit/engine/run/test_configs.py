from __future__ import annotations

from pathlib import Path

from fttui.engine.protocol.requests import ConfigTexts
from fttui.engine.run.configs import read_configs
from fttui.engine.run.run_dir import create_run


def test_the_configuration_is_read_as_written_as_resolved_and_with_its_overrides(
    tmp_path: Path,
) -> None:
    run = create_run(
        tmp_path,
        name="r",
        config=tmp_path / "c.yaml",
        source="lr: 1\n",
        resolved="lr: 2\n",
        overrides=["train.lr=2"],
        version="0",
    )
    found = ConfigTexts(ref=7, resolved="lr: 2\n", source="lr: 1\n", overrides=["train.lr=2"])
    assert read_configs(run, 7) == found
    run.config.unlink()
    run.source_config.write_bytes(b"\xff")
    run.identity_file.write_text("{")
    assert read_configs(run) == ConfigTexts(ref=0, resolved="", source="\ufffd", overrides=[])
