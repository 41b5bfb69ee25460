"""What `fttui doctor` says about classes of trainers."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import Trainer, __version__

from fttui.engine.watch.trainer_list import _TESTED, trainer_lines, what_works


class OwnLoopTrainer(Trainer):  # type: ignore[misc]  # transformers is untyped
    def _inner_training_loop(self, *_: Any, **__: Any) -> None:
        """Train in another way."""


class GRPOTrainer(Trainer):  # type: ignore[misc]  # transformers is untyped
    """Stands for the trainer of TRL, by its name."""


class Mine(GRPOTrainer):
    """A trainer derived from one that generates its data."""


class UnslothRLOOTrainer(Trainer):  # type: ignore[misc]  # transformers is untyped
    """Stands for the one that Unsloth writes anew, by its name."""


class GoldTrainer(Trainer):  # type: ignore[misc]  # transformers is untyped
    """A trainer of a name that says nothing."""

    def _generate_and_score_completions(self) -> None:
        """Generate what is trained."""


class OwnTrainTrainer(Trainer):  # type: ignore[misc]  # transformers is untyped
    def train(self) -> None:
        """Train without the loop of `Trainer`."""


class CallingTrainer(Trainer):  # type: ignore[misc]  # transformers is untyped
    def train(self, *arguments: Any, **named: Any) -> Any:
        """Train as `Trainer` does."""
        return super().train(*arguments, **named)


class OtherTrainer(Trainer):  # type: ignore[misc]  # transformers is untyped
    """A trainer that somebody has derived."""


def of_transformers(kind: type[Any], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(kind, "__module__", "transformers.theirs")
    named, _, said = what_works(kind).partition(": ")
    assert named == f"transformers {__version__}"
    return said


def test_each_class_is_described_by_what_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert what_works(Trainer).endswith(": every command but profiles, with exact rollback")
    own = of_transformers(OwnLoopTrainer, monkeypatch)
    assert own == "not watched: OwnLoopTrainer has a training loop of its own"
    assert "has a training loop of its own" in of_transformers(OwnTrainTrainer, monkeypatch)
    for kind in (GRPOTrainer, Mine, UnslothRLOOTrainer, GoldTrainer):
        said = of_transformers(kind, monkeypatch)
        assert said.startswith(
            f"no rollback, recover or skip: {kind.__name__} generates its data while it trains"
        )
    for kind in (OtherTrainer, CallingTrainer):
        assert of_transformers(kind, monkeypatch).endswith("no test of fttui trains it")


def test_an_earlier_transformers_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Trainer, "_run_epoch")
    assert "no rollback, recover or skip: the training loop of transformers" in what_works(Trainer)
    monkeypatch.delattr(Trainer, "get_batch_samples")
    assert "is not known; expected 4.46 or newer" in what_works(Trainer)


@pytest.mark.slow
def test_the_trainers_of_the_installed_libraries_are_listed() -> None:
    lines = dict(trainer_lines())
    assert {"plain loop", "Trainer", "SFTTrainer", "DPOTrainer", "GRPOTrainer"} <= set(lines)
    assert (
        "every command but culprit, profile, eval, soup, sample, chat, keep, quarantine"
        in lines["plain loop"]
    )
    assert lines["SFTTrainer"].endswith(": every command but profiles, with exact rollback")
    assert lines["SentenceTransformerTrainer"].startswith("sentence-transformers ")
    assert lines["GRPOTrainer"].endswith(": every command but profiles, with exact rollback")
    assert lines["auto_find_batch_size"].startswith("not watched: auto_find_batch_size starts")
    for name in ("deepspeed", "fsdp"):
        assert lines[name].startswith("no lr scale, ")
        assert ", clip, checkpoint, rollback, recover, " in lines[name]
    assert lines["use_vllm"].startswith("no rollback, recover, skip: vLLM generates")


@pytest.mark.slow
def test_every_trainer_that_is_called_tested_is_in_the_matrix_of_rollbacks() -> None:
    from tests.support.foreign import BUILDERS

    within_a_generation = {"GRPO", "RLOO"}  # those have a test of their own
    aliases = {"SentenceTransformer": "MNRL", "Reward": "reward"}
    matrix = {name.partition(" ")[0] for name in BUILDERS} | within_a_generation
    assert {aliases.get(name, name) for name in _TESTED} <= matrix


@pytest.mark.slow
def test_all_trainers_of_sentence_transformers_are_tested() -> None:
    lines = dict(trainer_lines())
    theirs = {name: said for name, said in lines.items() if said.startswith("sentence-transf")}
    assert {"SparseEncoderTrainer", "MultiVectorEncoderTrainer"} <= set(theirs)
    assert [name for name, said in theirs.items() if "no test of fttui" in said] == []
