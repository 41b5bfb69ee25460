"""Two ranks that each hold a part of the model train as two ranks that each hold all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from fttui.engine.export.__main__ import main as export_main
from fttui.engine.protocol.chat.events import ChatAnswered
from fttui.engine.protocol.events import (
    CommandApplied,
    CommandFailed,
    CulpritsFound,
    EvalFinished,
    RunStarted,
    SampleGenerated,
    StepFinished,
)
from fttui.engine.protocol.states import RunState
from fttui.engine.run.checkpoint_store import CheckpointStore
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train import session
from fttui.engine.train.distributed.place import RankPlace
from fttui.engine.train.trainers import build as trainers_module
from tests.support.ranks import in_ranks
from tests.support.training import Played, Script, new_run, play, read_records

pytestmark = pytest.mark.timeout(300)
FORMS: dict[str, dict[str, Any]] = {
    "an adapter": {},
    "all weights": {"adapter": "none", "train__lr": 0.001},
    "the weights of one layer": {"adapter": "none", "train__lr": 0.001, "train__layers": 1},
    "recomputed layers": {"train__activation_checkpointing": "true", "adapter__rslora": "true"},
    "inputs of layers in host memory": {
        "train__activation_checkpointing": "true",
        "train__activations": "host",
    },
    "an adapter on NF4": {"model__quantize": "nf4"},
    "an adapter on FP4": {
        "model__quantize": "fp4",
        "model__double_quant": "false",
        "train__activation_checkpointing": "true",
    },
    "weights of layers in host memory": {
        "model__quantize": "nf4",
        "train__memory": "streamed",
        "train__activation_checkpointing": "true",
    },
    "smoothed targets": {"train__label_smoothing": 0.1},
    "packed rows": {"data__packing": "true", "data__max_length": 96},
    "hidden states in the loss": {"contrastive__kind": "simctg", "contrastive__weight": 0.1},
    "an average and momentum": {
        "train__ema": 0.9,
        "train__optimizer": "sgd",
        "train__momentum": 0.9,
    },
    "noise and other rates": {"train__neftune": 5, "train__lr_ratios": "{lora_b: 4}"},
}


def both(folder: Path, split: str = "fsdp", **sets: Any) -> dict[str, RunDirectory]:
    """Runs by their strategy that are otherwise the same; `split` is what is meant by fsdp."""
    runs = {}
    for strategy in ("ddp", "fsdp"):
        (folder / strategy).mkdir()
        same = {"train__batch": 2, "train__devices": 2, "adapter__dropout": 0.0, **sets}
        if sets.get("adapter") == "none":
            del same["adapter__dropout"]
        name = split if strategy == "fsdp" else strategy
        runs[strategy] = new_run(folder / strategy, "sft", train__strategy=name, **same)
    return runs


def play_all(
    place: RankPlace, runs: dict[str, RunDirectory], commands: dict[int, list[str]]
) -> None:
    for run in runs.values():
        script = Script({step: list(texts) for step, texts in commands.items()})
        script.states[RunState.PAUSED] = ["resume"]
        play(run, script, place=place)


def played(run: RunDirectory) -> Played:
    return Played(run, None, read_records(run))  # type: ignore[arg-type]  # it ended long ago


def weights(run: RunDirectory) -> dict[str, torch.Tensor]:
    """The trained weights of the last checkpoint."""
    folder = CheckpointStore(run).path(CheckpointStore(run).all()[-1].name)
    (file,) = [one for one in folder.glob("*.safetensors") if "ema" not in one.name]
    return safetensors.torch.load_file(file)


def require_alike(runs: dict[str, RunDirectory]) -> None:
    """Losses and norms of all steps, evaluations and the trained weights are the same to 1e-5."""
    whole, parts = (played(runs[strategy]) for strategy in ("ddp", "fsdp"))
    steps, ours = whole.events(StepFinished), parts.events(StepFinished)
    assert len(ours) == len(steps) > 0
    assert [step.loss for step in ours] == pytest.approx(
        [step.loss for step in steps], rel=0.0, abs=1e-5
    )
    norms = [step.grad_norm for step in steps]
    assert [step.grad_norm for step in ours] == pytest.approx(norms, rel=0.0, abs=1e-5)
    evaluated, own = whole.events(EvalFinished), parts.events(EvalFinished)
    assert [one.metrics["loss"] for one in own] == pytest.approx(
        [one.metrics["loss"] for one in evaluated], rel=0.0, abs=1e-5
    )
    expected, found = weights(runs["ddp"]), weights(runs["fsdp"])
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.allclose(found[name], tensor, rtol=0, atol=1e-4), name


def held(place: RankPlace, runs: dict[str, RunDirectory], out: Path) -> None:
    """Train both runs and write how many bytes of all weights this rank holds in each."""
    built = trainers_module.build_trainer
    trainers: list[Any] = []

    def build(*args: Any, **named: Any) -> Any:
        trainers.append(built(*args, **named))
        return trainers[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "build_trainer", build)
        play_all(place, runs, {1: ["eval"], 3: ["rollback 2"]})
    counts = []
    for trainer in trainers:
        held = [getattr(p, "to_local", lambda p=p: p)() for p in trainer.model.parameters()]
        if trainer.sharded is not None:
            trainer.sharded.reshard()
            held = [getattr(p, "to_local", lambda p=p: p)() for p in trainer.model.parameters()]
            held += trainer.sharded.ends.parts
        storages = {tensor.untyped_storage() for tensor in held}
        counts.append(sum(storage.nbytes() for storage in storages))
    out.with_suffix(f".{place.rank}").write_text(" ".join(map(str, counts)))


def test_two_ranks_with_parts_train_and_return_as_two_with_whole_models(tmp_path: Path) -> None:
    runs, out = both(tmp_path, train__steps=4, checkpoint__every=2), tmp_path / "held"
    assert in_ranks(2, held, runs, out) == [0, 0]
    require_alike(runs)
    counts = [[int(n) for n in out.with_suffix(f".{r}").read_text().split()] for r in range(2)]
    assert sum(parts for _, parts in counts) == counts[0][0]
    assert all(parts < 0.6 * whole for whole, parts in counts)
    (started,) = played(runs["fsdp"]).events(RunStarted)[-1:]
    assert started.facts["strategy"] == "FSDP: each rank has 1/2 of every weight"


@pytest.mark.long
def test_a_rank_without_examples_in_the_last_batch_ends_the_evaluation_too(tmp_path: Path) -> None:
    """It has no target, so that it calls the split output head less often than the other rank."""
    runs = both(tmp_path, train__steps=2, eval__every=2, eval__batch=1, data__eval_fraction=0.15)
    assert in_ranks(2, play_all, runs, {}) == [0, 0]
    require_alike(runs)


@pytest.mark.long
@pytest.mark.parametrize("form", FORMS)
def test_what_is_trained_makes_no_difference(tmp_path: Path, form: str) -> None:
    runs = both(tmp_path, train__steps=5, eval__every=2, **FORMS[form])
    assert in_ranks(2, play_all, runs, {}) == [0, 0]
    require_alike(runs)


@pytest.mark.long
@pytest.mark.parametrize("form", ["an adapter", "all weights"])
def test_two_nodes_that_each_split_a_copy_train_as_four_ranks_with_whole_models(
    tmp_path: Path, form: str
) -> None:
    nodes = {"train__nodes": 2, "train__batch": 1, "train__ema": 0.9}
    sets = {**nodes, "train__steps": 4, "checkpoint__every": 2, **FORMS[form]}
    runs, out = both(tmp_path, split="hybrid", **sets), tmp_path / "held"
    assert in_ranks(4, held, runs, out) == [0] * 4
    require_alike(runs)
    counts = [[int(n) for n in out.with_suffix(f".{r}").read_text().split()] for r in range(4)]
    assert sum(parts for _, parts in counts) == 2 * counts[0][0]
    (started,) = played(runs["fsdp"]).events(RunStarted)[-1:]
    between = "FSDP within a node, DDP between nodes: each rank has 1/2 of every weight"
    assert started.facts["strategy"] == between


@pytest.mark.long
def test_a_sharded_run_does_what_it_is_asked_to(tmp_path: Path) -> None:
    runs = both(tmp_path, train__steps=8, eval__samples="[say 7]", eval__sample_tokens=8)
    commands = {
        2: ["sample say 7", "gradients"],
        3: ["eval", "profile 1"],
        5: ["pause"],
        6: ["checkpoint"],
    }
    assert in_ranks(2, play_all, runs, commands) == [0, 0]
    require_alike(runs)
    whole, parts = (played(runs[strategy]) for strategy in ("ddp", "fsdp"))
    said = [one.text for one in parts.events(SampleGenerated)]
    assert said == [one.text for one in whole.events(SampleGenerated)]
    assert len(said) == 3
    failed = [event.command for event in parts.events(CommandFailed)]
    assert failed == ["gradients"]
    applied = [event.command.split()[0] for event in parts.events(CommandApplied)]
    assert applied == ["sample", "eval", "profile", "pause", "resume", "checkpoint"]


def search(place: RankPlace, runs: dict[str, RunDirectory]) -> None:
    from tests.integration.test_culprits import alarm

    for run in runs.values():
        play(run, alarm(Script(commands={15: ["culprit"]}), 14), place=place)


@pytest.mark.long
def test_ranks_with_parts_search_culprits_together(tmp_path: Path) -> None:
    from tests.integration.test_culprits import poisoned

    two = {"train__devices": 2, "train__batch": 2}
    runs = {
        strategy: poisoned(tmp_path / strategy, train__strategy=strategy, **two)
        for strategy in ("ddp", "fsdp")
    }
    assert in_ranks(2, search, runs) == [0, 0]
    (one,), (other,) = (played(runs[s]).events(CulpritsFound) for s in ("fsdp", "ddp"))
    found, expected = one.search, other.search
    assert found.difference == 0
    assert found.verdict == expected.verdict
    assert [one.id for one in found.culprits] == [one.id for one in expected.culprits]


def stop_and_go_on(place: RankPlace, runs: dict[str, RunDirectory]) -> None:
    """Train one run whole; stop the other, exchange the strategies, and go on."""
    play(runs["ddp"], place=place)
    for strategy in ("ddp", "fsdp"):
        if place.rank == 0:
            text = runs["fsdp"].config.read_text()
            other = "fsdp" if strategy == "ddp" else "ddp"
            runs["fsdp"].config.write_text(
                text.replace(f"strategy: {other}", f"strategy: {strategy}")
            )
        torch.distributed.barrier()
        resume = "last" if strategy == "fsdp" else None
        commands = {3: ["stop"]} if strategy == "ddp" else {}
        play(runs["fsdp"], Script(commands), resume, place=place)


@pytest.mark.long
def test_a_stop_ends_a_chat_of_ranks_that_generate_together(tmp_path: Path) -> None:
    runs = {"fsdp": both(tmp_path, train__steps=4)["fsdp"]}
    commands = {1: ["chat tokens=200 hello", "chat at=1 hello", "stop"]}
    assert in_ranks(2, play_all, runs, commands) == [0, 0]
    stopped = played(runs["fsdp"])
    (answer,) = stopped.events(ChatAnswered)
    assert answer.ending == "stopped"
    assert 0 < answer.tokens < 20
    (failed,) = stopped.events(CommandFailed)
    assert "a rank has a part of each weight" in failed.reason


@pytest.mark.long
def test_a_run_goes_on_under_the_other_strategy_and_is_exported(tmp_path: Path) -> None:
    runs = both(tmp_path, train__steps=6, train__ema=0.9)
    assert in_ranks(2, stop_and_go_on, runs) == [0, 0]
    run = runs["fsdp"]
    require_alike(runs)
    out, kind = tmp_path / "exported", ("--kind", "adapter", "--ema")
    assert export_main([str(run.path), "last", *kind, "--out", str(out)]) == 0
    store = CheckpointStore(run)
    average = store.path(store.all()[-1].name) / "ema_model.safetensors"
    exported = safetensors.torch.load_file(out / "adapter_model.safetensors")
    kept = safetensors.torch.load_file(average)
    assert exported.keys() == kept.keys()
    assert all(torch.equal(exported[name], kept[name].to(exported[name].dtype)) for name in kept)
