"""The recommended commands of every kind of alert, word for word."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from fttui.engine.core.anomaly import Alert
from fttui.engine.core.recovery import RecoveryAttempt, RecoveryForecast
from fttui.engine.core.reports.advice import AdviceContext, LrRise, recommend
from fttui.engine.protocol.commands import parse_command, slip
from fttui.engine.protocol.settings import LearningRate

BACK = RecoveryForecast(
    attempt=RecoveryAttempt(
        anomaly="a", checkpoint="step-000100", step=100, lr_scale=0.25, clip=0.4, skip=31
    )
)
BY_HAND = "rollback step-000100 lr=0.25 clip=0.4 skip=31"


def commands(
    kind: str, severity: str = "alarm", value: float | None = 9.0, **now: object
) -> list[str]:
    alert = Alert(
        id=f"{kind}-111", kind=kind, severity=severity, step=111, headline="", value=value
    )
    context = msgspec.structs.replace(AdviceContext(), **now)
    return [action.command for action in recommend(alert, context)]


@pytest.mark.parametrize(
    ("kind", "severity", "expected"),
    [
        ("spike", "alarm", ["recover spike-111", BY_HAND, "pause"]),
        ("spike", "watch", ["recover spike-111", BY_HAND, "pause", "lr scale 0.5"]),
        ("divergence", "alarm", ["recover divergence-111", BY_HAND, "lr scale 0.5"]),
        ("collapse", "alarm", ["recover collapse-111", BY_HAND, "lr scale 0.5"]),
        ("nonfinite", "alarm",
         ["recover nonfinite-111", BY_HAND, "lr scale 0.5", "policy nonfinite halt"]),
        ("grad_explosion", "alarm", ["lr scale 0.7", BY_HAND]),
        ("grad_explosion", "watch", ["lr scale 0.7"]),
        ("lr_misconfig", "watch", ["lr scale 0.1", "stop"]),
        ("plateau", "info", ["eval", "lr scale 0.333", "lr scale 2", "stop"]),
        ("dead", "alarm", ["stop no-save"]),
        ("overfit", "info", ["stop", "eval"]),
        ("throughput_drop", "watch", ["profile 2", "pause"]),
        ("straggler", "watch", ["profile 2", "pause"]),
        ("vram_leak", "watch", ["checkpoint pin leak", "stop"]),
        ("unstable", "info", ["lr scale 0.7"]),
        ("unheard of", "alarm", []),
    ],
)  # fmt: skip
def test_by_kind_with_a_way_back(kind: str, severity: str, expected: list[str]) -> None:
    assert commands(kind, severity, recovery=BACK) == expected


@pytest.mark.parametrize("kind", ["spike", "divergence", "collapse", "nonfinite"])
def test_without_a_way_back(kind: str) -> None:
    assert commands(kind) == ["lr scale 0.5", "pause"]


@pytest.mark.parametrize(
    ("kind", "lr_scale", "command"),
    [
        ("divergence", 0.5, "lr scale 0.25"),
        ("divergence", 4.0, "lr scale 0.5"),  # lowered from the schedule, not from what was raised
        ("grad_explosion", 0.5, "lr scale 0.35"),
        ("grad_explosion", 4.0, "lr scale 0.7"),
        ("lr_misconfig", 4.0, "lr scale 0.4"),
        ("plateau", 0.5, "lr scale 1"),
    ],
)
def test_the_rate_changes_from_the_one_in_force(kind: str, lr_scale: float, command: str) -> None:
    assert command in commands(kind, lr_scale=lr_scale)


@pytest.mark.parametrize(
    ("now", "value", "clip"),
    [
        ({"norm_high": 1.0}, 9.0, "clip 1.5"),
        ({"norm_high": 1.0}, 2.0, "clip 1"),  # half of the norm that alarmed
        ({"norm_high": 1.0}, math.inf, "clip 1.5"),
        ({"norm_high": 1.0}, None, "clip 1.5"),
        ({"norm_high": 1.0, "clip": 1.6}, 9.0, "clip 1.5"),
        ({"norm_high": 1.0, "clip": 1.5}, 9.0, None),
        ({"norm_high": 0.0}, 9.0, None),
        ({"norm_high": math.inf}, 9.0, None),
        ({}, 9.0, None),
    ],
)
def test_a_clip_is_only_ever_tightened(
    now: dict[str, Any], value: float | None, clip: str | None
) -> None:
    found = commands("grad_explosion", value=value, **now)
    assert found == ([clip] if clip else []) + ["lr scale 0.7"]


@pytest.mark.parametrize(
    ("tried", "first"), [({"rollbacks": 1}, "recover divergence-111"), ({"rollbacks": 2}, "stop")]
)
def test_two_rollbacks_are_the_most(tried: dict[str, Any], first: str) -> None:
    assert commands("divergence", recovery=BACK, **tried)[0] == first


RISE = LrRise(step=109, command="lr scale 50", before=0.8)


@pytest.mark.parametrize(
    ("severity", "now", "expected"),
    [
        ("alarm", {"recovery": BACK}, ["recover grad_explosion-111", BY_HAND, "lr scale 0.8"]),
        ("watch", {"recovery": BACK}, ["lr scale 0.8", "recover grad_explosion-111", BY_HAND]),
        ("alarm", {}, ["lr scale 0.8"]),
        ("alarm", {"lr_scale": 0.5}, ["lr scale 0.35"]),  # lowered again since
    ],
)
def test_gradients_that_explode_after_a_raised_rate_call_for_undoing_it(
    severity: str, now: dict[str, Any], expected: list[str]
) -> None:
    assert commands("grad_explosion", severity, **{"lr_scale": 50.0, "lr_rise": RISE, **now}) == (
        expected
    )


def test_no_recommended_factor_at_a_plateau_looks_like_a_typing_error() -> None:
    for scale in (0.1, 1.0, 3.0):
        typed = (parse_command(c) for c in commands("plateau", "info", lr_scale=scale))
        now = LearningRate(schedule=1e-4, scale=scale)
        assert not any(slip(command, now) for command in typed)
