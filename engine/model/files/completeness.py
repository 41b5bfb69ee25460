"""Refuse a model if weights are missing in its files, or if weights of the files are not used."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from ...errors import ModelError

_UNUSED = re.compile(
    r"rotary_emb\.inv_freq$"
    r"|\.(attn|attention)\.(bias|masked_bias)$"
    r"|(^|\.)(mtp|vision|visual|vision_tower|vision_model|image_\w+|audio_tower|audio_model"
    r"|multi_modal_projector|mm_projector|embed_vision|embed_audio|connector)(\.|_|$)"
)
"""Weights that a causal language model may leave out: values that are computed, layers that predict
further tokens, and the parts of a multimodal model that see and hear."""
_SHOWN = 3


def require_complete(loaded: Mapping[str, Any], model_id: str, layers: int) -> str | None:
    """Raise if weights are missing, unknown or of another shape.

    Return a text about the weights that are ignored, or None if there are none.

    Args:
        loaded: The loading information of `from_pretrained`.
        model_id: Name of the model for the error.
        layers: Number of layers of the model; weights of later layers may be ignored.

    Raises:
        ModelError: There are such weights; the text names the first ones and the next step.
    """
    missing = sorted(map(str, loaded["missing_keys"]))
    mismatched = sorted(str(key[0]) for key in loaded["mismatched_keys"])
    unexpected = sorted(map(str, loaded["unexpected_keys"]))
    unknown = [name for name in unexpected if not _may_be_left_out(name, layers)]
    if missing:
        raise ModelError(
            f"{model_id}: {_some(missing)} not in its weight files and would start from random "
            f"values{_unknown_text(unknown)}. Download the model again, or check that config.json "
            f"belongs to these weights."
        )
    if mismatched:
        raise ModelError(
            f"{model_id}: {_some(mismatched)} of another shape in its weight files than "
            f"config.json says. Check that config.json belongs to these weights."
        )
    if unknown:
        raise ModelError(
            f"{model_id}: {_some(unknown)} in its weight files, but not in a model of its "
            f"config.json. Check that config.json belongs to these weights."
        )
    plural = "s" if len(unexpected) > 1 else ""
    return f"{len(unexpected)} weight{plural}, such as {unexpected[0]}" if unexpected else None


def _may_be_left_out(name: str, layers: int) -> bool:
    beyond = re.search(r"(?:^|\.)layers\.(\d+)\.", name)
    return bool(_UNUSED.search(name)) or (beyond is not None and int(beyond[1]) >= layers)


def _unknown_text(unknown: Collection[str]) -> str:
    return f"; the files hold unknown weights such as {sorted(unknown)[0]}" if unknown else ""


def _some(names: list[str]) -> str:
    if len(names) == 1:
        return f"{names[0]} is"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more} are"
