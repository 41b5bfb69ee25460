"""Rows of new tokens are trained, saved, restored and exported like the rest of the adapter."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from peft import AutoPeftModelForCausalLM
from transformers import AutoModelForCausalLM, AutoTokenizer

from fttui.engine.errors import ContentChanged
from fttui.engine.protocol.events import RunStarted, SampleGenerated
from fttui.engine.run.checkpoint_store import CheckpointStore
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train import session
from fttui.engine.train.distributed.place import RankPlace
from fttui.engine.train.trainers import build as trainers_module
from tests.integration.test_export import continued, export
from tests.support.matrix import in_part
from tests.support.ranks import in_ranks
from tests.support.tiny import tiny_llama
from tests.support.training import Script, new_run, play, read_records

pytestmark = pytest.mark.timeout(300)
TOKENS = {
    "data__special_tokens": "[alpha]",
    "model__add_tokens": "[{token: beta, description: second}]",
}
ROWS = "embed_tokens.token_adapter.trainable_tokens_delta"


EACH_WAY = [(tied, task) for tied in (True, False) for task in ("sft", "dpo")]
EXPORTS = [(tied, quantize) for tied in (True, False) for quantize in ("none", "nf4")]


def rows_of(run: RunDirectory) -> torch.Tensor:
    """The trained rows [2, H] in the last checkpoint."""
    store = CheckpointStore(run)
    folder = store.verify(store.find("last"))
    weights = safetensors.torch.load_file(folder / "adapter_model.safetensors")
    (rows,) = [tensor for name, tensor in weights.items() if name.endswith(ROWS)]
    return rows


@pytest.mark.parametrize(("tied", "task"), in_part(EACH_WAY, [(True, "sft")]))
def test_rollback_and_resume_restore_the_rows_bit_for_bit(
    tmp_path: Path, task: str, tied: bool
) -> None:
    runs = {}
    for name in ("straight", "back", "stopped"):
        (tmp_path / name).mkdir()
        model = tiny_llama(tmp_path / name / "model", tied=tied)
        runs[name] = new_run(tmp_path / name, task, model__id=model, train__steps=8, **TOKENS)
    played = play(runs["straight"])
    facts = played.events(RunStarted)[-1].facts
    assert facts["new tokens"] == (
        "2, with trained rows, 1 of them from the rows of other tokens, embedding enlarged from "
        "260 to 262 rows"
    )
    straight = played.losses()
    back = play(runs["back"], Script(commands={6: ["rollback 4"]})).losses()
    play(runs["stopped"], Script(commands={5: ["stop"]}))
    resumed = play(runs["stopped"], resume="last").losses()
    assert len(set(straight.values())) >= 7, "the reference of dpo is the model at step 1"
    assert back == straight
    assert resumed == straight
    rows = [rows_of(run) for run in runs.values()]
    assert torch.equal(rows[0], rows[1])
    assert torch.equal(rows[0], rows[2])
    assert not torch.allclose(rows[0][0], rows[0][1])


def play_as_rank(place: RankPlace, run: RunDirectory, out: Path) -> None:
    """Train as one rank, and leave a hash of the rows that are trained."""
    built = trainers_module.build_trainer
    trainers: list[Any] = []

    def build(*args: Any, **named: Any) -> Any:
        trainers.append(built(*args, **named))
        return trainers[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "build_trainer", build)
        play(run, place=place)
    rows = {n: p for n, p in trainers[0].model.named_parameters() if "trainable_tokens" in n}
    values = b"".join(rows[name].detach().numpy().tobytes() for name in sorted(rows))
    out.with_suffix(f".{place.rank}.hash").write_text(hashlib.sha256(values).hexdigest())


def test_two_ranks_train_the_same_rows(tmp_path: Path) -> None:
    run = new_run(tmp_path, "sft", train__steps=4, train__batch=2, train__devices=2, **TOKENS)
    out = tmp_path / "rows"
    assert in_ranks(2, play_as_rank, run, out) == [0, 0]
    first, second = (out.with_suffix(f".{rank}.hash").read_text() for rank in (0, 1))
    assert first == second
    rows = rows_of(run)
    assert first == hashlib.sha256(rows.numpy().tobytes()).hexdigest()
    assert not torch.allclose(rows[0], rows[1])
    assert any(isinstance(record.event, RunStarted) for record in read_records(run))


@pytest.mark.parametrize(("tied", "quantize"), in_part(EXPORTS, [(False, "nf4")]))
def test_exports_load_with_plain_libraries(tmp_path: Path, tied: bool, quantize: str) -> None:
    model = tiny_llama(tmp_path / "model", tied=tied)
    run = new_run(tmp_path, "sft", model__id=model, model__quantize=quantize, train__steps=4,
                  train__lr=0.05, eval__samples="[say 7]", eval__sample_tokens=16,
                  **TOKENS)  # fmt: skip
    said = play(run).events(SampleGenerated)[-1].text
    whole = export(run, tmp_path / "merged", "--kind", "merged")
    alone = export(run, tmp_path / "adapter", "--kind", "adapter")
    merged = AutoModelForCausalLM.from_pretrained(whole)
    adapter = AutoPeftModelForCausalLM.from_pretrained(alone)
    if quantize == "none":
        assert continued(merged, whole) == said
        assert continued(adapter, alone) == said
    for folder, found in ((whole, merged), (alone, adapter)):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        assert tokenizer("say alpha", add_special_tokens=False)["input_ids"][-1] == 260
        weight = found.get_input_embeddings().weight.detach()
        torch.testing.assert_close(weight[260:], rows_of(run))
        assert len(found.get_output_embeddings().weight) == 262


def test_other_tokens_are_another_tokenizer(tmp_path: Path) -> None:
    run = new_run(tmp_path, "sft", train__steps=4, **TOKENS)
    play(run, Script(commands={2: ["stop"]}))
    text = run.config.read_text()
    assert "- alpha" in text
    run.config.write_text(text.replace("- alpha", "- gamma"))
    with pytest.raises(ContentChanged, match=r"tokenizer: data\.special_tokens was"):
        play(run, resume="last")


def test_static_shapes_train_the_rows_too(tmp_path: Path) -> None:
    losses = []
    for fast in ("off", "static"):
        (tmp_path / fast).mkdir()
        sets = {"train__fast": fast, "adapter__dropout": 0, **TOKENS}
        run = new_run(tmp_path / fast, "sft", train__steps=4, **sets)
        losses.append(play(run).losses())
    assert losses[1] == pytest.approx(losses[0], abs=1e-4)
