"""Whether a run trains in fast mode (CUDA graphs), by its configuration and device kind."""

from __future__ import annotations

from .schema import RunConfig

WEIGHTED_TOKENS = "records or turns have weights, which the next-token loss of the graphs ignores"
MIXTURE_OF_EXPERTS = "the model is a mixture of experts, whose routing depends on the data"


def why_not_fast(config: RunConfig, kind: str) -> str | None:
    """Return the first reason why the run cannot use CUDA graphs or static shapes; None if it can.

    Args:
        config: The run.
        kind: The kind of its devices, such as cuda or cpu.
    """
    train, attention = config.train, config.model.attention
    reasons = {
        "train.fast is off": train.fast == "off",
        "train.optimizer: sophia samples labels between the output head and the backward pass": (
            train.optimizer == "sophia"
        ),
        "model.quantize: int8 separates outliers, whose number depends on the data": (
            config.model.quantize == "int8"
        ),
        "train.strategy: fsdp gathers and frees the weights of each layer": train.shards,
        "train.memory: streamed copies the weights of each layer to the device": train.streams,
        "adapter: none trains the weights of the model itself": config.adapter.kind == "none",
        f"CUDA graphs need a CUDA device, and this is {kind}": (
            train.fast != "static" and kind != "cuda"
        ),
        "train.activations are on the host": train.activations == "host",
        f"model.attention: {attention} cannot be captured in a graph; auto can": (
            attention not in ("auto", "sdpa")
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def refusal(reason: str) -> str:
    """Return the error text for `train.fast: on` where fast mode is impossible."""
    return f"got on, but {reason}; set train.fast: auto, which trains without CUDA graphs here"


def fast_fact(config: RunConfig, reason: str | None) -> str:
    """Return how a run trains in a few words: CUDA graphs, static shapes, or why without both.

    Args:
        config: The run.
        reason: Why fast mode is impossible; None if it is possible.
    """
    if reason is not None:
        return f"off: {reason}"
    return "static shapes" if config.train.fast == "static" else "CUDA graphs"
