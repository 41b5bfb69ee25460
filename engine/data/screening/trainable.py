"""Checks that something can be learned from data that are tokenized at once, or streamed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ...config.data_reasons import (
    MASKED_TURNS,
    MIXED_MARGINS,
    NO_CANDIDATE,
    NO_TARGET,
    ROLE_NOT_FOUND,
    SAME_TARGETS,
)
from ...config.memory.contrastive_candidates import hard_negatives_used, pairs_compared
from ...config.model_limits import ModelLimits
from ...config.schema import RunConfig
from ...config.tasks import SCORED_KINDS
from ...errors import DataError
from ..findings import Findings
from ..tokens.examples import (
    IGNORED,
    Example,
    PairExample,
    PreferenceExample,
    RatedExample,
    TextExample,
    example_place,
    has_effect,
    has_weight,
)
from ..tokens.scores import require_different_scores, require_scores
from .candidates import anchors_without_negatives
from .input_limits import note_positions, require_rows

FEWEST_TARGETS = 4
"""Fewest different records of which equal targets are reported; fewer may be equal by chance."""


def require_trainable(
    config: RunConfig,
    train: Sequence[Example],
    evaluation: Sequence[Example],
    limits: ModelLimits,
    findings: Findings,
) -> None:
    """Raise if the examples do not fit the model, or the task cannot be learned from them.

    Args:
        config: The run.
        train: All training examples, or the first ones of streamed data.
        evaluation: The evaluation examples.
        limits: Limits of the model.
        findings: Receives what needs consent.

    Raises:
        DataError: The cause with its figures, and the step that helps.
    """
    require_usable(config, train, limits)
    require_rows(evaluation, limits)
    note_positions([*train, *evaluation], limits, findings)
    if config.task == "contrastive":
        require_scores(config.contrastive, evaluation)
    if config.task == "reward" and (graded := have_margin(train)) is not None:
        note_margins([*train, *evaluation], findings, graded=graded)
    if not config.data.streaming:
        _require_effect(train)
        _require_variety(config, train, findings)


def require_usable(config: RunConfig, examples: Sequence[Example], limits: ModelLimits) -> None:
    """Raise if an example cannot be used, by the checks that look at single examples.

    Raises:
        DataError: The cause with its figures, and the step that helps.
    """
    require_rows(examples, limits)
    _require_weights(config, examples)
    if config.task == "contrastive":
        _require_own_candidates(config, examples)
        require_scores(config.contrastive, examples)


def _require_weights(config: RunConfig, examples: Sequence[Example]) -> None:
    """Raise if a record has a weight that the loss has no place for.

    Raises:
        DataError: The first such record, and why.
    """
    kind = config.contrastive.kind
    if config.task == "contrastive" and kind == "cosent":
        why = "the CoSENT loss compares all pairs with each other; set contrastive.kind: cosine"
    elif config.task == "sft" and kind == "simctg":
        why = "SimCTG compares tokens with each other; set contrastive.kind: off"
    elif config.task == "dpo" and config.preference.traits.ordered:
        why = "the losses aot and aot_unpaired sort the pairs of a step; choose another loss"
    elif config.data.streaming and config.learns_next_token:
        why = "the next-token loss of streamed records has none; set data.streaming: false"
    else:
        return
    first = next((one for one in examples if has_weight(one)), None)
    if first is not None:
        raise DataError(
            f"{example_place(first)}: the record, or one of its turns, has a weight, but {why}, or "
            "remove the weights (a column: data.columns: {weight: null})"
        )


def _require_effect(train: Sequence[Example]) -> None:
    """Raise if all weights are 0, so that no step would change the model.

    Raises:
        DataError: No training record has a weight above 0.
    """
    if train and not any(map(has_effect, train)):
        raise DataError(
            f"{example_place(train[0])}: this and all other training records ({len(train):,}) have "
            "the weight 0, so nothing can be learned; raise the weights, or set data.columns: "
            "{weight: null} if the column is not a factor on the loss"
        )


def all_dropped(source: str, findings: Findings, max_length: int) -> str:
    """Return the error text for a source of which no record is left, with the causes."""
    untaught = [found for found in findings if found.reason in (ROLE_NOT_FOUND, MASKED_TURNS)]
    causes = [*untaught, *(found for found in findings if found.reason.drops)]
    listed = [f"{one.line}; {one.reason.remedy}" for one in causes]
    if any(one.reason is NO_TARGET and not one.detail for one in causes) and not untaught:
        listed.append(
            f"a target must be among the first {max_length:,} tokens of its record; for task sft, "
            "data.completion_only: false makes all tokens targets"
        )
    return "\n  ".join([f"{source}: all records were dropped, so nothing can be learned:", *listed])


def _require_variety(config: RunConfig, train: Sequence[Example], findings: Findings) -> None:
    """Raise, or note what needs consent, if the examples do not differ as the task requires.

    Raises:
        DataError: All scores or all ratings are equal, or no anchor has a negative.
    """
    if config.task == "contrastive":
        if config.contrastive.kind in SCORED_KINDS:
            require_different_scores(config.contrastive, train)
        else:
            _require_negatives(config, train, findings)
    elif config.task == "kto":
        _require_both_ratings(train)
    _note_same_targets(train, findings)


def _require_own_candidates(config: RunConfig, examples: Sequence[Example]) -> None:
    """Raise if a pair has no negative although pairs are not compared with each other.

    Raises:
        DataError: A pair has no negative of its own.
    """
    if config.contrastive.kind in SCORED_KINDS or pairs_compared(config) > 1:
        return
    bare = [
        example_place(one) for one in examples if isinstance(one, PairExample) and not one.negatives
    ]
    if bare:
        raise DataError(
            f"{len(bare)} of {len(examples)} pairs have no negative of their own (first: "
            f"{bare[0]}), and with these settings they have no other candidates, so nothing would "
            "be learned from them; set contrastive.in_batch: true and contrastive."
            "cross_accumulation: on (or train.batch to 2 or more), or add a column 'negative'"
        )


def _require_negatives(config: RunConfig, train: Sequence[Example], findings: Findings) -> None:
    """Raise if no anchor has a negative; note the anchors that have none.

    Raises:
        DataError: Labels or repeated texts exclude every candidate of every anchor.
    """
    pairs = [one for one in train if isinstance(one, PairExample)]
    hard = hard_negatives_used(config)
    alone = list(anchors_without_negatives(pairs, config.contrastive, hard))
    if alone and len(alone) == len(pairs):
        raise DataError(_no_negatives(config, pairs))
    if alone:
        findings.note(NO_CANDIDATE, example_place(alone[0]), count=len(alone))


def _no_negatives(config: RunConfig, pairs: Sequence[PairExample]) -> str:
    labels, positives = {one.label for one in pairs}, {tuple(one.positive) for one in pairs}
    if config.contrastive.mask_labels and len(labels) == 1 and None not in labels:
        cause = "all have the same label, and pairs of one label are not negatives of each other"
        step = (
            "check the column of the label (data.columns), or set contrastive.mask_labels: false "
            "if it is not a class"
        )
    elif len(pairs) == 1:
        cause, step = "it is the only pair", "add pairs"
    elif len(positives) == 1:
        cause = "all have the same positive text, and a text cannot be its own negative"
        step = "check which column holds the positive (data.columns)"
    else:
        cause = "equal texts and equal labels exclude every other text"
        step = "check the labels and the texts for repetitions"
    return (
        f"none of the {len(pairs):,} pairs has a negative (first: {example_place(pairs[0])}): "
        f"{cause}. The loss would be 0 in every step and nothing would be learned; {step}, "
        "or add a column 'negative'"
    )


def _require_both_ratings(train: Sequence[Example]) -> None:
    """Raise if all completions have the same rating.

    Raises:
        DataError: There are no desirable, or no undesirable, completions.
    """
    counts = Counter(one.desirable for one in train if isinstance(one, RatedExample))
    if len(counts) != 1:
        return
    (desirable,) = counts
    rating, other = ("desirable", "undesirable") if desirable else ("undesirable", "desirable")
    raise DataError(
        f"all {counts.total():,} completions are rated {rating} and none {other}, but task kto "
        f"learns from the difference of both; add {other} completions, check the column 'label'"
        + (", or set task: sft, which learns from good completions only" if desirable else "")
    )


def have_margin(examples: Sequence[Example]) -> bool | None:
    """Return whether the first pair has a margin; None without pairs."""
    first = next((one for one in examples if isinstance(one, PreferenceExample)), None)
    return None if first is None else first.margin is not None


def note_margins(examples: Sequence[Example], findings: Findings, *, graded: bool) -> None:
    """Count the pairs that have no margin if `graded`, and those that have one if not."""
    for one in examples:
        if isinstance(one, PreferenceExample) and (one.margin is not None) != graded:
            detail = "no margin" if graded else f"margin {one.margin:g}"
            findings.note(MIXED_MARGINS, example_place(one), detail)


def _note_same_targets(train: Sequence[Example], findings: Findings) -> None:
    """Count all records if they have the same target for `FEWEST_TARGETS` or more inputs."""
    if not train:
        return
    first = _target(train[0])
    if first is None or any(_target(one) != first for one in train):
        return
    different = {tuple(_input(one)) for one in train}
    if len(different) >= FEWEST_TARGETS:
        findings.note(SAME_TARGETS, example_place(train[0]), count=len(train))


def _target(example: Example) -> tuple[int, ...] | None:
    """Return the tokens to learn; None for pairs and packed rows, which are not compared."""
    match example:
        case TextExample(labels=labels):
            return tuple(label for label in labels if label != IGNORED)
        case PreferenceExample(chosen=chosen, rejected=rejected):
            return (*(_target(chosen) or ()), IGNORED, *(_target(rejected) or ()))
        case RatedExample(text=text):
            return _target(text)
    return None


def _input(example: Example) -> Sequence[int]:
    return [] if isinstance(example, PairExample) else example.input_ids
