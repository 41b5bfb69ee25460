"""The figures of held-out pairs equal those of sentence-transformers' evaluators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fttui.engine.losses.retrieval import retrieval_sums
from fttui.engine.losses.scored import pair_cosines, spearman

evaluation: Any = pytest.importorskip("sentence_transformers.evaluation")
util: Any = pytest.importorskip("sentence_transformers.util")
QUERIES, TEXTS = 40, 60


def vectors(rows: int, seed: int) -> Tensor:
    return torch.randn(rows, 16, generator=torch.Generator().manual_seed(seed))


class _Given:
    """Answers an evaluator with vectors, by the number that is the text."""

    similarity_fn_name = "cosine"

    def __init__(self, *parts: Tensor) -> None:
        self.parts = parts

    def part(self, texts: list[str]) -> Tensor:
        kind = "qt".index(texts[0][0])
        return torch.stack([self.parts[kind][int(text[1:])] for text in texts])


def evaluated(kind: Any, model: _Given, **arguments: Any) -> dict[str, float]:
    """The metrics of an evaluator without its files, by the ends of their names."""

    class Evaluator(kind):  # type: ignore[misc]  # of an untyped library
        def embed_inputs(self, model: Any, texts: Any, **_: Any) -> Any:
            found = model.part(list(texts))
            return found if kind is evaluation.InformationRetrievalEvaluator else found.numpy()

        def store_metrics_in_model_card_data(self, *_: Any, **__: Any) -> None:
            """Keep no model card."""

    found = Evaluator(**arguments, write_csv=False)(model)
    return {name.removeprefix("cosine_"): float(value) for name, value in found.items()}


@pytest.mark.parametrize("several", [False, True])
def test_retrieval_equals_the_evaluator_of_information_retrieval(several: bool) -> None:
    anchors, corpus = vectors(QUERIES, 0), vectors(TEXTS, 1)
    corpus[:QUERIES] += 0.5 * anchors
    relevant = torch.eye(QUERIES, TEXTS, dtype=torch.bool)
    if several:
        relevant[:, QUERIES:] = torch.rand(QUERIES, TEXTS - QUERIES) < 0.1
    found = evaluated(
        evaluation.InformationRetrievalEvaluator,
        _Given(anchors, corpus),
        queries={str(n): f"q{n}" for n in range(QUERIES)},
        corpus={str(n): f"t{n}" for n in range(TEXTS)},
        relevant_docs={
            str(n): {str(m) for m in row.nonzero().flatten().tolist()}
            for n, row in enumerate(relevant)
        },
        mrr_at_k=[TEXTS],
        accuracy_at_k=[1, 5],
        precision_recall_at_k=[1, 5],
        score_functions={"cosine": util.cos_sim},
    )
    ours = {k: float(v) / QUERIES for k, v in retrieval_sums(anchors, corpus, relevant).items()}
    theirs = {
        "recall_at_1": found["accuracy@1"],
        "recall_at_5": found["accuracy@5"],
        "mrr": found[f"mrr@{TEXTS}"],
        "ndcg_at_10": found["ndcg@10"],
    }
    assert ours == pytest.approx(theirs, abs=1e-5)
    assert several or found["recall@5"] == pytest.approx(ours["recall_at_5"], abs=1e-5)
    assert 0.1 < ours["mrr"] < 0.9


def test_spearman_equals_the_evaluator_of_similarity() -> None:
    one, other = vectors(QUERIES, 2), vectors(QUERIES, 3)
    scores = np.round(np.random.default_rng(0).random(QUERIES) * 5)
    other += torch.tensor(scores, dtype=torch.float32).unsqueeze(1) * one * 0.2
    found = evaluated(
        evaluation.EmbeddingSimilarityEvaluator,
        _Given(one, other),
        sentences1=[f"q{n}" for n in range(QUERIES)],
        sentences2=[f"t{n}" for n in range(QUERIES)],
        scores=scores.tolist(),
        main_similarity="cosine",
        similarity_fn_names=["cosine"],
    )
    ours = spearman(pair_cosines(one, other), torch.tensor(scores))
    assert ours == pytest.approx(found["spearman_cosine"], abs=1e-5)
    assert 0.1 < ours < 0.99
