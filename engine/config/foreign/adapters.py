"""Keys about quantization, LoRA and messages, whose names the three tools nearly share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .draft import Draft, number, truth

SWITCHES = {
    "use_rslora": "adapter.rslora",
    "peft_use_rslora": "adapter.rslora",
    "use_dora": "adapter.dora",
    "peft_use_dora": "adapter.dora",
}
MESSAGE_KEYS = {
    "role": ("role", "from", "speaker", "author"),
    "content": ("content", "value", "text", "message"),
}
"""Keys of messages that fttui reads, by what they hold."""
_INITS = {"gaussian", "pissa", "olora", "eva", "orthogonal"}


def read_lora(
    draft: Draft, rank_key: str, *, r: int, alpha: int, dropout: float, tool: str
) -> None:
    """Read the rank, alpha, dropout and variant of LoRA.

    Args:
        draft: the configuration that is read.
        rank_key: what the tool calls the rank.
        r: rank if none is given.
        alpha: alpha if none is given.
        dropout: dropout if none is given.
        tool: name of the tool, for the defaults.

    Raises:
        ValueError: A number cannot be read.
    """
    usual = {"adapter.r": r, "adapter.alpha": alpha}
    for key, path in ((rank_key, "adapter.r"), ("lora_alpha", "adapter.alpha")):
        if draft.get(key) is not None:
            draft.same(key, path, int(number(draft.get(key))))
            usual.pop(path)
    for path, value in usual.items():
        draft.default(path, value, f"default of {tool}")
    if draft.get("lora_dropout") is None:
        draft.default("adapter.dropout", dropout, f"default of {tool}")
    else:
        draft.same("lora_dropout", "adapter.dropout", float(number(draft.get("lora_dropout"))))
    for key, path in SWITCHES.items():
        if draft.get(key) is not None:
            draft.same(key, path, truth(draft.get(key)))
    _read_init(draft)


def _read_init(draft: Draft) -> None:
    for key in ("peft_init_lora_weights", "init_lora_weights"):
        init = draft.get(key)
        if init is None:
            continue
        if init in _INITS:
            draft.same(key, "adapter.init", init)
        elif init is True:
            draft.same(key, "adapter.init", "default")
        else:
            draft.refused(key, f"initializing adapters with {key}: {init} is not supported")


def read_modules_to_save(draft: Draft, key: str) -> None:
    """Read the modules that are trained fully beside the adapter."""
    names = listed(draft.get(key))
    if names:
        draft.same(key, "adapter.modules_to_save", names)
    elif draft.get(key) is not None:
        draft.without_effect(key, "it is empty")


def listed(value: Any) -> list[str]:
    """Return names that are given as a list or as a text with commas; empty for null."""
    found: Iterable[Any] = value.split(",") if isinstance(value, str) else value or []
    return [str(one).strip() for one in found if str(one).strip()]


def read_attention(draft: Draft, key: str, names: dict[str, str], *, packed: bool) -> None:
    """Read the attention implementation; flash attention and unknown ones become `auto`.

    Args:
        draft: the configuration that is read.
        key: the key of the other tool; nothing is set if it is not given.
        names: value of the key → implementation in transformers.
        packed: whether the other tool packs records.
    """
    value = draft.get(key)
    if value is None:
        return
    name = names.get(str(value), "")
    if name in ("sdpa", "eager"):
        draft.same(key, "model.attention", name)
    elif name == "flash_attention_2" and not packed:
        draft.nearly(key, "model.attention", "auto", "sdpa, with the same result up to rounding")
    else:
        draft.nearly(
            key, "model.attention", "auto", "another kernel with the same result up to rounding"
        )
