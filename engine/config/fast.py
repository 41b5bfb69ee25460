"""Whether a run trains in fast mode, as far as its configuration and the machine tell."""

from __future__ import annotations

from .schema import RunConfig

CHOOSES_EXPERTS = "the model chooses experts by the data"


def why_not_fast(config: RunConfig, kind: str) -> str | None:
    """What stands against static shapes, or on a CUDA device against graphs; None is nothing.

    Args:
        config: The run.
        kind: Of its devices, such as cuda or cpu.
    """
    train, attention = config.train, config.model.attention
    reasons = {
        "train.fast is off": train.fast == "off",
        f"there are CUDA graphs on CUDA devices only, and this is {kind}": (
            train.fast != "static" and kind != "cuda"
        ),
        "train.activations are on the host": train.activations == "host",
        f"model.attention {attention} depends on the data; auto does not": (
            attention not in ("auto", "sdpa")
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def refusal(reason: str) -> str:
    """What to say of `train.fast: on` where it is impossible."""
    return f"got on, but {reason}; set train.fast: auto, which trains the ordinary way here"


def fast_fact(config: RunConfig, reason: str | None) -> str:
    """How a run trains, in a few words.

    Args:
        config: The run.
        reason: What stands against fast mode.
    """
    if reason is not None:
        return f"off: {reason}"
    return "static shapes" if config.train.fast == "static" else "CUDA graphs"
