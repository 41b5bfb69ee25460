"""The section of the contrastive loss."""

from __future__ import annotations

from typing import Literal

from .base import Count, CountOrZero, NonNegative, Section, Temperature


class ContrastiveConfig(Section, frozen=True, kw_only=True):
    """The contrastive part of the joint loss `ce_weight × CE + weight × contrastive`."""

    kind: Literal["off", "infonce", "pairwise", "triplet", "cosent", "cosine", "simctg"] = "off"
    """infonce: softmax of the positive over all candidates, on pooled pairs; pairwise: logistic
    loss of the positive against each candidate; triplet: the cosine of the positive is to exceed
    that of each candidate by `margin`; cosent: pairs with scores, whose cosines are to
    have the order of the scores; cosine: pairs with scores, squared difference of cosine and score;
    simctg: token-level loss on any text."""
    weight: NonNegative = 0.5
    """Weight of the contrastive loss."""
    ce_weight: NonNegative = 1.0
    """Weight of the next-token loss."""
    pooling: Literal["mean", "last", "weighted_mean"] = "mean"
    """How the hidden states of a text become one vector; weighted_mean: weights grow linearly with
    the position."""
    exclude_prompt: bool = True
    """Leave the tokens of `instruction` and `passage_instruction` out of the pooling."""
    temperature: Temperature = 0.05
    """Divisor of the cosine similarities in the loss."""
    learn_temperature: bool = False
    """Train the temperature as well, starting from `temperature`, without weight decay."""
    temperature_bounds: tuple[Temperature, Temperature] = (0.01, 1.0)
    """Lower and upper bound of a learned temperature."""
    symmetric: bool = False
    """Also take the loss of positives against all anchors."""
    hard_negatives: CountOrZero = 1
    """Hard negatives used per record, at most."""
    own_hard_only: bool = False
    """Compare an anchor only with its own hard negatives, for data whose negatives are the other
    classes; false: also with those of other pairs."""
    in_batch: bool = True
    """Use the texts of other pairs as negatives; false: each pair has only its own hard
    negatives."""
    cross_accumulation: Literal["auto", "on", "off"] = "auto"
    """Take candidates from all micro-batches of the step (GradCache), at the cost of a second
    forward pass; auto: on if one micro-batch has fewer than 64 candidates per anchor."""
    cross_device: bool = True
    """Take candidates from all devices."""
    mask_duplicates: bool = True
    """Exclude texts equal to the positive or to the anchor from the negatives."""
    mask_labels: bool = True
    """Exclude texts with the anchor's label from the negatives, if the data have labels."""
    mask_margin: NonNegative | None = None
    """Exclude texts from the negatives whose cosine with the anchor exceeds the positive's by more
    than this; null excludes none."""
    margin: NonNegative = 0.5
    """triplet: by how much the cosine of the positive is to exceed that of a negative; simctg: rho,
    the margin between the similarities of a token with itself and with others."""
    dimensions: list[Count] = []
    """Also compare the first so many numbers of each vector, such as `[256, 64]`, so that vectors
    cut to these lengths can be used too (Matryoshka); the losses are added."""
    instruction: str = ""
    """Text put before every anchor."""
    passage_instruction: str = ""
    """Text put before every positive and every hard negative."""
    score_range: tuple[float, float] | None = None
    """cosine: lowest and highest possible score of the data, such as `[0, 5]`, which are mapped to
    0 and 1; null uses the scores as they are, which must be between -1 and 1."""
