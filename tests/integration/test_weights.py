"""Weights of records: the loss of a step is the weighted mean that plain PyTorch has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

from fttui.engine.errors import DataError
from fttui.engine.protocol.events import LogEmitted, StepFinished
from fttui.engine.run.checkpoint_store import CheckpointStore
from fttui.engine.run.run_dir import RunDirectory
from fttui.engine.train.distributed.place import RankPlace
from tests.support.played import read_records
from tests.support.ranks import in_ranks
from tests.support.training import WORDS, new_run, play

pytestmark = pytest.mark.timeout(300)
WEIGHTS = [1.0, 0.25, 3.0, 0.0, 2.0, 1.5, 0.5, 4.0]
ONE_STEP: dict[str, Any] = {
    "train__steps": 1,
    "train__lr": 1e-6,
    "data__eval_fraction": 0,
    "data__max_length": 128,
    "adapter__dropout": 0.0,
}


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run_of(folder: Path, task: str, rows: list[dict[str, Any]], **sets: Any) -> RunDirectory:
    folder.mkdir(parents=True)
    data = written(folder / "weighted.jsonl", rows)
    return new_run(folder, task, data__train=str(data), **ONE_STEP | sets)


def losses(run: RunDirectory) -> list[float]:
    return [
        one.event.loss_or_nan for one in read_records(run) if isinstance(one.event, StepFinished)
    ]


def completions() -> list[dict[str, Any]]:
    return [
        {"prompt": f"say {n}", "completion": " ".join(WORDS[: 1 + n % 5]), "weight": weight}
        for n, weight in enumerate(WEIGHTS)
    ]


def with_ranges(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first two letters of every second completion weigh 0.5, and the third one 3."""
    return [
        row | ({"weights": [[0, 2, 0.5], [2, 3, 3]]} if n % 2 else {}) for n, row in enumerate(rows)
    ]


def reference(folder: Path, rows: list[dict[str, Any]]) -> float:
    """The weighted mean over the completion tokens of all records, from logits."""
    where = next(folder.rglob("config.json")).parent
    model = AutoModelForCausalLM.from_pretrained(where).eval()
    tokenizer = AutoTokenizer.from_pretrained(where)
    total = weight = 0.0
    for row in rows:
        text = row["prompt"] + row["completion"]
        found = tokenizer(text, return_offsets_mapping=True)
        ids = [*found["input_ids"], tokenizer.eos_token_id]
        own = [end > len(row["prompt"]) for _, end in found["offset_mapping"]] + [True]
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0]
        each = F.cross_entropy(logits[:-1], torch.tensor(ids[1:]), reduction="none")
        begins = [start - len(row["prompt"]) for start, _ in found["offset_mapping"]] + [-1]
        factors = torch.full((len(ids),), row["weight"])
        for start, end, factor in row.get("weights", ()):
            factors[torch.tensor([start <= one < end for one in begins])] *= factor
        chosen = each[torch.tensor(own[1:])]
        factors = factors[1:][torch.tensor(own[1:])]
        total += float((factors * chosen).sum())
        weight += float(factors.sum())
    return total / weight


def test_the_loss_of_a_step_is_the_weighted_mean_of_its_tokens(tmp_path: Path) -> None:
    rows = with_ranges(completions())
    run = run_of(tmp_path / "run", "sft", rows, train__batch=2, train__accumulate=4)
    play(run)
    assert losses(run)[0] == pytest.approx(reference(tmp_path / "run", rows), rel=1e-6)


def _play(place: RankPlace, run: RunDirectory) -> None:
    play(run, place=place)


@pytest.mark.long
def test_two_ranks_divide_by_the_weights_of_both(tmp_path: Path) -> None:
    rows = completions()
    alone = run_of(tmp_path / "alone", "sft", rows, train__batch=4, train__accumulate=2)
    play(alone)
    sets = {"train__devices": 2, "train__batch": 2, "train__accumulate": 2}
    both = run_of(tmp_path / "both", "sft", rows, **sets)
    assert in_ranks(2, _play, both) == [0, 0]
    assert losses(both)[0] == pytest.approx(losses(alone)[0], rel=1e-6)


def pairs(weighted: bool) -> list[dict[str, Any]]:
    """Two preferences, of which the second weighs three times; or is there three times."""
    rows = [{"prompt": f"{n}: ", "chosen": " ".join(WORDS[: n + 1]), "rejected": WORDS[7 + n]}
            for n in (0, 2)]  # fmt: skip
    return [rows[0], rows[1] | {"weight": 3}] if weighted else [rows[0], *[rows[1]] * 3]


@pytest.mark.parametrize(
    ("task", "sets"),
    [
        ("dpo", {"preference__loss": "simpo", "preference__ce_weight": 1}),
        pytest.param("reward", {}, marks=pytest.mark.long),
    ],
)
def test_a_weight_of_three_is_three_records(
    tmp_path: Path, task: str, sets: dict[str, Any]
) -> None:
    more = {"train__steps": 3, "train__lr": 0.01, "train__accumulate": 1, **sets}
    found = []
    for name, weighted, batch in (("weighted", True, 2), ("repeated", False, 4)):
        run = run_of(tmp_path / name, task, pairs(weighted), **more, train__batch=batch)
        play(run)
        found.append(losses(run))
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def rated() -> list[dict[str, Any]]:
    return [{**row, "label": n % 2 == 0} for n, row in enumerate(completions())]


def compared() -> list[dict[str, Any]]:
    return [
        {"prompt": f"{n}: ", "chosen": WORDS[n], "rejected": WORDS[7 - n] + "!", "weight": weight}
        for n, weight in enumerate(WEIGHTS)
    ]


def alike() -> list[dict[str, Any]]:
    return [
        {"anchor": f"{n}: {WORDS[n]}", "positive": WORDS[7 - n], "negative": "no", "weight": w}
        for n, w in enumerate(WEIGHTS)
    ]


STATIC, HARD = {"train__fast": "static"}, {"contrastive__hard_negatives": 1}


@pytest.mark.parametrize(
    ("task", "rows", "sets"),
    [
        ("sft", completions(), {}),
        *(
            pytest.param(*case, marks=pytest.mark.long)
            for case in [
                ("dpo", compared(), {**STATIC, "preference__ce_weight": 1}),
                ("kto", rated(), {"preference__ce_weight": 0}),
                ("reward", compared(), {}),
                ("contrastive", alike(), {**STATIC, **HARD, "contrastive__ce_weight": 0.0}),
                ("contrastive", alike(), {**HARD, "contrastive__cross_accumulation": "on"}),
            ]
        ),
    ],
)
def test_a_step_of_weight_zero_makes_no_update(
    tmp_path: Path, task: str, rows: list[dict[str, Any]], sets: dict[str, Any]
) -> None:
    """Momentum and weight decay would move the weights without a gradient."""
    more = {"train__steps": 8, "train__batch": 1, "train__accumulate": 1, "train__lr": 0.01}
    more |= {"checkpoint__every": 1, "checkpoint__keep": 9, "train__weight_decay": 0.1, **sets}
    run = run_of(tmp_path / "run", task, rows, **more)
    play(run)
    records = read_records(run)
    steps = {r.step: r.event for r in records if isinstance(r.event, StepFinished)}
    (idle,) = [step for step, event in steps.items() if event.without_targets]
    assert [step for step, event in steps.items() if event.skipped] == [idle]
    (told,) = [
        r.event.text
        for r in records
        if isinstance(r.event, LogEmitted) and "nothing to learn" in r.event.text
    ]
    assert told.startswith(f"step {idle} has nothing to learn")
    saved = {
        m.step: m.files["adapter_model.safetensors"].sha256 for m in CheckpointStore(run).all()
    }
    moved = [step for step in range(2, 9) if saved[step] != saved[step - 1]]
    assert set(moved) == set(range(2, 9)) - {idle}


def test_a_loss_without_weights_refuses_them(tmp_path: Path) -> None:
    rows = [{"sentence1": a, "sentence2": b, "score": n / 9, "weight": 2}
            for n, (a, b) in enumerate(zip(WORDS, WORDS[::-1], strict=True))]  # fmt: skip
    sets = {"contrastive__kind": "cosent"}
    folder = tmp_path / "run"
    folder.mkdir()
    data = written(folder / "weighted.jsonl", rows)
    run = new_run(folder, "contrastive", data__train=str(data), **ONE_STEP | sets)
    with pytest.raises(DataError, match=r"weighted.jsonl:1: the record, or one of its turns, has"):
        play(run)
