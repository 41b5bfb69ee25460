"""Runs that start from an existing adapter: continued, as the reference, or merged first."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from peft import AutoPeftModelForCausalLM, LoraConfig, PeftModel, get_peft_model
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from fttui.engine.config.load import load_config, parse_resolved
from fttui.engine.errors import ConfigError, ContentChanged, FttuiError, ModelError
from fttui.engine.export.__main__ import main as export
from fttui.engine.protocol.events import RunStarted, StepFinished
from fttui.engine.run.checkpoint_store import CheckpointStore
from fttui.engine.run.journal_summary import summarize_journal
from fttui.engine.run.run_dir import RunDirectory, create_run
from fttui.engine.train.checkpoint.training_state import trained_weights
from fttui.engine.train.distributed.place import RankPlace
from fttui.engine.train.event_log import EventLog
from fttui.engine.train.run_data import build_source
from fttui.engine.train.session import load
from fttui.engine.train.session_start import SessionStart
from fttui.tui.cli.preflight.start_adapter import with_start_adapter
from tests.support.matrix import in_part
from tests.support.tiny import tiny_llama
from tests.support.training import Script, new_run, play, write_config

STILL = {
    "adapter__dropout": 0,
    "train__schedule": "constant",
    "train__warmup": 0,
    "train__lr": 1e-2,
}
"""Settings without randomness and with one learning rate, for comparison with a plain loop."""


@pytest.fixture(scope="module")
def sft(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A supervised run that has moved away from its base."""
    run = new_run(tmp_path_factory.mktemp("sft"), "sft", train__steps=4, train__lr=0.05)
    play(run)
    return run


def last_of(run: RunDirectory) -> Path:
    return run.checkpoints / CheckpointStore(run).all()[-1].name


def started(folder: Path, task: str, start: object, **sets: Any) -> RunDirectory:
    folder.mkdir(exist_ok=True)
    return new_run(folder, task, **{"adapter__start": start, **sets})


def setup_of(run: RunDirectory) -> Any:
    place = RankPlace(0, 1, torch.device("cpu"))
    return load(SessionStart(run, summarize_journal(()), None, 0), place, EventLog(None))


def plain_steps(run: RunDirectory, loss_of: Any, setup: Any | None = None) -> list[float]:
    """Losses of plain steps of AdamW over the batches of a run, in which loss_of sums a batch."""
    setup = setup or setup_of(run)
    config, model = setup.config, setup.loaded.model.train()
    source = build_source(setup)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=config.train.lr, weight_decay=0.0)
    found = []
    for _ in range(setup.plan.steps):
        total = 0.0
        for batch in source.fetch(config.train.accumulation):
            loss = loss_of(model, batch)
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        found.append(total)
    return found


def log_probs(model: Any, batch: Any) -> torch.Tensor:
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    labels = batch["labels"][:, 1:]
    each = logits[:, :-1].log_softmax(-1).gather(-1, labels.clamp_min(0)[..., None])[..., 0]
    return (each * (labels >= 0)).sum(-1)


def test_dpo_after_sft_has_the_start_as_its_reference(sft: RunDirectory, tmp_path: Path) -> None:
    run = started(tmp_path, "dpo", sft.path, train__steps=4, **STILL)
    played = play(run)
    first = played.events(StepFinished)[0]
    assert first.loss == pytest.approx(0.6931, abs=1e-4)
    config = parse_resolved(run.config.read_text())
    start = last_of(sft)
    assert config.adapter.start == str(start)
    base = AutoModelForCausalLM.from_pretrained(config.model.id)
    reference = PeftModel.from_pretrained(base, str(start)).eval()

    def dpo(model: Any, batch: Any) -> torch.Tensor:
        with torch.no_grad():
            before = log_probs(reference, batch)
        chosen, rejected = (log_probs(model, batch) - before).chunk(2)
        pairs = config.train.micro_batch_size * config.train.accumulation
        return -F.logsigmoid(config.preference.beta * (chosen - rejected)).sum() / pairs

    assert list(played.losses().values()) == pytest.approx(plain_steps(run, dpo), abs=2e-5)
    assert "continued" in played.events(RunStarted)[-1].facts["start adapter"]


def test_an_adapter_of_peft_is_trained_on(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_llama(tmp_path))
    settings = LoraConfig(r=3, lora_alpha=6, target_modules=["q_proj", "up_proj"])
    settings.rank_pattern = {"up_proj": 5}
    own = get_peft_model(model, settings)
    with torch.no_grad():
        for name, weight in own.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.2)
    own.save_pretrained(tmp_path / "theirs")
    run = without_adapter_keys(tmp_path, tmp_path / "theirs")
    config = parse_resolved(run.config.read_text())
    assert (config.adapter.r, config.adapter.alpha) == (3, 6)
    assert config.adapter.targets == ["q_proj", "up_proj"]
    assert config.adapter.rank_pattern == {"up_proj": 5}
    played = play(run)

    def ce(model: Any, batch: Any) -> torch.Tensor:
        labels = batch["labels"]
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        return F.cross_entropy(
            logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), reduction="sum"
        )

    setup = setup_of(run)
    loaded = trained_weights(setup.loaded.model)
    saved = safetensors.torch.load_file(tmp_path / "theirs" / "adapter_model.safetensors")
    assert loaded.keys() == saved.keys()
    assert all(torch.equal(loaded[name], saved[name]) for name in saved)
    (first,) = plain_steps_mean(run, ce)
    assert played.losses()[1] == pytest.approx(first, abs=2e-5)


def without_adapter_keys(folder: Path, start: Path, **sets: Any) -> RunDirectory:
    """A run whose configuration sets nothing of the adapter but where it starts."""
    path, overrides = write_config(folder, "sft", **{**STILL, "train__steps": 1, **sets})
    text = path.read_text().replace("adapter: {r: 4, alpha: 8, dropout: 0.1}", "")
    path.write_text(text)
    loaded = load_config(path, [*overrides, f"adapter.start={start}"])
    loaded = with_start_adapter(loaded, None, str(path), lambda line: None)
    return create_run(
        folder / "runs",
        name="tiny",
        config=path,
        source=loaded.source,
        resolved=loaded.resolved,
        overrides=[],
        version="0",
    )


def plain_steps_mean(run: RunDirectory, summed: Any) -> list[float]:
    """Losses of plain steps as means over the labelled tokens of each step."""
    setup = setup_of(run)
    source = build_source(setup)
    batches = source.fetch(setup.config.train.accumulation)
    tokens = sum(int((batch["labels"][:, 1:] >= 0).sum()) for batch in batches)
    return plain_steps(run, lambda model, batch: summed(model, batch) / tokens)


@pytest.mark.parametrize("task", in_part(["dpo", "kto"], ["dpo"]))
def test_resume_and_rollback_are_exact(sft: RunDirectory, tmp_path: Path, task: str) -> None:
    sets = {"train__steps": 8, "checkpoint__every": 4, "train__ema": 0.5, "eval__every": 4}
    whole = play(started(tmp_path / "whole", task, sft.path, **sets))
    back = play(started(tmp_path / "back", task, sft.path, **sets), Script({6: ["rollback 4"]}))
    stopped = started(tmp_path / "stopped", task, sft.path, **sets)
    play(stopped, Script({5: ["stop"]}))
    resumed = play(stopped, resume=CheckpointStore(stopped).all()[-1].name)
    assert back.losses() == whole.losses()
    assert resumed.losses() == whole.losses()


@pytest.mark.parametrize(
    ("task", "quantize"), in_part([("sft", "none"), ("dpo", "nf4")], [("sft", "none")])
)
def test_resume_and_rollback_after_merging_first_are_exact(
    sft: RunDirectory, tmp_path: Path, task: str, quantize: str
) -> None:
    sets = {"adapter__merge_first": "true", "model__quantize": quantize, "train__ema": 0.5}
    whole = play(started(tmp_path / "whole", task, sft.path, **sets))
    back = play(started(tmp_path / "back", task, sft.path, **sets), Script({6: ["rollback 4"]}))
    stopped = started(tmp_path / "stopped", task, sft.path, **sets)
    play(stopped, Script({5: ["stop"]}))
    resumed = play(stopped, resume=CheckpointStore(stopped).all()[-1].name)
    assert back.losses() == whole.losses()
    assert resumed.losses() == whole.losses()
    if task == "dpo":  # the reference is the merged model
        assert whole.losses()[1] == pytest.approx(0.6931, abs=1e-4)


def warnings_for(folder: Path, start: Path, **sets: Any) -> str:
    """The warnings about a start adapter when a configuration is checked."""
    folder.mkdir(exist_ok=True)
    path, overrides = write_config(folder, "sft", adapter__start=start, **sets)
    said: list[str] = []
    with_start_adapter(load_config(path, overrides), str(folder / "runs"), str(path), said.append)
    return "\n".join(line for line in said if "warning" in line)


@pytest.mark.parametrize("form", ["run", "export"])
def test_another_base_or_chat_template_than_that_of_the_adapter_is_warned_of(
    sft: RunDirectory, tmp_path: Path, form: str
) -> None:
    start = sft.path
    if form == "export":
        start = tmp_path / "alone"
        assert export([str(sft.path), "last", "--kind", "adapter", "--out", str(start)]) == 0
    assert warnings_for(tmp_path / "same", start) == ""
    other = warnings_for(tmp_path / "other", start, data__template="'{{ messages }}'")
    kept = (
        "alone/chat_template.jinja"
        if form == "export"
        else "the value that the run of the adapter had"
    )
    assert "another chat template than that of this run; to keep its template" in other
    assert kept in other
    model = tiny_llama(tmp_path / "seed", seed=0)
    weights = safetensors.torch.load_file(model / "model.safetensors")
    changed = {name: weight + 1 for name, weight in weights.items()}
    safetensors.torch.save_file(changed, model / "model.safetensors", metadata={"format": "pt"})
    base = warnings_for(tmp_path / "base", start, model__id=model)
    assert ("has other files than the base model" in base) is (form == "run")


def test_a_run_without_an_adapter_is_no_start(tmp_path: Path) -> None:
    run = new_run(tmp_path, "sft", adapter="none", train__steps=1)
    play(run)
    with pytest.raises(ConfigError, match="has no adapter, because it trained the weights"):
        started(tmp_path, "sft", run.path)


def test_merging_first_trains_a_new_adapter_on_the_merged_model(
    sft: RunDirectory, tmp_path: Path
) -> None:
    sets = {"adapter__merge_first": "true", "adapter__r": 2, "train__steps": 1, **STILL}
    run = started(tmp_path, "sft", sft.path, eval__samples="[say 7]", **sets)
    played = play(run)
    config = parse_resolved(run.config.read_text())
    base = AutoModelForCausalLM.from_pretrained(config.model.id)
    merged = PeftModel.from_pretrained(base, str(last_of(sft))).merge_and_unload()
    (batch, *_) = build_source(setup_of(run)).fetch(2)
    ids = batch["input_ids"]
    own = setup_of(run).loaded.model.eval()
    with torch.no_grad(), own.disable_adapter():
        torch.testing.assert_close(own(ids).logits, merged(ids).logits, atol=1e-4, rtol=0)
    facts = played.events(RunStarted)[-1].facts
    assert "merged into the base" in facts["start adapter"]

    out = tmp_path / "merged"
    assert export([str(run.path), "last", "--kind", "merged", "--out", str(out)]) == 0
    alone = tmp_path / "alone"
    assert export([str(run.path), "last", "--kind", "adapter", "--out", str(alone)]) == 0
    with pytest.raises(
        OSError, match="merged into it"
    ):  # the base model alone would give wrong results
        AutoPeftModelForCausalLM.from_pretrained(alone)
    whole = AutoModelForCausalLM.from_pretrained(out)
    settings = json.loads((alone / "adapter_config.json").read_text())
    assert "with the adapter" in settings["base_model_name_or_path"]
    rebuilt = PeftModel.from_pretrained(merged, alone)
    with torch.no_grad():
        torch.testing.assert_close(whole(ids).logits, rebuilt(ids).logits, atol=1e-4, rtol=0)
    with pytest.raises(ModelError, match=r"with the adapter .* --merged"):
        started(tmp_path / "again", "sft", alone)


def test_a_continued_adapter_is_exported_for_its_base(sft: RunDirectory, tmp_path: Path) -> None:
    run = started(tmp_path, "dpo", sft.path, train__steps=2)
    play(run)
    alone, whole = tmp_path / "alone", tmp_path / "whole"
    assert export([str(run.path), "last", "--kind", "adapter", "--out", str(alone)]) == 0
    assert export([str(run.path), "last", "--kind", "merged", "--out", str(whole)]) == 0
    ids = torch.arange(10, 30).unsqueeze(0)
    with torch.no_grad():
        adapter = AutoPeftModelForCausalLM.from_pretrained(alone)(ids).logits
        merged = AutoModelForCausalLM.from_pretrained(whole)(ids).logits
    torch.testing.assert_close(adapter, merged, atol=1e-4, rtol=0)
    again = started(tmp_path / "again", "sft", alone, train__steps=1)
    assert play(again).losses()


def test_another_start_adapter_is_not_resumed_from(sft: RunDirectory, tmp_path: Path) -> None:
    start = tmp_path / "start"
    shutil.copytree(last_of(sft), start)
    run = started(tmp_path, "dpo", start, train__steps=4, checkpoint__every=2)
    play(run)
    name = CheckpointStore(run).all()[-1].name
    file = start / "adapter_model.safetensors"
    weights = safetensors.torch.load_file(file)
    first = min(weights)
    safetensors.torch.save_file(weights | {first: weights[first] + 1}, file)
    with pytest.raises(ContentChanged, match=r"start adapter: adapter_model\.safetensors was"):
        play(run, resume=name)
    assert export([str(run.path), "last", "--kind", "adapter", "--out", str(tmp_path / "x")]) == 0


def test_a_folder_with_an_adapter_alone_is_understood_as_a_model(
    sft: RunDirectory, tmp_path: Path
) -> None:
    alone = tmp_path / "alone"
    assert export([str(sft.path), "last", "--kind", "adapter", "--out", str(alone)]) == 0
    run = new_run(tmp_path, "sft", model__id=alone, train__steps=1)
    config = parse_resolved(run.config.read_text())
    assert config.adapter.start == str(alone)
    assert Path(config.model.id) == next(sft.path.parents[1].glob("tiny-llama*"))
    assert play(run).losses()


def test_an_adapter_beside_a_model_is_not_loaded_in_silence(
    sft: RunDirectory, tmp_path: Path
) -> None:
    both = tmp_path / "both"
    shutil.copytree(next(sft.path.parents[1].glob("tiny-llama*")), both)
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(last_of(sft) / name, both)
    with pytest.raises(ModelError, match=f"adapter beside them. Set adapter.start: {both}"):
        new_run(tmp_path, "sft", model__id=both)
    run = started(tmp_path, "sft", both, model__id=both, train__steps=1)
    model = setup_of(run).loaded.model
    saved = safetensors.torch.load_file(both / "adapter_model.safetensors")
    loaded = trained_weights(model)
    assert all(torch.equal(loaded[name], saved[name]) for name in saved)
    assert sum("lora_A" in name for name, _ in model.named_parameters()) == len(saved) // 2


def copies(start: Path, folder: Path) -> Iterator[tuple[str, dict[str, Any], str, str]]:
    yield "r", {}, "adapter__r", r"adapter\.r: got 2, but the adapter .* has 4"
    yield "targets", {}, "adapter__targets", r"adapter\.targets: got .*v_proj.*, but the adapter"
    yield "kind", {"peft_type": "IA3"}, "", "its kind is IA3"
    yield "bias", {"bias": "all"}, "", 'it has bias: "all", which fttui does not train'
    yield "pissa", {"init_lora_weights": "pissa"}, "", "initialized by pissa"
    yield "base", {}, "", "two adapters are stacked"


@pytest.mark.parametrize("case", ["r", "targets", "kind", "bias", "pissa", "base"])
def test_what_does_not_agree_is_refused_by_name(
    sft: RunDirectory, tmp_path: Path, case: str
) -> None:
    start = tmp_path / "start"
    start.mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        shutil.copy(last_of(sft) / name, start)
    by_name = {one[0]: one for one in copies(last_of(sft), tmp_path)}
    _, fields, key, words = by_name[case]
    if case == "base":
        alone = tmp_path / "other"
        shutil.copytree(start, alone)
        fields = {"base_model_name_or_path": str(alone)}
    file = start / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    values = {"adapter__r": 2, "adapter__targets": "[v_proj]"}
    sets = {key: values[key]} if key else {}
    with pytest.raises((ConfigError, ModelError), match=words):
        started(tmp_path, "sft", start, **sets)


def test_weights_that_do_not_fit_are_refused_before_training(
    sft: RunDirectory, tmp_path: Path
) -> None:
    start = tmp_path / "start"
    start.mkdir()
    shutil.copy(last_of(sft) / "adapter_config.json", start)
    weights = safetensors.torch.load_file(last_of(sft) / "adapter_model.safetensors")
    lost = min(weights)
    file = start / "adapter_model.safetensors"
    safetensors.torch.save_file({n: w for n, w in weights.items() if n != lost}, file)
    with pytest.raises(FttuiError, match=r"does not fit this model: it lacks .*lora_A"):
        play(started(tmp_path, "sft", start))
    safetensors.torch.save_file(weights, file)
    other = tiny_llama(tmp_path, hidden=64)
    with pytest.raises(FttuiError, match="does not fit this model: size mismatch"):
        play(started(tmp_path, "sft", start, model__id=other))
