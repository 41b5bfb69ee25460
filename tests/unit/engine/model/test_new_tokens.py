"""Tokens that are new to a model get rows of their own, and only these rows are trained."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PhiConfig,
    PhiForCausalLM,
)

from fttui.engine.errors import ModelError
from fttui.engine.model.load import LoadedModel, load_model
from fttui.engine.model.new_tokens import add_rows
from fttui.engine.model.progress import ignore_progress
from fttui.engine.model.tokenizer import add_special_tokens, read_tokenizer

from ....support.tiny import byte_tokenizer

CPU = torch.device("cpu")
KNOWN = 260
"""Tokens of the tiny tokenizer."""
NEW = ["<tool>", "</tool>"]
SIZES: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
LLAMA: dict[str, Any] = {**SIZES, "intermediate_size": 64}
GEMMA: dict[str, Any] = {**LLAMA, "num_key_value_heads": 2, "head_dim": 8}
GPT2: dict[str, Any] = {"n_embd": 32, "n_layer": 1, "n_head": 4}

MODELS: dict[str, Callable[[], Any]] = {
    "tied": lambda: LlamaForCausalLM(
        LlamaConfig(vocab_size=KNOWN, tie_word_embeddings=True, **LLAMA)
    ),
    "untied": lambda: LlamaForCausalLM(
        LlamaConfig(vocab_size=KNOWN, tie_word_embeddings=False, **LLAMA)
    ),
    "padded": lambda: LlamaForCausalLM(LlamaConfig(vocab_size=KNOWN + 12, **LLAMA)),
    "one padded row": lambda: LlamaForCausalLM(LlamaConfig(vocab_size=KNOWN + 1, **LLAMA)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=KNOWN, **GPT2)),
    "gpt_neox": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=KNOWN, **LLAMA)),
    "scaled embedding": lambda: Gemma3ForCausalLM(Gemma3TextConfig(vocab_size=KNOWN, **GEMMA)),
    "head with bias": lambda: PhiForCausalLM(PhiConfig(vocab_size=KNOWN, **LLAMA)),
}


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str], Path]:
    def write(name: str) -> Path:
        torch.manual_seed(0)
        model = MODELS[name]()
        model.save_pretrained(tmp_path / name)
        byte_tokenizer().save_pretrained(tmp_path / name)
        return tmp_path / name

    return write


def loaded(configured: Any, folder: Path, **sections: Any) -> LoadedModel:
    data = {"train": "unused.jsonl", "special_tokens": NEW}
    return load_model(configured(folder, data=data, **sections), CPU, ignore_progress)


def one_step(model: Any) -> dict[str, torch.Tensor]:
    """Train one step on new and known tokens, and return the parameters that it changed."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    ids = torch.tensor([[5, 6, KNOWN, 7, KNOWN + 1, 8]])
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.01)
    for _ in range(2):
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    now = dict(model.named_parameters())
    return {name: now[name] for name, old in before.items() if not torch.equal(old, now[name])}


@pytest.mark.parametrize("quantize", ["none", "nf4"])
@pytest.mark.parametrize("name", MODELS)
def test_only_the_rows_of_new_tokens_are_trained(
    written: Any, configured: Any, name: str, quantize: str
) -> None:
    folder = written(name)
    plain = AutoModelForCausalLM.from_pretrained(folder)
    model = loaded(configured, folder, model={"quantize": quantize}).model
    changed = one_step(model)
    others = {name for name in changed if "lora_" not in name}
    whole = name == "head with bias"
    assert all("trainable_tokens" in one or (whole and "lm_head" in one) for one in others)
    ends = model.get_base_model().get_input_embeddings(), model.get_output_embeddings()
    for end, own in zip(
        ends,
        (
            plain.get_input_embeddings(),
            plain.lm_head if hasattr(plain, "lm_head") else plain.embed_out,
        ),
        strict=True,
    ):
        rows = end.weight.detach()
        assert len(rows) == max(KNOWN + 2, len(own.weight))
        if not (whole and end is ends[1]):
            torch.testing.assert_close(rows[:KNOWN], own.weight[:KNOWN].detach())
        assert not torch.allclose(rows[KNOWN], rows[KNOWN + 1]), "each row has its own gradient"
    assert model.config.vocab_size == len(ends[0].weight)


@pytest.mark.parametrize("name", MODELS)
def test_a_new_row_begins_with_the_mean_of_the_known_ones(
    written: Any, configured: Any, name: str
) -> None:
    folder = written(name)
    plain = AutoModelForCausalLM.from_pretrained(folder)
    model = loaded(configured, folder).model
    mean = plain.get_input_embeddings().weight[:KNOWN].mean(dim=0)
    rows = model.get_base_model().get_input_embeddings().weight.detach()
    torch.testing.assert_close(rows[KNOWN], mean.detach())
    torch.testing.assert_close(rows[KNOWN + 1], mean.detach())


@pytest.mark.parametrize("name", ["tied", "head with bias"])
def test_a_row_begins_with_the_mean_of_its_pieces(written: Any, configured: Any, name: str) -> None:
    folder = written(name)
    plain = AutoModelForCausalLM.from_pretrained(folder)
    tokens = [{"token": "ab"}, {"token": "<x>", "description": "cd", "special": True}]
    data = {"train": "unused.jsonl", "special_tokens": ["<tool>"]}
    config = configured(folder, data=data, model={"add_tokens": [*tokens, {"token": "A"}]})
    found = load_model(config, CPU, ignore_progress)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = found.model.get_base_model().get_input_embeddings().weight.detach()
    known = plain.get_input_embeddings().weight.detach()
    numbers = {token: found.tokenizer.convert_tokens_to_ids(token) for token in ("ab", "<x>")}
    assert sorted(numbers.values()) == [KNOWN + 1, KNOWN + 2]
    for token, text in (("ab", "ab"), ("<x>", "cd")):
        pieces = tokenizer(text, add_special_tokens=False)["input_ids"]
        torch.testing.assert_close(rows[numbers[token]], known[pieces].mean(dim=0))
    torch.testing.assert_close(rows[KNOWN], known[:KNOWN].mean(dim=0))
    assert found.tokenizer("zab<x>", add_special_tokens=False)["input_ids"][1:] == [
        numbers["ab"],
        numbers["<x>"],
    ]
    assert "2 of them from the rows of other tokens" in found.facts["new tokens"]
    assert found.facts["known tokens"] == "A: not added"
    assert found.tokenizer.decode(list(numbers.values()), skip_special_tokens=True) == "ab"


def test_known_tokens_change_nothing(written: Any, configured: Any) -> None:
    data = {"train": "unused.jsonl", "special_tokens": ["<|im_end|>"]}
    config = configured(written("tied"), data=data)
    found = load_model(config, CPU, ignore_progress)
    plain = load_model(configured(written("tied")), CPU, ignore_progress)
    assert "new tokens" not in found.facts
    assert found.tokenizer.get_vocab() == plain.tokenizer.get_vocab()
    names = [name for name, p in found.model.named_parameters() if p.requires_grad]
    assert names == [name for name, p in plain.model.named_parameters() if p.requires_grad]


def test_the_facts_name_what_was_added(written: Any, configured: Any) -> None:
    enlarged = loaded(configured, written("tied")).facts["new tokens"]
    assert enlarged == "2, with trained rows, embedding enlarged from 260 to 262 rows"
    assert loaded(configured, written("padded")).facts["new tokens"] == "2, with trained rows"


def test_loading_leaves_the_random_state(written: Any, configured: Any) -> None:
    folder = written("untied")
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    loaded(configured, folder)
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("name", ["tied", "untied"])
@pytest.mark.parametrize("module", ["embed_tokens", "lm_head"])
def test_rows_of_a_module_that_is_trained_as_a_whole_need_no_training_of_their_own(
    written: Any, configured: Any, name: str, module: str
) -> None:
    adapter = {"modules_to_save": [module]}
    changed = one_step(loaded(configured, written(name), adapter=adapter).model)
    rows = {one for one in changed if "trainable_tokens" in one}
    other = {"embed_tokens": "lm_head", "lm_head": "embed_tokens"}[module]
    assert len(rows) == (0 if name == "tied" else 1)
    assert all(other in one for one in rows)
    assert any("modules_to_save" in one for one in changed)


def test_a_token_of_the_tokenizer_beyond_the_model_gets_a_row_too(
    written: Any, configured: Any
) -> None:
    folder = written("tied")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["<earlier>"], special_tokens=True)
    tokenizer.save_pretrained(folder)
    found = loaded(configured, folder)
    assert found.facts["new tokens"].startswith("3, ")
    assert len(found.model.get_input_embeddings().weight) == KNOWN + 3


def test_a_quantized_head_is_refused(written: Any) -> None:
    model = LlamaForCausalLM(LlamaConfig(vocab_size=KNOWN, **LLAMA))
    model.lm_head.weight = torch.nn.Parameter(
        torch.zeros(KNOWN, 32, dtype=torch.uint8), requires_grad=False
    )
    with pytest.raises(ModelError, match="no rows can be added"):
        add_rows(model, {KNOWN: ()}, [])


def test_a_forward_pass_sends_no_row_numbers_to_the_device(
    written: Any, configured: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA graphs cannot capture such a copy."""
    model = loaded(configured, written("untied")).model
    ids = torch.tensor([[5, KNOWN, 6]])
    before = model(input_ids=ids).logits
    monkeypatch.setattr(torch, "tensor", lambda *_, **__: pytest.fail("a copy from the host"))
    assert torch.equal(model(input_ids=ids).logits, before)


def test_a_word_of_the_vocabulary_becomes_special_under_its_id() -> None:
    tokenizer = byte_tokenizer()
    before = tokenizer.get_vocab()
    assert add_special_tokens(tokenizer, ["A", "<tool>", "<|pad|>"]) == {"<tool>": KNOWN}
    assert tokenizer.get_vocab() == before | {"<tool>": KNOWN}
    ids = tokenizer("aA<tool>b", add_special_tokens=False)["input_ids"]
    assert ids == [before["a"], before["A"], KNOWN, before["b"]]


def test_no_vocabulary_is_listed_without_new_tokens(
    tmp_path: Path, configured: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    config = configured(tmp_path)
    monkeypatch.setattr(type(tokenizer), "get_vocab", lambda _: pytest.fail("listed"))
    found = read_tokenizer(str(tmp_path), config.model, config.data)
    assert (found.new_tokens, found.known) == ({}, ())
    assert found.tokenizer("a b")["input_ids"] == tokenizer("a b")["input_ids"]
