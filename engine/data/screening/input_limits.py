"""Compare token ids and lengths of examples with the limits of the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...config.data_reasons import BEYOND_POSITIONS
from ...config.model_limits import ModelLimits
from ...errors import DataError
from ..findings import Findings
from ..tokens.examples import (
    Example,
    PackedExample,
    PairExample,
    PreferenceExample,
    RatedExample,
    example_place,
)


def require_rows(examples: Sequence[Example], limits: ModelLimits) -> None:
    """Raise if a token id has no row in the embedding; nothing is checked if its size is unknown.

    Raises:
        DataError: The tokenizer has more tokens than the model.
    """
    rows = limits.vocab_rows
    if rows is None:
        return
    beyond = [(one, highest) for one in examples if (highest := _highest(one)) >= rows]
    if beyond:
        highest = max(found for _, found in beyond)
        raise DataError(
            f"{len(beyond):,} of {len(examples):,} records have token ids up to {highest} (first: "
            f"{example_place(beyond[0][0])}), but the embedding of the model has {rows:,} rows, "
            f"for ids up to {rows - 1}. Tokens were added to the tokenizer without the model; use "
            "the tokenizer that belongs to the model, or name the added tokens in "
            "data.special_tokens, which trains new rows for them, or enlarge the model with "
            "model.resize_token_embeddings(len(tokenizer)) and save it with save_pretrained"
        )


def require_pad_row(pad_id: int | None, limits: ModelLimits) -> None:
    """Raise if the pad token has no row in the embedding.

    None as `pad_id` counts as 0. If the number of rows is unknown, nothing is checked.

    Raises:
        DataError: Every padded batch would fail.
    """
    if limits.vocab_rows is not None and (pad_id or 0) >= limits.vocab_rows:
        raise DataError(
            f"the pad token has the id {pad_id}, but the embedding of the model has "
            f"{limits.vocab_rows:,} rows, for ids up to {limits.vocab_rows - 1}; set pad_token in "
            "the tokenizer_config.json of the model to a token that the model has, such as its "
            "eos_token, or enlarge the model with model.resize_token_embeddings(len(tokenizer))"
        )


def note_positions(examples: Sequence[Example], limits: ModelLimits, findings: Findings) -> None:
    """Note the examples that are longer than the model's positions; none if that is unknown.

    Raises:
        DataError: The model cannot run on such an example.
    """
    if limits.positions is None:
        return
    longer = [(one, size) for one in examples if (size := _longest(one)) > limits.positions]
    if not longer:
        return
    first, size = longer[0]
    if limits.fixed:
        most = max(found for _, found in longer)
        raise DataError(
            f"{len(longer):,} of {len(examples):,} records have up to {most:,} tokens (first: "
            f"{example_place(first)}, {size:,}), but the model has a table of "
            f"{limits.positions:,} positions and cannot run beyond it; set data.max_length: "
            f"{limits.positions} or less, or choose a model for longer sequences"
        )
    detail = f"{size:,} tokens, and the model has {limits.positions:,} positions"
    findings.note(BEYOND_POSITIONS, example_place(first), detail, count=len(longer))


def _highest(example: Example) -> int:
    return max((max(ids, default=-1) for ids in _sequences(example)), default=-1)


def _longest(example: Example) -> int:
    return max((len(ids) for ids in _sequences(example)), default=0)


def _sequences(example: Example) -> Iterator[Sequence[int]]:
    """Yield the token ids of every sequence that the model runs on for an example."""
    match example:
        case PairExample(anchor=anchor, positive=positive, negatives=negatives):
            yield from (anchor, positive, *negatives)
        case PreferenceExample(chosen=chosen, rejected=rejected):
            yield from (chosen.input_ids, rejected.input_ids)
        case RatedExample(text=text, mismatched=mismatched):
            yield from (text.input_ids, mismatched.input_ids)
        case PackedExample(documents=documents):
            yield from (one.input_ids for one in documents)
        case _:
            yield example.input_ids
