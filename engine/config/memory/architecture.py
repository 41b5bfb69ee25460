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
LOGIT_FACTORS = ("logit_scale", "output_multiplier", "lm_head_multiplier")
"""Settings that hold a factor on the logits; `logits_scaling` holds its inverse."""
LOGIT_CAPS = ("final_logit_softcapping", "logits_soft_cap")
"""Settings that hold the value at which the logits are softly capped."""
_SCALED_UNLESS_TOLD = ("cohere", "cohere2")
"""Model types whose logits are scaled unless config.json says otherwise."""
_CAPPED_UNLESS_TOLD = ("gemma2", "recurrent_gemma")
"""Model types whose logits are softly capped unless config.json says otherwise."""
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
"""Settings that hold the number of experts; above 1 the model is a mixture of experts."""

_MIXTURES = {
    "granitemoe": "intermediate_size",
    "mixtral": "intermediate_size",
    "olmoe": "intermediate_size",
    "qwen2_moe": "moe_intermediate_size",
    "qwen3_moe": "moe_intermediate_size",
}
"""The setting with the width of an expert, by the types of the mixtures whose layers were
counted."""


class MixtureOfExperts(ModelError):
    """The model is a mixture of experts whose memory is not predicted."""


@dataclass(frozen=True)
class Mixture:
    """The experts of one layer, if every layer has the same."""

    experts: int
    per_token: int
    """Experts that process a token."""
    width: int
    """Width of one expert."""
    shared: int = 0
    """Width of the experts that process every token."""
    fp32_weights: bool = False
    """Whether the outputs of experts are weighted in fp32."""

    def routed_params(self, hidden: int) -> int:
        """Return the number of weights of the routed experts of one layer."""
        return 3 * self.experts * self.width * hidden

    def shared_params(self, hidden: int) -> int:
        """Return the number of weights of the shared experts of one layer."""
        return 3 * self.shared * hidden

    def router_params(self, hidden: int) -> int:
        """Return the number of weights of the router, and of the gate of shared experts."""
        return (self.experts + (self.shared > 0)) * hidden


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
    """Whether the model also has a vision tower, which is frozen and not used with text alone."""
    tower_params: int = 0
    """Parameters of the vision tower and of what joins it to the model, within some percent."""
    scaled_logits: bool = False
    """Whether the logits are the output of the head times a factor."""
    capped_logits: bool = False
    """Whether the logits are softly capped."""
    mixture: Mixture | None = None
    """The experts in place of the MLP; None for a dense model."""

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
        """How its layers differ from those of Llama in what they keep in memory."""
        return traits_of(self.name)

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """Input and output width of each linear of one layer that gets an adapter, by its name."""
        mlp = {} if self.mixture else self._mlp_linears()
        return self._attention_linears() | mlp

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
        """Number of parameters of all linear layers, with shared experts but not routed ones."""
        shared = self.mixture.shared_params(self.hidden) if self.mixture else 0
        return self.layers * (sum(i * o for i, o in self.linears.values()) + shared)

    @property
    def expert_params(self) -> int:
        """Number of parameters of the routed experts of all layers; 0 for a dense model."""
        return self.layers * self.mixture.routed_params(self.hidden) if self.mixture else 0

    @property
    def other_params(self) -> int:
        """Number of parameters that are never quantized: of embeddings, head, norms, routers."""
        embeddings = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return embeddings + self.norm_params + self.router_params

    @property
    def router_params(self) -> int:
        """Number of weights of all routers; 0 for a dense model."""
        return self.layers * self.mixture.router_params(self.hidden) if self.mixture else 0

    @property
    def norm_params(self) -> int:
        """Number of weights of all norms, the final one included."""
        return (self.traits.norms * self.layers + 1) * self.hidden


def read_architecture(source: Path | Mapping[str, Any]) -> Architecture:
    """Read the sizes from a model folder, a config.json file or its parsed content.

    Raises:
        MixtureOfExperts: The model is a mixture of experts whose memory is not predicted.
        ModelError: There is no config.json that can be read, or a size is missing in it.
    """
    raw = source if isinstance(source, Mapping) else read_settings(source)
    config = raw.get("text_config") or raw
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
        scaled_logits=_is_set(
            config, (*LOGIT_FACTORS, "logits_scaling"), kind in _SCALED_UNLESS_TOLD
        ),
        capped_logits=_is_set(config, LOGIT_CAPS, kind in _CAPPED_UNLESS_TOLD),
        mixture=_mixture_of(config, kind),
    )


def _is_set(config: Mapping[str, Any], names: tuple[str, ...], default: bool) -> bool:
    """Whether one of these settings is neither null nor 1; `default` if none of them is given."""
    found = [config[name] for name in names if name in config]
    return any(value not in (None, 1) for value in found) if found else default


def _mixture_of(config: Mapping[str, Any], kind: str) -> Mixture | None:
    """Return the experts of a model; None for a dense one, which has fewer than two per layer.

    Raises:
        MixtureOfExperts: The memory of its experts is not predicted.
    """
    experts = _first(config, EXPERTS)
    if experts is None or experts < 2:
        return None
    # Some layers of these models may be dense.
    alike = config.get("decoder_sparse_step", 1) == 1 and not config.get("mlp_only_layers")
    per_token = _first(config, ("num_experts_per_tok",))
    width = _first(config, (_MIXTURES.get(kind, ""),))
    if not alike or per_token is None or width is None:
        raise MixtureOfExperts(
            f"The model has {experts} experts per layer, but memory is predicted only for dense "
            f"models and for mixtures of the types {', '.join(_MIXTURES)} with experts in every "
            f"layer. Watch the memory plot during the first steps instead."
        )
    shared = _first(config, ("shared_expert_intermediate_size",)) or 0
    return Mixture(experts, per_token, width, shared, fp32_weights=kind == "mixtral")


def _tower_params(config: Mapping[str, Any], kind: str) -> int:
    """Return roughly how many weights a vision tower has, with its projector; 0 if not known."""
    hidden = _first(config, ("embed_dim", "hidden_size")) or 0
    layers = _first(config, ("num_hidden_layers", "depth")) or 0
    wide = _first(config, ("intermediate_size",)) or int(hidden * (config.get("mlp_ratio") or 4))
    gated = (config.get("model_type") or kind).startswith(_GATED_TOWERS)
    return int(_TOWER_REST * layers * (4 * hidden**2 + (3 if gated else 2) * hidden * wide))


def read_settings(path: Path) -> Mapping[str, Any]:
    """Return the parsed config.json in a model folder, or at the path of the file itself.

    Raises:
        ModelError: It cannot be read, or is not a JSON object.
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
            f"{file} is not a model configuration: got {type(parsed).__name__}, expected a JSON "
            f"object. Set model.id to a folder that `save_pretrained` wrote."
        )
    return parsed


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """Return the first number under these names, cut to a whole one; None if none has a number."""
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
