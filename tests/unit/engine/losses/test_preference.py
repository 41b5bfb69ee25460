"""The losses against closed forms, and against TRL's own trainers on one batch of a tiny model."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fttui.engine.config.schema import AdapterConfig, PreferenceConfig
from fttui.engine.data.batches.collate import collate_preferences, collate_rated
from fttui.engine.data.tokens.examples import PreferenceExample, RatedExample, TextExample
from fttui.engine.losses.preference import means, pair_losses, rated_losses
from fttui.engine.train.objectives.preference import PreferenceObjective
from tests.support.tiny import byte_tokenizer, tiny_llama

LENGTHS = (torch.tensor([4, 2]), torch.tensor([2, 4]))
PAIRS = [
    ("sigmoid", 0.0),
    ("sigmoid_norm", 0.0),
    ("hinge", 0.0),
    ("ipo", 0.0),
    ("robust", 0.1),
]


def of(kind: Any, chosen: float, rejected: float, beta: float = 0.5, epsilon: float = 0.0) -> float:
    better, worse = torch.full((2,), chosen), torch.full((2,), rejected)
    return float(pair_losses(better, worse, LENGTHS, kind, beta, epsilon)[0])


def test_where_nothing_is_preferred_the_loss_is_chance() -> None:
    for kind in ("sigmoid", "sigmoid_norm"):
        assert of(kind, 3.0, 3.0 if kind == "sigmoid" else 1.5) == pytest.approx(math.log(2))
    assert of("sigmoid", 3.0, 3.0, epsilon=0.3) == pytest.approx(math.log(2))
    assert of("robust", 3.0, 3.0, epsilon=0.3) == pytest.approx(math.log(2))
    assert of("hinge", 3.0, 3.0) == 1.0


def test_closed_forms() -> None:
    assert of("sigmoid", 2.0, -2.0) == pytest.approx(math.log1p(math.exp(-2)))
    smoothed = 0.8 * math.log1p(math.exp(-2)) + 0.2 * math.log1p(math.exp(2))
    assert of("sigmoid", 2.0, -2.0, epsilon=0.2) == pytest.approx(smoothed)
    assert of("hinge", 1.0, 0.0) == 0.5
    assert of("hinge", 5.0, 0.0) == 0.0
    assert of("ipo", 8.0, 2.0) == pytest.approx((8 / 4 - 2 / 2 - 1) ** 2)


def test_a_rated_completion_is_pushed_to_its_side_of_the_divergence() -> None:
    ratio = torch.tensor([1.0, 1.0], requires_grad=True)
    divergence = torch.tensor(1.0, requires_grad=True)
    losses = rated_losses(ratio, torch.tensor([True, False]), divergence, 0.5, (2.0, 1.0))
    assert losses.tolist() == [1.0, 0.5]
    losses.sum().backward()
    assert ratio.grad is not None
    assert ratio.grad.tolist() == [-0.25, 0.125]
    assert divergence.grad is None


def test_means_leave_out_what_nothing_is_known_of() -> None:
    sums = {"rewards_chosen": 2.0, "rewards_rejected": 0.0, "reward_accuracy": 1.0}
    one_sided = means(sums, {"chosen": 2, "rejected": 0, "all": 2})
    assert one_sided == {"rewards_chosen": 1.0, "reward_accuracy": 0.5}
    both = means(sums | {"rewards_rejected": -4.0}, {"chosen": 2, "rejected": 2, "all": 2})
    assert both["reward_margin"] == 3.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"))


def peft_model(folder: Path) -> Any:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    lora = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules="all-linear")
    return get_peft_model(AutoModelForCausalLM.from_pretrained(folder), lora)


@torch.no_grad()
def move(model: Any) -> None:
    """Away from the reference, as training does."""
    for name, parameter in model.named_parameters():
        if "lora_B.default" in name:
            parameter.normal_(std=0.5, generator=torch.Generator().manual_seed(len(name)))


def text(name: str, prompt: int, tokens: int, seed: int) -> TextExample:
    ids = torch.randint(4, 250, (prompt + tokens,), generator=torch.Generator().manual_seed(seed))
    return TextExample(name, ids.tolist(), [-100] * prompt + ids.tolist()[prompt:])


def trl_loss(kind: str, folder: Path, out: Path, inputs: dict[str, Tensor], **options: Any) -> Any:
    """The loss of TRL's trainer for a batch, and of ours for the same weights."""
    import trl

    from fttui.engine.train.trainers.text import _placeholder

    trainer_class, args_class = getattr(trl, f"{kind}Trainer"), getattr(trl, f"{kind}Config")

    class Unprepared(trainer_class):  # type: ignore[misc, valid-type]  # trl is untyped
        def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
            return dataset

    args = args_class(
        output_dir=str(out),
        use_cpu=True,
        bf16=False,
        report_to="none",
        activation_checkpointing=False,
        per_device_train_batch_size=2,
        **options,
    )
    model = peft_model(folder)
    trainer = Unprepared(
        model=model, args=args, train_dataset=_placeholder(), processing_class=byte_tokenizer()
    )
    move(model)
    return model, float(trainer.compute_loss(model, inputs).detach())


def ours(task: str, model: Any, batch: dict[str, Any], divergence: Tensor, **options: Any) -> float:
    preference = PreferenceConfig(beta=0.3, **options)
    config = SimpleNamespace(task=task, preference=preference, adapter=AdapterConfig())
    objective = PreferenceObjective(config, model)  # type: ignore[arg-type]  # what it reads of it
    if task == "kto":
        divergence = (objective.divergence_sum(batch) / len(batch["input_ids"])).clamp_min(0)
    policy, reference = objective.log_probs(model, batch), objective.reference(batch)
    compared = objective.compare(policy, reference, objective.desirable(batch), divergence)
    return float(compared.loss_sum.detach() / 2)


@pytest.mark.parametrize(("kind", "epsilon"), PAIRS)
def test_pairs_cost_what_they_cost_in_trl(
    folder: Path, tmp_path: Path, kind: Any, epsilon: float
) -> None:
    examples = [
        PreferenceExample("a", text("a", 3, 5, 1), text("a", 3, 7, 2)),
        PreferenceExample("b", text("b", 2, 9, 3), text("b", 2, 4, 4)),
    ]
    batch = collate_preferences(examples, 0)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    inputs["completion_mask"] = (batch["labels"] >= 0).long()
    model, expected = trl_loss(
        "DPO", folder, tmp_path, inputs, beta=0.3, loss_type=[kind], label_smoothing=epsilon
    )
    found = ours("dpo", model, batch, torch.zeros(()), loss=kind, label_smoothing=epsilon)
    assert found == pytest.approx(expected, rel=1e-5)
    assert abs(found - of(kind, 0, 0, 0.3, epsilon)) > 1e-3


def test_ratings_cost_what_they_cost_in_trl(folder: Path, tmp_path: Path) -> None:
    examples = [
        RatedExample("a", text("a", 3, 5, 1), True, text("a", 3, 8, 2)),
        RatedExample("b", text("b", 2, 9, 3), False, text("b", 2, 4, 4)),
    ]
    batch = collate_rated(examples, 0)
    inputs = {"label": batch["desirable"]}
    for prefix, part in (("", batch), ("KL_", batch["mismatched"])):
        inputs |= {f"{prefix}{name}": part[name] for name in ("input_ids", "attention_mask")}
        inputs[f"{prefix}completion_mask"] = (part["labels"] >= 0).long()
    weights = {"desirable_weight": 1.5, "undesirable_weight": 0.5}
    model, expected = trl_loss("KTO", folder, tmp_path, inputs, beta=0.3, **weights)
    assert ours("kto", model, batch, torch.zeros(()), **weights) == pytest.approx(
        expected, rel=1e-5
    )
