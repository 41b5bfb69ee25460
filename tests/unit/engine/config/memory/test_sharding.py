from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fttui.engine.config.checks import check_config
from fttui.engine.config.memory.estimate import GIB, MemoryEstimate, estimate_memory
from fttui.engine.config.memory.fit import changes_to_fit
from fttui.engine.config.schema import RunConfig

from .test_estimate import LLAMA_8B


def ranks(count: int, strategy: str, *, kind: str = "lora", **train: Any) -> RunConfig:
    """A run of so many ranks on an unquantized model."""
    settings = {"steps": 1, "devices": count, "strategy": strategy, "fast": "off", "batch": 1}
    raw = {
        "model": {"id": "m", "quantize": "none"},
        "adapter": {"kind": kind},
        "data": {"train": "t.jsonl"},
        "train": settings | train,
    }
    return msgspec.convert(raw, RunConfig)


def quantized(config: RunConfig, form: str) -> RunConfig:
    return msgspec.structs.replace(
        config, model=msgspec.structs.replace(config.model, quantize=form)
    )


def test_constants_of_quantized_weights_are_whole_on_every_rank() -> None:
    whole = estimate_memory(quantized(ranks(4, "ddp"), "nf4"), LLAMA_8B).base
    split = estimate_memory(quantized(ranks(4, "fsdp"), "nf4"), LLAMA_8B).base
    packed = LLAMA_8B.linear_params / 2
    assert whole - split == pytest.approx(packed * 3 / 4, abs=1)
    assert split > packed / 4


@pytest.mark.parametrize("kind", ["lora", "none"])
@pytest.mark.parametrize("count", [2, 8])
def test_a_rank_holds_its_part_and_what_is_gathered(kind: str, count: int) -> None:
    whole = estimate_memory(ranks(count, "ddp", kind=kind), LLAMA_8B)
    split = estimate_memory(ranks(count, "fsdp", kind=kind), LLAMA_8B)
    for term in ("base", "non_quantized", "adapters", "optimizer"):
        assert getattr(split, term) == pytest.approx(getattr(whole, term) / count, abs=1)
    # DDP has a second copy of the gradients.
    assert split.gradients == pytest.approx(whole.gradients / 2 / count, abs=1)
    layer = LLAMA_8B.linear_params / LLAMA_8B.layers * 2
    if kind == "none":  # embedding and head stay gathered beside two layers
        assert split.workspace > 2 * layer + LLAMA_8B.other_params
    else:  # the fullest moment is that of the loss, with the head but not the embedding
        head = LLAMA_8B.vocabulary * LLAMA_8B.hidden * 2
        assert head + layer < split.workspace - whole.workspace < head + 2 * layer
    assert split.likely < whole.likely


def test_a_head_with_an_adapter_stays_whole_until_the_backward_pass() -> None:
    apart, config = ranks(2, "fsdp"), ranks(2, "fsdp")
    adapter = msgspec.structs.replace(config.adapter, targets=["q_proj", "lm_head"])
    joined = msgspec.structs.replace(config, adapter=adapter)
    freed = estimate_memory(joined, LLAMA_8B).workspace - estimate_memory(apart, LLAMA_8B).workspace
    assert freed > 0.9 * LLAMA_8B.vocabulary * LLAMA_8B.hidden * 2


def test_streamed_weights_are_loaded_whole_copied_in_shares_and_not_gathered_by_fsdp() -> None:
    def streamed(strategy: str) -> MemoryEstimate:
        return estimate_memory(quantized(ranks(4, strategy, memory="streamed"), "nf4"), LLAMA_8B)

    whole, split = streamed("ddp"), streamed("fsdp")
    assert whole.host == split.host
    assert whole.base == split.base
    assert split.copied < whole.copied / 2
    assert split.workspace - whole.workspace < 64 * 2**20


def test_activation_checkpointing_saves_the_casts_of_whole_weights() -> None:
    kept = estimate_memory(ranks(8, "fsdp", kind="none", activation_checkpointing=False), LLAMA_8B)
    recomputed = ranks(8, "fsdp", kind="none", activation_checkpointing=True)
    saved = kept.workspace - estimate_memory(recomputed, LLAMA_8B).workspace
    # Less than the casts of 31 layers, because the gradients of the head need some of it then.
    assert 0.7 < saved / (31 / 32 * LLAMA_8B.linear_params * 2) < 1


@pytest.mark.parametrize("kind", ["lora", "none"])
def test_splitting_is_advised_before_what_changes_the_result(kind: str) -> None:
    config = ranks(8, "ddp", kind=kind)
    free = int((12 if kind == "lora" else 60) * GIB)
    changes = list(changes_to_fit(estimate_memory(config, LLAMA_8B), free, config))
    assert changes[0].text.startswith("Set train.strategy: fsdp")
    assert changes[-1].need.high <= free
    assert all(check_config(change.config) == [] for change in changes)


def test_splitting_is_not_advised_where_it_is_refused() -> None:
    config = ranks(1, "ddp")
    for one in (
        config,
        quantized(ranks(8, "ddp"), "int8"),
        ranks(8, "ddp", optimizer="adamw_8bit"),
    ):
        texts = [c.text for c in changes_to_fit(estimate_memory(one, LLAMA_8B), GIB, one)]
        assert texts
        assert not [text for text in texts if "strategy" in text]


@pytest.mark.parametrize("form", ["none", "nf4"])
def test_every_change_of_a_sharded_run_is_one_that_it_supports(form: str) -> None:
    config = ranks(2, "fsdp", batch=4, activation_checkpointing=False)
    config = quantized(config, form)
    changes = list(changes_to_fit(estimate_memory(config, LLAMA_8B), GIB, config))
    assert len(changes) > 2
    assert all(check_config(change.config) == [] for change in changes)
