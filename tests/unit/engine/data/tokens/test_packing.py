from __future__ import annotations

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fttui.engine.config.checks import check_config
from fttui.engine.config.schema import RunConfig
from fttui.engine.data.batches.collate import collate_packed, collate_text
from fttui.engine.data.tokens.examples import IGNORED, PackedExample, TextExample
from fttui.engine.data.tokens.packing import best_fit, pack_examples

CAPACITY = 64


@given(st.lists(st.integers(1, CAPACITY), min_size=1, max_size=200))
def test_every_document_is_in_one_row_and_no_row_overflows(lengths):
    rows = best_fit(lengths, CAPACITY)
    assert sorted(index for row in rows for index in row) == list(range(len(lengths)))
    fills = [sum(lengths[index] for index in row) for row in rows]
    assert max(fills) <= CAPACITY
    assert sum(fill <= CAPACITY // 2 for fill in fills) <= 1, "two such rows would be one"


@given(st.lists(st.integers(1, CAPACITY), min_size=1, max_size=60))
def test_each_goes_into_the_fullest_row_with_room(lengths):
    """Against the same rule, written as a plain search."""
    rows: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        fills = [sum(lengths[i] for i in row) for row in rows]
        fitting = [n for n, fill in enumerate(fills) if fill + lengths[index] <= CAPACITY]
        if fitting:
            rows[max(fitting, key=lambda n: (fills[n], -n))].append(index)
        else:
            rows.append([index])
    assert best_fit(lengths, CAPACITY) == rows


def examples(*lengths):
    return [
        TextExample(f"r{number}", [10 * number + k for k in range(n)], list(range(n)))
        for number, n in enumerate(lengths, start=1)
    ]


def test_rows_name_their_documents():
    (row,) = pack_examples(examples(2, 5, 1), 8)
    assert (row.id, row.length) == ("r2 + r1 + r3", 8)
    assert row.input_ids == [20, 21, 22, 23, 24, 10, 11, 30]


def test_positions_restart_and_no_label_looks_across_documents():
    first, second, third = examples(3, 2, 1)
    batch = collate_packed([PackedExample((first, second)), PackedExample((third,))], pad_id=0)
    assert batch["input_ids"].tolist() == [[10, 11, 12, 20, 21], [30, 0, 0, 0, 0]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1], [0, 0, 1, 2, 3]]
    I = IGNORED  # noqa: E741 -- short, for the table
    assert batch["labels"].tolist() == [[I, 1, 2, I, 1], [I, I, I, I, I]]
    assert (batch["token_count"], batch["document_count"]) == (6, 3)
    assert "attention_mask" not in batch


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_packed_row_has_the_losses_of_its_documents_alone(attention):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2)  # fmt: skip
    config._attn_implementation = attention
    model = LlamaForCausalLM(config).eval()
    documents = [
        TextExample(str(n), ids := torch.randint(0, 64, (n,)).tolist(), list(ids))
        for n in (9, 5, 1, 7, 3)
    ]
    rows = [PackedExample(tuple(documents[:3])), PackedExample(tuple(documents[3:]))]
    batch = collate_packed(rows, pad_id=0)
    packed = losses(model, batch, position_ids=batch["position_ids"])
    alone = [losses(model, collate_text([document], 0)) for document in documents]
    torch.testing.assert_close(packed, torch.cat(alone), rtol=1e-5, atol=1e-6)
    unaware = losses(model, batch, position_ids=torch.arange(15).expand(2, -1))
    assert not torch.allclose(packed, unaware, atol=1e-3), "the documents would see each other"


def losses(model, batch, **more):
    """The loss of every token that has a label, in order."""
    with torch.no_grad():
        # As in training: with a cache transformers does not look for packed rows.
        logits = model(input_ids=batch["input_ids"], use_cache=False, **more).logits[:, :-1]
    targets = batch["labels"][:, 1:]
    found = torch.nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    return found[targets != IGNORED]


@pytest.mark.parametrize(
    ("sections", "key"),
    [
        ({"task": "contrastive", "contrastive": {"kind": "infonce"}}, "data.packing"),
        ({"contrastive": {"kind": "simctg"}}, "data.packing"),
        (
            {
                "model": {"id": "m", "attention": "flash_attention_2"},
                "train": {"steps": 1, "batch": 2},
            },
            "train.batch",
        ),
    ],
)
def test_what_packing_cannot_do_is_refused(sections, key):
    plain = {"model": {"id": "m"}, "train": {"steps": 1, "batch": 2}}
    data = {"train": "t.jsonl", "packing": True}
    config = msgspec.convert({**plain, "data": data, **sections}, RunConfig)
    assert [problem.key for problem in check_config(config)] == [key]
