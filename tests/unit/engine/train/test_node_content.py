"""Weights and data that nodes read by themselves have to be the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fttui.engine.data.dataset import ExampleSets
from fttui.engine.data.findings import Findings
from fttui.engine.data.tokens.examples import TextExample
from fttui.engine.errors import DataError
from fttui.engine.train.distributed.agreement import Agreement
from fttui.engine.train.node_content import data_digest, require_same_on_nodes, weights_digest
from tests.support.rank_threads import in_threads


def _sets(count: int, first: int = 1, place: str = "a.jsonl") -> ExampleSets:
    examples = [
        TextExample(f"{n}", [first if n == 0 else 7, 2, 3], [1, 2, 3], place=f"{place}:{n}")
        for n in range(count)
    ]
    return ExampleSets(list(examples), [], {}, Findings(), [], [])


def test_data_are_the_same_if_their_records_are_wherever_their_files_lie() -> None:
    assert data_digest(_sets(70)) == data_digest(_sets(70, place="b.jsonl"))
    assert data_digest(_sets(70)) != data_digest(_sets(71))
    assert data_digest(_sets(70)) != data_digest(_sets(70, first=9))
    reversed_order = replace(_sets(70), train=list(reversed(_sets(70).train)))
    assert data_digest(_sets(70)) != data_digest(reversed_order)


def test_one_bit_of_a_weight_changes_its_digest() -> None:
    model = torch.nn.Linear(3, 3)
    before = weights_digest(model)
    with torch.no_grad():
        model.weight.view(torch.int32)[0, 0] ^= 1
    assert weights_digest(model) != before


def test_a_weight_without_content_counts_by_its_shape() -> None:
    digests = {weights_digest(torch.nn.Linear(3, n, device="meta")) for n in (3, 3, 4)}
    assert len(digests) == 2


def test_ranks_with_other_content_are_named_on_all_ranks() -> None:
    def compare(agreement: Agreement) -> str:
        with pytest.raises(DataError) as caught:
            require_same_on_nodes(
                agreement, "training data", b"x" if agreement.rank in (1, 2) else b"y", DataError
            )
        return str(caught.value)

    (text,) = set(in_threads(4, compare))
    assert text.startswith("the training data of rank 1, 2 differ from those of rank 0; copy")
    in_threads(2, lambda one: require_same_on_nodes(one, "data", b"same", DataError))
