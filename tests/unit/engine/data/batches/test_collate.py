from __future__ import annotations

import torch

from fttui.engine.data.batches.collate import NO_LABEL, collate_pairs, collate_text, text_hash
from fttui.engine.data.tokens.examples import IGNORED, PairExample, TextExample

PAD = 2


def test_text_is_padded_on_the_right():
    batch = collate_text(
        [TextExample("a", [5, 6, PAD], [IGNORED, 6, PAD]), TextExample("b", [7], [7])], PAD
    )
    assert batch["input_ids"].tolist() == [[5, 6, PAD], [7, PAD, PAD]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["labels"].tolist() == [[IGNORED, 6, PAD], [7, IGNORED, IGNORED]]
    assert batch["ids"] == ["a", "b"]


def test_pairs_are_one_batch_of_anchors_positives_and_negatives():
    pairs = [
        PairExample("a", [11, PAD], [12, 13, PAD], ([14, PAD], [15, PAD]), label=9),
        PairExample("b", [21, PAD], [22, PAD]),
        PairExample("c", [31, PAD], [12, 13, PAD], ([34, PAD],)),
    ]
    batch = collate_pairs(pairs, PAD, hard_negatives=1)
    first = [row[0] for row in batch["input_ids"].tolist()]
    assert first == [11, 21, 31, 12, 22, 12, 14, 34]
    assert batch["pair_count"] == 3
    assert batch["negative_owner"].tolist() == [0, 2]
    assert batch["label"].tolist() == [9, NO_LABEL, NO_LABEL]
    assert batch["ids"] == ["a", "b", "c"]


def test_pair_targets_include_eos_but_no_padding_and_no_negatives():
    pairs = [PairExample("a", [11, PAD], [12, 13, PAD], ([14, PAD],))]
    batch = collate_pairs(pairs, PAD, hard_negatives=1)
    assert batch["labels"].tolist() == [
        [11, PAD, IGNORED],
        [12, 13, PAD],
        [IGNORED, IGNORED, IGNORED],
    ]
    assert batch["attention_mask"].sum(dim=1).tolist() == [2, 3, 2]


def test_an_instruction_is_not_pooled_and_an_eos_that_is_the_pad_token_is():
    pairs = [
        PairExample("a", [7, 8, 11, PAD], [12, PAD], ([14, PAD],), prompt=2),
        PairExample("b", [21, PAD], [22, PAD]),
    ]
    batch = collate_pairs(pairs, PAD, hard_negatives=1)
    assert batch["pool_mask"].tolist() == [
        [0, 0, 1, 1],
        [1, 1, 0, 0],
        [1, 1, 0, 0],
        [1, 1, 0, 0],
        [1, 1, 0, 0],
    ]
    assert batch["attention_mask"][0].tolist() == [1, 1, 1, 1]


def test_no_negatives_at_all():
    batch = collate_pairs([PairExample("a", [1], [3])] * 2, PAD, hard_negatives=3)
    assert batch["input_ids"].shape == (4, 1)
    assert batch["negative_owner"].shape == (0,)
    assert batch["negative_owner"].dtype == batch["text_hash"].dtype == torch.long


def test_equal_texts_have_equal_hashes():
    pairs = [PairExample("a", [1, 2], [3, 4]), PairExample("b", [3, 4], [3, 4, 5])]
    hashes = collate_pairs(pairs, PAD, 0)["text_hash"].tolist()
    assert hashes[1] == hashes[2]
    assert len(set(hashes)) == 3


def test_hash_is_pinned_over_processes_and_machines():
    assert text_hash([1, 2, 3]) == text_hash((1, 2, 3)) == -5405627362230748553
    assert text_hash([3, 2, 1]) != text_hash([1, 2, 3])


def test_instructions_of_passages_are_not_pooled_either():
    pairs = [
        PairExample(
            "a", [7, 11, PAD], [12, PAD], ([14, PAD], [15, PAD]), passage_prompts=(1, 0, 1)
        ),
        PairExample("b", [21, PAD], [5, 22, PAD], ([24, PAD],), prompt=1, passage_prompts=(2, 1)),
    ]
    for most, hard in ((1, [[1, 1, 0], [0, 1, 0]]), (2, [[1, 1, 0], [0, 1, 0], [0, 1, 0]])):
        batch = collate_pairs(pairs, PAD, hard_negatives=most)
        passages = [[0, 1, 0], [0, 0, 1]]
        assert batch["pool_mask"].tolist() == [[1, 1, 1], [0, 1, 0], *passages, *hard]
