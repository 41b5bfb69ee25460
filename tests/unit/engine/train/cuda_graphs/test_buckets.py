from __future__ import annotations

import pytest

from fttui.engine.train.cuda_graphs.buckets import (
    DOUBLING_UP_TO,
    bucket,
    buckets,
    buckets_ahead,
)


@pytest.mark.parametrize("longest", [8, 100, 512, 1000, 4096])
def test_every_length_fits_its_bucket_and_the_longest_is_one(longest: int) -> None:
    for length in range(1, longest + 1):
        assert length <= bucket(length, longest) <= longest
    assert bucket(longest, longest) == longest


def test_a_bucket_is_its_own_bucket() -> None:
    assert all(bucket(length, 4096) == length for length in buckets(4096))


def test_above_the_short_ones_less_than_a_fifth_is_padding() -> None:
    waste = max(1 - n / bucket(n, 8192) for n in range(DOUBLING_UP_TO + 1, 8193))
    assert waste < 0.2


def test_there_are_few() -> None:
    assert buckets(2048) == [64, 128, 256, 512, 640, 768, 896, 1024, 1280, 1536, 1792, 2048]


def test_a_text_beyond_the_longest_gets_a_bucket_of_its_own() -> None:
    assert bucket(70, 64) == 70


def test_lengths_that_occur_are_made_ahead_and_rare_ones_are_not() -> None:
    lengths = [50] * 600 + [200] * 399 + [900]
    assert buckets_ahead(lengths, 1, 10_000, 1024) == [1024, 256, 64]
    assert buckets_ahead(lengths, 1, 100, 1024) == [256, 64], "the long one is likely not met"
    assert buckets_ahead(lengths, 16, 100, 1024) == [1024, 256], "sixteen short ones are rare"
    assert buckets_ahead([], 4, 100, 1024) == []


def test_a_million_records_are_counted_at_once() -> None:
    assert buckets_ahead([64, 512] * 500_000, 2, 10, 512) == [512, 64]
