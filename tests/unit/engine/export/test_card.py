"""Names in model cards, which have no private folders."""

from __future__ import annotations

import pytest

from fttui.engine.config.load import dump_config
from fttui.engine.config.schema import (
    AdapterConfig,
    DataConfig,
    ModelConfig,
    RunConfig,
    TrainConfig,
)
from fttui.engine.export.card import BaseModel, ModelCard, shown_start, without_folders
from fttui.engine.export.lineage import Lineage
from fttui.engine.run.checkpoint_store import Manifest


@pytest.mark.parametrize(
    ("start", "shown"),
    [
        ("ann/adapter", "ann/adapter"),
        ("/home/ann/runs/first/checkpoints/step-8", "first@step-8"),
        ("/home/ann/exports/mine", "mine"),
        ("/c/hub/models--ann--my--adapter/snapshots/abc", "ann/my--adapter"),
        ("/c/hub/models--adapter/snapshots/abc", "adapter"),
        (None, ""),
    ],
)
def test_a_start_adapter_is_named_without_folders(start: str | None, shown: str) -> None:
    assert shown_start(start) == shown


def test_no_setting_of_the_card_has_a_private_folder() -> None:
    private = "/home/ann/secret"
    config = RunConfig(
        model=ModelConfig(id=f"{private}/model"),
        data=DataConfig(
            train=f"{private}/train.jsonl",
            eval=f"{private}/eval.jsonl",
            template=f"{private}/chat.jinja",
        ),
        train=TrainConfig(steps=1),
        adapter=AdapterConfig(start=f"{private}/adapter"),
    )
    shown = dump_config(without_folders(config))
    assert private not in shown
    for name in ("model", "train.jsonl", "eval.jsonl", "chat.jinja", "adapter"):
        assert name in shown


SEVEN = [f"rows:{n}" for n in range(7)]


@pytest.mark.parametrize(
    ("ids", "shown"),
    [
        ([], None),
        (["rows:3", "a|b"], r"2: `rows:3`, `a\|b` (quarantine.txt)"),
        (SEVEN, f"7: {', '.join(f'`{one}`' for one in SEVEN[:5])}, and 2 more (quarantine.txt)"),
    ],
)
def test_the_card_lists_the_samples_in_quarantine(ids: list[str], shown: str | None) -> None:
    manifest = Manifest(
        name="step-1", step=1, timeline=1, time=0.0, world_size=1, incarnation=1, files={},
        control={"quarantine": ids},
    )  # fmt: skip
    config = RunConfig(
        model=ModelConfig(id="m"), data=DataConfig(train="rows.jsonl"), train=TrainConfig(steps=1)
    )
    card = ModelCard(config, "", manifest, Lineage("r"), BaseModel("m", None, None), False, False)
    row = f"| samples in quarantine | {shown} |"
    assert (row in card.text()) == (shown is not None)
    assert ("samples in quarantine" in card.text()) == (shown is not None)
