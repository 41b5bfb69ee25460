from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import CohereConfig, CohereForCausalLM, Gemma2Config, Gemma2ForCausalLM

from fttui.engine.losses.cross_entropy import selected_cross_entropy
from fttui.engine.model.hidden import HiddenStates, ShapedHead, lm_head_of
from fttui.engine.model.load import load_model
from fttui.engine.model.progress import ignore_progress

IDS = torch.arange(24).reshape(2, 12)
BATCH = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}


class Wrapped(nn.Module):
    """Holds a model as DDP does."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, **inputs: torch.Tensor):
        return self.module(**inputs)


@pytest.fixture
def model(tiny, configured) -> nn.Module:
    config = configured(tiny, adapter={"dropout": 0.0})
    return load_model(config, torch.device("cpu"), ignore_progress).model.train()


@pytest.mark.parametrize("wrap", [lambda m: m, Wrapped])
def test_the_state_is_the_last_layers_and_carries_the_gradient(model, wrap) -> None:
    whole = model(**BATCH, output_hidden_states=True).hidden_states[-1]
    wrapped = wrap(model)
    with HiddenStates(wrapped) as hidden:
        output = wrapped(**BATCH, logits_to_keep=1)
        states = hidden.take()
    torch.testing.assert_close(states, whole)
    assert output.logits.shape == (2, 1, 260)
    states.sum().backward()
    gradients = [p.grad for p in model.parameters() if p.requires_grad]
    assert all(gradient is not None for gradient in gradients)


def test_a_state_is_taken_once_and_only_while_attached(model) -> None:
    hidden = HiddenStates(model).attach().attach()
    model(**BATCH)
    hidden.take()
    with pytest.raises(RuntimeError, match="no forward"):
        hidden.take()
    model(**BATCH)
    hidden.detach()
    with pytest.raises(RuntimeError, match="no forward"):
        hidden.take()
    model(**BATCH)
    with pytest.raises(RuntimeError, match="no forward"):
        hidden.take()


def test_loss_from_states_is_the_models_own(model) -> None:
    labels = IDS.clone()
    labels[:, :5] = -100
    own = model(**BATCH, labels=labels).loss
    with HiddenStates(model) as hidden:
        model(**BATCH, logits_to_keep=1)
        loss, count = selected_cross_entropy(hidden.take(), labels, lm_head_of(model))
    assert (loss / count).item() == pytest.approx(own.item(), abs=1e-5)


SIZES = {
    "vocab_size": 260,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
}


@pytest.mark.parametrize(
    "family",
    [
        (Gemma2ForCausalLM, Gemma2Config(**SIZES, final_logit_softcapping=2.0)),
        (CohereForCausalLM, CohereConfig(**SIZES, logit_scale=0.25)),
    ],
)
def test_scaled_and_capped_logits_are_the_models_own(family) -> None:
    kind, config = family
    torch.manual_seed(0)
    model = kind(config).eval()
    with torch.no_grad(), HiddenStates(model) as hidden:
        logits = model(**BATCH).logits
        head = lm_head_of(model)
        assert isinstance(head, ShapedHead)
        torch.testing.assert_close(head(hidden.take()), logits)
