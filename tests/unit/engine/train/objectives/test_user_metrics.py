"""Metrics of the user's functions: what they are given, and that no error of theirs ends a run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fttui.engine.config.checks.user_metrics import user_metric_problems
from fttui.engine.config.model_limits import ModelLimits
from fttui.engine.core.model_selection import is_better
from fttui.engine.data.tokens.examples import PreferenceExample, TextExample
from fttui.engine.errors import TrainingFailed
from fttui.engine.losses.cross_entropy import IGNORED
from fttui.engine.train.control.controlled_trainer import EvaluationInterrupted
from fttui.engine.train.distributed.agreement import Agreement, SingleRank
from fttui.engine.train.objectives.user_metrics import (
    PromptedRecord,
    UserMetrics,
    answerable,
    load_functions,
    prompted,
)
from tests.support.rank_threads import in_threads
from tests.support.tokenizer import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
SOURCE = """
def exact(prompts, completions, references):
    return [a == b for a, b in zip(completions, references)]

def ends(prompts, completions, references):
    raise SystemExit("no key")

def broken(prompts, completions, references):
    raise KeyError("no such judge")

def short(prompts, completions, references):
    return [1.0]

def single(prompts, completions, references):
    return 0.5

def some(prompts, completions, references):
    return [None, *[1.0] * (len(prompts) - 1)]

def word_error(**texts):
    return [len(one) for one in texts["completions"]]
"""


def ids(text: str) -> list[int]:
    found: list[int] = TOKENIZER(text)["input_ids"]
    return found


RECORDS = [PromptedRecord(ids(f"q{n}"), ids("yes" if n % 2 else "no")) for n in range(5)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "metrics.py"
    path.write_text(SOURCE)
    return path


def measure(
    file: Path, *names: str, agreement: Agreement | None = None, log: list[str] | None = None
) -> dict[str, float]:
    told: list[str] = [] if log is None else log
    functions = load_functions([f"{file}:{name}" for name in names], lambda *line: None)
    metrics = UserMetrics(
        functions, RECORDS, TOKENIZER, agreement or SingleRank(), lambda _, text: told.append(text)
    )
    return metrics.measure(lambda prompts: [ids("yes") for _ in prompts], 2, lambda: None)


def test_a_rank_of_a_split_model_that_cannot_generate_ends_instead_of_waiting(file: Path) -> None:
    def fail(_: list[list[int]]) -> list[list[int]]:
        raise torch.OutOfMemoryError("no memory")

    functions = load_functions([f"{file}:exact"], lambda *line: None)
    split = UserMetrics(functions, RECORDS, TOKENIZER, SingleRank(), lambda *_: None, sharded=True)
    with pytest.raises(TrainingFailed, match=r"rank 0 could not generate .* no memory"):
        split.measure(fail, 2, lambda: None)


@pytest.mark.parametrize(("fits", "left"), [(1, {"exact": 2 / 5}), (0, {})])
def test_completions_that_do_not_fit_together_are_generated_in_smaller_parts(
    file: Path, fits: int, left: dict[str, float]
) -> None:
    """What does not fit is logged once, however many evaluations follow."""
    log: list[str] = []
    asked: list[int] = []

    def generate(prompts: list[list[int]]) -> list[list[int]]:
        asked.append(len(prompts))
        if len(prompts) > fits:
            raise torch.OutOfMemoryError("no memory")
        return [ids("yes") for _ in prompts]

    functions = load_functions([f"{file}:exact"], lambda *line: None)
    metrics = UserMetrics(
        functions, RECORDS, TOKENIZER, SingleRank(), lambda _, text: log.append(text)
    )
    for _ in range(3):
        assert metrics.measure(generate, 4, lambda: None) == left
    assert len([text for text in log if "prompts at once do not fit" in text]) == 2  # 4, then 2
    assert len(log) == (2 if fits else 3)
    assert asked.count(4) == 1
    assert fits or "lower eval.metric_tokens" in log[-1]


def test_a_metric_is_the_mean_over_the_records(file: Path) -> None:
    assert measure(file, "exact", "word_error") == {"exact": 2 / 5, "word_error": 3.0}


def test_ranks_share_the_records_and_have_the_same_mean(file: Path) -> None:
    found = in_threads(2, lambda agreement: measure(file, "exact", agreement=agreement))
    assert found == [{"exact": 2 / 5}] * 2


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("broken", "KeyError: 'no such judge'"),
        ("ends", "SystemExit: no key"),
        ("short", "got 1 scores, expected 5"),
        ("single", "expected a list with a number per completion"),
    ],
)
def test_an_error_is_a_warning_and_a_missing_value(file: Path, name: str, told: str) -> None:
    log: list[str] = []
    assert measure(file, name, "exact", log=log) == {"exact": 2 / 5}
    assert any(told in line and f"metric {name} is missing" in line for line in log)


def test_a_file_that_cannot_be_loaded_is_told_at_once_and_at_each_evaluation(file: Path) -> None:
    file.write_text("import no_such_library\n\ndef exact(prompts, completions, references): ...\n")
    at_start: list[str] = []
    load_functions([f"{file}:exact"], lambda _, text: at_start.append(text))
    assert "No module named 'no_such_library'" in at_start[0]
    log: list[str] = []
    assert measure(file, "exact", log=log) == {}
    assert log


def test_a_file_is_executed_once_and_draws_no_random_number_of_the_run(file: Path) -> None:
    count = file.with_name("count")
    file.write_text(
        "from __future__ import annotations\n"
        "import dataclasses, torch\n"
        "torch.manual_seed(0)\n"
        f"open({str(count)!r}, 'a').write('x')\n"
        "@dataclasses.dataclass\nclass Score:\n    value: float\n"
        "def one(prompts, **_):\n    return [Score(1.0).value for _ in prompts]\n"
        "two = one\n"
    )
    before = torch.get_rng_state()
    assert measure(file, "one", "two") == {"one": 1.0, "two": 1.0}
    assert torch.equal(torch.get_rng_state(), before)
    assert count.read_text() == "x"


def test_a_script_that_ends_itself_does_not_end_the_run(file: Path) -> None:
    file.write_text("import sys\n\ndef exact(**_): ...\n\nsys.exit(2)\n")
    log: list[str] = []
    load_functions([f"{file}:exact"], lambda _, text: log.append(text))
    assert "SystemExit: 2" in log[0]


def test_answers_beyond_fixed_positions_are_left_out_and_counted() -> None:
    log: list[str] = []
    records = [PromptedRecord([1] * size, [2]) for size in (4, 8, 9)]
    limits = ModelLimits(positions=12, fixed=True)
    kept = answerable(records, 4, limits, lambda _, text: log.append(text))
    assert kept == records[:2]
    assert "1 of 3 held-out records are left out" in log[0]
    assert answerable(records, 4, ModelLimits(positions=12), lambda *_: None) == records


def test_scores_that_are_no_numbers_are_left_out_and_counted(file: Path) -> None:
    log: list[str] = []
    assert measure(file, "some", log=log) == {"some": 1.0}
    assert log == ["metric some: 1 of 5 scores are left out: not finite"]


def test_completions_that_fail_leave_all_metrics_out(file: Path) -> None:
    log: list[str] = []
    metrics = UserMetrics(
        load_functions([f"{file}:exact"], lambda *_: None),
        RECORDS, TOKENIZER, SingleRank(), lambda _, text: log.append(text),
    )  # fmt: skip

    def fail(prompts: list[list[int]]) -> list[list[int]]:
        raise RuntimeError("out of memory")

    assert metrics.measure(fail, 2, lambda: None) == {}
    assert "out of memory" in log[0]

    def stop() -> None:
        raise EvaluationInterrupted("stop")

    with pytest.raises(EvaluationInterrupted):
        metrics.measure(fail, 2, stop)


def test_the_last_answer_of_a_record_is_generated() -> None:
    text = TextExample("a", [1, 2, 3, 4, 5, 6], [IGNORED, 2, IGNORED, 4, 5, IGNORED])
    assert prompted(text) == PromptedRecord([1, 2, 3], [4, 5])
    other = TextExample("b", [1, 2], [IGNORED, IGNORED])
    assert prompted(other) is None
    assert prompted(TextExample("c", [1, 2, 3], [1, 2, 3])) is None, "it has no prompt"
    assert prompted(PreferenceExample("d", text, other)) == prompted(text)


def test_what_names_no_function_is_refused_before_the_run(file: Path) -> None:
    def fault(*entries: str) -> str:
        return " ".join(one.text for one in user_metric_problems(entries, ["loss"]))

    assert fault(f"{file}:exact", f"{file}:word_error") == ""
    assert "expected FILE.py:FUNCTION" in fault("exact")
    assert "it defines: exact, ends, broken" in fault(f"{file}:exactly")
    assert "cannot be read as Python" in fault("nowhere.py:exact")
    assert "named twice" in fault(f"{file}:exact", f"{file}:exact")
    file.write_text("def loss(): ...")
    assert "a metric of the run itself" in fault(f"{file}:loss")


def test_the_name_of_a_metric_says_which_way_is_better() -> None:
    assert is_better("exact", 0.5, than=0.4)
    assert is_better("word_error", 0.4, than=0.5)
    assert is_better("judge_loss", 0.4, than=0.5)
