"""Llamas in published shapes with random weights, made on the device in seconds."""

from __future__ import annotations

from typing import Any

SHAPES: dict[str, dict[str, Any]] = {
    "mini": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
             "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 64,
             "tie_word_embeddings": True},
    "tiny": {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
             "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 4096,
             "tie_word_embeddings": True},
    "1b": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
           "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
           "tie_word_embeddings": True},
    "0.1b": {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
             "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
             "tie_word_embeddings": True},
    "0.5b": {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
             "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936,
             "tie_word_embeddings": True},
    "3b": {"hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28,
           "num_attention_heads": 24, "num_key_value_heads": 8, "vocab_size": 128256,
           "tie_word_embeddings": True},
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
           "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
           "tie_word_embeddings": False},
    "14b": {"hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 48,
            "num_attention_heads": 40, "num_key_value_heads": 8, "vocab_size": 152064,
            "tie_word_embeddings": False},
    "32b": {"hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 64,
            "num_attention_heads": 40, "num_key_value_heads": 8, "vocab_size": 152064,
            "tie_word_embeddings": False},
    "70b-4": {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 4,
              "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256,
              "tie_word_embeddings": False},
}  # fmt: skip
"""Llama-3.2-1B, SmolLM2-135M, Qwen2.5-0.5B, Llama-3.2-3B, Llama-3.1-8B, Qwen2.5-14B, Qwen2.5-32B,
and Llama-3.1-70B with 4 of its 80 layers, but random."""


def random_llama(
    shape: str, tokenizer: Any, device: Any, *, nf4: bool, dtype: Any, host: bool = False
) -> Any:
    """A frozen random Llama as `from_pretrained` with a `BitsAndBytesConfig` would give it.

    Args:
        shape: One of `SHAPES`.
        tokenizer: Whose special tokens the configuration names.
        device: Where it is made; no weight is ever anywhere else.
        nf4: Whether the linears are quantized as by QLoRA.
        dtype: Of the weights that are not.
        host: Whether each weight is moved to host memory as soon as it is made.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        **SHAPES[shape],
        max_position_embeddings=8192,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
        dtype=dtype,
    )
    torch.manual_seed(0)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    for module in list(model.modules()):
        if nf4 and module is not model.get_output_embeddings():
            for name, linear in list(module.named_children()):
                if isinstance(linear, torch.nn.Linear) and name != "lm_head":
                    setattr(module, name, _nf4(linear, device, dtype, host))
    _fill(model, device, dtype, host)
    if nf4:
        _mark(model, dtype)
    return model.requires_grad_(False)


def _nf4(linear: Any, device: Any, dtype: Any, host: bool) -> Any:
    """The linear, quantized from random weights."""
    import bitsandbytes as bnb
    import torch

    made = bnb.nn.Linear4bit(
        linear.in_features,
        linear.out_features,
        bias=False,
        compute_dtype=dtype,
        compress_statistics=True,
        quant_type="nf4",
        device="meta",
    )
    weight = torch.randn(linear.weight.shape, device=device, dtype=dtype) * 0.02
    packed, state = bnb.functional.quantize_4bit(weight, compress_statistics=True, quant_type="nf4")
    if host:
        packed = packed.cpu()
        state.to("cpu")
    made.weight = bnb.nn.Params4bit(
        packed, requires_grad=False, quant_state=state, quant_type="nf4", bnb_quantized=True,
        compress_statistics=True, module=made,
    )  # fmt: skip
    made.quant_state = state
    return made


def _fill(model: Any, device: Any, dtype: Any, host: bool) -> None:
    """Give what is still without memory random values, and buffers their computed ones."""
    import torch

    for module in model.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and parameter.is_meta:
                values = torch.ones(parameter.shape, device=device, dtype=dtype)
                if parameter.ndim > 1:
                    values = torch.randn(parameter.shape, device=device, dtype=dtype) * 0.02
                values = values.cpu() if host else values
                setattr(module, name, torch.nn.Parameter(values, requires_grad=False))
    with torch.device(device):
        model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    model.tie_weights()


def _mark(model: Any, dtype: Any) -> None:
    """What trainers ask a quantized model for."""
    from transformers import BitsAndBytesConfig
    from transformers.quantizers import AutoHfQuantizer

    settings = BitsAndBytesConfig(
        load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )  # fmt: skip
    model.config.quantization_config = settings
    model.hf_quantizer = AutoHfQuantizer.from_config(settings)
    model.is_quantized = model.is_loaded_in_4bit = True
    model.quantization_method = settings.quant_method
