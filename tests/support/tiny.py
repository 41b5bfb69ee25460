"""A tiny random Llama on disk: a whole model folder that loads in a moment."""

from __future__ import annotations

from pathlib import Path

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tiny_llama(
    tmp_path: Path,
    seed: int = 0,
    *,
    hidden: int = 32,
    layers: int = 2,
    pad_is_eos: bool = False,
    tied: bool = True,
) -> Path:
    """Write a random Llama with a byte-level tokenizer and a ChatML template.

    Args:
        tmp_path: Folder that receives the model's own folder.
        seed: Of the random weights; the same seed writes the same weights.
        hidden: Hidden size, a multiple of 4.
        layers: Decoder layers.
        pad_is_eos: Leave the pad token equal to EOS, as many published models do.
        tied: Share the input and output embeddings.

    Returns:
        The model folder, usable as `model.id`.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path / f"tiny-llama-{seed}-{hidden}x{layers}{'-pad-is-eos' * pad_is_eos}"
    tokenizer = byte_tokenizer(pad_is_eos=pad_is_eos)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=tied,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def byte_tokenizer(*, pad_is_eos: bool = False):
    """One token per byte, plus the ChatML specials; nothing to train, nothing to download."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *alphabet))}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        unk_token="<|endoftext|>",
        pad_token="<|im_end|>" if pad_is_eos else "<|pad|>",
        chat_template=CHATML,
        model_max_length=1024,
        padding_side="right",
        clean_up_tokenization_spaces=False,
    )
