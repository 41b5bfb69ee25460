from __future__ import annotations

import random
from typing import Any

import pytest

from fttui.engine.config.memory.estimate import GIB, estimate_memory, read_architecture
from fttui.engine.config.memory.fit import SPARE, Fit, advice, fit
from fttui.engine.config.memory.hardware import Device, Hardware
from fttui.engine.config.memory.micro_batch import (
    micro_batch_sizes,
    noise_by_batch,
    smaller_micro_batch,
    work_of_update,
)
from fttui.engine.config.schema import RunConfig
from tests.support.families import family_shape

from .test_estimate import LLAMA_1B, LLAMA_8B, SMOLLM2, configured

CPU = Hardware("cpu", 64 * GIB, 64 * GIB)


def card(free_gib: float) -> Hardware:
    free = int(free_gib * GIB)
    device = Device(name="card", total_bytes=free, free_bytes=free, bf16=True)
    return Hardware("cuda", 64 * GIB, 64 * GIB, devices=(device,))


def divided(total: int = 16, length: int = 512, **sections: Any) -> RunConfig:
    train = {"batch": "auto", "sequences_per_update": total, "adapter_precision": "auto"}
    return configured(
        data={"max_length": length, **sections.pop("data", {})},
        train={**train, **sections.pop("train", {})},
        adapter={"dropout": 0.0},
        **sections,
    )


def taken(found: Fit) -> tuple[Any, int]:
    return found.config.train.batch, found.config.train.accumulation


def test_all_sequences_are_taken_at_once_where_they_fit() -> None:
    found = fit(divided(), LLAMA_1B, card(80))
    assert taken(found) == (16, 1)
    assert found.config.train.sequences_per_update == 16
    assert found.divided == ("train.batch: 16 (16 sequences per update in 1 micro-batch)")


@pytest.mark.parametrize("free_gib", [2, 3, 4, 6, 10, 16, 24])
def test_what_is_taken_surely_fits_and_no_division_is_less_work(free_gib: float) -> None:
    config, hardware = divided(), card(free_gib)
    found = fit(config, LLAMA_1B, hardware)
    batch = found.config.train.micro_batch_size
    assert batch == 1 or found.estimate.high <= (1 - SPARE) * found.free_bytes
    for size in micro_batch_sizes(config):
        other = fit(divided(train={"batch": size}), LLAMA_1B, hardware)
        if not other.chosen and other.estimate.high <= (1 - SPARE) * other.free_bytes:
            assert work_of_update(found.config, 16) <= work_of_update(other.config, 16)


def test_a_larger_card_never_has_more_work() -> None:
    cards = (3, 4, 6, 8, 12, 24, 80)
    work = [work_of_update(fit(divided(), LLAMA_1B, card(gib)).config, 16) for gib in cards]
    assert work == sorted(work, reverse=True)
    assert work[0] > 1.3 * work[-1]


def test_long_texts_stay_single_rather_than_be_recomputed() -> None:
    """16 GiB hold two texts of 2,048 tokens only if most layers are recomputed."""
    found = fit(divided(length=2048), LLAMA_8B, card(16))
    assert taken(found) == (1, 16)
    assert found.config.train.whole_layers > 20
    assert "2 would fit, but recompute more layers" in found.divided


def test_rows_of_different_lengths_are_not_padded_for_the_sake_of_one_pass() -> None:
    draw = random.Random(1)
    lengths = [min(2048, max(16, round(410 * draw.lognormvariate(0, 0.7)))) for _ in range(512)]
    config = divided(length=2048)
    even, natural = (fit(config, LLAMA_1B, card(140), rows) for rows in ([410] * 512, lengths))
    assert taken(even) == (16, 1)
    assert taken(natural) == (4, 4)
    assert "8 would fit, but recompute or pad more" in natural.divided
    assert work_of_update(natural.config, 16, lengths) < work_of_update(even.config, 16, lengths)
    assert fit(config, LLAMA_1B, card(140), lengths).config == natural.config, "it is repeatable"


def test_what_a_single_sequence_needs_is_kept_for_more() -> None:
    found = fit(divided(length=256), LLAMA_8B, card(5.6))
    assert "train.memory: lean" in found.chosen
    assert found.config.train.memory == "lean"
    assert found.estimate.high <= found.free_bytes


def test_a_cpu_takes_as_many_as_have_enough_tokens_together() -> None:
    found = fit(divided(length=256), SMOLLM2, CPU)
    assert taken(found) == (4, 4)
    assert "8 have more than 1,024 tokens" in found.divided
    assert taken(fit(divided(length=4096), SMOLLM2, CPU)) == (1, 16)
    preferences = fit(divided(length=256, task="dpo"), SMOLLM2, CPU)
    assert taken(preferences) == (2, 8)


def test_a_balanced_mixture_stays_single() -> None:
    mixture = read_architecture(family_shape("qwen3-30b-a3b"))
    found = fit(divided(), mixture, card(140))
    assert found.config.train.batch == 1
    assert "router_aux_loss: 0" in found.divided
    free = fit(divided(train={"router_aux_loss": 0}), mixture, card(140))
    assert free.config.train.micro_batch_size > 1


@pytest.mark.parametrize(
    ("total", "ranks", "sizes"),
    [(1, 1, [1]), (7, 1, [1, 7]), (12, 1, [1, 2, 3, 4, 6, 12]), (12, 2, [1, 2, 3, 6])],
)
def test_sizes_divide_the_sequences_of_a_rank(total: int, ranks: int, sizes: list[int]) -> None:
    assert micro_batch_sizes(divided(total, train={"devices": ranks})) == sizes


def test_packed_rows_of_flash_attention_stay_alone() -> None:
    packed = divided(data={"packing": True}, model={"attention": "flash_attention_2"})
    assert micro_batch_sizes(packed) == [1]


def test_a_trial_that_fails_asks_for_the_next_smaller_size() -> None:
    def after(batch: int, **sections: Any) -> int | None:
        train = {"batch": batch, **sections.pop("train", {})}
        return smaller_micro_batch(divided(12, train=train, **sections), mixture=True)

    assert after(12, train={"router_aux_loss": 0}) == 6
    assert after(6, train={"router_aux_loss": 0}) == 4
    assert after(1, train={"router_aux_loss": 0}) is None
    assert after(12) is None, "the load balancing loss depends on it"
    plain = divided(12, train={"batch": 4, "sequences_per_update": None, "accumulate": 3})
    assert smaller_micro_batch(plain, mixture=False) is None
    pairs: dict[str, Any] = {"task": "contrastive", "contrastive": {"kind": "infonce"}}
    assert smaller_micro_batch(divided(12, train={"batch": 4}, **pairs), mixture=False) is None


def test_the_advice_leaves_the_sequences_as_they_are() -> None:
    config = divided(train={"batch": 16, "activation_checkpointing": True})
    lines = advice(estimate_memory(config, LLAMA_8B), 8 * GIB, config)
    assert any(line.startswith("Set train.batch: 1 (same gradient)") for line in lines)


def test_settings_that_draw_random_numbers_are_named() -> None:
    assert noise_by_batch(divided()) == []
    noisy = configured(adapter={"dropout": 0.05}, train={"neftune": 5})
    assert noise_by_batch(noisy) == ["adapter.dropout: 0.05", "train.neftune: 5"]
