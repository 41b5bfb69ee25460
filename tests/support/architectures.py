"""Tiny random models of many architectures, and their training beside a plain loop."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fttui.engine.config.load import parse_resolved
from fttui.engine.errors import FttuiError
from fttui.engine.model.experts import balance_weight
from fttui.engine.model.hidden import base_model_of
from fttui.engine.protocol.events import RunStarted
from fttui.engine.run.journal_summary import summarize_journal
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.distributed.place import RankPlace
from fttui.engine.train.event_log import EventLog
from fttui.engine.train.run_data import build_source
from fttui.engine.train.session import load
from fttui.engine.train.session_start import SessionStart

from .tiny import byte_tokenizer
from .training import new_run, play

COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
"""Sizes in the names that most configurations use; a configuration ignores names it lacks."""

_NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
_MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 64}
_LINEAR_HEADS = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
_LATENT = {
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "num_key_value_heads": 4,
}

SIZES: dict[str, dict[str, Any]] = {
    "apertus": {},
    "arcee": {},
    "bamba": {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16},
    "biogpt": {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "layerdrop": 0.0},
    "bloom": {"n_head": 4, "n_layer": 2},
    "codegen": {"n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 512, "rotary_dim": 8},
    "cohere": {},
    "cohere2": {},
    "deepseek_v2": {
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        **_MOE,
        **_LATENT,
    },
    "deepseek_v3": {
        "n_routed_experts": 4,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        **_MOE,
        **_LATENT,
    },
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "first_k_dense_replace": 1, **_MOE},
    "ernie4_5": {},
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 64},
    "exaone4": {"sliding_window": None, "layer_types": ["full_attention", "full_attention"]},
    "falcon": {"multi_query": False, "new_decoder_architecture": False, "alibi": False},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16},
    "falcon_mamba": {"state_size": 8},
    "flex_olmo": {"num_experts": 4, **_MOE},
    "gemma": {"head_dim": 16},
    "gemma2": {"head_dim": 16},
    "gemma3_text": {"head_dim": 16},
    "glm": {"head_dim": 16},
    "glm4": {"head_dim": 16},
    "glm4_moe": {"n_routed_experts": 4, "n_shared_experts": 1, "head_dim": 16, **_MOE},
    "gpt2": {**_NO_DROPOUT, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512},
    "gpt_bigcode": {**_NO_DROPOUT, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512},
    "gpt_neo": {
        "embed_dropout": 0.0,
        "resid_dropout": 0.0,
        "attention_dropout": 0.0,
        "num_layers": 2,
        "num_heads": 4,
        "attention_types": [[["global", "local"], 1]],
    },
    "gpt_neox": {},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16},
    "gptj": {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 512, "rotary_dim": 8},
    "granite": {},
    "granitemoe": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "granitemoehybrid": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 64,
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
        "mamba_d_state": 16,
        "layer_types": ["mamba", "attention"],
    },
    "helium": {"head_dim": 16},
    "hunyuan_v1_dense": {"head_dim": 16},
    "jamba": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "mamba_d_state": 8,
        "use_mamba_kernels": False,
    },
    "jetmoe": {"num_local_experts": 4, "num_experts_per_tok": 2, "kv_channels": 16},
    "lfm2": {"full_attn_idxs": [1]},
    "llama": {},
    "mamba": {"state_size": 8},
    "mamba2": {"state_size": 8, "num_heads": 8, "head_dim": 16, "n_groups": 1},
    "minimax": {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16},
    "ministral": {"head_dim": 16, "layer_types": ["full_attention", "full_attention"]},
    "mistral": {},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "mpt": {"d_model": 64, "n_heads": 4, "n_layers": 2, "max_seq_len": 512},
    "nemotron": {"head_dim": 16},
    "olmo": {},
    "olmo2": {},
    "olmo3": {},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "opt": {"ffn_dim": 128, "word_embed_proj_dim": 64, "dropout": 0.0},
    "persimmon": {},
    "phi": {},
    "phi3": {},
    "phimoe": {
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "router_jitter_noise": 0.0,
        "input_jitter_noise": 0.0,
    },
    "qwen2": {},
    "qwen2_moe": {"num_experts": 4, "shared_expert_intermediate_size": 64, **_MOE},
    "qwen3": {"head_dim": 16},
    "qwen3_moe": {"num_experts": 4, "head_dim": 16, **_MOE},
    "qwen3_next": {
        "num_experts": 4,
        "shared_expert_intermediate_size": 32,
        "head_dim": 16,
        "layer_types": ["linear_attention", "full_attention"],
        **_MOE,
        **_LINEAR_HEADS,
    },
    "recurrent_gemma": {"head_dim": 16, "attention_window_size": 64, "lru_width": 64},
    "rwkv": {"attention_hidden_size": 64},
    "seed_oss": {"head_dim": 16, "attention_dropout": 0.0, "residual_dropout": 0.0},
    "smollm3": {},
    "stablelm": {},
    "starcoder2": {},
    "xglm": {
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "layerdrop": 0.0,
        "d_model": 64,
        "ffn_dim": 128,
        "num_layers": 2,
        "attention_heads": 4,
    },
    "zamba2": {
        "mamba_headdim": 16,
        "n_mamba_heads": 8,
        "mamba_d_state": 8,
        "hybrid_layer_ids": [1],
        "layers_block_type": ["mamba", "hybrid"],
        "num_key_value_heads": 4,
    },
}
"""Causal architectures, with what their configuration needs besides `COMMON`."""


_TEXT = {**COMMON, "pad_token_id": 3, "eos_token_id": 2, "bos_token_id": 1, "vocab_size": 260}
_CLIP = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
_QWEN_TEXT = {
    **_TEXT,
    "rope_parameters": {
        "rope_type": "default",
        "mrope_section": [2, 3, 3],
        "rope_theta": 10000.0,
    },
}
_QWEN_TOWER = {
    "depth": 2,
    "hidden_size": 32,
    "out_hidden_size": 64,
    "intermediate_size": 64,
    "num_heads": 2,
    "patch_size": 14,
    "spatial_merge_size": 2,
}
_QWEN_TOKENS = {
    "image_token_id": 259,
    "video_token_id": 258,
    "vision_start_token_id": 257,
    "vision_end_token_id": 256,
}

VISION: dict[str, dict[str, Any]] = {
    "gemma3": {
        "text_config": {**_TEXT, "head_dim": 16},
        "vision_config": _CLIP,
        "mm_tokens_per_image": 4,
        "image_token_index": 259,
        "boi_token_index": 258,
        "eoi_token_index": 257,
    },
    "idefics3": {
        "text_config": {"model_type": "llama", **_TEXT},
        "vision_config": _CLIP,
        "image_token_id": 259,
        "scale_factor": 2,
    },
    "internvl": {
        "text_config": {"model_type": "qwen2", **_TEXT},
        "vision_config": {**_CLIP, "image_size": [28, 28], "patch_size": [14, 14]},
        "image_token_id": 259,
    },
    "llava": {
        "text_config": {"model_type": "llama", **_TEXT},
        "vision_config": {"model_type": "clip_vision_model", **_CLIP},
        "image_token_index": 259,
    },
    "mistral3": {
        "text_config": {"model_type": "mistral", **_TEXT, "head_dim": 16},
        "vision_config": {"model_type": "pixtral", **_CLIP, "head_dim": 16},
        "image_token_index": 259,
    },
    "mllama": {
        "text_config": {**_TEXT, "num_hidden_layers": 3, "cross_attention_layers": [1]},
        "vision_config": {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_global_layers": 1,
            "attention_heads": 2,
            "image_size": 28,
            "patch_size": 14,
            "vision_output_dim": 64,
            "intermediate_layers_indices": [0],
        },
    },
    "paligemma": {
        "text_config": {"model_type": "gemma", **_TEXT, "head_dim": 16},
        "vision_config": {"model_type": "siglip_vision_model", **_CLIP, "projection_dim": 64},
        "projection_dim": 64,
        "image_token_index": 259,
    },
    "qwen2_vl": {
        "text_config": _QWEN_TEXT,
        "vision_config": {
            "depth": 2,
            "embed_dim": 32,
            "hidden_size": 64,
            "num_heads": 2,
            "patch_size": 14,
            "spatial_merge_size": 2,
        },
        **_QWEN_TOKENS,
    },
    "qwen2_5_vl": {
        "text_config": _QWEN_TEXT,
        "vision_config": {**_QWEN_TOWER, "fullatt_block_indexes": [1]},
        **_QWEN_TOKENS,
    },
    "qwen3_vl": {
        "text_config": {**_QWEN_TEXT, "head_dim": 16},
        "vision_config": {
            **_QWEN_TOWER,
            "deepstack_visual_indexes": [0],
            "num_position_embeddings": 16,
        },
        **_QWEN_TOKENS,
    },
}
"""Vision-language architectures, with their whole configuration."""


def tiny_model(architecture: str, folder: Path, seed: int = 0, **more: Any) -> Path:
    """Write a random model of an architecture with a byte-level tokenizer; return its folder.

    Args:
        architecture: A key of `SIZES`, or another `model_type` of transformers.
        folder: Receives the model's own folder.
        seed: Of the random weights.
        more: Fields of the configuration that replace those of the table.
    """
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText

    place, tokenizer = folder / f"tiny-{architecture}", byte_tokenizer()
    special = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": tokenizer.bos_token_id,
    }
    sizes = {**COMMON, **special, **SIZES.get(architecture, {}), **more}
    build = AutoModelForCausalLM
    if architecture in VISION:
        sizes, build = {**VISION[architecture], **more}, AutoModelForImageTextToText
    config = AutoConfig.for_model(architecture, **sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build.from_config(config)
    model.save_pretrained(place)
    tokenizer.save_pretrained(place)
    return place


MODES = {"cpu": ("static", "off"), "cuda": ("auto", "off")}
"""Values of `train.fast` to compare on a kind of device."""
TOLERANCE = {"cpu": 2e-4, "cuda": 2e-2}
"""Largest difference of a loss from plain training; on a GPU both compute in bf16."""


@dataclass(frozen=True)
class Trial:
    """Losses of three steps by mode, or errors, and those of plain training."""

    losses: dict[str, list[float]]
    errors: dict[str, str]
    facts: str
    tolerance: float

    @property
    def verdict(self) -> str:
        """Equal, refused with a reason by all modes, or wrong."""
        if self.errors and not set(self.losses) - {"plain"}:
            refused = all(text.startswith("refused: ") for text in self.errors.values())
            return "refused" if refused else "wrong"
        if self.errors or len(set(map(len, self.losses.values()))) != 1:
            return "wrong"
        steps = zip(*self.losses.values(), strict=True)
        return "equal" if all(max(s) - min(s) <= self.tolerance for s in steps) else "wrong"

    @property
    def texts(self) -> dict[str, str]:
        """Losses and errors by mode, as text."""
        numbers = {
            mode: " ".join(f"{loss:.5f}" for loss in losses) for mode, losses in self.losses.items()
        }
        return {**numbers, **self.errors, "fast:": self.facts}


def try_architecture(architecture: str, folder: Path, device: str, quantize: str = "none") -> Trial:
    """Train a tiny model for three steps by fttui and by a plain loop over the same batches."""
    model = tiny_model(architecture, folder)
    losses: dict[str, list[float]] = {}
    errors: dict[str, str] = {}
    facts = ""
    for mode in MODES[device]:
        place = folder / mode
        place.mkdir()
        run = new_run(place, "sft", **settings(model, mode), model__quantize=quantize)
        try:
            played = play(run, device=device)
            losses[mode] = list(played.losses().values())
            if mode != "off":
                facts = played.events(RunStarted)[-1].facts["fast mode"]
        except FttuiError as error:
            errors[mode] = f"refused: {error}"
        except Exception as error:  # noqa: BLE001 -- the table names it
            errors[mode] = f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}"
    if losses:
        losses["plain"] = plain_losses(run, device)
    return Trial(losses, errors, facts, TOLERANCE[device])


def settings(model: Path, fast: str) -> dict[str, Any]:
    """Return the settings of three plain steps without randomness."""
    return {
        "model__id": model,
        "adapter__dropout": 0,
        "data__max_length": 96,
        "train__fast": fast,
        "train__steps": 3,
        "train__batch": 2,
        "train__schedule": "constant",
        "train__lr": 1e-3,
        "train__warmup": 0,
        "checkpoint__every": 0,
        "checkpoint__at_start": "false",
    }


def plain_losses(run: RunDirectory, device: str) -> list[float]:
    """Train by transformers and peft alone over the batches of a run; return its losses."""
    config = parse_resolved(run.config.read_text())
    place = RankPlace(0, 1, torch.device(device))
    setup = load(SessionStart(run, summarize_journal(()), None, 0), place, EventLog(None))
    source, model = build_source(setup), setup.loaded.model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=config.train.lr, weight_decay=0.0)
    return [
        _plain_step(model, source.fetch(config.train.accumulation), optimizer, device)
        for _ in range(setup.plan.steps)
    ]


def _plain_step(
    model: Any, batches: list[Any], optimizer: torch.optim.Optimizer, device: str
) -> float:
    total = sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in batches)
    balance = balance_weight(base_model_of(model), None)
    more = {"output_router_logits": True} if balance else {}
    summed = 0.0
    for batch in batches:
        inputs = {name: value.to(device) for name, value in batch.items()}
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            labels = inputs.pop("labels")
            outputs = model(**inputs, **more, use_cache=False)
        logits = outputs.logits[:, :-1].float()
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels[:, 1:].flatten(), reduction="sum"
        )
        share = loss / total
        if balance:
            share = share + balance * outputs.aux_loss / len(batches)
        share.backward()
        summed += share.item()
    torch.nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return summed
