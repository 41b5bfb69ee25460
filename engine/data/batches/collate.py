"""Collate the examples of each task into one right-padded batch."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..tokens.examples import (
    IGNORED,
    PackedExample,
    PairExample,
    PreferenceExample,
    RatedExample,
    TextExample,
)

_Weighted = PairExample | PreferenceExample | RatedExample
NO_LABEL = -1
"""Value of `label` for a pair without a label."""


def collate_text(examples: Sequence[TextExample], pad_id: int) -> dict[str, Any]:
    """Batch sequences: `input_ids`, `attention_mask`, `labels` [B, T] and the list `ids`.

    Labels are not shifted, as in transformers. If a token has another weight than 1, there is also
    `weights` [B, T] fp32, 0 in the padding.
    """
    batch = _padded([example.input_ids for example in examples], pad_id)
    labels = _padded([example.labels for example in examples], IGNORED)["input_ids"]
    ids = [example.id for example in examples]
    return {**batch, "labels": labels, "ids": ids, **_token_weights([[e] for e in examples])}


def collate_packed(rows: Sequence[PackedExample], pad_id: int) -> dict[str, Any]:
    """Batch packed rows: `input_ids`, `labels`, `position_ids` [B, T], counts, `ids`.

    The counts are `token_count`, without padding, and `document_count`.

    There is no attention mask: positions begin at 0 in every document, by which transformers
    separates documents. The first token of a document has no label, because the token before it
    belongs to another document. Padding forms a document of its own without labels.
    """
    batch = _padded([row.input_ids for row in rows], pad_id)
    labels = [
        [label for one in row.documents for label in (IGNORED, *one.labels[1:])] for row in rows
    ]
    positions = [[n for one in row.documents for n in range(one.length)] for row in rows]
    width = batch["input_ids"].shape[1]
    filled = [[*row, *range(width - len(row))] for row in positions]
    return {
        "input_ids": batch["input_ids"],
        "labels": _padded(labels, IGNORED)["input_ids"],
        "position_ids": torch.tensor(filled, dtype=torch.long),
        "token_count": sum(row.length for row in rows),
        "document_count": sum(len(row.documents) for row in rows),
        "ids": [row.id for row in rows],
        **_token_weights([row.documents for row in rows]),
    }


def collate_preferences(examples: Sequence[PreferenceExample], pad_id: int) -> dict[str, Any]:
    """Batch preferences: `input_ids`, `attention_mask`, `labels` [2B, T], `pair_count` B, `ids`.

    The chosen completions come first, then the rejected ones in the same order. If pairs have a
    margin, there is also `margin` [B] fp32, 0 for pairs without one.
    """
    sides = [one.chosen for one in examples] + [one.rejected for one in examples]
    ids = [example.id for example in examples]
    margins = [example.margin or 0.0 for example in examples]
    given = any(example.margin is not None for example in examples)
    return {
        **collate_text(sides, pad_id),
        "pair_count": len(examples),
        "ids": ids,
        **({"margin": torch.tensor(margins, dtype=torch.float32)} if given else {}),
        **_record_weights(examples),
    }


def collate_rated(examples: Sequence[RatedExample], pad_id: int) -> dict[str, Any]:
    """Batch rated completions.

    Returns:
        `input_ids`, `attention_mask`, `labels` [B, T]; `desirable` [B] bool; `mismatched`, the same
        three tensors of the prompts before other records' completions; `ids`.
    """
    mismatched = collate_text([one.mismatched for one in examples], pad_id)
    del mismatched["ids"]
    desirable = torch.tensor([one.desirable for one in examples])
    batch = collate_text([one.text for one in examples], pad_id)
    weights = _record_weights(examples)
    return {**batch, "desirable": desirable, "mismatched": mismatched, **weights}


def collate_pairs(
    examples: Sequence[PairExample], pad_id: int, hard_negatives: int
) -> dict[str, Any]:
    """Batch pairs as one tensor of sequences: anchors [B], positives [B], hard negatives [N].

    Args:
        examples: B pairs, each with any number of negatives.
        pad_id: Token id of the padding.
        hard_negatives: Largest number of negatives used per pair.

    Returns:
        `input_ids`, `attention_mask`, `labels` [2B + N, T]: labels are not shifted and are
        `IGNORED` in hard negatives and padding; `pool_mask` [2B + N, T], the attention mask
        without the instructions; `pair_count` B; `negative_owner` [N], the anchor of
        each negative; `text_hash` [2B + N] int64, equal for equal token ids; `label` [B]
        int64, `NO_LABEL` if it has none; `ids`, B strings; `score` [B] fp32, if they have scores.
    """
    used = [example.negatives[:hard_negatives] for example in examples]
    owners = [index for index, negatives in enumerate(used) for _ in negatives]
    texts = [example.anchor for example in examples]
    texts += [example.positive for example in examples]
    texts += [ids for negatives in used for ids in negatives]
    batch = _padded(texts, pad_id)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, IGNORED)
    labels[2 * len(examples) :] = IGNORED
    pool_mask = batch["attention_mask"].clone()
    for row, prompt in enumerate(_instruction_tokens(examples, hard_negatives)):
        pool_mask[row, :prompt] = 0
    label = [NO_LABEL if example.label is None else example.label for example in examples]
    scores = [example.score for example in examples if example.score is not None]
    return {
        **batch,
        "labels": labels,
        "pool_mask": pool_mask,
        "pair_count": len(examples),
        "negative_owner": torch.tensor(owners, dtype=torch.long),
        "text_hash": torch.tensor([text_hash(ids) for ids in texts], dtype=torch.long),
        "label": torch.tensor(label, dtype=torch.long),
        "ids": [example.id for example in examples],
        **({"score": torch.tensor(scores, dtype=torch.float32)} if scores else {}),
        **_record_weights(examples),
    }


def _token_weights(rows: Sequence[Sequence[TextExample]]) -> dict[str, Tensor]:
    """Return `weights` [B, T] of rows of texts; nothing if all weights are 1."""
    if all(one.weights is None for row in rows for one in row):
        return {}
    found = torch.zeros(len(rows), max(sum(one.length for one in row) for row in rows))
    for number, row in enumerate(rows):
        values = [w for one in row for w in one.weights or (1.0,) * one.length]
        found[number, : len(values)] = torch.tensor(values)
    return {"weights": found}


def _record_weights(examples: Sequence[_Weighted]) -> dict[str, Tensor]:
    """Return `record_weights` [B] fp32; nothing if all weights are 1."""
    if all(one.weight == 1 for one in examples):
        return {}
    return {"record_weights": torch.tensor([one.weight for one in examples], dtype=torch.float32)}


def _instruction_tokens(examples: Sequence[PairExample], hard_negatives: int) -> list[int]:
    """Return the tokens of the instruction before each text, in the order of `collate_pairs`."""
    passages = [one.passage_prompts or (0,) * (1 + len(one.negatives)) for one in examples]
    found = [one.prompt for one in examples] + [prompts[0] for prompts in passages]
    return found + [n for prompts in passages for n in prompts[1 : 1 + hard_negatives]]


def text_hash(ids: Sequence[int]) -> int:
    """Return a signed 64-bit hash of token ids that is the same on every machine."""
    data = np.asarray(ids, dtype="<i8").tobytes()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True)


def _padded(rows: Sequence[Sequence[int]], fill: int) -> dict[str, Tensor]:
    """Return one or more rows as `input_ids` and `attention_mask` [B, T], padded on the right."""
    width = max(len(row) for row in rows)
    ids = torch.full((len(rows), width), fill, dtype=torch.long)
    mask = torch.zeros((len(rows), width), dtype=torch.long)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row, dtype=torch.long)
        mask[index, : len(row)] = 1
    return {"input_ids": ids, "attention_mask": mask}
