"""Initializations, targets and ranks of adapters train as in peft and are exported for the base."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForCausalLM, LoraConfig, get_peft_model
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from fttui.engine.config.adapter.files import read_adapter_file
from fttui.engine.config.load import parse_resolved
from fttui.engine.errors import ConfigError, ModelError
from fttui.engine.export.__main__ import main as export
from fttui.engine.protocol.events import SampleGenerated, StepFinished
from fttui.engine.run.checkpoint_store import CheckpointStore
from fttui.engine.run.journal_summary import summarize_journal
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.distributed.place import RankPlace
from fttui.engine.train.event_log import EventLog
from fttui.engine.train.run_data import build_source
from fttui.engine.train.session import load
from fttui.engine.train.session_start import SessionStart
from tests.support.architectures import tiny_model
from tests.support.matrix import in_part
from tests.support.tiny import tiny_llama
from tests.support.training import Script, new_run, play

from .test_export import continued

STILL = {
    "adapter__dropout": 0,
    "train__schedule": "constant",
    "train__warmup": 0,
    "train__lr": 1e-2,
    "train__steps": 3,
    "eval__samples": "[say 7]",
    "eval__sample_tokens": 16,
}
LORA = {"r": 4, "lora_alpha": 8, "task_type": "CAUSAL_LM"}


def plain_losses(run: RunDirectory, model: Any) -> list[float]:
    """Losses of a plain loop of transformers and peft over the batches of a run."""
    place = RankPlace(0, 1, torch.device("cpu"))
    setup = load(SessionStart(run, summarize_journal(()), None, 0), place, EventLog(None))
    source, found = build_source(setup), []
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=setup.config.train.lr, weight_decay=0.0)
    for _ in range(setup.plan.steps):
        batches = source.fetch(setup.config.train.accumulation)
        tokens = sum(int((one["labels"][:, 1:] >= 0).sum()) for one in batches)
        total = 0.0
        for batch in batches:
            ids, mask = batch["input_ids"], batch["attention_mask"]
            logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
            labels = batch["labels"][:, 1:].flatten()
            loss = F.cross_entropy(logits.flatten(0, 1), labels, reduction="sum") / tokens
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        found.append(total)
    return found


def exported(run: RunDirectory, folder: Path) -> tuple[Any, Any]:
    """Adapter on the unchanged base, and merged model, as plain libraries load them."""
    for kind in ("adapter", "merged"):
        out = str(folder / kind)
        assert export([str(run.path), "last", "--kind", kind, "--out", out]) == 0
    adapter = AutoPeftModelForCausalLM.from_pretrained(folder / "adapter")
    return adapter, AutoModelForCausalLM.from_pretrained(folder / "merged")


@pytest.mark.parametrize("init", in_part(["pissa", "olora"], ["pissa"]))
def test_an_initialization_by_the_base_trains_and_is_exported_for_the_base(
    tmp_path: Path, init: str
) -> None:
    run = new_run(tmp_path, "sft", adapter__init=init, **STILL)
    played = play(run)
    base = AutoModelForCausalLM.from_pretrained(parse_resolved(run.config.read_text()).model.id)
    theirs = LoraConfig(**LORA, target_modules="all-linear", init_lora_weights=init)
    losses = plain_losses(run, get_peft_model(base, theirs))
    assert list(played.losses().values()) == pytest.approx(losses, abs=5e-5)
    adapter, merged = exported(run, tmp_path)
    assert continued(merged, tmp_path / "merged") == played.events(SampleGenerated)[-1].text
    ids = torch.arange(10, 30).unsqueeze(0)
    with torch.no_grad():
        torch.testing.assert_close(adapter(ids).logits, merged(ids).logits, atol=1e-4, rtol=0)
    with pytest.raises(ModelError, match=f"initialized by {init}, which changes the base"):
        new_run(tmp_path, "sft", adapter__start=run.path)


@pytest.mark.parametrize("rslora", in_part(["true", "false"], ["true"]))
def test_a_changed_base_is_exported_for_the_base_with_ranks_and_ends(
    tmp_path: Path, rslora: str
) -> None:
    sets = {
        "adapter__init": "pissa",
        "adapter__rslora": rslora,
        "adapter__targets": "[q_proj, up_proj, embed_tokens]",
        "adapter__rank_pattern": "{up_proj: 2}",
        "adapter__alpha_pattern": "{up_proj: 6}",
    }
    model = tiny_llama(tmp_path / "untied", tied=False)
    run = new_run(tmp_path, "sft", model__id=model, **sets, **STILL)
    play(run)
    adapter, merged = exported(run, tmp_path)
    ids = torch.arange(10, 30).unsqueeze(0)
    with torch.no_grad():
        torch.testing.assert_close(adapter(ids).logits, merged(ids).logits, atol=1e-4, rtol=0)
    settings = read_adapter_file(tmp_path / "adapter")
    assert (settings.values["r"], settings.values["rank_pattern"]) == (8, {"up_proj": 4})


def test_layers_that_olora_would_change_are_refused(tmp_path: Path) -> None:
    model = tiny_model("gpt2", tmp_path / "gpt2")
    sets = {"model__id": model, "adapter__targets": "[c_proj]"}
    with pytest.raises(ModelError, match="olora would change what this model computes"):
        play(new_run(tmp_path, "sft", adapter__init="olora", **sets))
    assert play(new_run(tmp_path, "sft", adapter__init="pissa", **sets)).losses()


@pytest.mark.parametrize(
    ("init", "quantize"),
    in_part(
        [("pissa", "none"), ("olora", "none"), ("loftq", "nf4"), ("eva", "none")],
        [("pissa", "none")],
    ),
)
def test_resume_and_rollback_are_exact(tmp_path: Path, init: str, quantize: str) -> None:
    sets = {"adapter__init": init, "model__quantize": quantize, "train__ema": 0.5}
    folders = [tmp_path / name for name in ("whole", "back", "stopped")]
    for folder in folders:
        folder.mkdir()
    whole = play(new_run(folders[0], "dpo", **sets))
    back = play(new_run(folders[1], "dpo", **sets), Script({6: ["rollback 4"]}))
    stopped = new_run(folders[2], "dpo", **sets)
    play(stopped, Script({5: ["stop"]}))
    resumed = play(stopped, resume=CheckpointStore(stopped).all()[-1].name)
    assert back.losses() == whole.losses()
    assert resumed.losses() == whole.losses()
    if init != "eva":  # the reference is the start, base and adapter together
        assert whole.events(StepFinished)[0].loss == pytest.approx(0.6931, abs=2e-2)


def test_loftq_begins_closer_to_the_unquantized_model(tmp_path: Path) -> None:
    def first_logits(**sets: Any) -> torch.Tensor:
        run = new_run(tmp_path, "sft", **sets)
        place = RankPlace(0, 1, torch.device("cpu"))
        setup = load(SessionStart(run, summarize_journal(()), None, 0), place, EventLog(None))
        with torch.no_grad():
            logits: torch.Tensor = setup.loaded.model.eval()(torch.arange(10, 30)[None]).logits
        return logits

    whole = first_logits()
    packed = first_logits(model__quantize="nf4")
    better = first_logits(model__quantize="nf4", adapter__init="loftq", adapter__r=16)
    assert (better - whole).norm() < 0.7 * (packed - whole).norm()


def test_eva_begins_with_the_directions_that_peft_finds(tmp_path: Path) -> None:
    run = new_run(tmp_path, "sft", adapter__init="eva", **STILL)
    place = RankPlace(0, 1, torch.device("cpu"))
    setup = load(SessionStart(run, summarize_journal(()), None, 0), place, EventLog(None))
    for name, weight in setup.loaded.model.named_parameters():
        if "lora_A" in name:
            product = weight @ weight.T
            torch.testing.assert_close(product, torch.eye(len(weight)), atol=1e-3, rtol=0)
    played = play(run)
    _, merged = exported(run, tmp_path)
    assert continued(merged, tmp_path / "merged") == played.events(SampleGenerated)[-1].text


FORMS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "pattern": (
        {"adapter__targets": r".*layers\.1\..*(up|down)_proj"},
        {"target_modules": r".*layers\.1\..*(up|down)_proj"},
    ),
    "ranks": (
        {
            "adapter__targets": "[q_proj, up_proj]",
            "adapter__rank_pattern": "{up_proj: 2}",
            "adapter__alpha_pattern": "{up_proj: 6}",
        },
        {
            "target_modules": ["q_proj", "up_proj"],
            "rank_pattern": {"up_proj": 2},
            "alpha_pattern": {"up_proj": 6},
        },
    ),
    "ends": (
        {"adapter__targets": "[q_proj, lm_head, embed_tokens]"},
        {"target_modules": ["q_proj", "lm_head", "embed_tokens"]},
    ),
}


@pytest.mark.parametrize("form", in_part(FORMS, ["ranks"]))
@pytest.mark.parametrize("fast", in_part(["off", "static"], ["static"]))
def test_targets_and_ranks_train_as_in_peft(tmp_path: Path, form: str, fast: str) -> None:
    sets, theirs = FORMS[form]
    model = tiny_llama(tmp_path / "untied", tied=False)
    run = new_run(tmp_path, "sft", model__id=model, train__fast=fast, **sets, **STILL)
    played = play(run)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        base = AutoModelForCausalLM.from_pretrained(model)
        own = get_peft_model(base, LoraConfig(**LORA, **theirs))
    losses = plain_losses(run, own)
    assert list(played.losses().values()) == pytest.approx(losses, abs=5e-5)
    adapter, merged = exported(run, tmp_path)
    ids = torch.arange(10, 30).unsqueeze(0)
    with torch.no_grad():
        torch.testing.assert_close(adapter(ids).logits, merged(ids).logits, atol=1e-4, rtol=0)
    assert continued(merged, tmp_path / "merged") == played.events(SampleGenerated)[-1].text


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        ({"adapter__targets": "q_pro."}, r"no full name of a module matches 'q_pro\.'"),
        ({"adapter__targets": "[lm_head]"}, r"lm_head cannot have an adapter.*tied"),
        ({"adapter__targets": "[embed_tokens]"}, r"embed_tokens cannot have an adapter.*tied"),
        ({"adapter__rank_pattern": "{nope: 3}"}, r"adapter\.rank_pattern: no module.*'nope'"),
    ],
)
def test_targets_that_cannot_be_trained_are_refused(
    tmp_path: Path, sets: dict[str, Any], words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        play(new_run(tmp_path, "sft", **sets))


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        ({"adapter__targets": "(q"}, r"adapter\.targets: got '\(q', which is not a regular"),
        ({"adapter__init": "pissa", "model__quantize": "nf4"}, r"needs them unquantized"),
        ({"adapter__init": "loftq"}, r"reduces the error of NF4"),
        ({"adapter__init": "olora", "adapter__dora": "true"}, r"not exact together"),
    ],
)
def test_settings_that_contradict_are_refused(
    tmp_path: Path, sets: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        new_run(tmp_path, "sft", **sets)
