"""Exported folders give, loaded by plain libraries, what the engine itself gave."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from peft import AutoPeftModelForCausalLM, PeftModel
from torch import Tensor
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from fttui.engine.config.schema import (
    ContrastiveConfig,
    DataConfig,
    ModelConfig,
    RunConfig,
    TrainConfig,
)
from fttui.engine.export.__main__ import main
from fttui.engine.export.embedding import write_embedding_files
from fttui.engine.losses.pooling import pool
from fttui.engine.protocol.events import EvalFinished, SampleGenerated
from fttui.engine.run.checkpoint_store import CheckpointStore
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.objectives.evaluator import Evaluator
from fttui.engine.train.objectives.reward import RewardObjective
from fttui.tui.cli.main import main as fttui
from tests.support.training import Played, Script, new_run, play

PROMPT = "say 7"
WORDS = ["alpha 7", "beta beta", "gamma and delta and epsilon"]


def trained(folder: Path, task: str, **sets: Any) -> tuple[RunDirectory, Played]:
    """A short run that has moved far from its base, and what it said at its end."""
    folder.mkdir(exist_ok=True)
    run = new_run(
        folder,
        task,
        train__steps=4,
        train__lr=0.05,
        eval__samples=f"[{PROMPT}]",
        eval__sample_tokens=16,
        **sets,
    )
    return run, play(run, Script({2: ["lr scale 0.5", "note half as fast | from here"]}))


def export(run: RunDirectory, out: Path, *options: str) -> Path:
    assert main([str(run.path), "last", "--out", str(out), *options]) == 0
    return out


def continued(model: Any, folder: Path) -> str:
    """Greedy text, as a user of the libraries writes it."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": PROMPT}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    output = model.eval().generate(**inputs, max_new_tokens=16, do_sample=False)
    new = output[0, inputs["input_ids"].shape[1] :]
    return str(tokenizer.decode(new, skip_special_tokens=True))


def said(played: Played) -> str:
    return played.events(SampleGenerated)[-1].text


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDirectory, Played]:
    return trained(tmp_path_factory.mktemp("plain"), "dpo")


@pytest.fixture(scope="module")
def merged(plain: tuple[RunDirectory, Played], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(plain[0], tmp_path_factory.mktemp("out") / "merged", "--kind", "merged")


def test_a_merged_model_goes_on_as_the_engine_did(
    plain: tuple[RunDirectory, Played], merged: Path
) -> None:
    model = AutoModelForCausalLM.from_pretrained(merged)
    assert model.config.use_cache
    assert continued(model, merged) == said(plain[1])
    assert not list(merged.glob("adapter_*"))


def test_the_adapter_alone_goes_on_as_the_engine_did(
    plain: tuple[RunDirectory, Played], merged: Path, tmp_path: Path
) -> None:
    out = export(plain[0], tmp_path / "adapter", "--kind", "adapter")
    model = AutoPeftModelForCausalLM.from_pretrained(out)
    assert continued(model, out) == said(plain[1])
    ids = torch.arange(10, 30).unsqueeze(0)
    whole = AutoModelForCausalLM.from_pretrained(merged)
    with torch.no_grad():
        apart = (model(input_ids=ids).logits - whole(input_ids=ids).logits).abs().max()
        with model.disable_adapter():
            before = (model(input_ids=ids).logits - whole(input_ids=ids).logits).abs().max()
    assert apart < 1e-4
    assert before > 0.1


@pytest.mark.parametrize("kind", ["lora", pytest.param("none", marks=pytest.mark.long)])
def test_a_reward_model_loads_as_a_sequence_classifier(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Tensor, Tensor, Tensor]] = []
    score = RewardObjective.scores

    def watched(self: Any, hidden: Tensor, batch: dict[str, Any]) -> Tensor:
        found = score(self, hidden, batch)
        seen.append((batch["input_ids"].clone(), batch["attention_mask"].clone(), found.detach()))
        return found

    monkeypatch.setattr(RewardObjective, "scores", watched)
    rate = 0.05 if kind == "lora" else 1e-3
    run = new_run(tmp_path, "reward", train__steps=4, train__lr=rate, adapter__kind=kind)
    play(run, Script({4: ["eval"]}))
    ids, mask, expected = seen[-1]
    merged = export(run, tmp_path / "merged", "--kind", "merged")
    model = AutoModelForSequenceClassification.from_pretrained(merged)
    assert model.config.num_labels == 1
    with torch.no_grad():
        found = model.eval()(input_ids=ids, attention_mask=mask).logits.squeeze(-1)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert "AutoModelForSequenceClassification" in (merged / "README.md").read_text()
    assert main([str(run.path), "last", "--out", str(tmp_path / "g"), "--kind", "gguf"]) == 8
    if kind == "none":
        return
    adapter = export(run, tmp_path / "adapter", "--kind", "adapter")
    base = json.loads((adapter / "adapter_config.json").read_text())["base_model_name_or_path"]
    plain = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1)
    plain.config.pad_token_id = model.config.pad_token_id
    loaded = PeftModel.from_pretrained(plain, str(adapter)).eval()
    with torch.no_grad():
        again = loaded(input_ids=ids, attention_mask=mask).logits.squeeze(-1)
    torch.testing.assert_close(again, expected, rtol=1e-4, atol=1e-5)


def test_a_gguf_file_goes_on_as_the_engine_did(
    plain: tuple[RunDirectory, Played], merged: Path, tmp_path: Path
) -> None:
    out = export(plain[0], tmp_path / "gguf", "--kind", "gguf", "--type", "f16")
    assert sorted(one.name for one in out.iterdir()) == ["Modelfile", "README.md", "model-f16.gguf"]
    model = AutoModelForCausalLM.from_pretrained(out, gguf_file="model-f16.gguf")
    assert continued(model, merged) == said(plain[1])
    assert "<|im_start|>user\n{{ .Content }}<|im_end|>" in (out / "Modelfile").read_text()
    assert "library_name: gguf" in (out / "README.md").read_text()


def test_nf4_is_merged_as_it_was_trained(tmp_path: Path) -> None:
    run, played = trained(tmp_path, "sft", model__quantize="nf4", train__ema=0.5)
    out = export(run, tmp_path / "merged", "--kind", "merged", "--ema")
    model = AutoModelForCausalLM.from_pretrained(out)
    assert "quantization_config" not in json.loads((out / "config.json").read_text())
    assert continued(model, out) == said(played)  # samples are of the average
    other = export(run, tmp_path / "now", "--kind", "adapter")
    averaged = export(run, tmp_path / "average", "--kind", "adapter", "--ema")
    weights = [(one / "adapter_model.safetensors").read_bytes() for one in (other, averaged)]
    assert weights[0] != weights[1]


def test_the_mean_of_checkpoints_is_exported(
    plain: tuple[RunDirectory, Played], tmp_path: Path
) -> None:
    out = export(plain[0], tmp_path / "mean", "--kind", "adapter", "--average", "2")
    found = safetensors.torch.load_file(out / "adapter_model.safetensors")
    names = [one.name for one in CheckpointStore(plain[0]).all()[-2:]]
    own = [
        safetensors.torch.load_file(plain[0].checkpoints / name / "adapter_model.safetensors")
        for name in names
    ]
    for name, tensor in found.items():
        assert torch.equal(tensor, (own[0][name].double() + own[1][name]).div(2).to(tensor.dtype))
    assert f"the mean of the checkpoints {', '.join(names)}." in (out / "README.md").read_text()
    many = [str(plain[0].path), "last", "--kind", "adapter", "--average", "9"]
    assert main([*many, "--out", str(tmp_path / "none")]) == 10


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tensor]:
    """An exported embedding model, and the engine's own vectors of some texts as queries."""
    folder = tmp_path_factory.mktemp("embedder")
    vectors: list[Tensor] = []
    evaluate = Evaluator.evaluate

    def embedding(self: Evaluator, interrupted: Any) -> Any:
        from fttui.engine.data.findings import Findings
        from fttui.engine.data.records.formats import PairRecord
        from fttui.engine.data.tokens.tokenize import TokenizeOptions, tokenize_records

        options = TokenizeOptions(24, instruction="find: ", passage_instruction="doc: ")
        records = [PairRecord(word, word, word) for word in WORDS]
        settings = self._tokenizer, options, Findings(), lambda *_: None
        examples = tokenize_records(records, *settings)
        batch = self._held_out.collate(examples)
        with self._evaluation_mode():
            hidden = self._trainer._forward(self._trainer.model, batch)
            texts = self._trainer.objective.pool(hidden, batch)
        vectors.append(torch.nn.functional.normalize(texts.vectors))
        return evaluate(self, interrupted)

    sets: dict[str, Any] = {
        "contrastive__kind": "triplet",
        "contrastive__dimensions": "[16, 8]",
        "contrastive__cross_accumulation": "on",
        "contrastive__instruction": "'find: '",
        "contrastive__passage_instruction": "'doc: '",
        "contrastive__pooling": "mean",
        "data__max_length": 24,
        "eval__every": 4,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Evaluator, "evaluate", embedding)
        run, played = trained(folder, "contrastive", **sets)
    measured = played.events(EvalFinished)[-1].metrics
    assert {"ndcg_at_10", "ndcg_at_10_16", "ndcg_at_10_8"} <= measured.keys()
    return export(run, folder / "merged", "--kind", "merged"), vectors[-1]


def test_plain_transformers_embed_as_the_engine_did(embedder: tuple[Path, Tensor]) -> None:
    out, expected = embedder
    tokenizer, model = AutoTokenizer.from_pretrained(out), AutoModel.from_pretrained(out).eval()
    batch = tokenizer(
        [f"find: {word}" for word in WORDS],
        return_tensors="pt",
        padding=True,
        truncation=True,
        padding_side="right",
    )
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state
    mask = batch["attention_mask"].clone()
    mask[:, : len("find: ")] = 0
    found = torch.nn.functional.normalize(pool(hidden, mask, "mean"))
    torch.testing.assert_close(found, expected[: len(WORDS)], atol=1e-5, rtol=0)


def test_sentence_transformers_embed_as_the_engine_did(embedder: tuple[Path, Tensor]) -> None:
    library = pytest.importorskip("sentence_transformers")
    out, expected = embedder
    model = library.SentenceTransformer(str(out), device="cpu")
    found = [torch.as_tensor(model.encode(WORDS, prompt_name=n)) for n in ("query", "document")]
    torch.testing.assert_close(torch.cat(found), expected, atol=1e-5, rtol=0)
    assert "truncate_dim=8" in (out / "README.md").read_text()
    long = model.encode(["x" * 100])
    assert long == pytest.approx(model.encode(["x" * 23]), abs=1e-6)  # cut before the EOS


@pytest.mark.parametrize("pooling", ["last", "weighted_mean"])
def test_sentence_transformers_pool_as_the_engine_does(
    embedder: tuple[Path, Tensor], tmp_path: Path, pooling: Any
) -> None:
    library = pytest.importorskip("sentence_transformers")
    folder = tmp_path / pooling
    ignored = shutil.ignore_patterns("1_Pooling", "2_Normalize")
    shutil.copytree(embedder[0], folder, ignore=ignored)
    config = RunConfig(
        model=ModelConfig(id="m"),
        data=DataConfig(train="d", max_length=24),
        train=TrainConfig(steps=1),
        contrastive=ContrastiveConfig(kind="infonce", pooling=pooling),
    )
    write_embedding_files(folder, config, 32)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(
        WORDS, return_tensors="pt", padding=True, truncation=True, padding_side="right"
    )
    with torch.no_grad():
        hidden = AutoModel.from_pretrained(folder).eval()(**batch).last_hidden_state
    expected = torch.nn.functional.normalize(pool(hidden, batch["attention_mask"], pooling))
    found = library.SentenceTransformer(str(folder), device="cpu").encode(WORDS)
    torch.testing.assert_close(torch.as_tensor(found), expected, atol=1e-5, rtol=0)


def test_the_card_tells_the_story(plain: tuple[RunDirectory, Played], merged: Path) -> None:
    card = (merged / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert "| 2 (timeline 1) | lr scale 0.5 |" in card
    assert "| note half as fast \\| from here |" in card
    assert "| trained on | preferences.jsonl |" in card
    assert "| sha256 of preferences.jsonl | " in card
    assert "| reward_accuracy | " in card
    assert "beta: 0.1" in card
    assert str(plain[0].path.parent) not in card


def test_a_damaged_checkpoint_is_refused_by_name(
    plain: tuple[RunDirectory, Played], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = plain[0]
    newest = CheckpointStore(run).all()[-1]
    file = run.checkpoints / newest.name / "optimizer.pt"
    good = file.read_bytes()
    file.write_bytes(bytes([good[0] ^ 1]) + good[1:])
    try:
        wanted = f"{run.path}"
        code = fttui(["export", wanted, "--adapter", "--out", str(tmp_path / "never")])
    finally:
        file.write_bytes(good)
    assert code == 10
    assert f"checkpoint {newest.name}: optimizer.pt is damaged" in capfd.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_leaves_nothing(
    plain: tuple[RunDirectory, Played],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = str(plain[0].path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").write_text("")
    assert main([run, "last", "--kind", "adapter", "--out", str(tmp_path / "full")]) == 2
    assert main([run, "3", "--kind", "adapter", "--out", str(tmp_path / "none")]) == 10
    assert main([run, "last", "--kind", "adapter", "--ema", "--out", str(tmp_path / "none")]) == 10
    assert "holds no moving average" in capsys.readouterr().err
    left = tmp_path / f".none.partial-{os.getpid()}0000"
    left.mkdir()
    monkeypatch.setattr("fttui.engine.export.folder.free_bytes", lambda _: 1_000_000)
    assert main([run, "last", "--kind", "adapter", "--out", str(tmp_path / "none")]) == 1
    assert "MB free, about" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full"]
