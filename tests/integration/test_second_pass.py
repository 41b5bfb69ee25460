"""Optimizers that pass twice over a step, against the formulas of their papers in plain PyTorch."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fttui.engine.protocol.events import StepFinished
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train import session
from fttui.engine.train.distributed.place import RankPlace
from fttui.engine.train.loop.passes.drawn_targets import sampled_labels, uniform_of_rows
from fttui.engine.train.trainers import build as trainers_module
from tests.support.ranks import in_ranks
from tests.support.training import Played, Script, new_run, play, read_records

from .test_culprits import alarm, bad_step, files, poisoned, searched

STEPS, LR, CLIP = 5, 0.01, 0.3
WHOLE: dict[str, Any] = {
    "adapter__kind": "none", "adapter__dropout": 0, "train__schedule": "constant",
    "train__warmup": 0, "train__lr": LR, "train__clip": CLIP, "train__steps": STEPS,
    "train__weight_decay": 0.1,
}  # fmt: skip


class Recorded:
    """A run whose trainer, first weights and batches a test can see."""

    def __init__(self, folder: Path, task: str, script: Script | None = None, **more: Any) -> None:
        self.batches: list[list[dict[str, Tensor]]] = []
        self.trainer: Any = None
        built = trainers_module.build_trainer

        def build(*args: Any, **named: Any) -> Any:
            self.trainer = built(*args, **named)
            self.start = {n: v.clone() for n, v in self.trainer.model.state_dict().items()}
            self.trainer.get_batch_samples = self._recording(self.trainer.get_batch_samples)
            return self.trainer

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(session, "build_trainer", build)
            self.played: Played = play(new_run(folder, task, **more), script)

    def _recording(self, fetch: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*args: Any) -> Any:
            batches, items = fetch(*args)
            self.batches.append([dict(batch) for batch in batches])
            return batches, items

        return recorded

    def first(self) -> Any:
        """The model before training, without what the engine attaches to it."""
        model = type(self.trainer.model)(self.trainer.model.config)
        model.load_state_dict(self.start)
        return model

    def weights(self) -> dict[str, Tensor]:
        named = self.trainer.model.named_parameters()
        return {name: weight.detach() for name, weight in named if weight.requires_grad}


def mean_loss(model: Any, batches: list[dict[str, Tensor]], labels: list[Tensor]) -> Tensor:
    """The mean next-token loss over the targets of all micro-batches."""
    total, count = torch.zeros(()), 0
    for batch, wanted in zip(batches, labels, strict=True):
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        targets = wanted[:, 1:].reshape(-1)
        total = total + F.cross_entropy(logits[:, :-1].flatten(0, 1), targets, reduction="sum")
        count += int((targets != -100).sum())
    return total / count


def gradients(model: Any, loss: Tensor) -> dict[str, Tensor]:
    named = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    return dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


def norm(values: Any) -> float:
    return math.sqrt(sum(float(value.double().square().sum()) for value in values))


def sam_gradient(model: Any, batches: Any, rho: float, *, adaptive: bool) -> dict[str, Tensor]:
    """The gradient at w + ρ T² g / ‖T g‖, where T is 1 or, for ASAM, |w|."""
    labels = [batch["labels"] for batch in batches]
    found = gradients(model, mean_loss(model, batches, labels))
    weights = dict(model.named_parameters())
    scale = {n: weights[n].detach().abs() if adaptive else torch.ones(()) for n in found}
    length = norm(found[n] * scale[n] for n in found)
    moved = copy.deepcopy(model)
    with torch.no_grad():
        for name, weight in moved.named_parameters():
            if name in found:
                weight.add_(rho * scale[name] ** 2 * found[name] / length)
    return gradients(moved, mean_loss(moved, batches, labels))


def clipped(found: dict[str, Tensor]) -> dict[str, Tensor]:
    factor = min(1.0, CLIP / norm(found.values()))
    return {name: value * factor for name, value in found.items()}


def decays(recorded: Recorded) -> set[str]:
    return set(recorded.trainer.get_decay_parameter_names(recorded.trainer.model))


def assert_same(recorded: Recorded, reference: Any) -> None:
    expected = dict(reference.named_parameters())
    moved = 0.0
    for name, weight in recorded.weights().items():
        torch.testing.assert_close(weight, expected[name].detach(), rtol=1e-5, atol=1e-5)
        moved = max(moved, float((weight - recorded.start[name]).abs().max()))
    assert moved > LR


@pytest.mark.parametrize(
    ("adaptive", "base"),
    [
        (False, "adamw"),
        pytest.param(True, "adamw", marks=pytest.mark.long),
        pytest.param(False, "sgd", marks=pytest.mark.long),
    ],
)
def test_sam_makes_the_updates_of_the_paper(tmp_path: Path, adaptive: bool, base: str) -> None:
    """The gradient of the moved weights is clipped and makes the update of the base optimizer."""
    lr = 0.5 if base == "sgd" else LR
    more = {**WHOLE, "train__sam__rho": 0.1, "train__sam__adaptive": adaptive, "train__lr": lr}
    recorded = Recorded(tmp_path, "sft", **more, train__optimizer="sam", train__sam__base=base)
    reference, decayed = recorded.first(), decays(recorded)
    named = [(n, w) for n, w in reference.named_parameters() if w.requires_grad]
    groups = [
        {"params": [w for n, w in named if (n in decayed) is one], "weight_decay": 0.1 * one}
        for one in (True, False)
    ]
    kinds: dict[str, Any] = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    optimizer = kinds[base](groups, lr=lr)
    for batches in recorded.batches[:STEPS]:
        found = clipped(sam_gradient(reference, batches, 0.1, adaptive=adaptive))
        for name, weight in named:
            weight.grad = found[name]
        optimizer.step()
    assert_same(recorded, reference)


class PlainSophia:
    """Algorithm 3 of the paper, with the clipping of gradients of its code."""

    def __init__(self, model: Any, decayed: set[str], rho: float) -> None:
        self.named = {n: w for n, w in model.named_parameters() if w.requires_grad}
        self.mean = {n: torch.zeros_like(w) for n, w in self.named.items()}
        self.curvature = {n: torch.zeros_like(w) for n, w in self.named.items()}
        self.decayed, self.rho = decayed, rho

    @torch.no_grad()
    def step(self, found: dict[str, Tensor], estimate: dict[str, Tensor], count: int) -> None:
        for name, weight in self.named.items():
            self.mean[name].mul_(0.965).add_(found[name], alpha=1 - 0.965)
            if estimate:
                square = count * estimate[name].square()
                self.curvature[name].mul_(0.99).add_(square, alpha=1 - 0.99)
            if name in self.decayed:
                weight.mul_(1 - LR * 0.1)
            ratio = self.mean[name] / (self.rho * self.curvature[name]).clamp(min=1e-15)
            weight.sub_(LR * ratio.clamp(-1, 1))


@pytest.mark.long
def test_sophia_makes_the_updates_of_the_paper(tmp_path: Path) -> None:
    rho = 100.0  # so that part of the elements are not at their bound
    recorded = Recorded(
        tmp_path, "sft", **WHOLE, train__optimizer="sophia", train__sophia__every=2,
        train__sophia__rho=rho,
    )  # fmt: skip
    reference = recorded.first()
    plain, bounded = PlainSophia(reference, decays(recorded), rho), []
    for number, batches in enumerate(recorded.batches[:STEPS]):
        labels = [batch["labels"] for batch in batches]
        found = clipped(gradients(reference, mean_loss(reference, batches, labels)))
        estimate: dict[str, Tensor] = {}
        if number % 2 == 0:
            drawn = list(drawn_labels(reference, batches, number))
            estimate = gradients(reference, mean_loss(reference, batches, drawn))
        plain.step(found, estimate, sum(int((one[:, 1:] != -100).sum()) for one in labels))
        ratios = [plain.mean[n] / (rho * plain.curvature[n]).clamp(min=1e-15) for n in plain.named]
        bounded.append(torch.cat([(one.abs() >= 1).flatten() for one in ratios]).float().mean())
    assert_same(recorded, reference)
    assert 0.02 < float(bounded[-1]) < 0.98


def drawn_labels(model: Any, batches: Any, step: int) -> Iterator[Tensor]:
    for batch in batches:
        uniform = uniform_of_rows(batch["input_ids"], batch["labels"], 0, step)
        inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
        hidden = model(**inputs, output_hidden_states=True).hidden_states[-1]
        yield sampled_labels(hidden, batch["labels"], model.get_output_embeddings(), uniform)


TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "packing": ("sft", {"data__packing": True}),
    "gradcache": ("contrastive", {"contrastive__cross_accumulation": "on",
                                  "contrastive__learn_temperature": True}),
    "dpo": ("dpo", {}),
    "aot": ("dpo", {"preference__loss": "aot"}),
    "kto": ("kto", {}),
    "reward": ("reward", {}),
    "graphs": ("sft", {"train__fast": "static"}),
    "graphs of pairs": ("contrastive", {"train__fast": "static"}),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("name", TASKS)
def test_the_gradient_of_every_task_is_that_at_moved_weights(tmp_path: Path, name: str) -> None:
    """With a tiny rho, SAM is its base optimizer; with a larger one, a rollback is still exact.

    The metrics of a step are those of the weights before they are moved, whatever rho is. The base
    is SGD, because AdamW makes whole steps of the tiny gradients that the tiny rho causes.
    """
    task, more = TASKS[name]
    options = {**more, "train__steps": 8, "train__schedule": "constant", "train__warmup": 0}
    runs = {}
    for rho in (None, 1e-7, 0.5):
        folder = tmp_path / str(rho)
        folder.mkdir()
        sam = {"train__optimizer": "sgd", "train__lr": 0.5}
        if rho is not None:
            sam |= {"train__optimizer": "sam", "train__sam__base": "sgd", "train__sam__rho": rho}
        script = Script(commands={6: ["rollback 4"]})
        runs[rho] = play(new_run(folder, task, **options, **sam), script)
    plain, still, moved = (runs[rho].losses(2) for rho in (None, 1e-7, 0.5))
    assert still == pytest.approx(plain, rel=1e-3)
    assert moved[6] != pytest.approx(plain[6], rel=1e-4)
    first = {rho: run.events(StepFinished)[0] for rho, run in runs.items()}
    assert first[0.5].loss == first[None].loss
    assert first[0.5].parts == first[None].parts
    assert first[0.5].tokens == first[None].tokens
    assert first[0.5].grad_norm != first[None].grad_norm
    before = runs[0.5].losses(1)
    assert {step: moved[step] for step in (5, 6)} == {step: before[step] for step in (5, 6)}


def play_as(place: RankPlace, run: RunDirectory) -> None:
    play(run, place=place)


@pytest.mark.long
@pytest.mark.parametrize("name", ["sam", "sophia"])
def test_two_ranks_equal_one_with_twice_the_batch(tmp_path: Path, name: str) -> None:
    """Also the targets that Sophia draws are those of one rank."""
    forms: dict[str, tuple[str, dict[str, Any]]] = {
        "sam": ("contrastive", {"contrastive__learn_temperature": True, "train__lr": 0.2,
                                "train__sam__base": "sgd", "train__sam__rho": 0.2}),
        "sophia": ("sft", {"train__sophia__every": 2, "train__sophia__rho": 100.0}),
    }  # fmt: skip
    task, more = forms[name]
    same = {**more, "train__optimizer": name, "train__steps": 5, "adapter__dropout": 0.0}
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one = new_run(tmp_path / "one", task, train__batch=4, **same)
    two = new_run(tmp_path / "two", task, train__batch=2, train__devices=2, **same)
    assert in_ranks(2, play_as, two) == [0, 0]
    found = [record.event for record in read_records(two)]
    wanted = [(e.loss, e.grad_norm) for e in play(one).events(StepFinished)]
    ranks = [(e.loss, e.grad_norm) for e in found if isinstance(e, StepFinished)]
    for own, both in zip(wanted, ranks, strict=True):
        assert both == pytest.approx(own, rel=1e-4)


@pytest.mark.long
def test_the_guard_refuses_a_second_gradient_that_is_not_finite(tmp_path: Path) -> None:
    """The loss of the first pass is finite, so only the second pass shows it."""
    more: dict[str, Any] = {"train__optimizer": "sam", "train__sam__rho": 1e38}
    recorded = Recorded(tmp_path, "sft", **more, train__steps=3)
    steps = recorded.played.events(StepFinished)
    assert [step.skipped for step in steps] == [True] * 3
    assert all(step.loss is not None and math.isfinite(step.loss) for step in steps)
    for name, weight in recorded.weights().items():
        assert torch.equal(weight, recorded.start[name])


@pytest.mark.long
@pytest.mark.parametrize("name", ["sam", "sophia"])
def test_a_search_for_culprits_repeats_the_steps_and_leaves_no_trace(
    tmp_path: Path, name: str
) -> None:
    more = {"sam": {}, "sophia": {"train__sophia__every": 3, "train__lr": 0.002}}[name]
    plain = poisoned(tmp_path / "plain", train__optimizer=name, **more)
    play(plain)
    step = bad_step(plain)
    run = poisoned(tmp_path / "searched", train__optimizer=name, **more)
    play(run, alarm(Script(commands={step + 2: ["culprit"]}), step))
    (found,) = searched(run)
    assert found.difference == 0
    assert found.tests > 0
    assert files(run) == files(plain)
