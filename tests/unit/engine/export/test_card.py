"""Names in model cards, which have no private folders."""

from __future__ import annotations

import pytest

from fttui.engine.export.card import shown_start


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
