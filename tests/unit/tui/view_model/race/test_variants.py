from __future__ import annotations

import msgspec
import pytest

from fttui.engine.errors import ConfigError
from fttui.engine.protocol.command_kinds import (
    ScaleLr,
    SetClip,
    SetDropout,
    SetLr,
    SetMix,
    SetSchedule,
    SetWeightDecay,
)
from fttui.engine.protocol.settings import RunSettings
from fttui.tui.view_model.race.variants import commands_of, parse_variants

BEFORE = RunSettings(lr_scale=0.25, clip=0.7, clip_percentile=90.0)


def test_variants_are_every_combination_and_the_first_setting_varies_slowest() -> None:
    labels = [one.label for one in parse_variants(["lr=1e-4,2e-4", "clip=0.5,off,p90"])]
    assert labels == [
        "lr 1e-4, clip 0.5", "lr 1e-4, clip off", "lr 1e-4, clip p90",
        "lr 2e-4, clip 0.5", "lr 2e-4, clip off", "lr 2e-4, clip p90",
    ]  # fmt: skip


def test_a_value_is_a_rate_a_factor_or_what_is_in_force() -> None:
    rate, factor, sign, now = parse_variants(["lr=1e-4,x0.5,×3,now"])
    assert rate.commands(BEFORE) == (SetLr(value=1e-4),)
    assert factor.commands(BEFORE) == (ScaleLr(factor=0.5),)
    assert sign.commands(BEFORE) == (ScaleLr(factor=3.0),)
    assert now.commands(BEFORE) == (ScaleLr(factor=0.25),)


def test_a_clip_in_force_keeps_its_percentile() -> None:
    now, off = parse_variants(["clip=now,off"])
    assert now.commands(BEFORE) == (SetClip(percentile=90.0),)
    assert now.commands(RunSettings(clip=0.7)) == (SetClip(value=0.7),)
    assert off.commands(BEFORE) == (SetClip(),)


def test_settings_of_the_recipe_are_raced_and_put_back() -> None:
    words = ["weight_decay=0.1,now", "dropout=0", "schedule=cosine", "mix=a:2/b:1"]
    one, now = parse_variants(words)
    assert one.commands(BEFORE)[0] == SetWeightDecay(value=0.1)
    assert now.commands(BEFORE) == (
        SetWeightDecay(),
        SetDropout(rate=0.0),
        SetSchedule(shape="cosine"),
        SetMix(weights={"a": 2.0, "b": 1.0}),
    )
    changed = msgspec.structs.replace(BEFORE, dropout=0.2, mix={"a": 1.0, "b": 1.0})
    always = [ScaleLr(factor=0.25), SetClip(percentile=90.0)]
    assert commands_of(BEFORE, BEFORE) == always
    assert commands_of(BEFORE, changed) == [*always, SetDropout(), SetMix(weights={})]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "two variants or more, got no setting"),
        (["lr=1e-4"], "two variants or more, got lr 1e-4"),
        (["lr=1e-4,"], "the learning rate must be a number"),
        (["lr=1e-4,fast"], "lr=1e-4,fast: the learning rate must be a number, got 'fast'"),
        (["lr=1e-4,-1"], "must be > 0"),
        (["lr=1e-4,0.0001"], "0.0001 is the same as 1e-4"),
        (["lr=now,1e-4,now"], "now is the same as now"),
        (["lr=1e-4,2e-4", "lr=3e-4"], "lr is given twice"),
        (["dropout=0.1,1"], "the dropout must be < 1"),
        (["mix=a:1,b"], "expected NAME=WEIGHT"),
        (["weights=0.1,0.2"], r"expected a setting that can change while a run trains \(lr, clip"),
        (["lr"], "expected a setting"),
        (["clip=p101,1"], "the percentile must be ≤ 100"),
        ([f"lr={','.join(map(str, range(1, 10)))}", f"clip={','.join(map(str, range(1, 10)))}"],
         "81 variants, expected at most 64"),
    ],
)  # fmt: skip
def test_what_is_no_race_is_refused_with_the_reason(words: list[str], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        parse_variants(words)
