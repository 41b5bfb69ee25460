"""Likely causes: what counts as evidence, at the borders of its thresholds."""

from __future__ import annotations

import math

import pytest

from fttui.engine.core.anomaly import Alert
from fttui.engine.core.reports.advice import CAUSES
from fttui.engine.core.reports.causes import Signs, rank_causes


def causes(kind: str, signs: Signs) -> list[str]:
    alert = Alert(id=f"{kind}-9", kind=kind, severity="alarm", step=9, headline="")
    return rank_causes(alert, signs)


def evidence(kind: str, signs: Signs) -> str:
    """What stands in brackets behind the causes of a kind."""
    plain = CAUSES[kind]
    return "|".join(
        cause.removeprefix(p)
        for cause in causes(kind, signs)
        for p in plain
        if cause.startswith(p) and cause != p
    )


def test_without_evidence_the_causes_are_in_their_usual_order() -> None:
    for kind, usual in CAUSES.items():
        assert causes(kind, Signs()) == list(usual)
    assert causes("unheard of", Signs()) == []


@pytest.mark.parametrize(
    ("kind", "signs", "text"),
    [
        ("divergence", Signs(clip_share=0.5), ""),
        ("divergence", Signs(clip_share=0.51), " (51% of recent steps were clipped)"),
        ("divergence", Signs(lr_scale=1.0), ""),
        ("divergence", Signs(lr_scale=1.5), " (it is ×1.5 of the schedule)"),
        ("divergence", Signs(lr_raised=["lr scale 3"]), " (changed recently: lr scale 3)"),
        ("spike", Signs(grad_ratio=3.0), ""),
        ("spike", Signs(grad_ratio=3.1),
         " (the gradient norm of this step is ×3.1 the upper end of its usual range)"),
        ("spike", Signs(longest=150, longest_before=100), ""),
        ("spike", Signs(longest=151, longest_before=100),
         " (a sample of 151 tokens; the longest of the step before has 100)"),
        ("spike", Signs(longest=151), ""),
        ("spike", Signs(longest_before=100), ""),
        ("spike", Signs(repeated=["a", "b", "c", "d"]), " (twice or more in the batch: a, b, c)"),
        ("nonfinite", Signs(loss_scale=1024.0), " (loss scale 1024)"),
        ("nonfinite", Signs(grad_ratio=2.0), ""),
        ("nonfinite", Signs(loss_scale=2.0, grad_ratio=math.nan),
         " (loss scale 2; the gradient norm is not finite)"),
        ("grad_explosion", Signs(odd_modules=["a", "b", "c", "d"]), " (modules: a, b, c)"),
        ("grad_explosion", Signs(lr_raised=["lr scale 50"]), " (changed recently: lr scale 50)"),
        ("overfit", Signs(epoch=2.99), ""),
        ("overfit", Signs(epoch=3.0), " (epoch 3.0)"),
        ("overfit", Signs(lr_raised=["lr scale 3"]), " (changed recently: lr scale 3)"),
    ],
)  # fmt: skip
def test_evidence_begins_beyond_its_threshold(kind: str, signs: Signs, text: str) -> None:
    assert evidence(kind, signs) == text


def test_an_infinite_gradient_speaks_for_overflow_and_for_the_batch() -> None:
    found = causes("nonfinite", Signs(grad_ratio=math.inf))
    assert found[0].endswith("(the gradient norm is not finite)")
    assert "the gradient norm of this step is not finite" in found[1]


def test_more_evidence_comes_first_and_equal_evidence_in_the_usual_order() -> None:
    both = Signs(lr_scale=2.0, longest=90, longest_before=10)
    assert causes("spike", both)[0].startswith("an outlier batch")
    more = Signs(lr_scale=2.0, clip_share=0.9, longest=90, longest_before=10)
    assert causes("spike", more)[0].startswith("a learning rate too high")


def test_a_rate_that_was_just_raised_is_the_first_cause_of_exploding_gradients() -> None:
    signs = Signs(lr_raised=["lr scale 50"], lr_scale=50.0, odd_modules=["a"])
    assert causes("grad_explosion", signs)[0].startswith("a learning rate too high")
