from __future__ import annotations

import pytest

from fttui.engine.train.cuda_graphs.buckets import DOUBLING_UP_TO, bucket, buckets


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
