"""The losses against closed forms, and against TRL's own trainers on one batch of a tiny model."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fttui.engine.config.schema import (
    DataConfig,
    ModelConfig,
    PreferenceConfig,
    RunConfig,
    TrainConfig,
)
from fttui.engine.config.tasks import PAIR_LOSSES, REFERENCE_LOSSES
from fttui.engine.data.batches.collate import collate_preferences, collate_rated
from fttui.engine.data.tokens.examples import PreferenceExample, RatedExample, TextExample
from fttui.engine.losses import preference
from fttui.engine.losses.preference import (
    PairLossSettings,
    f_scores,
    means,
    pair_losses,
    rated_losses,
    shaped_rewards,
)
from fttui.engine.train.objectives.preference import PreferenceObjective
from tests.support.tiny import byte_tokenizer, tiny_llama

LENGTHS = (torch.tensor([4, 2]), torch.tensor([2, 4]))
PAIRS: list[tuple[Any, dict[str, Any]]] = [
    ("sigmoid", {}),
    ("sigmoid_norm", {}),
    ("hinge", {}),
    ("ipo", {}),
    ("robust", {"label_smoothing": 0.1}),
    ("exo_pair", {"label_smoothing": 0.01}),
    ("nca_pair", {}),
    ("bco_pair", {}),
    ("sppo_hard", {}),
    ("apo_zero", {}),
    ("apo_down", {}),
    ("discopop", {"discopop_tau": 0.3}),
    ("aot", {"label_smoothing": 0.2}),
    ("aot_unpaired", {}),
    ("sigmoid", {"f_divergence": "forward_kl"}),
    ("ipo", {"f_divergence": "js_divergence"}),
    ("robust", {"f_divergence": "alpha_divergence", "label_smoothing": 0.1}),
    ("exo_pair", {"f_divergence": "alpha_divergence", "f_alpha": 1.4, "label_smoothing": 0.1}),
    ("sigmoid_norm", {"f_divergence": "alpha_divergence", "f_alpha": 1.0}),
    ("sigmoid", {"ld_alpha": 0.4}),
    ("nca_pair", {"ld_alpha": 0.0}),
    ("ipo", {"ld_alpha": 0.7, "ce_weight": 0.5}),
    ({"sigmoid": 0.8, "bco_pair": 0.2}, {"ce_weight": 1.0}),
    ({"aot": 0.5, "discopop": 2.0, "aot_unpaired": 1.0}, {"label_smoothing": 0.0}),
]
"""Losses with a reference and the keys that go with them; `of_trl` names them as TRL does."""


def of_trl(kind: Any, options: dict[str, Any]) -> dict[str, Any]:
    names = {"f_divergence": "f_divergence_type", "f_alpha": "f_alpha_divergence_coef"}
    given = {names.get(key, key): value for key, value in options.items()}
    weights = {kind: 1.0} if isinstance(kind, str) else dict(kind)
    if ce := given.pop("ce_weight", None):
        weights["sft"] = ce
    return {**given, "loss_type": list(weights), "loss_weights": list(weights.values())}


def of(kind: Any, chosen: float, rejected: float, beta: float = 0.5, epsilon: float = 0.0) -> float:
    better, worse = torch.full((2,), chosen), torch.full((2,), rejected)
    settings = PairLossSettings(beta, epsilon)
    return float(pair_losses(better, worse, LENGTHS, kind, settings)[0])


def test_every_loss_has_a_function_and_every_function_is_a_loss() -> None:
    assert set(preference._PAIR_LOSSES) == set(PAIR_LOSSES)


@pytest.mark.parametrize(
    "scores",
    [
        lambda r: f_scores(r, PairLossSettings(0.1, f_divergence="forward_kl")),
        lambda r: f_scores(-r, PairLossSettings(0.1, f_divergence="alpha_divergence", f_alpha=2.0)),
        lambda r: shaped_rewards(r, 0.99),
    ],
)
def test_scores_that_grow_as_an_exponential_stay_finite(
    scores: Callable[[Tensor], Tensor],
) -> None:
    """Two infinite ones would make the difference of a pair NaN."""
    found = scores(torch.tensor([-500.0, -100.0, -1.0, 3.0], requires_grad=True))
    assert found.isfinite().all()
    found.sum().backward()


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
    one, other = math.exp(-4 / 4), math.exp(-8 / 2)
    odds = one / (1 - one) * (1 - other) / other
    assert of("orpo", -4.0, -8.0) == pytest.approx(0.5 * math.log(1 + 1 / odds))


@pytest.mark.parametrize("log_prob", [-1e-12, -1e-4, -0.6931, -5.0, -200.0, 0.0])
def test_the_odds_ratio_has_a_finite_loss_and_gradient_for_every_probability(
    log_prob: float,
) -> None:
    sides = [torch.tensor([log_prob], requires_grad=True) for _ in range(2)]
    count = torch.ones(1)
    loss = pair_losses(sides[0], sides[1] - 0.5, (count, count), "orpo").sum()
    loss.backward()
    assert torch.isfinite(loss)
    assert all(side.grad is not None and torch.isfinite(side.grad).all() for side in sides)


def test_the_odds_ratio_in_fp32_is_that_of_fp64() -> None:
    values = -torch.logspace(-5, 2, 40, dtype=torch.float64)
    count = torch.ones(40)
    found = [pair_losses(v, v.flip(0), (count, count), "orpo") for v in (values, values.float())]
    torch.testing.assert_close(found[1].double(), found[0], rtol=2e-3, atol=1e-6)


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


def trl_loss(
    kind: str,
    folder: Path,
    out: Path,
    inputs: dict[str, Tensor],
    place: str = "trl",
    **options: Any,
) -> Any:
    """A model, and the loss of TRL's trainer for it and a batch."""
    trainer = trl_trainer(kind, folder, out, place, **options)
    return trainer.model, float(trainer.compute_loss(trainer.model, inputs).detach())


def trl_trainer(kind: str, folder: Path, out: Path, place: str = "trl", **options: Any) -> Any:
    """TRL's trainer of a model that has moved away from the reference."""
    from fttui.engine.train.trainers.text import _placeholder

    trl = importlib.import_module(place)
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
    data: Any = _placeholder()
    if place != "trl":
        from datasets import Dataset

        data = Dataset.from_list([{"prompt": "a", "chosen": "b", "rejected": "c"}])
    trainer = Unprepared(
        model=model, args=args, train_dataset=data, processing_class=byte_tokenizer()
    )
    move(model)
    return trainer


def ours(task: str, model: Any, batch: dict[str, Any], divergence: Tensor, **options: Any) -> float:
    config = RunConfig(
        model=ModelConfig(id=""),
        data=DataConfig(train=""),
        train=TrainConfig(),
        task=task,  # type: ignore[arg-type]  # a text
        preference=PreferenceConfig(beta=0.3, **options),
    )
    objective = PreferenceObjective(config, model)
    if objective.diverges:
        divergence = (objective.divergence_sum(batch) / len(batch["input_ids"])).clamp_min(0)
    desirable, reference = objective.desirable(batch), objective.reference(batch)
    policy = objective.log_probs(model, batch, with_prompt=True)
    compared = objective.compare(policy, reference, desirable, divergence)
    said, tokens = (part[desirable].sum().detach() for part in policy.with_context())
    return objective.total(float(compared.loss_sum.detach() / 2), -float(said / tokens))


def preferences() -> dict[str, Any]:
    examples = [
        PreferenceExample("a", text("a", 3, 5, 1), text("a", 3, 7, 2)),
        PreferenceExample("b", text("b", 2, 9, 3), text("b", 2, 4, 4)),
    ]
    return collate_preferences(examples, 0)


@pytest.fixture(scope="module")
def dpo_trainer(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return trl_trainer("DPO", folder, tmp_path_factory.mktemp("dpo"), beta=0.3)


TAKEN = {
    "loss_types": ["sigmoid"],
    "loss_weights": [1.0],
    "label_smoothing": 0.0,
    "f_divergence_type": "reverse_kl",
    "f_alpha_divergence_coef": 0.5,
    "ld_alpha": None,
}
"""What the trainer takes from its arguments when it is built."""


def loss_of(trainer: Any, inputs: dict[str, Tensor], **options: Any) -> float:
    """The loss of a batch as if the trainer had been built with these arguments."""
    trainer.args.discopop_tau = options.pop("discopop_tau", 0.05)
    options["loss_types"] = options.pop("loss_type")
    assert set(options) <= set(TAKEN)
    for name, value in {**TAKEN, **options}.items():
        assert hasattr(trainer, name)
        setattr(trainer, name, value)
    return float(trainer.compute_loss(trainer.model, inputs).detach())


@pytest.mark.parametrize(
    ("kind", "options"), PAIRS, ids=[f"{kind} {options}" for kind, options in PAIRS]
)
def test_pairs_cost_what_they_cost_in_trl(
    dpo_trainer: Any, kind: Any, options: dict[str, Any]
) -> None:
    batch = preferences()
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    inputs["completion_mask"] = (batch["labels"] >= 0).long()
    model, expected = dpo_trainer.model, loss_of(dpo_trainer, inputs, **of_trl(kind, options))
    found = ours("dpo", model, batch, torch.zeros(()), loss=kind, **options)
    assert found == pytest.approx(expected, rel=1e-5)
    with model.disable_adapter():
        untrained = ours("dpo", model, batch, torch.zeros(()), loss=kind, **options)
    assert abs(found - untrained) > 1e-4


def test_every_loss_with_a_reference_is_compared_with_that_of_trl() -> None:
    compared = {name for kind, _ in PAIRS for name in ([kind] if isinstance(kind, str) else kind)}
    assert compared == set(REFERENCE_LOSSES)


def test_ordered_pairs_in_parts_have_loss_and_gradient_of_all_pairs_at_once() -> None:
    upper, lower = (torch.randn(7, requires_grad=True) for _ in range(2))
    settings = PairLossSettings(0.5, 0.1)
    whole = preference.ordered_losses(upper, lower, settings).sum()
    expected = torch.autograd.grad(whole, (upper, lower))
    partners = preference.partners_of(upper.detach(), lower.detach())
    parts = [
        preference.ordered_losses(upper[rows], lower[rows], settings, partners[:, rows]).sum()
        for rows in (slice(0, 3), slice(3, 7))
    ]
    found = torch.autograd.grad(torch.stack(parts).sum(), (upper, lower))
    torch.testing.assert_close(torch.stack(parts).sum(), whole)
    torch.testing.assert_close(found, expected)


def test_a_loss_that_orders_pairs_has_its_own_function() -> None:
    with pytest.raises(ValueError, match="use ordered_losses"):
        of("aot", 1.0, 0.0)
    with pytest.raises(ValueError, match="needs label_smoothing above 0"):
        of("exo_pair", 1.0, 0.0)


@pytest.mark.parametrize(
    ("kind", "own", "theirs"),
    [
        ("ORPO", {"loss": "orpo"}, {}),
        ("CPO", {"loss": "cpo"}, {"loss_type": "sigmoid"}),
        (
            "CPO",
            {"loss": "cpo", "label_smoothing": 0.2, "ce_weight": 0.5},
            {"loss_type": "sigmoid", "label_smoothing": 0.2, "cpo_alpha": 0.5},
        ),
        ("CPO", {"loss": "slic"}, {"loss_type": "hinge"}),
        (
            "CPO",
            {"loss": "simpo", "gamma": 0.8},
            {"loss_type": "simpo", "simpo_gamma": 0.8, "cpo_alpha": 0.0},
        ),
        (
            "CPO",
            {"loss": "simpo", "label_smoothing": 0.1, "ce_weight": 1.0},
            {"loss_type": "simpo", "label_smoothing": 0.1},
        ),
        (
            "CPO",
            {"loss": "simpo", "gamma": 0.1, "reward_alpha": 0.25},
            {"loss_type": "alphapo", "simpo_gamma": 0.1, "alpha": 0.25},
        ),
        ("CPO", {"loss": "slic", "reward_alpha": -0.1}, {"loss_type": "hinge", "alpha": -0.1}),
    ],
    ids=[
        "orpo",
        "cpo",
        "cpo smoothed",
        "slic",
        "simpo",
        "simpo with next token",
        "alphapo",
        "slic shaped",
    ],
)
def test_pairs_without_reference_cost_what_they_cost_in_trl(
    folder: Path, tmp_path: Path, kind: str, own: dict[str, Any], theirs: dict[str, Any]
) -> None:
    place = f"trl.experimental.{kind.lower()}"
    pytest.importorskip(place, reason="a part of trl that may be gone in its next release")
    batch = preferences()
    halves = zip(("chosen", "rejected"), (slice(0, 2), slice(2, 4)), strict=True)
    inputs = {
        f"{side}_{name}": batch[name][rows]
        for side, rows in halves
        for name in ("input_ids", "attention_mask", "labels")
    }
    model, expected = trl_loss(kind, folder, tmp_path, inputs, place, beta=0.3, **theirs)
    assert ours("dpo", model, batch, torch.zeros(()), **own) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", ["kto", "apo_zero_unpaired"])
def test_ratings_cost_what_they_cost_in_trl(folder: Path, tmp_path: Path, kind: str) -> None:
    examples = [
        RatedExample("a", text("a", 3, 5, 1), True, text("a", 3, 8, 2)),
        RatedExample("b", text("b", 2, 9, 3), False, text("b", 2, 4, 4)),
    ]
    batch = collate_rated(examples, 0)
    inputs = {"label": batch["desirable"]}
    for prefix, part in (("", batch), ("KL_", batch["mismatched"])):
        inputs |= {f"{prefix}{name}": part[name] for name in ("input_ids", "attention_mask")}
        inputs[f"{prefix}completion_mask"] = (part["labels"] >= 0).long()
    weights: dict[str, Any] = {"desirable_weight": 1.5, "undesirable_weight": 0.5}
    model, expected = trl_loss("KTO", folder, tmp_path, inputs, beta=0.3, loss_type=kind, **weights)
    assert ours("kto", model, batch, torch.zeros(()), rated_loss=kind, **weights) == pytest.approx(
        expected, rel=1e-5
    )
