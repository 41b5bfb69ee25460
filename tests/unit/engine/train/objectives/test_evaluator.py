"""An evaluation gives means over all held-out examples, however they are split into batches."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from fttui.engine.config.schema import RunConfig
from fttui.engine.losses.masks import Texts
from fttui.engine.train.control.command_scheduler import Impossible
from fttui.engine.train.control.controlled_trainer import EvaluationInterrupted
from fttui.engine.train.distributed.agreement import SingleRank
from fttui.engine.train.objectives.contrastive import PairTexts
from fttui.engine.train.objectives.evaluation_batch import EvaluationBatch
from fttui.engine.train.objectives.evaluation_mode import states_of
from fttui.engine.train.objectives.evaluator import Evaluator
from tests.support.tokenizer import tiny_tokenizer

WIDTH = 8


class SecondRank(SingleRank):
    """One of two ranks; the other one has measured the same."""

    rank, world_size = 1, 2

    def rows(self, values: list[float]) -> list[list[float]]:
        return [values, values]


class Objective:
    """Sums over anchors that are easy to add up by hand."""

    scored = False

    def __init__(self, **held_out: float) -> None:
        self.held = held_out

    def pool(self, states: Any, batch: Any) -> PairTexts:
        rows = torch.arange(2 * batch["pair_count"])
        return PairTexts(
            states[:, -1].float(), Texts(rows, rows, rows, rows), batch["pair_count"], None
        )

    def compare(self, everyone: PairTexts, own: range) -> Any:
        return SimpleNamespace(loss_sum=torch.tensor(1.5 * len(own)))

    def held_out(self, everyone: PairTexts, own: range) -> dict[str, float]:
        return {"mrr": 0.25 * len(own), **self.held}


def collate(examples: Any) -> dict[str, Any]:
    ids = torch.tensor([[e.token, e.token, e.token + 1] for e in examples for _ in range(2)])
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "labels": ids,
        "pair_count": len(examples),
        "ids": ["never passed on"],
    }


class Bench:
    """An evaluator of a tiny model."""

    def __init__(
        self,
        task: str,
        examples: int = 5,
        agreement: Any = None,
        ce_weight: float = 0.5,
        **held_out: float,
    ) -> None:
        config = msgspec.convert(
            {
                "model": {"id": "m"},
                "task": task,
                "data": {"train": "d"},
                "contrastive": {"kind": "infonce", "ce_weight": ce_weight, "weight": 2.0},
                "train": {"batch": 4},
                "eval": {"batch": 2},
            },
            RunConfig,
        )
        torch.manual_seed(0)
        self.model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=16, hidden_size=WIDTH, intermediate_size=8, num_hidden_layers=1,
                num_attention_heads=2, num_key_value_heads=1,
            )
        )  # fmt: skip
        self.progress: list[tuple[str, float, float]] = []
        self.lengths: list[int] = []
        trainer = SimpleNamespace(
            model=self.model,
            objective=Objective(**held_out),
            forward=SimpleNamespace(
                make_room=lambda **_: None, release=lambda: None, evaluating=states_of
            ),
            args=SimpleNamespace(device=torch.device("cpu")),
            compute_loss_context_manager=nullcontext,
            head_kept=nullcontext,
            _prepare_inputs=self._prepare,
        )
        made: list[Any] = [SimpleNamespace(length=9 - n, token=n) for n in range(examples)]
        event_log: Any = SimpleNamespace(
            progress=lambda *given: self.progress.append(given), log=lambda *_: None
        )
        self.evaluator = Evaluator(
            config, trainer, None, made, collate, agreement=agreement or SingleRank(),
            event_log=event_log,
        )  # fmt: skip

    def _prepare(self, batch: dict[str, Any]) -> dict[str, Any]:
        assert "ids" not in batch
        self.lengths.append(len(batch["input_ids"]))
        return batch

    def metrics(self) -> dict[str, float]:
        self.model.train()
        found = self.evaluator.evaluate(lambda: False).metrics
        assert self.model.training, "the mode is restored"
        return found


def test_metrics_of_pairs_are_means_over_anchors() -> None:
    found = Bench("contrastive", triplets=8.0, right_triplets=6.0).metrics()
    assert found["contrastive"] == 1.5
    assert found["mrr"] == 0.25
    assert found["triplet_accuracy"] == 0.75
    assert found["loss"] == pytest.approx(0.5 * found["ce"] + 2.0 * 1.5)
    assert {"triplets", "right_triplets"}.isdisjoint(found)


def test_without_a_weight_there_is_no_cross_entropy_and_without_triplets_no_accuracy() -> None:
    found = Bench("contrastive", ce_weight=0.0, triplets=0.0, right_triplets=0.0).metrics()
    assert found == {"loss": 3.0, "contrastive": 1.5, "mrr": 0.25}


def test_the_loss_of_text_is_a_mean_over_all_tokens() -> None:
    bench = Bench("sft")
    found = bench.metrics()
    batch = collate([SimpleNamespace(token=n) for n in range(5)])
    with torch.no_grad():
        logits = bench.model(batch["input_ids"]).logits[:, :-1]
    expected = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), batch["labels"][:, 1:].flatten()
    )
    assert found["loss"] == pytest.approx(float(expected), rel=1e-4)
    assert found["perplexity"] == pytest.approx(float(expected.exp()), rel=1e-4)


def test_progress_counts_batches_until_all_are_done() -> None:
    bench = Bench("sft")
    bench.metrics()
    assert bench.progress == [("evaluating", n, 3) for n in (1, 2, 3)]
    assert bench.lengths == [4, 4, 2]


def test_a_rank_evaluates_its_share_in_as_many_rounds_as_the_first_rank() -> None:
    bench = Bench("sft", agreement=SecondRank())
    bench.metrics()
    assert bench.lengths == [4], "two of five examples, each with two rows"
    assert bench.progress == [("evaluating", n, 2) for n in (1, 2)]


def test_without_examples_on_this_rank_all_ranks_still_gather() -> None:
    found = Bench("contrastive", examples=1, agreement=SecondRank()).metrics()
    assert found["contrastive"] == 0.0
    assert found["mrr"] == 0.0


def test_an_interruption_says_after_how_many_batches() -> None:
    answers = iter([False, True])
    with pytest.raises(EvaluationInterrupted, match="after 1 of 3 batches"):
        Bench("sft").evaluator.evaluate(lambda: next(answers))


@pytest.mark.parametrize("task", ["sft", "contrastive"])
def test_an_evaluation_that_runs_out_of_memory_takes_fewer_examples_at_once(task: str) -> None:
    whole, small = Bench(task), Bench(task)
    forward = small.model.forward

    def fits_one(*args: Any, **kwargs: Any) -> Any:
        if len(kwargs["input_ids"]) > 2:  # an example has two rows
            raise torch.OutOfMemoryError
        return forward(*args, **kwargs)

    small.model.forward = fits_one
    assert small.metrics() == pytest.approx(whole.metrics(), rel=1e-6)
    assert small.lengths[-5:] == [2] * 5


def test_a_sample_that_does_not_fit_is_refused_and_tried_once_without_graphs() -> None:
    bench = Bench("sft")
    released: list[int] = []
    bench.evaluator._batch = EvaluationBatch(
        1, alone=True, free_graphs=lambda: released.append(1), log=lambda *_: None
    )
    tries = iter([torch.OutOfMemoryError, torch.OutOfMemoryError])

    def generate(**_: Any) -> Tensor:
        if (error := next(tries, None)) is not None:
            raise error
        return torch.ones(1, 600, dtype=torch.int64)

    bench.evaluator._tokenizer = tiny_tokenizer()
    bench.model.generate = generate
    with pytest.raises(Impossible, match=r"out of memory .* lower eval.sample_tokens"):
        bench.evaluator.sample("yes")
    assert released == [1]
    assert isinstance(bench.evaluator.sample("yes"), str)


def test_a_sample_beyond_fixed_positions_is_refused() -> None:
    tokenizer = tiny_tokenizer()
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=len(tokenizer), n_positions=64, n_embd=8, n_layer=1, n_head=1)
    )
    config = msgspec.convert(
        {
            "model": {"id": "m"},
            "data": {"train": "d"},
            "train": {},
            "eval": {"sample_tokens": 4},
        },
        RunConfig,
    )
    trainer = SimpleNamespace(
        model=model,
        forward=SimpleNamespace(make_room=lambda **_: None),
        args=SimpleNamespace(device=torch.device("cpu")),
        compute_loss_context_manager=nullcontext,
    )
    log: Any = SimpleNamespace(progress=lambda *_: None, log=lambda *_: None)
    evaluator = Evaluator(
        config, trainer, tokenizer, [], collate, agreement=SingleRank(), event_log=log
    )
    assert isinstance(evaluator.sample("yes"), str)
    with pytest.raises(Impossible, match="more than the 64 positions"):
        evaluator.sample("yes " * 80)
