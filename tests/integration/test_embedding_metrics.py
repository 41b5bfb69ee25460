"""Evaluators of sentence-transformers on the model of a contrastive run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from fttui.engine.data.batches.collate import collate_pairs
from fttui.engine.data.findings import Findings
from fttui.engine.data.records.formats import PairRecord
from fttui.engine.data.tokens.tokenize import TokenizeOptions, tokenize_records
from fttui.engine.protocol.events import EvalFinished, LogEmitted
from fttui.engine.run.checkpoint_store import CheckpointStore
from fttui.engine.train.objectives.embedding.embedder import Embedder
from fttui.engine.train.objectives.evaluator import Evaluator
from tests.support.training import WORDS, new_run, play

SOURCE = """
from sentence_transformers.sentence_transformer.evaluation import (
    EmbeddingSimilarityEvaluator, InformationRetrievalEvaluator, TripletEvaluator,
)

WORDS = {words!r}
CORPUS = {{str(n): word * 2 for n, word in enumerate(WORDS)}}
QUERIES = {{str(n): word for n, word in enumerate(WORDS)}}

def faq_ndcg(model):
    relevant = {{n: {{n}} for n in QUERIES}}
    found = InformationRetrievalEvaluator(QUERIES, CORPUS, relevant, name="faq")
    return found(model)[found.primary_metric]

def sts(model):
    scores = [n / len(WORDS) for n in range(len(WORDS))]
    found = EmbeddingSimilarityEvaluator(WORDS, WORDS[::-1], scores)
    return found(model)[found.primary_metric]

def triplets(model):
    found = TripletEvaluator(WORDS, [2 * word for word in WORDS], WORDS[::-1])
    return found(model)[found.primary_metric]

def figures(model):
    found = TripletEvaluator(WORDS, WORDS, WORDS)
    return found(model)
"""


def test_evaluators_measure_the_run_and_choose_its_best_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sentence_transformers")
    file = tmp_path / "metrics.py"
    file.write_text(SOURCE.format(words=WORDS[:8]))
    names = ("faq_ndcg", "sts", "triplets", "figures")
    compared: list[float] = []
    embedder = Evaluator._embedder

    def kept(self: Any, hidden: Any) -> Embedder:
        model = embedder(self, hidden)
        compared.append(_difference(self, model, hidden))
        return model

    monkeypatch.setattr(Evaluator, "_embedder", kept)
    sets: dict[str, Any] = {"eval__every": 4, "checkpoint__best": "faq_ndcg", "train__steps": 8}
    sets |= {"contrastive__instruction": "'find: '", "contrastive__pooling": "weighted_mean"}
    entries = ", ".join(f"{file}:{name}" for name in names)
    played = play(new_run(tmp_path, "contrastive", eval__metrics=f"[{entries}]", **sets))
    found = [one.metrics for one in played.events(EvalFinished)]
    assert len(found) == 2
    assert all({"faq_ndcg", "sts", "triplets"} <= one.keys() for one in found)
    assert all(0 <= one["faq_ndcg"] <= 1 and "figures" not in one for one in found)
    told = [one.text for one in played.events(LogEmitted)]
    hint = "choose one, as in evaluator(model)[evaluator.primary_metric]"
    assert any(hint in one for one in told)
    saved = [m.metrics for m in CheckpointStore(played.run).all()]
    known = [one["faq_ndcg"] for one in saved if "faq_ndcg" in one]
    assert max(known) == max(one["faq_ndcg"] for one in found)
    assert max(compared) < 1e-5


def _difference(evaluator: Any, model: Embedder, states: Any) -> float:
    """How far queries and documents are from the vectors that training compares."""
    config = evaluator._config
    options = TokenizeOptions(config.data.max_length, instruction=config.contrastive.instruction)
    records = [PairRecord(str(n), WORDS[n], WORDS[n] * 3) for n in range(4)]
    examples: Any = tokenize_records(
        records, evaluator._tokenizer, options, Findings(), lambda *_: None
    )
    batch = collate_pairs(examples, 0, 0)
    own = evaluator._trainer.objective.pool(states(batch), batch)
    texts = [[one.anchor for one in records], [one.positive for one in records]]
    vectors = [
        model.encode_query(texts[0], convert_to_tensor=True),
        model.encode_document(texts[1], convert_to_tensor=True),
    ]
    expected = torch.nn.functional.normalize(own.vectors, dim=-1)
    return float((torch.cat(vectors) - expected).abs().max())
