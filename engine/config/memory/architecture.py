"""The sizes of a decoder-only language model, read from its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import ModelError
from ..model_files import parsed_settings
from .layer_traits import LayerTraits, traits_of

_TIED_UNLESS_TOLD = ("gemma", "gpt2", "opt", "bloom", "falcon", "cohere", "mpt")
"""Prefixes of model types whose embeddings are tied unless config.json says otherwise."""
_UNGATED = (
    "gpt2",
    "gpt_neox",
    "opt",
    "bloom",
    "falcon",
    "mpt",
    "phi",
    "starcoder2",
    "nemotron",
    "apertus",
)
"""Model types whose MLP has no gate."""
_GATED_TOWERS = ("qwen2_5_vl", "pixtral")
"""Prefixes of the types of vision towers whose MLP has a gate."""
_TOWER_REST = 1.07
"""Weights of a tower relative to those of its layers: patches, positions and projector add 6 to
15 % in Gemma 3, Qwen2-VL, Qwen2.5-VL, Llava, Mistral 3, InternVL and Idefics 3."""
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
"""Settings that hold the number of experts; above 1 the model is a mixture of experts."""


class MixtureOfExperts(ModelError):
    """The model is a mixture of experts, whose memory is not predicted."""


@dataclass(frozen=True)
class Architecture:
    """The sizes that determine how much memory a model needs."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    tied: bool
    """Whether input and output embeddings are one matrix."""
    gated: bool = True
    """Whether the MLP has a gate: three matrices instead of two."""
    name: str = ""
    sees_images: bool = False
    """Whether the model also has a vision tower, which is frozen and sees no text."""
    tower_params: int = 0
    """Parameters of the vision tower and of what joins it to the model, within some percent."""

    @property
    def query_width(self) -> int:
        """Total width of the query heads."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Total width of the key heads; the value heads have the same."""
        return self.kv_heads * self.head_dim

    @property
    def traits(self) -> LayerTraits:
        """What its layers keep in memory beside those of Llama."""
        return traits_of(self.name)

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """Input and output width of each linear of one layer, by its usual name."""
        return self._attention_linears() | self._mlp_linears()

    def _attention_linears(self) -> dict[str, tuple[int, int]]:
        out = {"o_proj": (self.query_width, self.hidden)}
        if self.traits.joined_attention:
            return {"qkv_proj": (self.hidden, self.query_width + 2 * self.kv_width)} | out
        return {
            "q_proj": (self.hidden, self.query_width),
            "k_proj": (self.hidden, self.kv_width),
            "v_proj": (self.hidden, self.kv_width),
        } | out

    def _mlp_linears(self) -> dict[str, tuple[int, int]]:
        inner = {"up_proj": (self.hidden, self.intermediate)}
        if self.traits.joined_gate:
            inner = {"gate_up_proj": (self.hidden, 2 * self.intermediate)}
        elif self.gated:
            inner["gate_proj"] = (self.hidden, self.intermediate)
        return inner | {"down_proj": (self.intermediate, self.hidden)}

    @property
    def linear_params(self) -> int:
        """Number of parameters of all linears of all layers, which may be quantized."""
        return self.layers * sum(i * o for i, o in self.linears.values())

    @property
    def other_params(self) -> int:
        """Number of parameters of embeddings, output head and norms, which are never quantized."""
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return embeddings + self.norm_params

    @property
    def norm_params(self) -> int:
        """Number of weights of all norms, the final one included."""
        return (self.traits.norms * self.layers + 1) * self.hidden


def read_architecture(source: Path | Mapping[str, Any]) -> Architecture:
    """Read the sizes from a model folder, a config.json file or its parsed content.

    Raises:
        MixtureOfExperts: The model is a mixture of experts.
        ModelError: There is no config.json, or a size is missing in it.
    """
    raw = source if isinstance(source, Mapping) else read_settings(source)
    config = raw.get("text_config") or raw
    experts = _first(config, EXPERTS)
    if experts is not None and experts > 1:
        raise MixtureOfExperts(
            f"The model has {experts} experts per layer, but memory is predicted for dense models "
            f"only. Watch the memory plot during the first steps instead."
        )
    hidden = _size(config, "hidden_size", "n_embd", "d_model")
    heads = _size(config, "num_attention_heads", "n_head", "n_heads")
    kind = str(config.get("model_type") or raw.get("model_type") or "")
    tied = config.get("tie_word_embeddings", raw.get("tie_word_embeddings"))
    return Architecture(
        hidden=hidden,
        layers=_size(config, "num_hidden_layers", "n_layer", "n_layers"),
        heads=heads,
        kv_heads=_first(config, ("num_key_value_heads",)) or heads,
        head_dim=_first(config, ("head_dim",)) or hidden // heads,
        intermediate=_first(config, ("intermediate_size", "n_inner", "ffn_dim")) or 4 * hidden,
        vocabulary=_size(config, "vocab_size"),
        tied=kind.startswith(_TIED_UNLESS_TOLD) if tied is None else bool(tied),
        gated=kind not in _UNGATED,
        name=kind,
        sees_images="vision_config" in raw,
        tower_params=_tower_params(
            raw.get("vision_config") or {}, str(raw.get("model_type") or "")
        ),
    )


def _tower_params(config: Mapping[str, Any], kind: str) -> int:
    """Return the weights of the layers of a vision tower; 0 if its sizes are not known."""
    hidden = _first(config, ("embed_dim", "hidden_size")) or 0
    layers = _first(config, ("num_hidden_layers", "depth")) or 0
    wide = _first(config, ("intermediate_size",)) or int(hidden * (config.get("mlp_ratio") or 4))
    gated = (config.get("model_type") or kind).startswith(_GATED_TOWERS)
    return int(_TOWER_REST * layers * (4 * hidden**2 + (3 if gated else 2) * hidden * wide))


def read_settings(path: Path) -> Mapping[str, Any]:
    """Return the parsed config.json of a model folder, or of the file itself.

    Raises:
        ModelError: It cannot be read.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        parsed = parsed_settings(file)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"The model's sizes cannot be read from {file}: {error}. "
            f"Set model.id to a folder that `save_pretrained` wrote."
        ) from None
    if not isinstance(parsed, dict):
        raise ModelError(
            f"{file} is no model configuration: got {type(parsed).__name__}, expected a JSON "
            f"object. Set model.id to a folder that `save_pretrained` wrote."
        )
    return parsed


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """Return the value of the first of these names that has a number, or None."""
    values = (config.get(name) for name in names)
    return next((int(value) for value in values if isinstance(value, int | float)), None)


def _size(config: Mapping[str, Any], *names: str) -> int:
    value = _first(config, names)
    if value is None or value <= 0:
        raise ModelError(
            f"The model's config.json has no {' or '.join(names)}, so its memory cannot be "
            f"predicted. Watch the memory plot during the first steps instead."
        )
    return value
