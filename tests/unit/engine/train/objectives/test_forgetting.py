"""When the base model is measured, and what follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fttui.engine.errors import ConfigError
from fttui.engine.protocol.events import ForgettingBaseMeasured
from fttui.engine.train.objectives.forgetting import ForgettingMeter, TokenizedTexts, padded

TEXTS = TokenizedTexts([[1, 2], [3, 4, 5]], 0, "abc")


class Scene:
    """A meter whose base model has a loss of 2 and whose trained model has one of 2.5."""

    def __init__(
        self, known: ForgettingBaseMeasured | None = None, *, adapter: bool = True
    ) -> None:
        self.passes: list[float] = []
        self.recorded: list[ForgettingBaseMeasured] = []
        self._base = False
        evaluator: Any = self
        base = self._without_adapter if adapter else None
        self.meter = ForgettingMeter(evaluator, TEXTS, base, known, self.recorded.append)

    @contextmanager
    def _without_adapter(self) -> Iterator[None]:
        self._base = True
        yield
        self._base = False

    def next_token_loss(self, data: Any, interrupted: Any) -> float:
        assert data.examples is TEXTS.ids
        self.passes.append(2.0 if self._base else 2.5)
        return self.passes[-1]


def measured(digest: str) -> ForgettingBaseMeasured:
    return ForgettingBaseMeasured(loss=2.25, texts=2, tokens=5, digest=digest)


def test_the_base_is_measured_once_without_the_adapter() -> None:
    scene = Scene()
    scene.meter.begin(7)
    assert scene.passes == []
    found = [scene.meter.measure(1.0, lambda: False) for _ in range(2)]
    assert scene.passes == [2.0, 2.5, 2.5]
    assert [base.loss for base in scene.recorded] == [2.0]
    assert found[1] == {
        "forgetting.loss": 2.5, "forgetting.rise": 0.5, "forgetting.balance": 1.5,
    }  # fmt: skip


@pytest.mark.parametrize(("digest", "rise"), [("abc", 0.25), ("other", 0.5)])
def test_what_was_measured_before_a_resume_counts_for_the_same_texts_only(
    digest: str, rise: float
) -> None:
    scene = Scene(measured(digest))
    assert scene.meter.measure(1.0, lambda: False)["forgetting.rise"] == rise
    assert len(scene.recorded) == (digest == "other")


def test_without_an_adapter_only_the_model_before_step_1_is_the_base() -> None:
    scene = Scene(adapter=False)
    scene.meter.begin(0)
    assert [base.loss for base in scene.recorded] == [2.5]
    assert scene.meter.measure(1.0, lambda: False)["forgetting.rise"] == 0
    Scene(measured("abc"), adapter=False).meter.begin(9)
    with pytest.raises(ConfigError, match="only before step 1"):
        Scene(measured("other"), adapter=False).meter.begin(9)


def test_padding_is_no_target() -> None:
    batch = padded(TEXTS.ids)
    assert batch["labels"].tolist() == [[1, 2, -100], [3, 4, 5]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert TEXTS.fact == "2 texts, 5 tokens"
