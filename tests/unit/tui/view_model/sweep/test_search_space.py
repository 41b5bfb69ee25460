"""The search space of a sweep: what can be typed, and what is drawn from it."""

from __future__ import annotations

import pytest

from fttui.engine.errors import ConfigError
from fttui.tui.view_model.sweep.search_space import Axis, label, parse_space, points


def space(*words: str, whole: tuple[str, ...] = ("adapter.r", "train.warmup")) -> tuple[Axis, ...]:
    return parse_space(words, lambda key: key in whole)


def test_values_and_ranges_are_read() -> None:
    rate, rank, clip, warmup = space(
        "train.lr=1e-5..1e-3:log", "adapter.r=8,16", "train.clip=0..1", "train.warmup=0..100:50"
    )
    assert (rate.low, rate.high, rate.log, rate.values) == (1e-5, 1e-3, True, None)
    assert rank.values == ("8", "16")
    assert (clip.whole, clip.values) == (False, None)
    assert warmup.values == ("0", "50", "100")


def test_lists_keep_their_commas() -> None:
    (axis,) = space("adapter.targets=[q_proj, v_proj],[all],all-linear")
    assert axis.choices == ("[q_proj, v_proj]", "[all]", "all-linear")


def test_whole_numbers_are_written_as_such_and_others_with_all_digits() -> None:
    rank, rate = space("adapter.r=4..64", "train.lr=1e-5..1e-3")
    assert rank.text(8.0) == "8"
    assert rate.text(0.1 + 0.2) == "0.30000000000000004"
    assert label((rank, rate), {"adapter.r": "8", "train.lr": "0.00012345678"}) == (
        "r 8, lr 0.000123"
    )


def test_keys_with_the_same_last_word_are_written_out() -> None:
    axes = space("train.batch=1,2", "eval.batch=1,2")
    assert label(axes, {"train.batch": "1", "eval.batch": "2"}) == "train.batch 1, eval.batch 2"


def test_the_number_of_combinations_is_known_where_there_is_one() -> None:
    assert points(space("adapter.r=4..7", "train.lr=1e-3,1e-4")) == 8
    assert points(space("adapter.r=4,8", "train.lr=1e-4..1e-3")) is None
    assert points(space("train.clip=0..1:0.1")) == 11
    assert points(space("train.warmup=0..4000000000")) == 4_000_000_001  # without a list of them


def test_the_parent_folder_of_a_path_is_no_range() -> None:
    (axis,) = space("data.train=../a.jsonl,../../b.jsonl,[../c.jsonl, d/../e.jsonl]")
    assert axis.choices == ("../a.jsonl", "../../b.jsonl", "[../c.jsonl, d/../e.jsonl]")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "no settings to vary"),
        (("train.lr",), "expected a key and its values"),
        (("train.lr=",), "expected a key and its values"),
        (("train.lr=1e-4",), "give a single value with --set train.lr=1e-4"),
        (("train.lr=1e-4,1e-4",), "a value is there twice"),
        (("train.lr=1e-4,",), "expected two values or more"),
        (("train.lr=1e-4,2e-4", "train.lr=3e-4,4e-4"), "given twice"),
        (("train.lr=1e-3..1e-4",), "from a lower to a higher"),
        (("train.lr=0..1e-4:log",), "must begin above 0"),
        (("train.lr=a..b",), "got 'a', expected a number"),
        (("train.lr=0..inf",), "got 'inf', expected a number"),
        (("train.lr=0..1:2",), "the step must be above 0 and fit"),
        (("adapter.r=4..8.5",), "takes whole numbers only"),
    ],
)
def test_what_is_no_space_is_refused(words: tuple[str, ...], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        space(*words)
