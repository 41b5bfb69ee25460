"""Streamed mode, in which layers pass through slots on the device: where, and what it takes."""

from __future__ import annotations

from dataclasses import dataclass

from ..schema import RunConfig
from .architecture import Architecture
from .limits import SLICE_ELEMENTS, SLOTS

LANE_BYTES_PER_S = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}
"""Bytes per second of one lane of PCI Express in one direction, by generation."""
USUAL_LINK = (4, 16)
"""Generation and lanes of a link that is not known."""
HOST_SHARE = 0.9
"""Share of the free host memory that streamed weights may take; locked pages cannot be swapped."""


@dataclass(frozen=True)
class Streamed:
    """What streamed mode takes beside lean mode, and what it saves; all 0 in other modes."""

    slots: int = 0
    """Device bytes of the slots of layers and of slices of the head."""
    host: int = 0
    """Host bytes of the page-locked weights as they are loaded, of the embedding and of activation
    checkpoints there, with the output head as it is loaded."""
    copied: int = 0
    """Bytes of weights that a micro-batch copies to the device, at least."""


def streamed_bytes(
    arch: Architecture, layer: float, head_share: float, number: int, ranks: int
) -> Streamed:
    """Return the memory and traffic of a run in streamed mode.

    Args:
        arch: Sizes of the model.
        layer: Bytes of the quantized weights of a layer.
        head_share: Bytes per parameter of the quantized head.
        number: Bytes per number in compute precision.
        ranks: Ranks that share the layers; the head is whole on each.
    """
    head = arch.vocabulary * arch.hidden
    part = min(SLICE_ELEMENTS, head)
    slices = -(-head // part)
    slots = min(SLOTS, arch.layers)
    # At both turns of a pass the last layers are still in their slots.
    copies = 2 * (arch.layers - slots)
    ends = head * number * (1 if arch.tied else 2)
    return Streamed(
        slots=int(slots * layer + min(SLOTS, slices) * part * head_share),
        # Every rank loads all layers before it keeps its share.
        host=int(arch.layers * layer + head * head_share + ends),
        copied=int(copies * layer / ranks + 2 * head * head_share),
    )


def link_text(link: tuple[int, int] | None) -> str:
    """Return a link in words, such as `PCIe 4.0 × 16`; None stands for one that is not known."""
    generation, lanes = link or USUAL_LINK
    text = f"PCIe {generation}.0 × {lanes}"
    return text if link else f"{text} (the link is not known)"


def link_bytes_per_s(link: tuple[int, int] | None) -> float:
    """Return the most bytes per second that a link of (generation, lanes) carries one way."""
    generation, lanes = link or USUAL_LINK
    fastest = max(LANE_BYTES_PER_S)
    return LANE_BYTES_PER_S[min(max(generation, 1), fastest)] * lanes


def why_not_streamed(config: RunConfig) -> str | None:
    """Return the first setting with which weights cannot stream; None if there is none."""
    adapter = config.adapter
    reasons = {
        "adapter.dora reads the weights outside of their layers": adapter.dora,
        "adapter.init: loftq reads the weights outside of their layers": adapter.init == "loftq",
        "adapter.merge_first changes the weights": adapter.merge_first,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def may_stream(config: RunConfig, arch: Architecture) -> bool:
    """Whether streamed mode supports the run, as lean mode does, without experts."""
    possible = why_not_streamed(config) is None and config.train.fast != "on"
    return possible and _may_have_lean_ends(config, arch) and not arch.mixture


def may_be_lean(config: RunConfig, arch: Architecture) -> bool:
    """Whether lean mode supports the run: lean forms of the ends, and no split model."""
    return _may_have_lean_ends(config, arch) and not config.train.shards


def _may_have_lean_ends(config: RunConfig, arch: Architecture) -> bool:
    """Whether embedding and head may have lean forms: NF4, text only, both not trained."""
    adapter = config.adapter
    targets = adapter.targets if isinstance(adapter.targets, list) else []
    at_ends = {"lm_head", "embed_tokens"} & {name.rpartition(".")[2] for name in targets}
    trains_ends = adapter.modules_to_save or config.added_tokens or at_ends
    return config.model.quantize == "nf4" and not trains_ends and not arch.sees_images
