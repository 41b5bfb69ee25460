"""Options of training: each is really at work, and a rollback is exact under all of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fttui.engine.protocol.events import DataFindingsChanged, EvalFinished, StepFinished
from fttui.engine.run.data_sample import read_sample
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train import session
from fttui.engine.train.checkpoint.optimizer_state import bit_sums
from fttui.engine.train.distributed.place import RankPlace
from fttui.engine.train.trainers import build as trainers_module
from tests.support.matrix import in_part
from tests.support.ranks import in_ranks
from tests.support.training import Played, Script, new_run, play, write_pairs, write_texts

PLAIN: dict[str, Any] = {"adapter__dropout": 0, "train__schedule": "constant", "train__warmup": 0}
RECIPES: dict[str, tuple[str, dict[str, Any]]] = {
    "sft": ("sft", {"adapter__modules_to_save": "[embed_tokens]",
                    "train__lr_ratios__embeddings": 0.1,
                    "adapter__dora": True, "adapter__rslora": True, "train__neftune": 5,
                    "train__label_smoothing": 0.1, "train__optimizer": "lamb",
                    "train__schedule": "one_cycle", "train__warmup": 0.3,
                    "train__lr_ratios__lora_b": 4}),
    "contrastive": ("contrastive", {"train__neftune": 5, "train__optimizer": "lion_8bit",
                                    "contrastive__learn_temperature": True,
                                    "train__lr_ratios__temperature": 0.1, "train__lr": 1e-3,
                                    "train__label_smoothing": 0.1,
                                    "train__schedule": "cosine_restarts"}),
    "scored": ("contrastive", {"contrastive__kind": "cosent",
                               "contrastive__learn_temperature": True}),
}  # fmt: skip


@pytest.mark.parametrize("name", in_part(RECIPES, ["contrastive"]))
def test_a_rollback_repeats_every_loss(tmp_path: Path, name: str) -> None:
    task, more = RECIPES[name]
    script = Script(commands={6: ["rollback 4"]})
    played = play(new_run(tmp_path, task, train__steps=8, **more), script)
    first, second = played.losses(1), played.losses(2)
    assert {step: second[step] for step in (5, 6)} == {step: first[step] for step in (5, 6)}
    assert len(set(first.values()) | set(second.values())) == 8


WHOLE = {"adapter__kind": "none", "adapter__dropout": 0, "train__layers": 1,
         "train__projection__rank": 4, "train__projection__every": 3}  # fmt: skip
OPTIMIZED: dict[str, tuple[str, dict[str, Any]]] = {
    "muon": ("contrastive", {"contrastive__learn_temperature": True, "train__schedule": "step",
                             "train__lr_ratios__layer_decay": 0.5, "train__clip_value": 0.01,
                             "train__clip_adaptive": 0.05, "train__momentum": 0.8}),
    "lookahead": ("sft", {"train__schedule": "exponential", "train__lr_floor": 0.1}),
    "ranger": ("sft", {"train__schedule": "cosine_restarts", "train__lr_floor": 0.1}),
    "lars": ("sft", {"train__lr": 1.0, "train__lr_ratios__patterns": '{".*lora_A.*": 0.5}'}),
    "adan": ("sft", {}),
    "ademamix": ("sft", {}),
    "adopt": ("sft", {}),
    "stable_adamw": ("sft", {}),
    "sam": ("contrastive", {"contrastive__learn_temperature": True, "train__neftune": 5,
                            "train__sam__base": "lookahead"}),
    "sophia": ("sft", {"train__sophia__every": 3, "train__lr": 1e-3}),
    "galore": ("sft", WHOLE),
    "apollo": ("sft", WHOLE),
}  # fmt: skip


OF_ONE_RANK = ("galore", "apollo")


@pytest.mark.parametrize("optimizer", in_part(OPTIMIZED, ["muon"]))
def test_an_optimizer_goes_back_and_on_exactly(tmp_path: Path, optimizer: str) -> None:
    """A run that goes back, and one that is resumed, have the losses of one another."""
    task, more = OPTIMIZED[optimizer]
    runs = {}
    for name in ("back", "stopped"):
        (tmp_path / name).mkdir()
        options = {"train__steps": 8, "train__optimizer": optimizer, **more}
        runs[name] = new_run(tmp_path / name, task, **options)
    back = play(runs["back"], Script(commands={6: ["rollback 4"]}))
    first, second = back.losses(1), back.losses(2)
    assert {step: second[step] for step in (5, 6)} == {step: first[step] for step in (5, 6)}
    assert len(set(first.values()) | set(second.values())) == 8
    play(runs["stopped"], Script(commands={5: ["stop"]}))
    resumed = play(runs["stopped"], resume="last").losses()
    assert resumed == {**first, **second}


def play_as_rank(place: RankPlace, run: RunDirectory, out: Path) -> None:
    """Train as one rank, and leave a hash of its trained weights."""
    built = trainers_module.build_trainer
    trainers: list[Any] = []

    def build(*args: Any, **named: Any) -> Any:
        trainers.append(built(*args, **named))
        return trainers[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "build_trainer", build)
        play(run, place=place)
    weights = [p.detach() for p in trainers[0].model.parameters() if p.requires_grad]
    out.with_suffix(f".{place.rank}").write_text(str(bit_sums(weights)))


@pytest.mark.long
@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZED if name not in OF_ONE_RANK])
def test_two_ranks_keep_the_same_weights(tmp_path: Path, optimizer: str) -> None:
    task, more = OPTIMIZED[optimizer]
    options = {"train__steps": 4, "train__devices": 2, "train__optimizer": optimizer, **more}
    run = new_run(tmp_path, task, **options)
    out = tmp_path / "weights"
    assert in_ranks(2, play_as_rank, run, out) == [0, 0]
    first, second = (out.with_suffix(f".{rank}").read_text() for rank in (0, 1))
    assert first == second


def streamed(folder: Path, task: str) -> dict[str, Any]:
    """Two sources read while training, one with rows that give nothing to learn."""
    first, second = folder / "first.jsonl", folder / "second.jsonl"
    write = write_pairs if task == "contrastive" else write_texts
    write(first, 30)
    write(second, 11, seed=1)
    empty = (
        {"anchor": "", "positive": ""}
        if task == "contrastive"
        else {"prompt": "x", "completion": ""}
    )
    second.write_text(second.read_text() + 3 * (json.dumps(empty) + "\n"))
    sources = [{"path": str(first), "weight": 2}, {"path": str(second), "weight": 1}]
    return {"data__train": json.dumps(sources), "data__streaming": True, "data__eval_fraction": 0,
            "data__shuffle_buffer": 8, "eval__at_start": False}  # fmt: skip


@pytest.mark.parametrize("task", in_part(["sft", "contrastive"], ["contrastive"]))
def test_streamed_data_go_on_mid_stream(tmp_path: Path, task: str) -> None:
    folders = {name: tmp_path / name for name in ("straight", "back", "stopped")}
    runs = {}
    for name, folder in folders.items():
        folder.mkdir()
        runs[name] = new_run(folder, task, train__steps=8, **streamed(folder, task))
    played = play(runs["straight"])
    straight = played.losses()
    found = played.events(DataFindingsChanged)[-1].findings
    reason = "empty-pair" if task == "contrastive" else "no-target"
    assert "second.jsonl:" in {one.reason: one.place for one in found}[reason]
    assert read_sample(runs["straight"])
    back = play(runs["back"], Script(commands={7: ["rollback 4"]})).losses()
    play(runs["stopped"], Script(commands={5: ["stop"]}))
    resumed = play(runs["stopped"], resume="last").losses()
    assert len(set(straight.values())) == 8
    assert back == straight
    assert resumed == straight


def run(folder: Path, **more: Any) -> Played:
    folder.mkdir()
    return play(new_run(folder, "sft", train__steps=3, **{**PLAIN, **more}))


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    return run(tmp_path_factory.mktemp("plain") / "r").losses()


OPTIONS: list[tuple[dict[str, Any], bool]] = [
    ({"train__neftune": 5}, True),
    ({"train__label_smoothing": 0.2}, True),
    ({"adapter__dora": True}, False),
    ({"adapter__rslora": True}, False),
    ({"train__lr_ratios__lora_b": 16}, False),
    ({"train__optimizer": "lamb"}, False),
    ({"adapter__modules_to_save": "[embed_tokens]"}, False),
]


@pytest.mark.parametrize(
    ("option", "first_differs"),
    in_part(OPTIONS, [OPTIONS[0], OPTIONS[2], OPTIONS[-1]]),
    ids=str,
)
def test_an_option_is_at_work(
    tmp_path: Path, plain: dict[int, float], option: dict[str, Any], first_differs: bool
) -> None:
    """Adapters start at zero, so what is of the adapter shows from the second step on."""
    played = run(tmp_path / "r", eval__at_start=True, **option)
    losses = played.losses()
    assert (losses[1] != pytest.approx(plain[1], abs=1e-6)) == first_differs
    assert losses[3] != pytest.approx(plain[3], abs=1e-6)
    before, after = (event.metrics["loss"] for event in played.events(EvalFinished))
    assert after < before


def test_the_live_lr_scale_goes_for_every_group(tmp_path: Path) -> None:
    halved = {"train__lr_ratios__lora_b": 4, **PLAIN}
    run_ = new_run(tmp_path, "sft", train__steps=2, train__optimizer="sgd", **halved)
    played = play(run_, Script(early=["lr scale 0.5"]))
    assert [event.lr for event in played.events(StepFinished)] == [0.005, 0.005]
    other = tmp_path / "other"
    other.mkdir()
    same = play(new_run(other, "sft", train__steps=2, train__optimizer="sgd", train__lr=0.005,
                        **halved))  # fmt: skip
    assert played.losses() == same.losses()
