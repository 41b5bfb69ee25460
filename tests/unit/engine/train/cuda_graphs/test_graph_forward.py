"""The way through a tiny model on static shapes, against the model called as usual."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fttui.engine.losses.cross_entropy import selected_cross_entropy
from fttui.engine.losses.preference import completion_log_probs
from fttui.engine.train.cuda_graphs import graph_forward as path_module
from fttui.engine.train.cuda_graphs.graph_forward import GraphForward
from fttui.engine.train.cuda_graphs.graph_pass import Direct
from fttui.engine.train.cuda_graphs.static_forward import StaticForward, padding_is_at_the_right
from fttui.engine.train.cuda_graphs.strategy import GraphStrategy

LONGEST = 96


@pytest.fixture(scope="module")
def make_model() -> Callable[..., Any]:
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    def make(*, dropout: float = 0.0, checkpointing: bool = False) -> Any:
        torch.manual_seed(0)
        base = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
                num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=128,
            )
        )  # fmt: skip
        base.requires_grad_(False)
        if checkpointing:
            base.activation_checkpointing_enable({"use_reentrant": False})
        lora = LoraConfig(r=2, target_modules="all-linear", lora_dropout=dropout)
        lora.init_lora_weights = False
        return get_peft_model(base, lora).train()

    return make


def path_of(model: Any, rows: int = 2) -> GraphForward:
    program = (
        model if isinstance(model, StaticForward) else StaticForward(model, contextlib.nullcontext)
    )
    return GraphForward(
        program, torch.device("cpu"), longest=LONGEST, rows=rows,
        pad_id=0, capture=False, log=lambda level, text: None,
    )  # fmt: skip


def batch(lengths: list[int], seed: int = 1) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (len(lengths), max(lengths))
    ids = torch.randint(1, 40, shape, generator=generator)
    mask = torch.arange(shape[1]) < torch.tensor(lengths).unsqueeze(1)
    ids = torch.where(mask, ids, 0)
    return {"input_ids": ids, "attention_mask": mask.long(), "labels": ids.masked_fill(~mask, -100)}


def gradients(model: Any) -> Tensor:
    found = torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad])
    model.zero_grad()
    return found.clone()


def distance(found: Tensor, right: Tensor) -> float:
    """Relative to what is right."""
    return float((found - right).norm() / right.norm())


def ordinary(model: Any, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    output = model(
        input_ids=inputs["input_ids"], attention_mask=inputs.get("attention_mask"),
        position_ids=inputs.get("position_ids"), use_cache=False,
        output_hidden_states=True,
    )  # fmt: skip
    hidden = output.hidden_states[-1]
    loss, _ = selected_cross_entropy(hidden, inputs["labels"], model.get_output_embeddings())
    return hidden, loss


@pytest.mark.parametrize("lengths", [[9, 5], [70, 66], [96, 3], [1, 2]])
def test_loss_and_gradients_are_those_of_the_model(make_model: Any, lengths: list[int]) -> None:
    model = make_model()
    inputs = batch(lengths)
    _, loss = ordinary(model, inputs)
    loss.backward()
    right = gradients(model)
    found = path_of(model)(inputs, "ce")["ce"]
    found.backward()
    assert found.item() == pytest.approx(loss.item(), rel=1e-6)
    assert distance(gradients(model), right) < 1e-5


def test_hidden_states_carry_gradients_and_have_the_batch_s_shape(make_model: Any) -> None:
    model = make_model()
    inputs = batch([20, 11])
    weights = torch.randn(2, 20, 16, generator=torch.Generator().manual_seed(2))
    weights = weights * inputs["attention_mask"].unsqueeze(2)
    hidden, loss = ordinary(model, inputs)
    ((hidden * weights).sum() + loss).backward()
    right = gradients(model)
    found = path_of(model, rows=5)(inputs, "hidden", "ce")
    assert found["hidden"].shape == hidden.shape
    ((found["hidden"] * weights).sum() + found["ce"]).backward()
    # These gradients are sensitive: the model's own are 5e-5 from those in fp64.
    assert distance(gradients(model), right) < 2e-4


def test_sequences_have_log_probs_with_gradients_of_their_own(make_model: Any) -> None:
    model = make_model()
    inputs, weights = batch([20, 11, 7]), torch.tensor([0.3, -2.0, 1.0])
    hidden, _ = ordinary(model, inputs)
    right = completion_log_probs(hidden, inputs["labels"], model.get_output_embeddings()).total
    (right * weights).sum().backward()
    expected = gradients(model)
    found = path_of(model, rows=4)(inputs, "log_probs")["log_probs"]
    (found * weights).sum().backward()
    torch.testing.assert_close(found, right)
    assert distance(gradients(model), expected) < 1e-5


def test_the_reference_is_the_model_without_adapter_and_dropout(make_model: Any) -> None:
    model = make_model(dropout=0.5)
    path, inputs, state = path_of(model, rows=3), batch([20, 11, 7]), torch.get_rng_state()
    reference = path(inputs, "log_probs", way="reference")["log_probs"]
    still = path(inputs, "log_probs", way="still")["log_probs"]
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    head = model.get_output_embeddings()
    model.eval()
    own = completion_log_probs(ordinary(model, inputs)[0], inputs["labels"], head).total
    with model.disable_adapter():
        bare = completion_log_probs(ordinary(model, inputs)[0], inputs["labels"], head).total
    torch.testing.assert_close(still, own)
    torch.testing.assert_close(reference, bare)
    assert not torch.allclose(still, reference)


def test_targets_are_smoothed(make_model: Any) -> None:
    model, inputs = make_model(), batch([20, 11])
    hidden, _ = ordinary(model, inputs)
    head = model.get_output_embeddings()
    right, _ = selected_cross_entropy(hidden, inputs["labels"], head, smoothing=0.2)
    found = path_of(StaticForward(model, contextlib.nullcontext, 0.2))(inputs, "ce")["ce"]
    assert found.item() == pytest.approx(right.item(), rel=1e-6)


def test_noise_on_embedded_tokens_is_that_of_the_batch_s_own_length(make_model: Any) -> None:
    model, seen = make_model(), []
    backbone = model.get_base_model().get_decoder()
    backbone.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["inputs_embeds"]), with_kwargs=True
    )
    inputs = batch([70, 66])
    program = StaticForward(model, contextlib.nullcontext, noise=5.0)
    path = path_of(program)
    path(inputs, "ce")["ce"].backward()
    path(inputs, "log_probs", way="still")
    noise = seen[0][:, :70] - model.get_input_embeddings()(inputs["input_ids"])
    most = 5.0 / (70 * 16) ** 0.5
    assert 0.95 * most < noise.abs().max() <= 1.0001 * most
    assert abs(noise.mean()) < 0.1 * most
    assert seen[1] is None


def test_packed_documents_stay_apart(make_model: Any) -> None:
    model = make_model()
    inputs = batch([12])
    del inputs["attention_mask"]
    inputs["position_ids"] = torch.tensor([[0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 3]])
    _, loss = ordinary(model, inputs)
    found = path_of(model, rows=1)(inputs, "ce")["ce"]
    assert found.item() == pytest.approx(loss.item(), rel=1e-6)


def test_a_shorter_batch_sees_nothing_of_the_one_before(make_model: Any) -> None:
    model = make_model()
    path, short = path_of(model), batch([5, 4], seed=7)
    alone = path_of(model)(short, "ce")["ce"].item()
    path(batch([60, 50]), "ce")["ce"].backward()
    assert path(short, "ce")["ce"].item() == alone


def test_micro_batches_add_up(make_model: Any) -> None:
    model = make_model()
    path, parts = path_of(model), [batch([9, 5]), batch([70, 20], seed=4), batch([8, 8], seed=5)]
    for inputs in parts:
        ordinary(model, inputs)[1].backward()
    right = gradients(model)
    for inputs in parts:
        path(inputs, "ce")["ce"].backward()
    assert distance(gradients(model), right) < 1e-5


def test_recomputed_activations_see_the_same_dropout(make_model: Any) -> None:
    kept, again = make_model(dropout=0.5), make_model(dropout=0.5, checkpointing=True)
    found = []
    for model in (kept, again):
        torch.manual_seed(3)
        path_of(model)(batch([30, 12]), "ce")["ce"].backward()
        found.append(gradients(model))
    assert distance(found[0], found[1]) < 1e-5


def test_a_loss_that_is_not_finite_marks_every_gradient(make_model: Any) -> None:
    model = make_model()
    (path_of(model)(batch([9, 5]), "ce")["ce"] * float("nan")).backward()
    assert gradients(model).isnan().all()


def test_after_its_memory_was_released_it_goes_on_as_before(make_model: Any) -> None:
    model = make_model()
    path, inputs = path_of(model), batch([9, 5])
    path(inputs, "ce")["ce"].backward()
    right = gradients(model)
    path.release()
    path(inputs, "ce")["ce"].backward()
    assert torch.equal(gradients(model), right)


@pytest.mark.parametrize("lean", [True, False])
def test_it_makes_room_where_there_is_none_beside_it(
    make_model: Any, monkeypatch: pytest.MonkeyPatch, lean: bool
) -> None:
    monkeypatch.setattr(StaticForward, "is_lean", lean)
    model = make_model()
    path, inputs = path_of(model), batch([9, 5])
    path(inputs, "ce")["ce"].backward()
    path.make_room()
    assert all((p.grad is None) == lean for p in model.parameters() if p.requires_grad)
    model.zero_grad()
    path(inputs, "ce")["ce"].backward()
    assert gradients(model).norm() > 0


def test_without_gradients_only_the_forward_pass_runs(make_model: Any) -> None:
    model = make_model()
    with torch.no_grad():
        hidden = path_of(model)(batch([9, 5]), "hidden")["hidden"]
    assert not hidden.requires_grad
    assert all(p.grad is None for p in model.parameters())


def test_the_masks_of_others_are_made_as_before() -> None:
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as FUNCTIONS

    before = FUNCTIONS["sdpa"]
    with padding_is_at_the_right():
        assert FUNCTIONS["sdpa"] is not before
        assert FUNCTIONS["sdpa"](batch_size=1, q_length=4, kv_length=4, local_size=None) is None
        window = FUNCTIONS["sdpa"](
            batch_size=1, q_length=4, kv_length=4, local_size=2, device=torch.device("cpu")
        )
        assert window.shape[-2:] == (4, 4)
    assert FUNCTIONS["sdpa"] is before


def test_without_memory_for_its_own_graph_a_batch_goes_through_a_longer_one(
    make_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Scarce(Direct):
        """Room for the longest form alone."""

        def __init__(self, program: Any, batch: Any, gradients: Any, graphs: Any) -> None:
            if batch.form.length < LONGEST:
                raise torch.OutOfMemoryError
            super().__init__(program, batch, gradients)

    monkeypatch.setattr(path_module, "Captured", Scarce)
    monkeypatch.setattr(path_module, "Graphs", lambda: None)
    said: list[str] = []
    expected, found = (make_model(), make_model())
    own = path_of(expected)
    shared = GraphForward(
        StaticForward(found, contextlib.nullcontext), torch.device("cpu"), longest=LONGEST, rows=2,
        pad_id=0, capture=True, log=lambda level, text: said.append(text),
    )  # fmt: skip
    for lengths in ([90, 80], [20, 7], [30], [20, 7]):
        losses = [way(batch(lengths), "ce")["ce"] for way in (own, shared)]
        for loss in losses:
            loss.backward()
        torch.testing.assert_close(losses[1], losses[0])
    torch.testing.assert_close(gradients(found), gradients(expected))
    assert len(said) == 1
    assert "such micro-batches are padded to the graph for 2 × 96 tokens" in said[0]


class Ahead(Direct):
    """A pass that stands for a captured one; `made` has the lengths in their order."""

    made: list[int] = []  # noqa: RUF012 -- emptied by every test

    def __init__(self, program: Any, batch: Any, gradients: Any, graphs: Any) -> None:
        self.made.append(batch.form.length)
        super().__init__(program, batch, gradients)


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    monkeypatch.setattr(path_module, "Captured", Ahead)
    monkeypatch.setattr(path_module, "Graphs", lambda: None)
    Ahead.made.clear()
    return Ahead.made


def capturing(model: Any, longest: int = 1024) -> GraphForward:
    return GraphForward(
        StaticForward(model, contextlib.nullcontext), torch.device("cpu"), longest=longest, rows=2,
        pad_id=0, capture=True, log=lambda level, text: None,
    )  # fmt: skip


def test_graphs_of_further_lengths_are_made_ahead_for_every_known_form(
    make_model: Any, ahead: list[int]
) -> None:
    model, expected = make_model(dropout=0.2), make_model(dropout=0.2)
    path, own = capturing(model), capturing(expected)
    state = torch.random.get_rng_state()
    for one in (path, own):
        torch.random.set_rng_state(state)
        one(batch([500, 3]), "ce")["ce"].backward()
        with torch.no_grad():
            one(batch([500, 3]), "log_probs", way="still")
    begun = len(ahead)
    before = gradients(model)
    assert path.make_ahead([64, 256, 70, 512], lambda: True) == (6, 0)
    assert ahead[begun:] == [256, 256, 128, 128, 64, 64], "the longest first"
    assert path.make_ahead([64, 256, 70, 512], lambda: True) == (0, 0)
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())
    torch.testing.assert_close(gradients(expected), before)
    ahead.clear()
    state = torch.random.get_rng_state()
    losses = []
    for one in (path, own):
        torch.random.set_rng_state(state)
        losses.append(one(batch([100, 7]), "ce")["ce"].item())
    assert losses[0] == losses[1], "no random number was drawn"
    assert ahead == [128], "only the other one had to make it now"


def test_making_ahead_ends_when_told_to_and_where_there_are_enough(
    make_model: Any, ahead: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = capturing(make_model())
    assert path.make_ahead([64], lambda: True) == (0, 0), "no form is known yet"
    path(batch([200, 3]), "ce")
    turns = iter([True, False])
    assert path.make_ahead([64, 128, 512], lambda: next(turns)) == (1, 2)
    monkeypatch.setattr(path_module, "MOST_GRAPHS", 3)
    assert path.make_ahead([64, 128, 1024], lambda: True) == (1, 2)
    assert ahead == [256, 512, 1024]


def evaluated(path: GraphForward, model: Any, lengths: list[list[int]]) -> list[Tensor]:
    model.eval()
    strategy = GraphStrategy(path, "")
    with torch.no_grad(), strategy.evaluating(model) as states:
        return [states(batch(one)) for one in lengths]


def test_an_evaluation_has_the_states_of_the_model_in_evaluation_mode(make_model: Any) -> None:
    model = make_model(dropout=0.5)
    given = [[20, 11, 7], [70, 66, 3], [5]]
    found = evaluated(path_of(model), model, given)
    assert not model.training
    for lengths, states in zip(given, found, strict=True):
        inputs = batch(lengths)
        with torch.no_grad():
            right, _ = ordinary(model, inputs)
        assert states.shape == right.shape
        seen = inputs["attention_mask"].bool()
        torch.testing.assert_close(states[seen], right[seen], rtol=1e-4, atol=1e-4)


def test_a_graph_of_an_evaluation_is_made_once_its_form_has_often_occurred(
    make_model: Any, ahead: list[int]
) -> None:
    model = make_model()
    path = capturing(model)
    often = [[20, 11]] * (path_module.OFTEN - 1)
    before = evaluated(path, model, [*often, [90, 7], [20]])
    assert ahead == [64], "the last batch is padded to the rows of the others"
    after = evaluated(path, model, [[20, 11], [90, 7]])
    assert ahead == [64]
    assert torch.equal(after[0], before[0])
    assert path.make_ahead([128, 256], lambda: True) == (0, 0), "no form of training is known"
    path.release()
    evaluated(path, model, [[20, 11]])
    assert ahead == [64], "it is counted anew"


def test_lean_graphs_stay_for_an_evaluation_through_them(
    make_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StaticForward, "is_lean", True)
    model = make_model()
    path = path_of(model)
    path(batch([9, 5]), "ce")["ce"].backward()
    path.make_room(outside=False)
    assert gradients(model).norm() > 0
